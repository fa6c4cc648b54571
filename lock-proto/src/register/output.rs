//! Outputs of a client to its host.

use core::time::Duration;

use bytes::Bytes;

use super::record::Revision;
use super::request::Request;
use crate::id::{CallId, LockId};
use crate::lock::{Event, OperationEvent, OperationId};

/// What the host must do, in order. The enum is exhaustive, so that no host misses a new variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the client"]
pub enum Output {
    /// Make this request once, and report `handle_reply`.
    // RG4
    Send {
        /// The id to return with the reply.
        call: CallId,
        /// The request.
        request: Request,
        /// The client waits this long for the reply. Then a read may be cancelled. A write must not
        /// be: it goes on, and its late reply is dropped.
        timeout: Duration,
    },
    /// Watch the key, in place of any earlier watch of it, and report `handle_changed` once, when
    /// it may have another revision than this one; at once if it has one already. A store that
    /// cannot watch ignores this.
    // RG7
    Watch {
        /// The key.
        key: Bytes,
        /// The last revision that the client saw; `None` if the key was absent.
        seen: Option<Revision>,
    },
    /// End the watch of this key, if it has not reported yet.
    Unwatch {
        /// The key.
        key: Bytes,
    },
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
        /// Locks whose release was not confirmed in time. They may remain for their TTL.
        unreleased: u32,
    },
}

impl From<(LockId, Event)> for Output {
    fn from((lock, event): (LockId, Event)) -> Self {
        Self::Event { lock, event }
    }
}

impl From<(OperationId, OperationEvent)> for Output {
    fn from((id, event): (OperationId, OperationEvent)) -> Self {
        Self::Operation { id, event }
    }
}
