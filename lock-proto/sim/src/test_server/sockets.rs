//! A simulated server of a byte protocol behind a TCP listener on loopback, with plain threads. A
//! mutex guards the server, so it serves one client at a time, as Redis does.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant as Clock;

use lock_proto::Instant;

/// Further connections are closed.
const MAX_CLIENTS: usize = 256;
/// A client that does not read for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// A server as a state machine: bytes of clients in, bytes out.
pub(super) trait ServerMachine: Send + 'static {
    fn connected(&mut self, now: Instant, client: u64);
    fn received(&mut self, now: Instant, client: u64, bytes: &[u8]);
    fn disconnected(&mut self, now: Instant, client: u64);
    fn handle_timeout(&mut self, now: Instant);
    fn next_deadline(&self) -> Option<Instant>;
    /// Takes the bytes for one of these clients, or the end of its connection.
    fn output(&mut self, clients: &BTreeMap<u64, TcpStream>) -> Option<ServerOutput>;
    /// The process is stopped, as by `SIGSTOP`.
    fn paused(&mut self, now: Instant);
    fn resumed(&mut self, now: Instant);
    fn killed(&mut self, now: Instant);
    fn restarted(&mut self, now: Instant, keep_data: bool);
}

#[derive(Debug)]
pub(super) enum ServerOutput {
    Send(u64, Vec<u8>),
    Close(u64),
}

/// A simulated server on a loopback port. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Served<M: ServerMachine> {
    shared: Arc<SocketsShared<M>>,
    address: SocketAddr,
    acceptor: Mutex<Option<JoinHandle<()>>>,
    timer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SocketsShared<M> {
    start: Clock,
    state: Mutex<SocketsState<M>>,
    changed: Condvar,
}

#[derive(Debug)]
struct SocketsState<M> {
    machine: M,
    clients: BTreeMap<u64, TcpStream>,
    last_client: u64,
    phase: SocketPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketPhase {
    Running,
    /// The process is stopped; received bytes stay in the kernel.
    Paused,
    /// The process was killed and may be restarted.
    Killed,
    /// The server was dropped.
    Stopped,
}

impl SocketPhase {
    const fn is_over(self) -> bool {
        matches!(self, Self::Killed | Self::Stopped)
    }
}

impl<M: ServerMachine> Served<M> {
    /// Starts a server on a free port of 127.0.0.1.
    pub(super) fn start(machine: impl FnOnce(SocketAddr) -> M) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = SocketsState {
            machine: machine(address),
            clients: BTreeMap::new(),
            last_client: 0,
            phase: SocketPhase::Running,
        };
        let shared = Arc::new(SocketsShared { start: Clock::now(), state: Mutex::new(state), changed: Condvar::new() });
        let timer = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("server timer".into()).spawn(move || shared.run_timer())?
        };
        let served = Self { acceptor: Mutex::default(), timer: Some(timer), shared, address };
        served.accept_on(listener)?;
        Ok(served)
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its connections end, and new ones are refused.
    pub(super) fn kill(&self) {
        self.stop(SocketPhase::Killed);
    }

    /// Starts a killed server on the same port; kills it first if it is up.
    pub(super) fn restart(&self, keep_data: bool) -> io::Result<()> {
        self.kill();
        let listener = TcpListener::bind(self.address)?;
        {
            let mut state = self.shared.lock();
            let now = self.shared.now();
            state.machine.restarted(now, keep_data);
            state.flush(now);
            state.phase = SocketPhase::Running;
        }
        self.shared.changed.notify_all();
        self.accept_on(listener)
    }

    /// Connections stay open, and received bytes wait.
    pub(super) fn pause(&self) {
        self.shared.change_phase(SocketPhase::Running, SocketPhase::Paused, M::paused);
    }

    pub(super) fn resume(&self) {
        self.shared.change_phase(SocketPhase::Paused, SocketPhase::Running, M::resumed);
    }

    /// Gives access to the machine.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut M, Instant) -> T) -> T {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        let result = f(&mut state.machine, now);
        state.flush(now);
        drop(state);
        self.shared.changed.notify_all();
        result
    }

    fn accept_on(&self, listener: TcpListener) -> io::Result<()> {
        let acceptor = accept_on(listener, &self.shared)?;
        *self.acceptor.lock().unwrap_or_else(PoisonError::into_inner) = Some(acceptor);
        Ok(())
    }

    fn stop(&self, how: SocketPhase) {
        {
            let mut state = self.shared.lock();
            let now = self.shared.now();
            if !state.phase.is_over() {
                state.machine.killed(now);
            }
            state.phase = how;
            for (client, stream) in core::mem::take(&mut state.clients) {
                let _ = stream.shutdown(Shutdown::Both);
                state.machine.disconnected(now, client);
            }
        }
        self.shared.changed.notify_all();
        let acceptor = self.acceptor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(acceptor) = acceptor {
            // Connecting unblocks `accept`; the thread then sees that it must end.
            let _ = TcpStream::connect(self.address);
            let _ = acceptor.join();
        }
    }
}

