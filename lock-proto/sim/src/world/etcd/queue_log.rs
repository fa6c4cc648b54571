//! The queues at each revision, to judge grants by. Compaction does not shorten this history.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;

use lock_proto::etcd::message::{DELETED, WatchEvent};
use lock_proto::etcd::{OwnerKey, Queue};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime {
    created: i64,
    deleted: Option<i64>,
}

impl Lifetime {
    fn is_at(self, revision: i64) -> bool {
        self.created <= revision && self.deleted.is_none_or(|deleted| deleted > revision)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueLog {
    lifetimes: BTreeMap<Bytes, Vec<Lifetime>>,
}

impl QueueLog {
    pub(super) fn record(&mut self, revision: i64, events: &[WatchEvent]) {
        for event in events {
            let Some(kv) = &event.kv else { continue };
            let lifetimes = self.lifetimes.entry(kv.key.clone()).or_default();
            match lifetimes.last_mut() {
                Some(lifetime) if lifetime.deleted.is_none() => {
                    if event.kind == DELETED {
                        lifetime.deleted = Some(revision);
                    }
                }
                Some(_) | None if event.kind != DELETED => {
                    lifetimes.push(Lifetime { created: kv.create_revision, deleted: None });
                }
                Some(_) | None => {}
            }
        }
    }

    /// Returns the revision at which a key was created that was deleted at `deleted`.
    pub(super) fn creation(&self, key: &Bytes, deleted: i64) -> Option<i64> {
        let mut lifetimes = self.lifetimes.get(key)?.iter();
        lifetimes.find(|lifetime| lifetime.deleted == Some(deleted)).map(|lifetime| lifetime.created)
    }

    /// Returns true if the key was not deleted since it was created.
    pub(super) fn exists(&self, owner: &OwnerKey) -> bool {
        let last = self.lifetimes.get(&owner.key).and_then(|lifetimes| lifetimes.last());
        last == Some(&Lifetime { created: owner.create_revision, deleted: None })
    }

    /// Checks that the key was first in its queue at the revision that proves the grant.
    pub(super) fn proves(&self, queue: &Queue, owner: &OwnerKey) -> Result<(), String> {
        let (key, created, proof) = (&owner.key, owner.create_revision, owner.revision);
        let shown = key.escape_ascii();
        let own = self.lifetimes.get(key).map(Vec::as_slice).unwrap_or_default();
        if !own.iter().any(|lifetime| lifetime.created == created && lifetime.is_at(proof)) {
            return Err(format!("{shown}, created at {created}, was granted by revision {proof}, where it was not"));
        }
        let first = Bytes::copy_from_slice(queue.prefix());
        let all = self.lifetimes.range(first..).take_while(|(other, _)| other.starts_with(queue.prefix()));
        for (other, lifetimes) in all.filter(|(other, _)| *other != key && !queue.is_foreign(other)) {
            if let Some(lifetime) =
                lifetimes.iter().find(|lifetime| lifetime.is_at(proof) && lifetime.created < created)
            {
                return Err(format!(
                    "{shown}, created at {created}, was granted by revision {proof}, where {} of {} was before it",
                    other.escape_ascii(),
                    lifetime.created,
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use lock_proto::etcd::LeaseId;
    use lock_proto::etcd::message::KeyValue;

    fn put(key: &str, created: i64, modified: i64) -> WatchEvent {
        let kv = KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            create_revision: created,
            mod_revision: modified,
            ..KeyValue::default()
        };
        WatchEvent { kind: 0, kv: Some(kv), prev_kv: None }
    }

    fn deleted(key: &str) -> WatchEvent {
        let kv = KeyValue { key: Bytes::copy_from_slice(key.as_bytes()), ..KeyValue::default() };
        WatchEvent { kind: DELETED, kv: Some(kv), prev_kv: None }
    }

    fn owner(lease: u64, created: i64, proof: i64) -> (Queue, OwnerKey) {
        let queue = Queue::new(b"", b"a");
        let lease = LeaseId::from_bits(lease);
        let key = queue.key(lease);
        let mut owner = OwnerKey::new(key, created, created, lease);
        owner.revision = proof;
        (queue, owner)
    }

    #[test]
    fn only_first_in_queue_is_proven() {
        let mut log = QueueLog::default();
        log.record(2, &[put("a/1", 2, 2)]);
        log.record(3, &[put("a/2", 3, 3)]);
        log.record(4, &[put("a/1", 2, 4)]);
        log.record(5, &[put("b/1", 5, 5), put("a/", 5, 5)]);
        let proves = |log: &QueueLog, lease, created, proof| {
            let (queue, owner) = owner(lease, created, proof);
            log.proves(&queue, &owner)
        };
        proves(&log, 1, 2, 4).unwrap();
        assert!(proves(&log, 2, 3, 4).unwrap_err().contains("a/1 of 2 was before it"));
        log.record(6, &[deleted("a/1")]);
        log.record(7, &[put("a/1", 7, 7)]);
        proves(&log, 2, 3, 6).unwrap();
        proves(&log, 2, 3, 7).unwrap();
        assert!(proves(&log, 2, 3, 5).is_err(), "not before the deletion");
        assert!(proves(&log, 1, 7, 7).is_err(), "it went to the end of the queue");
        assert!(proves(&log, 1, 2, 6).unwrap_err().contains("where it was not"));
    }
}
