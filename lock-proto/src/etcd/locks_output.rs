//! Outputs of the hub.

use core::time::Duration;

use bytes::Bytes;

use super::request::Request;
use crate::id::{CallId, LockId};
use crate::lock::{ElectionEvent, Event, QueryId};

/// One watch of the hub. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub(crate) u64);

impl WatchId {
    /// Creates an id, to use a [`Channel`](super::Channel) alone. No number may be used twice.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Outputs of the hub, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocksOutput {
    /// Send this request, and report `handle_reply`. Report `NotSent` if it was not sent within
    /// `timeout`. If the connection ends before the reply, report `Unknown`.
    // E13
    Send {
        /// The id to return with the reply.
        call: CallId,
        /// The request.
        request: Request,
        /// How long the request may wait to be sent.
        timeout: Duration,
    },
    /// Watch a key from now on. Report `handle_watching` whenever the watch opens, `handle_changed`
    /// for each change, and `handle_unsubscribed` when it is interrupted. Do not start at an
    /// earlier revision: etcd serves such watches only every 100 ms (`syncWatchersLoop` in
    /// `watchable_store.go`).
    // E5
    Watch {
        /// The id to return with each event.
        watch: WatchId,
        /// The key, or the first of a range.
        key: Bytes,
        /// Where the range ends, exclusive; empty for the one key.
        end: Bytes,
        /// Only deletions matter; other changes need not be reported.
        deletions: bool,
    },
    /// End a watch. Later events of it are dropped.
    Unwatch {
        /// The watch.
        watch: WatchId,
    },
    /// Report an event of a lock or a candidacy.
    Event {
        /// The lock or candidacy.
        lock: LockId,
        /// The event.
        event: Event,
    },
    /// Report an event of a query or an observation.
    Election {
        /// The query or observation.
        query: QueryId,
        /// The event.
        event: ElectionEvent,
    },
    /// The shutdown has finished.
    Stopped {
        /// Keys and leases whose removal was not confirmed. They may remain until their TTL ends.
        unreleased: u32,
    },
}
