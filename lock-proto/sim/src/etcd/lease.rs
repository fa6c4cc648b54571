//! Leases.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::refusal::RefusalStatus;
use lock_proto::Instant;

/// About 285 years, in seconds.
const MAX_TTL: i64 = 9_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StoredLease {
    /// In seconds.
    pub(super) ttl: i64,
    /// From this time on it may be revoked.
    pub(super) expires: Instant,
    pub(super) keys: BTreeSet<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Leases(BTreeMap<i64, StoredLease>);

impl Leases {
    /// Grants a lease and returns its TTL. `min_ttl` is in seconds.
    pub(super) fn grant(&mut self, now: Instant, id: i64, ttl: i64, min_ttl: i64) -> Result<i64, RefusalStatus> {
        if ttl > MAX_TTL {
            return Err(RefusalStatus::LEASE_TTL_TOO_LARGE);
        }
        if self.0.contains_key(&id) {
            return Err(RefusalStatus::LEASE_EXISTS);
        }
        let ttl = ttl.max(min_ttl);
        self.0.insert(id, StoredLease { ttl, expires: now + seconds(ttl), keys: BTreeSet::new() });
        Ok(ttl)
    }

    pub(super) fn get(&self, id: i64) -> Option<&StoredLease> {
        self.0.get(&id)
    }

    pub(super) fn remove(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        self.0.remove(&id).map(|lease| lease.keys)
    }

    /// Renews a lease and returns its TTL, unless it does not exist or has expired.
    pub(super) fn renew(&mut self, now: Instant, id: i64) -> Option<i64> {
        let lease = self.0.get_mut(&id).filter(|lease| now < lease.expires)?;
        lease.expires = now + seconds(lease.ttl);
        Some(lease.ttl)
    }

    /// Renews a lease that exists, even if it has expired.
    pub(super) fn refresh(&mut self, now: Instant, id: i64) {
        if let Some(lease) = self.0.get_mut(&id) {
            lease.expires = now + seconds(lease.ttl);
        }
    }

    /// Renews every lease for its full TTL plus `extra`, as a new leader does.
    pub(super) fn renew_all(&mut self, now: Instant, extra: Duration) {
        for lease in self.0.values_mut() {
            lease.expires = now + seconds(lease.ttl) + extra;
        }
    }

    pub(super) fn attach(&mut self, id: i64, key: &Bytes) {
        if let Some(lease) = self.0.get_mut(&id) {
            lease.keys.insert(key.clone());
        }
    }

    pub(super) fn detach(&mut self, id: i64, key: &Bytes) {
        if let Some(lease) = self.0.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    pub(super) fn expired(&self, now: Instant) -> Vec<i64> {
        self.0.iter().filter(|(_, lease)| lease.expires <= now).map(|(id, _)| *id).collect()
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.0.values().map(|lease| lease.expires).min()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, &StoredLease)> {
        self.0.iter().map(|(id, lease)| (*id, lease))
    }
}

pub(super) fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}
