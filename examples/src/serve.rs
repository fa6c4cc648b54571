//! Simulated Redis servers on real sockets: a [`Node`] behind a TCP listener on loopback, with
//! plain threads. Meant for demonstrations, and for tests on machines without a Redis server. A
//! mutex guards each node, so it serves one client at a time, as Redis does.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant as Clock;

use lock_proto::Instant;
use lock_sim::redis::{Node, NodeConfig};

/// Further connections are closed.
const MAX_CLIENTS: usize = 256;
/// A client that does not read for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// A simulated Redis server on a loopback port. Dropping it stops it.
#[derive(Debug)]
pub struct Served {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
    timer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    start: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    node: Node,
    clients: BTreeMap<u64, TcpStream>,
    last_client: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// The process is stopped; received bytes stay in the kernel.
    Paused,
    /// The process was killed and may be restarted.
    Killed,
    /// The server was dropped.
    Stopped,
}

impl Phase {
    const fn is_over(self) -> bool {
        matches!(self, Self::Killed | Self::Stopped)
    }
}

impl Served {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened or a thread cannot be started.
    pub fn start(config: NodeConfig) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let node = Node::new(Instant::ZERO, config.unix_time(unix).port(address.port()));
        let state = State { node, clients: BTreeMap::new(), last_client: 0, phase: Phase::Running };
        let shared = Arc::new(Shared { start: Clock::now(), state: Mutex::new(state), changed: Condvar::new() });
        let timer = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("node timer".into()).spawn(move || shared.run_timer())?
        };
        let acceptor = accept_on(listener, &shared)?;
        Ok(Self { shared, address, acceptor: Some(acceptor), timer: Some(timer) })
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Kills the server: its connections end and new ones are refused. Its data stays for
    /// [`restart`](Self::restart).
    pub fn kill(&mut self) {
        self.stop(Phase::Killed);
    }

    /// Restarts a killed server on the same port, with or without its former data.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened again.
    pub fn restart(&mut self, keep_data: bool) -> io::Result<()> {
        self.kill();
        let listener = TcpListener::bind(self.address)?;
        {
            let mut state = self.shared.lock();
            let now = self.shared.now();
            state.node.restart(now, keep_data);
            state.flush(now);
            state.phase = Phase::Running;
        }
        self.acceptor = Some(accept_on(listener, &self.shared)?);
        Ok(())
    }

    /// Stops the server as `SIGSTOP` does: connections stay open, but the server does not reply.
    pub fn pause(&self) {
        self.shared.set_phase(Phase::Running, Phase::Paused);
    }

    /// Resumes a paused server, which then handles the bytes received meanwhile.
    pub fn resume(&self) {
        self.shared.set_phase(Phase::Paused, Phase::Running);
    }

    /// Gives access to the node.
    pub fn with_node<T>(&self, f: impl FnOnce(&mut Node, Instant) -> T) -> T {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        let result = f(&mut state.node, now);
        state.flush(now);
        drop(state);
        self.shared.changed.notify_all();
        result
    }

    fn stop(&mut self, how: Phase) {
        {
            let mut state = self.shared.lock();
            state.phase = how;
            let now = self.shared.now();
            for (client, stream) in core::mem::take(&mut state.clients) {
                let _ = stream.shutdown(Shutdown::Both);
                state.node.handle_disconnected(now, client);
            }
        }
        self.shared.changed.notify_all();
        if let Some(acceptor) = self.acceptor.take() {
            // Connecting unblocks `accept`; the thread then sees that it must end.
            let _ = TcpStream::connect(self.address);
            let _ = acceptor.join();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop(Phase::Stopped);
        if let Some(timer) = self.timer.take() {
            let _ = timer.join();
        }
    }
}

