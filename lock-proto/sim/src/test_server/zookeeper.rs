//! A simulated ZooKeeper server on a port: an ensemble of one member.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;

use lock_proto::Instant;

use super::sockets::{Served, ServerMachine, ServerOutput};
use crate::zookeeper::{Ensemble, EnsembleConfig, EnsembleOutput};

/// The member that clients connect to.
const MEMBER: usize = 0;

pub(super) fn start(config: EnsembleConfig) -> io::Result<Served<Ensemble>> {
    Served::start(|_| Ensemble::new(Instant::ZERO, config))
}

impl ServerMachine for Ensemble {
    fn connected(&mut self, now: Instant, client: u64) {
        self.handle_connected(now, MEMBER, client);
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

    fn output(&mut self, _: &BTreeMap<u64, TcpStream>) -> Option<ServerOutput> {
        Some(match self.poll_output()? {
            EnsembleOutput::Send { conn, bytes } => ServerOutput::Send(conn, bytes),
            EnsembleOutput::Closed { conn } => ServerOutput::Close(conn),
        })
    }

    fn paused(&mut self, now: Instant) {
        self.freeze(now, MEMBER);
    }

    fn resumed(&mut self, now: Instant) {
        self.thaw(now, MEMBER);
    }

    fn killed(&mut self, now: Instant) {
        self.crash(now, MEMBER);
    }

    fn restarted(&mut self, now: Instant, _keep_data: bool) {
        self.start(now, MEMBER);
    }
}
