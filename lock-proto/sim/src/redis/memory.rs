//! Memory accounting and eviction (<https://redis.io/docs/latest/develop/reference/eviction/>).
//!
//! The figures are approximate, so set limits relative to [`Node::used_memory`]. Where Redis
//! samples keys, this server evicts exactly the first key in the order of the policy.

use alloc::vec::Vec;

use super::store::{RedisEntry, RedisValue};
use super::{Condition, Node};

/// Memory of an empty server.
const EMPTY: usize = 1 << 20;
/// Overhead of a key: table slot, object and expiry.
const PER_KEY: usize = 80;
/// Overhead of a string or list element.
const PER_TEXT: usize = 16;

/// What a server does when its data exceeds `maxmemory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Eviction {
    /// `noeviction`: evicts nothing; commands that need memory fail with `OOM`.
    #[default]
    Never,
    /// `allkeys-lru`: evicts the least recently used key, maybe a lock or the fencing counter.
    AllKeysLru,
    /// `volatile-lru`: evicts the least recently used key with an expiry, maybe a lock.
    VolatileLru,
    /// `allkeys-random`: evicts any key, maybe a lock or the fencing counter.
    AllKeysRandom,
    /// `volatile-random`: evicts any key with an expiry.
    VolatileRandom,
    /// `volatile-ttl`: evicts the key that expires first, likely a lock.
    VolatileTtl,
}

pub(super) fn key(key: &[u8]) -> usize {
    PER_KEY + key.len()
}

pub(super) fn string(text: &[u8]) -> usize {
    PER_TEXT + text.len()
}

pub(super) fn item(text: &[u8]) -> usize {
    PER_TEXT + text.len()
}

pub(super) fn value(value: &RedisValue) -> usize {
    match value {
        RedisValue::String(text) => string(text),
        RedisValue::List(items) => items.iter().map(|text| item(text)).sum(),
    }
}

impl Node {
    /// Returns the memory in use, as `maxmemory` counts it: an estimate for the data, and 1 MiB for
    /// the server. Output buffers of clients and replicas are not counted.
    #[must_use]
    pub fn used_memory(&self) -> usize {
        EMPTY + self.dbs.values().map(super::store::Db::bytes).sum::<usize>()
    }

    /// Sets `maxmemory` and `maxmemory-policy`. `None` means no limit. The next command evicts.
    pub const fn set_max_memory(&mut self, limit: Option<usize>, eviction: Eviction) {
        self.config.max_memory = limit;
        self.config.eviction = eviction;
    }

    /// Evicts keys before a command runs, and returns false if that is not enough. A replica leaves
    /// eviction to its primary.
    pub(super) fn make_room(&mut self, now: u64) -> bool {
        let forced = self.conditions.contains(&Condition::OutOfMemory);
        let Some(limit) = self.config.max_memory.filter(|_| !self.is_replica()) else { return !forced };
        if self.used_memory() > limit {
            self.collect_expired(now);
            while self.used_memory() > limit && self.evict() {}
            self.propagate_removed();
        }
        !forced && self.used_memory() <= limit
    }

    fn evict(&mut self) -> bool {
        self.evictions += 1;
        let (policy, draw) = (self.config.eviction, self.evictions);
        let volatile = |entry: &RedisEntry| entry.expires().is_some();
        let mut dbs: Vec<_> = self.dbs.values_mut().collect();
        // One database at a time: lock clients do not combine several with a memory limit.
        dbs.iter_mut().any(|db| match policy {
            Eviction::Never => false,
            Eviction::AllKeysLru => db.evict(|_, entry| Some(entry.used())),
            Eviction::VolatileLru => db.evict(|_, entry| volatile(entry).then_some(entry.used())),
            Eviction::AllKeysRandom => db.evict(|key, _| Some(mixed(draw, key))),
            Eviction::VolatileRandom => db.evict(|key, entry| volatile(entry).then(|| mixed(draw, key))),
            Eviction::VolatileTtl => db.evict(|_, entry| entry.expires()),
        })
    }
}

/// A pseudorandom number: FNV-1a of the draw and the key, mixed once more.
fn mixed(draw: u64, key: &[u8]) -> u64 {
    let bytes = draw.to_be_bytes();
    let hash = bytes
        .iter()
        .chain(key)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
