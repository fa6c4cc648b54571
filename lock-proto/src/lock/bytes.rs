//! Clients of stores that speak bytes in order over connections, such as Redis.

use super::event::Event;
use super::machine::Machine;
use crate::id::{ConnId, LockId, NodeId};
use crate::time::Instant;
use crate::url::Target;

/// A client whose connections carry bytes in order: the driver gives it sockets, and a simulated world servers.
pub trait ByteClient: Machine {
    /// Bytes came on this connection, in any portions.
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);

    /// The next thing to be done, in the order in which it was decided.
    #[must_use = "an output that is not carried out stalls the client"]
    fn poll_output(&mut self) -> Option<Output>;

    /// The bytes to write to this connection next; empty if there are none, or if it is not current. Bounded, so there may
    /// be more after [`consume`](Self::consume). Commands are encoded now: where a host lets other tasks ask first,
    /// requests of several locks can leave as one.
    fn outgoing(&mut self, conn: ConnId) -> &[u8];

    /// Returns true if [`outgoing`](Self::outgoing) would show anything. Encodes nothing.
    fn has_outgoing(&self, conn: ConnId) -> bool;

    /// The first `n` bytes of [`outgoing`](Self::outgoing) have been taken by the socket.
    fn consume(&mut self, conn: ConnId, n: usize);

    /// The address of a node; `None` after the last one.
    fn target(&self, _node: NodeId) -> Option<&Target> {
        None
    }

    /// Returns true if this connection is closed because the server there is the wrong one, such as a read-only replica.
    /// The next attempt then begins with other addresses of the same name.
    fn is_wrong_server(&self, _conn: ConnId) -> bool {
        false
    }
}

/// What the host of a [`ByteClient`] has to do. Exhaustive on purpose: a new duty must not go unnoticed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the client"]
pub enum Output {
    /// Open a connection, then report it by [`handle_connected`](Machine::handle_connected) or
    /// [`handle_disconnected`](Machine::handle_disconnected). Resolve the name anew each time; if it has several addresses,
    /// do not wait for a dead one (RFC 8305).
    Connect {
        /// Where to.
        node: NodeId,
        /// Its name from now on.
        conn: ConnId,
    },
    /// Close this connection (or stop opening it). Nothing needs to be reported.
    Disconnect {
        /// The connection.
        conn: ConnId,
    },
    /// Notify the owner of this acquisition.
    Event {
        /// Which acquisition.
        lock: LockId,
        /// What happened.
        event: Event,
    },
    /// The shutdown is over, every connection is closed.
    Stopped {
        /// Locks that something may be left of, until its TTL ends: their deletes were not confirmed in time.
        unreleased: u32,
    },
}
