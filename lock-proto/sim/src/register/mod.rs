//! A simulated store with compare-and-set: a database, an object store, a directory of files.
//!
//! A [`SimRegister`] is a value. [`SimRegister::execute`] carries out one request at a time and returns
//! its reply. It can be behind, fail, be changed by hand and be restored from a backup, as its
//! [`RegisterConfig`] and its methods say.
//!
//! [`World`] is a world of clients of such a store.
// S16

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::rng::Rng;
use lock_proto::Instant;
use lock_proto::register::{Entry, Record, Reply, Request, Revision};
use lock_proto::{Cause, Fault};

pub use super::world::register::{Builder, RegisterClient, World};

/// How a store behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RegisterConfig {
    /// What its revisions are.
    pub revisions: Revisions,
    /// Whether it tells how old a record is, by its own clock.
    pub tells_age: bool,
    /// Whether it reports changes to those who watch a key.
    pub watches: bool,
    /// A broken store: it ignores what a write expects.
    pub ignores_expected: bool,
}

impl Default for RegisterConfig {
    fn default() -> Self {
        Self { revisions: Revisions::Counted, tells_age: true, watches: true, ignores_expected: false }
    }
}

/// What the revisions of a store are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revisions {
    /// The number of the write in the store. After a restore, the same numbers come again.
    Counted,
    /// The content: the same content has the same revision, as an entity tag has.
    Content,
    /// Version and writer of the record, as a row in a database is compared.
    VersionAndWriter,
}

/// A record, and when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StoredRecord {
    record: Record,
    revision: Revision,
    /// By the clock of the store, in ns.
    written: u64,
}

/// The state of a key since a time.
type StoredState = (Instant, Option<StoredRecord>);

/// A store with compare-and-set, see the [module](self).
#[derive(Clone, Debug)]
pub struct SimRegister {
    config: RegisterConfig,
    /// For each key its states, the last one at the end. Earlier ones are kept for [`MAX_LAG`].
    keys: BTreeMap<Bytes, Vec<StoredState>>,
    writes: u64,
    backup: Option<(BTreeMap<Bytes, Vec<StoredState>>, u64)>,
    /// By how much its clock is ahead of true time, in ms.
    ahead_ms: i64,
    lag: Duration,
    fails: bool,
    rng: Rng,
}

/// How much reads can be behind.
pub const MAX_LAG: Duration = Duration::from_secs(10);

/// What the clock of a store reads at first, so that it can be set back, in ms.
const EPOCH_MS: i64 = 1_000_000_000;

impl SimRegister {
    /// Creates an empty store. The seed decides which reads are behind and which requests fail.
    #[must_use]
    pub const fn new(config: RegisterConfig, seed: u64) -> Self {
        Self {
            config,
            keys: BTreeMap::new(),
            writes: 0,
            backup: None,
            ahead_ms: 0,
            lag: Duration::ZERO,
            fails: false,
            rng: Rng::new(seed),
        }
    }

    /// Returns how it behaves.
    #[must_use]
    pub const fn config(&self) -> RegisterConfig {
        self.config
    }

    /// Executes a request, and returns the reply, and the record that was written, if one was.
    pub fn execute(&mut self, now: Instant, request: &Request) -> (Reply, bool) {
        let fault = if self.fails { self.rng.below(8) } else { 7 };
        match fault {
            // Rolled back, or not begun.
            0 => return (Reply::NotSent(Cause::Fault(Fault::Closed)), false),
            1 => return (Reply::Unknown(Cause::Fault(Fault::Closed)), false),
            _ => {}
        }
        let (reply, wrote) = match request {
            Request::Read { key } => (self.read(now, key), false),
            Request::Write { key, record, expected } => self.write(now, key, record, expected.as_deref()),
        };
        if fault == 2 { (Reply::Unknown(Cause::Fault(Fault::Closed)), wrote) } else { (reply, wrote) }
    }

    fn read(&mut self, now: Instant, key: &Bytes) -> Reply {
        let shown = now.back(self.rng.duration(&(Duration::ZERO..self.lag)));
        let states = self.keys.get(key).map_or(&[][..], |states| states);
        let stored = states.iter().rev().find(|(since, _)| *since <= shown).and_then(|(_, stored)| stored.as_ref());
        let Some(stored) = stored else { return Reply::Absent };
        let entry = Entry::new(stored.record.clone(), stored.revision.clone());
        if !self.config.tells_age {
            return Reply::Record(entry);
        }
        Reply::Record(entry.age(Duration::from_nanos(self.clock(now).saturating_sub(stored.written))))
    }