fn accept_on(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name("node acceptor".into()).spawn(move || {
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another thread leaves the node consistent, between two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    fn set_phase(&self, from: Phase, to: Phase) {
        let mut state = self.lock();
        if state.phase == from {
            state.phase = to;
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
            state.node.handle_connected(self.now(), client);
            client
        };
        let shared = Arc::clone(self);
        let spawned =
            thread::Builder::new().name(format!("node client {client}")).spawn(move || shared.read(client, stream));
        if let Err(error) = spawned {
            let mut state = self.lock();
            state.clients.remove(&client);
            state.node.handle_disconnected(self.now(), client);
            return Err(error);
        }
        Ok(())
    }

    /// Passes the client's bytes to the node, until the client or the server is gone.
    fn read(&self, client: u64, mut stream: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        loop {
            let received = stream.read(&mut buffer);
            let mut state = self.lock();
            while state.phase == Phase::Paused {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let now = self.now();
            match received {
                Ok(n) if n > 0 && state.clients.contains_key(&client) => {
                    state.node.handle_received(now, client, &buffer[..n]);
                    state.flush(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(_) | Err(_) => {
                    state.clients.remove(&client);
                    state.node.handle_disconnected(now, client);
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
                Phase::Stopped => return,
                Phase::Paused | Phase::Killed => None,
                Phase::Running => state.node.next_deadline(),
            };
            state = match due {
                Some(at) if at <= now => {
                    state.node.handle_timeout(now);
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

impl State {
    /// Sends the node's pending output, and closes the connections that it closed.
    fn flush(&mut self, now: Instant) {
        let mut gone = Vec::new();
        for (client, stream) in &mut self.clients {
            let bytes = self.node.outgoing(*client);
            let len = bytes.len();
            if len > 0 {
                if stream.write_all(bytes).is_err() {
                    gone.push(*client);
                }
                self.node.consume(*client, len);
            }
        }
        while let Some(client) = self.node.poll_closed() {
            gone.push(client);
        }
        for client in gone {
            if let Some(stream) = self.clients.remove(&client) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            self.node.handle_disconnected(now, client);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use std::io::{BufRead, BufReader};

    fn client(served: &Served) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(served.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        BufReader::new(stream)
    }

    fn command(client: &mut BufReader<TcpStream>, line: &str) -> String {
        client.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
        read_reply(client)
    }

    fn read_reply(client: &mut BufReader<TcpStream>) -> String {
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    #[test]
    fn serves_several_clients_and_blocking_timeouts() {
        let served = Served::start(NodeConfig::new(1)).unwrap();
        let (mut a, mut b) = (client(&served), client(&served));
        assert_eq!(command(&mut a, "SET k v"), "+OK");
        assert_eq!(command(&mut b, "STRLEN k"), "-ERR unknown command 'STRLEN', with args beginning with: 'k'");
        assert_eq!(command(&mut b, "EXISTS k"), ":1");
        assert_eq!(command(&mut a, "BLPOP list 0.05"), "*-1", "the wait ran out");
        a.get_mut().write_all(b"BLPOP list 0\r\n").unwrap();
        assert_eq!(command(&mut b, "PING"), "+PONG");
        // Waits until `a` blocks.
        while served.with_node(|node, _| node.blocked_count()) == 0 {
            thread::yield_now();
        }
        assert_eq!(command(&mut b, "RPUSH list x"), ":1");
        assert_eq!(read_reply(&mut a), "*2");
    }

    #[test]
    fn killed_server_restarts_with_or_without_data() {
        for keep in [true, false] {
            let mut served = Served::start(NodeConfig::new(1)).unwrap();
            let mut a = client(&served);
            assert_eq!(command(&mut a, "SET k v"), "+OK");
            served.kill();
            assert_eq!(read_reply(&mut a), "", "the connection has ended");
            assert!(TcpStream::connect(served.address()).is_err());
            served.restart(keep).unwrap();
            assert_eq!(command(&mut client(&served), "EXISTS k"), if keep { ":1" } else { ":0" });
        }
    }

    #[test]
    fn connection_accepted_before_kill_is_closed() {
        let mut served = Served::start(NodeConfig::new(1)).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        served.kill();
        served.shared.add_client(accepted).unwrap();
        assert!(served.shared.lock().clients.is_empty());
    }

    #[test]
    fn paused_server_replies_after_resume() {
        let served = Served::start(NodeConfig::new(1)).unwrap();
        let mut a = client(&served);
        assert_eq!(command(&mut a, "PING"), "+PONG");
        served.pause();
        a.get_mut().write_all(b"PING\r\n").unwrap();
        a.get_mut().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut line = String::new();
        assert!(a.read_line(&mut line).is_err(), "no answer while it is stopped");
        a.get_mut().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        served.resume();
        assert_eq!(read_reply(&mut a), "+PONG");
    }
}
