//! What a world of Redis nodes can run.

use core::fmt::Debug;

use crate::fault::Fault;
use crate::id::ConnId;
use crate::lock::Machine;
use crate::redis::{Client, Output};
use crate::time::Instant;

/// A client that speaks to Redis nodes: a [`Machine`] that sends and receives bytes.
///
/// The methods mean what those of [`Client`] mean. Implement it for a lock of your own, and a
/// [`World`](super::World) runs it and judges it: see [`Builder::machine`](super::Builder::machine)
/// and [`Plan::run_redis`](crate::sim::Plan::run_redis).
pub trait RedisClient: Machine + Clone + Debug {
    /// The connection is open.
    fn handle_connected(&mut self, now: Instant, conn: ConnId);

    /// These bytes came, in any portions.
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);

    /// The connection could not be opened, or has ended.
    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault);

    /// The next thing to be done.
    fn poll_output(&mut self) -> Option<Output>;

    /// The bytes to be written to this connection next; empty if there are none.
    fn outgoing(&mut self, conn: ConnId) -> &[u8];

    /// Whether [`outgoing`](Self::outgoing) would show anything.
    fn has_outgoing(&self, conn: ConnId) -> bool;

    /// The first `n` bytes of `outgoing` are written.
    fn consume(&mut self, conn: ConnId, n: usize);

    /// What [`next_deadline`](Machine::next_deadline) is for, to be shown in reports.
    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        self.next_deadline().map(|at| (at, "a timer"))
    }
}

impl RedisClient for Client {
    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.handle_connected(now, conn);
    }

    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.handle_received(now, conn, bytes);
    }

    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.handle_disconnected(now, conn, why);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.poll_output()
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        self.outgoing(conn)
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        self.has_outgoing(conn)
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        self.consume(conn, n);
    }

    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        self.next_deadline_reason()
    }
}
