//! What a world of etcd members can run.

use core::fmt::Debug;

use bytes::Bytes;

use crate::error::Misuse;
use crate::etcd::{Client, Output, OwnerKey, QueryId, RpcId, RpcReply, Status, StreamId, StreamReceived};
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::lock::{Acquire, Machine};
use crate::time::Instant;

/// A client that speaks to etcd members: a [`Machine`] that makes calls and opens streams.
///
/// The methods mean what those of [`Client`] mean. Implement it for a lock of your own, and a
/// [`World`](super::World) runs it and judges it: see [`Builder::machine`](super::Builder::machine)
/// and [`Plan::run_etcd`](crate::sim::Plan::run_etcd).
pub trait EtcdClient: Machine + Clone + Debug {
    /// The connection is open.
    fn handle_connected(&mut self, now: Instant, conn: ConnId);

    /// The connection could not be opened, or has ended.
    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault);

    /// A unary call has ended.
    fn handle_reply(&mut self, now: Instant, rpc: RpcId, reply: Result<RpcReply, Status>);

    /// A message came on a stream.
    fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived);

    /// A stream has ended, or could not be opened.
    fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status);

    /// The next thing to be done.
    fn poll_output(&mut self) -> Option<Output>;

    /// The key that a holder has, and the revision that proves its grant. A grant without one breaks
    /// [`Rule::Contract`](crate::sim::Rule::Contract).
    fn owner(&self, lock: LockId) -> Option<OwnerKey>;

    /// The same, for transactions that compare its revision.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    fn owner_guard(&mut self, now: Instant, lock: LockId) -> Result<OwnerKey, Misuse>;

    /// Stands for election.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many candidacies.
    fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse>;

    /// Changes the value of a candidate that leads.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it does not lead.
    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse>;

    /// Asks who leads.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, or a shutdown under way.
    fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse>;

    /// Observes who leads.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse>;

    /// Ends a question or an observation.
    fn close_query(&mut self, now: Instant, query: QueryId);

    /// What [`next_deadline`](Machine::next_deadline) is for, to be shown in reports.
    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        self.next_deadline().map(|at| (at, "a timer"))
    }
}

impl EtcdClient for Client {
    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.handle_connected(now, conn);
    }

    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.handle_disconnected(now, conn, why);
    }

    fn handle_reply(&mut self, now: Instant, rpc: RpcId, reply: Result<RpcReply, Status>) {
        self.handle_reply(now, rpc, reply);
    }

    fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        self.handle_message(now, stream, message);
    }

    fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status) {
        self.handle_stream_ended(now, stream, status);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.poll_output()
    }

    fn owner(&self, lock: LockId) -> Option<OwnerKey> {
        self.owner(lock)
    }

    fn owner_guard(&mut self, now: Instant, lock: LockId) -> Result<OwnerKey, Misuse> {
        self.owner_guard(now, lock)
    }

    fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.campaign(now, want, value)
    }

    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse> {
        self.proclaim(now, lock, value)
    }

    fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.leader(now, name)
    }

    fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.observe(now, name)
    }

    fn close_query(&mut self, now: Instant, query: QueryId) {
        self.close_query(now, query);
    }

    fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        self.next_deadline_reason()
    }
}
