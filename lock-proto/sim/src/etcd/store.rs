//! The keys with their revisions, and the history of events.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;

use super::lease::Leases;
use super::refusal::RefusalStatus;
use super::span::KeySpan;
use super::txn;
use lock_proto::etcd::message::{DELETED, KeyValue, RangeRequest, RangeResponse, WatchEvent};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredKey {
    pub(super) created: i64,
    pub(super) modified: i64,
    /// Number of writes since its creation.
    pub(super) version: i64,
    pub(super) value: Bytes,
    pub(super) lease: i64,
}

impl StoredKey {
    pub(super) fn to_kv(&self, key: &Bytes) -> KeyValue {
        KeyValue {
            key: key.clone(),
            create_revision: self.created,
            mod_revision: self.modified,
            version: self.version,
            value: self.value.clone(),
            lease: self.lease,
        }
    }
}

impl From<&KeyValue> for StoredKey {
    fn from(kv: &KeyValue) -> Self {
        Self {
            created: kv.create_revision,
            modified: kv.mod_revision,
            version: kv.version,
            value: kv.value.clone(),
            lease: kv.lease,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeySpace {
    revision: i64,
    /// The last compacted revision, or -1 before the first compaction.
    compacted: i64,
    keys: BTreeMap<Bytes, StoredKey>,
    /// Events by revision, in the order of the operations, each with the key as it was before.
    history: BTreeMap<i64, Vec<WatchEvent>>,
    leases: Leases,
}

impl KeySpace {
    /// Creates an empty store. Its revision is 1, as in etcd.
    pub(super) fn new() -> Self {
        Self { revision: 1, compacted: -1, keys: BTreeMap::new(), history: BTreeMap::new(), leases: Leases::default() }
    }

    pub(super) const fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) const fn compacted(&self) -> i64 {
        self.compacted
    }

    pub(super) const fn leases(&self) -> &Leases {
        &self.leases
    }

    pub(super) const fn leases_mut(&mut self) -> &mut Leases {
        &mut self.leases
    }

    pub(super) fn range(&self, span: &KeySpan) -> impl Iterator<Item = (&Bytes, &StoredKey)> {
        // `BTreeMap::range` panics if the end is before the start.
        (!span.is_empty()).then(|| self.keys.range::<Bytes, _>(span.bounds())).into_iter().flatten()
    }

    pub(super) fn get(&self, key: &Bytes) -> Option<&StoredKey> {
        self.keys.get(key)
    }

    /// Checks that the store can be read at this revision; 0 and less mean the latest.
    pub(super) const fn check_revision(&self, revision: i64) -> Result<(), RefusalStatus> {
        if revision > self.revision {
            return Err(RefusalStatus::FUTURE_REVISION);
        }
        if revision > 0 && revision < self.compacted { Err(RefusalStatus::COMPACTED) } else { Ok(()) }
    }

    /// Returns the keys as they were at a revision that can be read. `pending` are the events of a
    /// change in progress.
    pub(super) fn range_at(&self, span: &KeySpan, revision: i64, pending: &[WatchEvent]) -> BTreeMap<Bytes, StoredKey> {
        let mut found: BTreeMap<Bytes, StoredKey> =
            self.range(span).map(|(key, entry)| (key.clone(), entry.clone())).collect();
        let later = self.history.range(revision + 1..).rev().flat_map(|(_, events)| events.iter().rev());
        for WatchEvent { kv, prev_kv, .. } in pending.iter().rev().chain(later) {
            let Some(kv) = kv.as_ref().filter(|kv| span.contains(&kv.key)) else { continue };
            match prev_kv {
                Some(before) => drop(found.insert(kv.key.clone(), before.into())),
                None => drop(found.remove(&kv.key)),
            }
        }
        found
    }

    /// Returns the keys as they were at a revision that can be read, as a store without leases.
    pub(super) fn at(&self, revision: i64) -> Self {
        let keys = self.range_at(&KeySpan::From(Bytes::new()), revision, &[]);
        Self { revision, compacted: self.compacted, keys, ..Self::new() }
    }

    pub(super) fn history(&self, first: i64, last: i64) -> impl Iterator<Item = (i64, &Vec<WatchEvent>)> {
        let range = (first <= last).then(|| self.history.range(first..=last));
        range.into_iter().flatten().map(|(revision, events)| (*revision, events))
    }

    /// Begins a change. It gets a new revision if it changes anything.
    pub(super) fn write(&mut self) -> RevisionChange<'_> {
        RevisionChange { store: self, events: Vec::new() }
    }

    /// Revokes a lease, and deletes its keys in one revision.
    pub(super) fn revoke(&mut self, lease: i64) -> Result<(), RefusalStatus> {
        let keys = self.leases.remove(lease).ok_or(RefusalStatus::LEASE_NOT_FOUND)?;
        let mut change = self.write();
        for key in keys {
            change.delete(&KeySpan::One(key));
        }
        change.end();
        Ok(())
    }

    pub(super) fn compact(&mut self, revision: i64) -> Result<(), RefusalStatus> {
        if revision <= self.compacted {
            return Err(RefusalStatus::COMPACTED);
        }
        if revision > self.revision {
            return Err(RefusalStatus::FUTURE_REVISION);
        }
        self.compacted = revision;
        self.history = self.history.split_off(&revision);
        // Deletes at that revision are dropped too; puts are still the current values at it.
        if let Some(events) = self.history.get_mut(&revision) {
            events.retain(|event| event.kind != DELETED);
        }
        Ok(())
    }
}

/// A change in progress. All its operations share one revision.
#[derive(Debug)]
pub(super) struct RevisionChange<'a> {
    store: &'a mut KeySpace,
    events: Vec<WatchEvent>,
}

