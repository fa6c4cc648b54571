//! What the hub tells its surroundings.

use core::time::Duration;

use bytes::Bytes;

use super::request::Request;
use crate::id::{CallId, LockId};
use crate::lock::{ElectionEvent, Event, QueryId};

/// One watch of the hub. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub(crate) u64);

impl WatchId {
    /// For whoever uses a [`Channel`](super::Channel) alone: the caller sees to it that no number is used twice.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What the hub tells its surroundings. One ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocksOutput {
    /// Send this request, and give the answer to `handle_reply`. If it has not left within `patience`, that is `NotSent`. Once it has left,
    /// it stays in flight until its answer or the end of the connection, which is `Unknown` (requirement E13).
    Send {
        /// To be given back with the answer.
        call: CallId,
        /// The request.
        request: Request,
        /// How long it may wait to be sent.
        timeout: Duration,
    },
    /// Watch a key from now on, until told otherwise: `handle_watching` when it is open, and again after each re-opening;
    /// `handle_changed` for each change; `handle_unsubscribed` while it cannot be heard. Never from an earlier revision: etcd parks such a
    /// watch, and works that off every 100 ms only (requirement E5).
    Watch {
        /// To be given back with what happens.
        watch: WatchId,
        /// The key, or the first of a range.
        key: Bytes,
        /// Where the range ends, exclusive; empty for the one key.
        end: Bytes,
        /// Only deletions matter: others need not be told.
        deletions: bool,
    },
    /// Watch it no longer. What still comes is dropped.
    Unwatch {
        /// Which one.
        watch: WatchId,
    },
    /// Tell an acquisition or a candidacy.
    Event {
        /// Which one.
        lock: LockId,
        /// What.
        event: Event,
    },
    /// Tell whoever asks about or observes an election.
    Election {
        /// Which question or observation.
        query: QueryId,
        /// What.
        event: ElectionEvent,
    },
    /// The shutdown is over.
    Stopped {
        /// Keys and leases that may be left, until their TTL ends: their ends were not confirmed in time.
        unreleased: u32,
    },
}
