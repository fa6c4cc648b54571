//! Outputs of the hub.

use bytes::Bytes;

use super::request::Request;
use crate::lock::QueueOutput;

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

/// Outputs of the hub.
pub type LocksOutput = QueueOutput<Request, WatchOutput>;

/// What the hub wants of the watch stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WatchOutput {
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
}
