//! Clients of stores that speak a byte protocol, such as Redis.

use alloc::boxed::Box;

use super::answer::Cause;
use super::credentials::CredentialsRequest;
use super::event::Event;
use super::machine::Machine;
use super::operation::{OperationEvent, OperationId};
use crate::id::{ConnId, LockId, NodeId};
use crate::time::Instant;
use crate::url::Target;

/// A client whose connections carry ordered bytes. The driver connects it to sockets, the
/// simulation to simulated servers.
pub trait ByteClient: Machine {
    /// Bytes arrived on this connection, in portions of any size.
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]);

    /// Returns the next output, in the order of decision.
    #[must_use = "an output that is not carried out stalls the client"]
    fn poll_output(&mut self) -> Option<Output>;

    /// Returns the next bytes to write to this connection; empty if there are none, or if it is not
    /// current. The size is bounded, so more may follow after [`consume`](Self::consume). Commands
    /// are encoded now: if the host runs other tasks first, requests of several locks can share a
    /// command.
    fn outgoing(&mut self, conn: ConnId) -> &[u8];

    /// Returns true if [`outgoing`](Self::outgoing) would return bytes. Encodes nothing.
    fn has_outgoing(&self, conn: ConnId) -> bool;

    /// The socket has taken the first `n` bytes of [`outgoing`](Self::outgoing). A larger `n`
    /// counts as all of them.
    fn consume(&mut self, conn: ConnId, n: usize);

    /// Returns the address of a node; `None` after the last one.
    fn target(&self, _node: NodeId) -> Option<&Target> {
        None
    }

    /// Returns true if the handshake on this connection has succeeded. The first valid reply then
    /// shows that the server works.
    fn is_up(&self, _conn: ConnId) -> bool {
        true
    }

    /// Returns true if this connection is closed because it reached the wrong server, such as a
    /// read-only replica. The next attempt then starts with other addresses of the name.
    fn is_wrong_server(&self, _conn: ConnId) -> bool {
        false
    }
}

/// An output for the host of a [`ByteClient`]. Exhaustive on purpose, so that a host handles every
/// case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the client"]
pub enum Output {
    /// Open a connection, then report it by [`handle_connected`](Machine::handle_connected) or
    /// [`handle_disconnected`](Machine::handle_disconnected). Resolve the name anew each time. If
    /// it has several addresses, do not wait for one that does not respond (RFC 8305).
    Connect {
        /// The server to connect to.
        node: NodeId,
        /// The id of the new connection.
        conn: ConnId,
        /// The server's address now. It may differ from that of an earlier connection.
        target: Box<Target>,
    },
    /// Supply credentials for this connection by
    /// [`handle_credentials`](Machine::handle_credentials). If the same connection requests again,
    /// only the latest request counts. Occurs only with
    /// [`Config::request_credentials`](super::Config::request_credentials) or a
    /// [`password_file`](crate::Login::password_file).
    Credentials {
        /// The connection.
        conn: ConnId,
        /// What is requested.
        request: Box<CredentialsRequest>,
    },
    /// Close this connection, or stop opening it. Nothing needs to be reported.
    Disconnect {
        /// The connection.
        conn: ConnId,
        /// Why it failed, for a log; `None` if the client no longer needs it.
        why: Option<Cause>,
    },
    /// Notify the owner of this acquisition.
    Event {
        /// The acquisition.
        lock: LockId,
        /// Its event.
        event: Event,
    },
    /// Notify the owner of this operation.
    Operation {
        /// The operation.
        id: OperationId,
        /// Its event.
        event: OperationEvent,
    },
    /// The shutdown is complete, and every connection is closed.
    Stopped {
        /// Locks whose deletes, and sessions whose ends, were not confirmed in time. Their keys may
        /// exist until the TTL ends.
        unreleased: u32,
    },
}
