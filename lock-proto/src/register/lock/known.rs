//! What a client knows of a register, and since when.
// RG1, RG3

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::time::Duration;

use bytes::Bytes;

use crate::collections::Few;
use crate::id::ClientId;
use crate::register::config::Config;
use crate::register::flaw::RegisterFlaw;
use crate::register::record::{Entry, Record, Revision};
use crate::time::Instant;

/// What a register was last seen to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::register) struct Known {
    /// `None`: the key was absent, or has not been read.
    pub(in crate::register) entry: Option<Box<Entry>>,
    /// The next write may rely on it. If not, the register is read first.
    pub(in crate::register) is_fresh: bool,
    /// When the record ends unless it is renewed, if it is held. Not the time of the first sight:
    /// by its age a record may have been written before the clock's origin, which is the system's
    /// start.
    // RG1
    ends_at: Instant,
    /// If the key is absent: until then, a holder that was seen may not know that its record was
    /// deleted.
    // RG3
    vacant_at: Instant,
    /// The highest fence that was seen. It outlives a deleted record.
    // RG5
    pub(in crate::register) fence: u64,
}

impl Known {
    /// A reply that arrived at `now` has shown this. `departed`: when its request left.
    pub(in crate::register) fn show(
        &mut self,
        now: Instant,
        departed: Instant,
        entry: Option<Entry>,
        client: ClientId,
        config: &Config,
    ) {
        self.is_fresh = true;
        let Some(entry) = entry else {
            if config.has(RegisterFlaw::AbsentIsFree) {
                self.vacant_at = Instant::ZERO;
            }
            self.entry = None;
            return;
        };
        // The arrival counts: the record may have been written after the request departed.
        // RG1
        let arrived = if config.has(RegisterFlaw::SinceDeparture) { departed } else { now };
        let ends_at = arrived + config.takeover_after(entry.record.ttl).saturating_sub(config.certain_age(entry.age));
        let is_same = self.record().is_some_and(|known| *known == entry.record);
        self.ends_at = if is_same { self.ends_at.min(ends_at) } else { ends_at };
        let is_others = entry.record.held && entry.record.writer.client != client;
        self.vacant_at = if is_others { now + config.takeover_after(entry.record.ttl) } else { Instant::ZERO };
        self.fence = self.fence.max(entry.record.fence);
        self.entry = Some(Box::new(entry));
    }

    /// This client has written the record.
    pub(in crate::register) fn wrote(&mut self, now: Instant, record: Record, revision: Revision, config: &Config) {
        let fence = self.fence.max(record.fence);
        let ends_at = now + config.takeover_after(record.ttl);
        let entry = Some(Box::new(Entry::new(record, revision)));
        *self = Self { entry, is_fresh: true, ends_at, vacant_at: Instant::ZERO, fence };
    }

    pub(in crate::register) fn record(&self) -> Option<&Record> {
        self.entry.as_ref().map(|entry| &entry.record)
    }

    pub(in crate::register) fn revision(&self) -> Option<&Revision> {
        self.entry.as_ref().map(|entry| &entry.revision)
    }

    /// Returns true if this client has written the record, and holds the lock by it.
    pub(in crate::register) fn is_held_by(&self, client: ClientId) -> bool {
        self.record().is_some_and(|record| record.held && record.writer.client == client)
    }

    /// Returns when this client may replace the record.
    pub(in crate::register) fn takeable_at(&self, client: ClientId) -> Instant {
        match self.record() {
            None => self.vacant_at,
            Some(record) if record.held && record.writer.client != client => self.ends_at,
            Some(_) => Instant::ZERO,
        }
    }

    /// Returns when the record ends unless it is renewed; `None` if nobody holds the lock.
    pub(in crate::register) fn expires_at(&self) -> Option<Instant> {
        self.record().filter(|record| record.held).map(|_| self.ends_at)
    }

    /// Returns true if it is worth to be remembered: it spares a read, or a wait.
    fn is_useful(&self) -> bool {
        let is_small = |record: &Record| record.value.len() <= MAX_REMEMBERED_VALUE;
        self.record().map_or(self.vacant_at > Instant::ZERO, is_small)
    }
}

/// How many registers a client remembers that it has no acquisition of.
const MAX_REMEMBERED: usize = 1_000;

/// The longest value in a remembered record, in bytes.
const MAX_REMEMBERED_VALUE: usize = 1_000;

/// What is known of registers between acquisitions. A forgotten one costs time: a read, or another
/// TTL of a dead holder.
// RG1
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memory {
    registers: BTreeMap<Bytes, (u64, Known)>,
    /// The oldest first.
    ages: BTreeMap<u64, Bytes>,
    next: u64,
}

impl Memory {
    pub(in crate::register) fn put(&mut self, key: &Bytes, known: Known) {
        if !known.is_useful() {
            return;
        }
        if self.registers.len() >= MAX_REMEMBERED
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.registers.remove(&oldest);
        }
        self.ages.insert(self.next, key.clone());
        self.registers.insert(key.clone(), (self.next, known));
        self.next += 1;
    }

    pub(in crate::register) fn take(&mut self, key: &Bytes) -> Known {
        let Some((age, known)) = self.registers.remove(key) else { return Known::default() };
        self.ages.remove(&age);
        known
    }
}

/// Writes whose outcome is unknown. All of them expect the same record, so at most one of them is
/// ever applied.
// RG4
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::register) struct OpenWrites {
    pub(in crate::register) expected: Option<Box<Entry>>,
    /// The last of them.
    sent: Few<SentRecord>,
    /// Another record was proved to be there: one of these may be it, and no other will be applied.
    pub(in crate::register) is_refuted: bool,
}

/// How many of the open writes can be told apart. An earlier one that turns out to be applied counts
/// as this client's, but prolongs nothing.
const MAX_OPEN: usize = 4;

/// A write that left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::register) struct SentRecord {
    pub(in crate::register) departed: Instant,
    pub(in crate::register) record: Record,
}

impl OpenWrites {
    pub(in crate::register) const fn new(expected: Option<Box<Entry>>) -> Self {
        Self { expected, sent: Few::None, is_refuted: false }
    }

    pub(in crate::register) fn push(&mut self, sent: SentRecord) {
        if self.sent.len() >= MAX_OPEN {
            self.sent.remove(0);
        }
        self.sent.push(sent);
    }

    /// Returns true if one of them may have been applied, or may still be.
    pub(in crate::register) fn may_apply(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Returns true if this reply to a read decides them: a higher version than the expected one.
    pub(in crate::register) fn is_decided_by(&self, entry: Option<&Entry>) -> bool {
        let Some(entry) = entry else { return !self.may_apply() && self.is_refuted };
        self.expected.as_ref().is_none_or(|expected| entry.record.version > expected.record.version)
    }

    pub(in crate::register) fn longest_ttl(&self) -> Option<Duration> {
        self.sent.iter().map(|sent| sent.record.ttl).max()
    }

    /// Returns the one of them that wrote this record.
    pub(in crate::register) fn writer_of(&self, record: &Record) -> Option<&SentRecord> {
        self.sent.iter().find(|sent| sent.record.writer == record.writer)
    }
}
