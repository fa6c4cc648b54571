//! A hostile server that can be replaced by a real one.

use core::net::{Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::kit::ms;

pub(crate) type Behaviour = fn(&mut Conn) -> io::Result<()>;

/// A port on loopback with this behaviour, which later becomes a proxy to a real server.
pub(crate) struct Peer {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// The real server, once it has taken over.
    server: Mutex<Option<SocketAddr>>,
    /// Prefix of the first command. Matching connections get the behaviour, others the server.
    only: Mutex<Option<&'static [u8]>>,
    stop: AtomicBool,
    connects: AtomicU64,
    /// Maximum number of bytes written to one connection.
    max_written: AtomicU64,
}

/// A connection with hostile behaviour.
pub(crate) struct Conn {
    stream: TcpStream,
    state: Arc<State>,
    written: u64,
}

impl Conn {
    pub(crate) fn request(&mut self) -> io::Result<()> {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let count = self.stream.write(bytes)?;
        self.written += count as u64;
        self.state.max_written.fetch_max(self.written, Ordering::SeqCst);
        if count == bytes.len() { Ok(()) } else { self.write(&bytes[count..]) }
    }

    pub(crate) fn flood(&mut self, bytes: &[u8], total: usize) -> io::Result<()> {
        let many = bytes.repeat((64 * 1024 / bytes.len()).max(1));
        (0..total / many.len()).try_for_each(|_| self.write(&many))
    }

    pub(crate) fn drain(&mut self) -> io::Result<()> {
        io::copy(&mut self.stream, &mut io::sink()).map(drop)
    }

    /// Keeps the connection open without reading.
    pub(crate) fn stall(&self) {
        while !self.state.stop.load(Ordering::SeqCst) && self.state.server.lock().unwrap().is_none() {
            thread::sleep(ms(5));
        }
    }
}

impl Peer {
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            server: Mutex::new(None),
            only: Mutex::new(None),
            stop: AtomicBool::new(false),
            connects: AtomicU64::new(0),
            max_written: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                shared.connects.fetch_add(1, Ordering::SeqCst);
                let state = Arc::clone(&shared);
                // The client judges how a connection ends.
                thread::spawn(move || drop(serve(stream, state, behaviour)));
            }
        });
        Self { address, state }
    }

    /// Starts a proxy to a real server. Connections that start with this command get the behaviour.
    pub(crate) fn in_front_of(server: SocketAddr, first: &'static [u8], behaviour: Behaviour) -> Self {
        let peer = Self::start(behaviour);
        *peer.state.only.lock().unwrap() = Some(first);
        peer.forward_to(server);
        peer
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Forwards new connections to this server from now on.
    pub(crate) fn forward_to(&self, server: SocketAddr) {
        *self.state.server.lock().unwrap() = Some(server);
    }

    pub(crate) fn connects(&self) -> u64 {
        self.state.connects.load(Ordering::SeqCst)
    }

    pub(crate) fn max_written(&self) -> u64 {
        self.state.max_written.load(Ordering::SeqCst)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, state: Arc<State>, behaviour: Behaviour) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let server = *state.server.lock().unwrap();
    let only = *state.only.lock().unwrap();
    let upstream = match (server, only) {
        (None, _) => None,
        (Some(server), None) => Some(server),
        (Some(server), Some(first)) => {
            let mut buffer = vec![0; first.len()];
            while stream.peek(&mut buffer)? < first.len() {
                thread::sleep(ms(1));
            }
            (buffer != first).then_some(server)
        }
    };
    let Some(server) = upstream else { return behaviour(&mut Conn { stream, state, written: 0 }) };
    let upstream = TcpStream::connect(server)?;
    upstream.set_nodelay(true)?;
    let (from, to) = (stream.try_clone()?, upstream.try_clone()?);
    thread::spawn(move || forward(from, to));
    forward(upstream, stream);
    Ok(())
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
