//! Outputs of the hub.

use super::key::Key;
use crate::id::{LockId, NodeId};
use crate::lock::{Event, OperationEvent, OperationId};

/// Outputs of the hub, in one ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocksOutput {
    /// Send this request to the node and pass the reply to `handle_reply`, no matter how late it
    /// is. If nothing arrives from the node for
    /// [`Config::request_timeout`](super::Config::request_timeout), close the connection and reply
    /// `Unknown`, or `NotSent` if the request was not sent.
    Send {
        /// The call to pass to `handle_reply`.
        call: crate::CallId,
        /// The request.
        request: super::request::Request,
    },
    /// Deliver an event to an acquisition.
    Event {
        /// The acquisition.
        lock: LockId,
        /// The event.
        event: Event,
    },
    /// Report an event of an operation.
    Operation {
        /// The operation.
        id: OperationId,
        /// The event.
        event: OperationEvent,
    },
    /// Watch for one release of this lock on this node. Stop after it, until the next `Listen`.
    Listen {
        /// The node.
        node: NodeId,
        /// The lock.
        key: Key,
    },
    /// Stop watching this lock on this node.
    Unlisten {
        /// The node.
        node: NodeId,
        /// The lock.
        key: Key,
    },
    /// The shutdown is complete.
    Stopped {
        /// Locks whose deletes were not confirmed in time. Their keys may remain for their TTL.
        unreleased: u32,
    },
}
impl From<(LockId, Event)> for LocksOutput {
    fn from((lock, event): (LockId, Event)) -> Self {
        Self::Event { lock, event }
    }
}

impl From<(OperationId, OperationEvent)> for LocksOutput {
    fn from((id, event): (OperationId, OperationEvent)) -> Self {
        Self::Operation { id, event }
    }
}
