//! Clients that a world of etcd members can run.

use alloc::string::String;
use core::fmt::Debug;

use crate::check::Rule;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::Machine;
use lock_proto::Misuse;
use lock_proto::etcd::{Client, Output, OwnerKey, RpcId, RpcReply, Status, StreamId, StreamReceived};

/// A client of etcd: a [`Machine`] that makes calls and opens streams. The methods correspond to
/// those of [`Client`]. See [`Builder::machine`](super::Builder::machine) and
/// [`Plan::run_etcd`](crate::Plan::run_etcd).
pub trait EtcdClient: Machine + Clone + Debug {
    /// Each grant is proven by a revision at which its key was the first of the lock's queue, see
    /// [`owner`](Self::owner). Otherwise writes to the protected resource compare nothing but the
    /// fencing token, and watches may start in the past.
    const PROVES: bool = true;
    /// Rules that the client does not promise: a violation is recorded, and does not panic.
    const EXCUSED: &'static [Rule] = &[];

    /// A unary call has ended.
    fn handle_reply(&mut self, now: Instant, rpc: RpcId, reply: Result<RpcReply, Status>);

    /// A message arrived on a stream.
    fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived);

    /// A stream has ended, or could not be opened.
    fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, status: Status);

    /// Returns the next action for the host.
    fn poll_output(&mut self) -> Option<Output>;

    /// Returns the next violation that the client has found of itself.
    fn poll_violation(&mut self) -> Option<(Rule, String)> {
        None
    }

    /// Returns a holder's key and the revision that proves its grant. A grant without one violates
    /// [`Rule::Contract`](crate::Rule::Contract).
    fn owner(&self, lock: LockId) -> Option<OwnerKey>;

    /// Like [`owner`](Self::owner), for transactions that compare the revision.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    fn owner_guard(&mut self, now: Instant, lock: LockId) -> Result<OwnerKey, Misuse>;
}

impl EtcdClient for Client {
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
}