    fn write(&mut self, now: Instant, key: &Bytes, record: &Record, expected: Option<&Entry>) -> (Reply, bool) {
        let is_expected = self.revision(key) == expected.map(|entry| &entry.revision);
        if !is_expected && !self.config.ignores_expected {
            return (Reply::Conflict, false);
        }
        self.writes += 1;
        let revision = match self.config.revisions {
            Revisions::Counted => Revision::from(self.writes),
            Revisions::Content => Revision::new(content_hash(record).to_be_bytes()),
            Revisions::VersionAndWriter => Revision::new(alloc::format!("{} {}", record.version, record.writer)),
        };
        let written = self.clock(now);
        self.put(now, key, Some(StoredRecord { record: record.clone(), revision: revision.clone(), written }));
        (Reply::Written(revision), true)
    }

    fn put(&mut self, now: Instant, key: &Bytes, stored: Option<StoredRecord>) {
        let states = self.keys.entry(key.clone()).or_default();
        // The last state before that time is still shown.
        let old = states.iter().skip(1).take_while(|(since, _)| *since + MAX_LAG <= now).count();
        states.drain(..old);
        states.push((now, stored));
    }

    fn clock(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_add_signed((EPOCH_MS + self.ahead_ms) * 1_000_000)
    }

    fn stored(&self, key: &[u8]) -> Option<&StoredRecord> {
        self.keys.get(key)?.last()?.1.as_ref()
    }

    /// Returns the record of a key.
    #[must_use]
    pub fn record(&self, key: &[u8]) -> Option<&Record> {
        self.stored(key).map(|stored| &stored.record)
    }

    /// Returns the revision of a key; `None` if it is absent.
    #[must_use]
    pub fn revision(&self, key: &[u8]) -> Option<&Revision> {
        self.stored(key).map(|stored| &stored.revision)
    }

    /// Returns the keys that have a record.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.keys.keys().filter(|key| self.stored(key).is_some())
    }

    /// Deletes a record by hand. Returns whether there was one.
    pub fn delete(&mut self, now: Instant, key: &[u8]) -> bool {
        let key = Bytes::copy_from_slice(key);
        let is_there = self.stored(&key).is_some();
        if is_there {
            self.put(now, &key, None);
        }
        is_there
    }

    /// Deletes the records of locks that nobody has held for this long. No request may take longer.
    pub fn sweep(&mut self, now: Instant, for_long: Duration) {
        let is_old = |(since, state): &StoredState| {
            state.as_ref().is_some_and(|stored| !stored.record.held) && *since + for_long <= now
        };
        let old = self.keys.iter().filter(|(_, states)| states.last().is_some_and(is_old));
        for key in old.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.put(now, &key, None);
        }
    }

    /// Makes a backup, in place of an earlier one.
    pub fn back_up(&mut self) {
        self.backup = Some((self.keys.clone(), self.writes));
    }

    /// Goes back to the backup, if there is one: writes since then are lost.
    pub fn restore(&mut self) {
        if let Some((keys, writes)) = &self.backup {
            (self.keys, self.writes) = (keys.clone(), *writes);
        }
    }

    /// Sets by how much its clock is ahead of true time, or behind it.
    pub const fn set_clock(&mut self, ahead_ms: i64) {
        self.ahead_ms = ahead_ms;
    }

    /// Returns by how much its clock is ahead of true time, in ms.
    #[must_use]
    pub const fn clock_ahead(&self) -> i64 {
        self.ahead_ms
    }

    /// Sets by how much reads may be behind, at most [`MAX_LAG`].
    pub fn set_lag(&mut self, lag: Duration) {
        self.lag = lag.min(MAX_LAG);
    }

    /// Sets whether some requests fail: they are rolled back, or their outcome stays unknown.
    pub const fn set_failing(&mut self, fails: bool) {
        self.fails = fails;
    }
}

/// FNV-1a.
fn content_hash(record: &Record) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    record.encode().iter().fold(0xcbf2_9ce4_8422_2325, add)
}

#[cfg(test)]
mod tests;
