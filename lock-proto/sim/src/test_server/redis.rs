//! A simulated Redis server on a port.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use lock_proto::Instant;

use super::sockets::{Served, ServerMachine, ServerOutput};
use crate::redis::{Node, NodeConfig};

/// A simulated Redis server on a loopback port, with every setting of a [`Node`]. Dropping it stops
/// it. Tests of a service need [`TestServer`](super::TestServer) only.
#[derive(Debug)]
pub struct RedisServer(Served<Node>);

impl RedisServer {
    /// Starts a server on a free port of 127.0.0.1. Its wall clock is the system's.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened or a thread cannot be started.
    pub fn start(config: NodeConfig) -> io::Result<Self> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let served = Served::start(|address| Node::new(Instant::ZERO, config.unix_time(unix).port(address.port())))?;
        Ok(Self(served))
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Kills the server: its connections end and new ones are refused. Its data stays for
    /// [`restart`](Self::restart).
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Restarts a killed server on the same port, with or without its former data.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened again.
    pub fn restart(&self, keep_data: bool) -> io::Result<()> {
        self.0.restart(keep_data)
    }

    /// Stops the server as `SIGSTOP` does: connections stay open, but the server does not reply.
    pub fn pause(&self) {
        self.0.pause();
    }

    /// Resumes a paused server, which then handles the bytes received meanwhile.
    pub fn resume(&self) {
        self.0.resume();
    }

    /// Gives access to the node.
    pub fn with_node<T>(&self, f: impl FnOnce(&mut Node, Instant) -> T) -> T {
        self.0.with(f)
    }
}

impl ServerMachine for Node {
    fn connected(&mut self, now: Instant, client: u64) {
        self.handle_connected(now, client);
    }

    fn received(&mut self, now: Instant, client: u64, bytes: &[u8]) {
        self.handle_received(now, client, bytes);
    }

    fn disconnected(&mut self, now: Instant, client: u64) {
        self.handle_disconnected(now, client);
    }

    fn handle_timeout(&mut self, now: Instant) {
        Self::handle_timeout(self, now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Self::next_deadline(self)
    }

    fn output(&mut self, clients: &BTreeMap<u64, TcpStream>) -> Option<ServerOutput> {
        if let Some(client) = clients.keys().find(|client| !self.outgoing(**client).is_empty()) {
            let bytes = self.outgoing(*client).to_vec();
            self.consume(*client, bytes.len());
            return Some(ServerOutput::Send(*client, bytes));
        }
        self.poll_closed().map(ServerOutput::Close)
    }

    fn paused(&mut self, _: Instant) {}

    fn resumed(&mut self, _: Instant) {}

    fn killed(&mut self, _: Instant) {}

    fn restarted(&mut self, now: Instant, keep_data: bool) {
        self.restart(now, keep_data);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use core::time::Duration;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::thread;

    use super::*;

    fn client(served: &RedisServer) -> BufReader<TcpStream> {
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
        let served = RedisServer::start(NodeConfig::new(1)).unwrap();
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
            let served = RedisServer::start(NodeConfig::new(1)).unwrap();
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
    fn paused_server_replies_after_resume() {
        let served = RedisServer::start(NodeConfig::new(1)).unwrap();
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
