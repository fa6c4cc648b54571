//! What the hub asks of its surroundings.

use super::request::Key;
use crate::id::{LockId, NodeId};
use crate::lock::Event;

/// What the hub tells its surroundings. One ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocksOutput {
    /// Send this request to the node, and give the answer to `handle_reply`, however late. When nothing at all arrives from the node for
    /// [`Config::request_timeout`](super::Config::request_timeout), close the connection and answer `Unknown`, or `NotSent` if it had not left.
    Send {
        /// To be given back with the answer.
        call: crate::CallId,
        /// The request.
        request: super::request::Request,
    },
    /// Tell an acquisition.
    Event {
        /// Which one.
        lock: LockId,
        /// What.
        event: Event,
    },
    /// Watch for the release of this lock on this node, from now on. After one release has been reported, no other needs
    /// to be reported until this comes again.
    Listen {
        /// The node.
        node: NodeId,
        /// The lock.
        key: Key,
    },
    /// Watch it no longer.
    Unlisten {
        /// The node.
        node: NodeId,
        /// The lock.
        key: Key,
    },
    /// The shutdown is over.
    Stopped {
        /// Locks that something may be left of, until its TTL ends: their deletes were not confirmed in time.
        unreleased: u32,
    },
}
