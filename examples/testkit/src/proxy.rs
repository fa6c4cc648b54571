//! A proxy for TCP connections that tests can cut, pause or tamper with.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::wait_until;

/// Returns what is forwarded instead of these bytes of a client.
pub type Tamper = fn(&[u8]) -> Vec<u8>;

/// Forwards connections to a server. Closed on drop.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    stopped: AtomicBool,
    connects: AtomicU64,
    tampered: AtomicU64,
    /// Both ends of each connection.
    open: Mutex<Vec<TcpStream>>,
    paused: Mutex<bool>,
    resumed: Condvar,
}

impl Proxy {
    /// Starts a proxy that forwards everything.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        Self::tampering(server, <[u8]>::to_vec)
    }

    /// Starts a proxy that passes what clients send through `tamper`, as it arrives. Replies are
    /// forwarded as they are.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[must_use]
    pub fn tampering(server: SocketAddr, tamper: Tamper) -> Self {
        Self::run(server, tamper, Duration::ZERO)
    }

    /// Starts a proxy for clients that try again while the server refuses connections: it accepts
    /// theirs, and waits up to `timeout` for the server to listen.
    pub(crate) fn waiting(server: SocketAddr, timeout: Duration) -> Self {
        Self::run(server, <[u8]>::to_vec, timeout)
    }

    fn run(server: SocketAddr, tamper: Tamper, timeout: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("the address of a listener");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                shared.connects.fetch_add(1, Ordering::SeqCst);
                // The client judges how a connection ends.
                let _ = shared.connect(server, timeout).and_then(|server| shared.serve(client, server, tamper));
            }
        });
        Self { address, state }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.state.connects.load(Ordering::SeqCst)
    }

    /// How often `tamper` has changed or removed something.
    #[must_use]
    pub fn tampered(&self) -> u64 {
        self.state.tampered.load(Ordering::SeqCst)
    }

    /// Closes all connections. New ones are accepted.
    pub fn cut(&self) {
        for end in self.state.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Forwards nothing until [`resume`](Self::resume), like a network that drops all packets.
    /// Connections stay open, and new ones are accepted.
    pub fn pause(&self) {
        self.state.set_paused(true);
    }

    /// Forwards again, beginning with what was sent while paused.
    pub fn resume(&self) {
        self.state.set_paused(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        self.resume();
        let _ = TcpStream::connect(self.address);
        self.cut();
    }
}

impl State {
    /// Connects to the server. Tries again for a time if it does not listen.
    fn connect(&self, server: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let mut result = Err(ErrorKind::ConnectionRefused.into());
        // The last result tells whether it was in time.
        let _ = wait_until(timeout, || {
            result = TcpStream::connect(server);
            let is_refused = matches!(&result, Err(error) if error.kind() == ErrorKind::ConnectionRefused);
            !is_refused || self.stopped.load(Ordering::SeqCst)
        });
        result
    }

    fn serve(self: &Arc<Self>, client: TcpStream, server: TcpStream, tamper: Tamper) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, from_server) = (client.try_clone()?, server.try_clone()?);
        let (to_client, to_server) = (client.try_clone()?, server.try_clone()?);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).extend([client, server]);
        let state = Arc::clone(self);
        thread::spawn(move || state.forward(from_client, to_server, tamper));
        let state = Arc::clone(self);
        thread::spawn(move || state.forward(from_server, to_client, <[u8]>::to_vec));
        Ok(())
    }

    fn set_paused(&self, paused: bool) {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = paused;
        self.resumed.notify_all();
    }

    fn wait_while_paused(&self) {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.resumed.wait_while(paused, |paused| *paused).unwrap_or_else(PoisonError::into_inner));
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, tamper: Tamper) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            self.wait_while_paused();
            let bytes = tamper(&buffer[..count]);
            if bytes != buffer[..count] {
                self.tampered.fetch_add(1, Ordering::SeqCst);
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
