//! Rereading a queue after each reported change.

use crate::lock::Retry;
use crate::time::Instant;

/// Tracks how current the known state of a queue is, and the read in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueReading {
    /// The queue is known as of this revision.
    pub(super) known: i64,
    /// The latest revision at which a change was reported.
    pub(super) reported: i64,
    /// The latest reported revision when the read in flight was sent. Its reply cannot be older.
    pub(super) min_revision: i64,
    /// The read in flight, or the schedule of the next one.
    pub(super) retry: Retry,
}

impl QueueReading {
    pub(super) const fn new(known: i64, reported: i64) -> Self {
        Self { known, reported, min_revision: 0, retry: Retry::new(None) }
    }

    /// A watch opened at `revision`. If the state is known as of a later one, it may be that of a
    /// cluster that was restored to an earlier one, and must be read again.
    pub(super) fn opened_at(&mut self, revision: i64) {
        if revision < self.known {
            self.known = 0;
        }
    }

    pub(super) fn report(&mut self, revision: i64) {
        self.reported = self.reported.max(revision);
    }

    /// Returns true if a reported change is not yet known.
    pub(super) const fn is_behind(&self) -> bool {
        self.reported > self.known
    }

    /// Records that a read was sent when `min_revision` was the latest reported one.
    pub(super) fn sent(&mut self, min_revision: i64) {
        self.retry.sent(());
        self.min_revision = min_revision;
    }

    pub(super) fn poll_at(&mut self, at: Instant) {
        self.retry.set_due(self.retry.due().or(Some(at)));
    }

    pub(super) fn read_by(&mut self, at: Instant) {
        self.retry.set_due(Some(self.retry.due().map_or(at, |due| due.min(at))));
    }
}
