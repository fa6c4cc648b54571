//! The outputs of a hub of the queue family.

use core::time::Duration;

use crate::id::{CallId, LockId};
use crate::lock::event::Event;
use crate::lock::operation::{OperationEvent, OperationId};

/// Outputs of a hub, in order. `R` is a request to a server, and `T` what only this store has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QueueOutput<R, T> {
    /// Send this request, and report `handle_reply`. Report `NotSent` if it was not sent within
    /// `timeout`. If the connection ends before the reply, report `Unknown`.
    // E13
    Send {
        /// The id to return with the reply.
        call: CallId,
        /// The request.
        request: R,
        /// How long the request may wait to be sent.
        timeout: Duration,
    },
    /// Something that only this store has.
    Store(T),
    /// Report an event of a lock or a candidacy.
    Event {
        /// The lock or candidacy.
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
    /// The shutdown has finished.
    Stopped {
        /// Nodes (on etcd keys) and sessions (leases) whose end was not confirmed in time.
        unreleased: u32,
    },
}

impl<R, T> From<(LockId, Event)> for QueueOutput<R, T> {
    fn from((lock, event): (LockId, Event)) -> Self {
        Self::Event { lock, event }
    }
}

impl<R, T> From<(OperationId, OperationEvent)> for QueueOutput<R, T> {
    fn from((id, event): (OperationId, OperationEvent)) -> Self {
        Self::Operation { id, event }
    }
}