impl RevisionChange<'_> {
    pub(super) const fn revision(&self) -> i64 {
        self.store.revision + if self.events.is_empty() { 0 } else { 1 }
    }

    pub(super) const fn store(&self) -> &KeySpace {
        self.store
    }

    /// Reads keys as a part of the change.
    pub(super) fn read(&self, range: &RangeRequest) -> RangeResponse {
        txn::read(self.store, range, &self.events)
    }

    /// Puts a key, and returns it as it was before. The lease must exist, or be 0.
    pub(super) fn put(&mut self, key: &Bytes, value: &Bytes, lease: i64) -> Option<KeyValue> {
        let revision = self.store.revision + 1;
        let old = self.store.keys.get(key);
        let (created, version) = old.map_or((revision, 1), |old| (old.created, old.version + 1));
        let bound = old.map_or(0, |old| old.lease);
        let prev_kv = old.map(|old| old.to_kv(key));
        self.store.leases.detach(bound, key);
        self.store.leases.attach(lease, key);
        let entry = StoredKey { created, modified: revision, version, value: value.clone(), lease };
        self.events.push(WatchEvent { kind: 0, kv: Some(entry.to_kv(key)), prev_kv: prev_kv.clone() });
        self.store.keys.insert(key.clone(), entry);
        prev_kv
    }

    /// Deletes keys, and returns them.
    pub(super) fn delete(&mut self, span: &KeySpan) -> Vec<KeyValue> {
        let revision = self.store.revision + 1;
        let keys: Vec<Bytes> = self.store.range(span).map(|(key, _)| key.clone()).collect();
        let mut deleted = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(entry) = self.store.keys.remove(&key) else { continue };
            self.store.leases.detach(entry.lease, &key);
            let before = entry.to_kv(&key);
            let kv = KeyValue { key, mod_revision: revision, ..KeyValue::default() };
            self.events.push(WatchEvent { kind: DELETED, kv: Some(kv), prev_kv: Some(before.clone()) });
            deleted.push(before);
        }
        deleted
    }

    pub(super) fn end(self) -> i64 {
        if !self.events.is_empty() {
            self.store.revision += 1;
            self.store.history.insert(self.store.revision, self.events);
        }
        self.store.revision
    }
}