impl<M: ServerMachine> Drop for Served<M> {
    fn drop(&mut self) {
        self.stop(SocketPhase::Stopped);
        if let Some(timer) = self.timer.take() {
            let _ = timer.join();
        }
    }
}

fn accept_on<M: ServerMachine>(listener: TcpListener, shared: &Arc<SocketsShared<M>>) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name("server acceptor".into()).spawn(move || {
        for stream in listener.incoming() {
            if shared.lock().phase.is_over() {
                return;
            }
            match stream {
                // An error drops the stream, which closes the connection.
                Ok(stream) => drop(shared.add_client(stream)),
                // Possibly too many open files, which may pass.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    })
}

impl<M: ServerMachine> SocketsShared<M> {
    fn lock(&self) -> MutexGuard<'_, SocketsState<M>> {
        // A panic of another thread leaves the machine consistent, between two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    fn change_phase(&self, from: SocketPhase, to: SocketPhase, change: fn(&mut M, Instant)) {
        let mut state = self.lock();
        if state.phase == from {
            state.phase = to;
            let now = self.now();
            change(&mut state.machine, now);
            state.flush(now);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn add_client(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let writer = stream.try_clone()?;
        let client = {
            let mut state = self.lock();
            // The server may have been killed since the connection was accepted.
            if state.phase.is_over() || state.clients.len() >= MAX_CLIENTS {
                return Ok(());
            }
            state.last_client += 1;
            let client = state.last_client;
            state.clients.insert(client, writer);
            let now = self.now();
            state.machine.connected(now, client);
            state.flush(now);
            client
        };
        let shared = Arc::clone(self);
        let spawned =
            thread::Builder::new().name(format!("server client {client}")).spawn(move || shared.read(client, stream));
        if let Err(error) = spawned {
            let mut state = self.lock();
            state.clients.remove(&client);
            state.machine.disconnected(self.now(), client);
            return Err(error);
        }
        Ok(())
    }

    /// Passes the client's bytes to the machine, until the client or the server is gone.
    fn read(&self, client: u64, mut stream: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        loop {
            let received = stream.read(&mut buffer);
            let mut state = self.lock();
            while state.phase == SocketPhase::Paused {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let now = self.now();
            match received {
                Ok(n) if n > 0 && state.clients.contains_key(&client) => {
                    state.machine.received(now, client, &buffer[..n]);
                    state.flush(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(_) | Err(_) => {
                    state.clients.remove(&client);
                    state.machine.disconnected(now, client);
                    return;
                }
            }
            drop(state);
            // A client may have blocked with a deadline, which the timer thread must see.
            self.changed.notify_all();
        }
    }

    fn run_timer(&self) {
        let mut state = self.lock();
        loop {
            let now = self.now();
            let due = match state.phase {
                SocketPhase::Stopped => return,
                SocketPhase::Paused | SocketPhase::Killed => None,
                SocketPhase::Running => state.machine.next_deadline(),
            };
            state = match due {
                Some(at) if at <= now => {
                    state.machine.handle_timeout(now);
                    state.flush(now);
                    state
                }
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at.since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<M: ServerMachine> SocketsState<M> {
    /// Sends the pending output, and closes the connections that the machine closed.
    fn flush(&mut self, now: Instant) {
        while let Some(output) = self.machine.output(&self.clients) {
            match output {
                ServerOutput::Send(client, bytes) => {
                    let Some(stream) = self.clients.get_mut(&client) else { continue };
                    if stream.write_all(&bytes).is_err() {
                        self.close(now, client);
                    }
                }
                ServerOutput::Close(client) => self.close(now, client),
            }
        }
    }

    fn close(&mut self, now: Instant, client: u64) {
        if let Some(stream) = self.clients.remove(&client) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.machine.disconnected(now, client);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use crate::redis::{Node, NodeConfig};

    #[test]
    fn connection_accepted_before_kill_is_closed() {
        let served = Served::start(|_| Node::new(Instant::ZERO, NodeConfig::new(1))).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        served.kill();
        served.shared.add_client(accepted).unwrap();
        assert!(served.shared.lock().clients.is_empty());
    }
}
