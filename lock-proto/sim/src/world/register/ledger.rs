//! Who holds which lock by the records that were written, in true time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;

use bytes::Bytes;

use lock_proto::Instant;
use lock_proto::register::Record;
use lock_proto::{ClientId, Grant};

/// Holds as clients wrote them. What somebody else deletes or restores counts until a client writes
/// again: its holder is not told.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    clients: Vec<ClientId>,
    holds: BTreeMap<Bytes, RecordedHold>,
    /// The fences of each client's records.
    minted: BTreeSet<(Bytes, usize, u64)>,
}

/// A record that keeps others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedHold {
    pub(super) client: usize,
    pub(super) fence: u64,
    /// Until then, nobody else replaces it.
    pub(super) until: Instant,
    /// Until then, its client has not forgotten the write: a TTL after it left.
    pub(super) known_until: Instant,
}

impl Ledger {
    pub(super) fn new(clients: impl Iterator<Item = ClientId>) -> Self {
        Self { clients: clients.collect(), holds: BTreeMap::new(), minted: BTreeSet::new() }
    }

    /// A record that left at `sent` was written. Returns the hold that it replaced, and the value
    /// that stands for the new one.
    pub(super) fn wrote(
        &mut self,
        now: Instant,
        sent: Instant,
        key: &Bytes,
        record: &Record,
    ) -> (Option<RecordedHold>, Option<Vec<u8>>) {
        let Some(client) = self.clients.iter().position(|id| *id == record.writer.client) else { return (None, None) };
        if !record.held {
            return (self.holds.remove(key), None);
        }
        self.minted.insert((key.clone(), client, record.fence));
        let hold =
            RecordedHold { client, fence: record.fence, until: now + record.ttl, known_until: sent + record.ttl };
        (self.holds.insert(key.clone(), hold), Some(value(client, record.fence)))
    }

    /// Returns until when the hold with this fence keeps others out; `ZERO` if it does not.
    pub(super) fn kept_until(&self, key: &[u8], client: usize, fence: u64) -> Option<Instant> {
        let hold = self.holds.get(key).filter(|hold| (hold.client, hold.fence) == (client, fence));
        Some(hold.map_or(Instant::ZERO, |hold| hold.until))
    }

    pub(super) fn has_minted(&self, key: &[u8], client: usize, fence: u64) -> bool {
        self.minted.contains(&(Bytes::copy_from_slice(key), client, fence))
    }

    /// Returns the locks that the records of a client keep others out of, apart from writes that it
    /// has given up long ago.
    pub(super) fn of_client(&self, client: usize, now: Instant) -> impl Iterator<Item = &Bytes> {
        let is_its = move |hold: &RecordedHold| hold.client == client && hold.until.min(hold.known_until) > now;
        self.holds.iter().filter(move |(_, hold)| is_its(hold)).map(|(key, _)| key)
    }

    /// Returns a lock that somebody is kept out of.
    pub(super) fn held(&self, now: Instant) -> Option<&Bytes> {
        self.holds.iter().find(|(_, hold)| hold.until > now).map(|(key, _)| key)
    }
}

/// The value that stands for a hold in the checker.
pub(super) fn value(client: usize, fence: u64) -> Vec<u8> {
    format!("{client}:{fence}").into_bytes()
}

/// Returns the fence of the record by which a lock was granted.
// RG5
pub(super) fn fence_of(grant: &Grant) -> Option<u64> {
    Some(grant.fence?.get() >> 10)
}
