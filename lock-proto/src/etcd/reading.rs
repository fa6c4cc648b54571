//! Reading the queue again whenever something has happened since the last time.

use crate::lock::Retry;
use crate::time::Instant;

/// What is known of the queue, and the request that finds out more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reading {
    /// The revision up to which the queue is known.
    pub(super) known: i64,
    /// Something has happened at this revision.
    pub(super) news: i64,
    /// What had been heard of when the request in flight was sent: its answer cannot be older.
    pub(super) asked: i64,
    /// The request in flight, by its serial.
    pub(super) retry: Retry<u64>,
}

impl Reading {
    pub(super) const fn new(known: i64, news: i64) -> Self {
        Self { known, news, asked: 0, retry: Retry::new(None) }
    }

    /// Something happened at this revision.
    pub(super) fn hear(&mut self, revision: i64) {
        self.news = self.news.max(revision);
    }

    /// Returns true if something has happened that is not known yet.
    pub(super) const fn is_behind(&self) -> bool {
        self.news > self.known
    }

    /// A request was sent when `heard` was the last revision heard of.
    pub(super) fn sent(&mut self, serial: u64, heard: i64) {
        self.retry.sent(serial);
        self.asked = heard;
    }

    pub(super) fn awaits(&self, serial: u64) -> bool {
        self.retry.call() == Some(serial)
    }

    /// The request in flight has its answer, if it has this serial.
    pub(super) fn answered(&mut self, serial: u64) -> bool {
        self.retry.answered(|call| *call == serial).is_some()
    }

    /// To be read then, unless another time is set.
    pub(super) fn poll_at(&mut self, at: Instant) {
        self.retry.set_due(self.retry.due().or(Some(at)));
    }

    /// To be read at the latest then.
    pub(super) fn read_by(&mut self, at: Instant) {
        self.retry.set_due(Some(self.retry.due().map_or(at, |due| due.min(at))));
    }
}
