//! How much memory the data takes, and what goes when it is too much
//! (<https://redis.io/docs/latest/develop/reference/eviction/>).
//!
//! The figures are near those of a small Redis 7.0, not equal to them: a test sets its limit relative to
//! [`Node::used_memory`]. Which key goes is exact where Redis samples: the true first of the policy's order.

use alloc::vec::Vec;

use super::store::{Entry, Value};
use super::{Condition, Node};

/// What an empty server takes.
const EMPTY: usize = 1 << 20;
/// What a key takes besides its name: its place in the table, its object, its expiry.
const PER_KEY: usize = 80;
/// What a string or an element takes besides its bytes.
const PER_TEXT: usize = 16;

/// What a server does when its data takes more than `maxmemory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Eviction {
    /// `noeviction`: nothing goes, commands that need memory are refused with `OOM`.
    #[default]
    Never,
    /// `allkeys-lru`: the key that was not used for longest. It may be a lock, or the fence counter.
    AllKeysLru,
    /// `volatile-lru`: the same among the keys that have an expiry. It may be a lock.
    VolatileLru,
    /// `allkeys-random`. It may be a lock, or the fence counter.
    AllKeysRandom,
    /// `volatile-random`: any key that has an expiry.
    VolatileRandom,
    /// `volatile-ttl`: the key that ends soonest. It is likely to be a lock.
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

pub(super) fn value(value: &Value) -> usize {
    match value {
        Value::String(text) => string(text),
        Value::List(items) => items.iter().map(|text| item(text)).sum(),
    }
}

impl Node {
    /// How much memory is in use, as `maxmemory` counts it: about the data, and 1 MiB for the server itself. What connections
    /// and replicas are owed is not counted.
    #[must_use]
    pub fn used_memory(&self) -> usize {
        EMPTY + self.dbs.values().map(super::store::Db::bytes).sum::<usize>()
    }

    /// `CONFIG SET maxmemory` and `maxmemory-policy`. `None` is no limit. Nothing is evicted before the next command comes.
    pub const fn set_max_memory(&mut self, limit: Option<usize>, eviction: Eviction) {
        self.config.max_memory = limit;
        self.config.eviction = eviction;
    }

    /// Makes room before a command is run; false if there is none. A replica takes what its primary sends and leaves eviction to
    /// it.
    pub(super) fn make_room(&mut self, now: u64) -> bool {
        let told = self.conditions.contains(&Condition::OutOfMemory);
        let Some(limit) = self.config.max_memory.filter(|_| !self.is_replica()) else { return !told };
        if self.used_memory() > limit {
            self.collect_expired(now);
            while self.used_memory() > limit && self.evict() {}
            self.tell_removed();
        }
        !told && self.used_memory() <= limit
    }

    fn evict(&mut self) -> bool {
        self.evictions += 1;
        let (policy, draw) = (self.config.eviction, self.evictions);
        let volatile = |entry: &Entry| entry.expires().is_some();
        let mut dbs: Vec<_> = self.dbs.values_mut().collect();
        // One database after the other: nobody who cares for locks uses several with a limit on memory.
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

/// A number that looks random: FNV-1a of the draw and the key, mixed once more.
fn mixed(draw: u64, key: &[u8]) -> u64 {
    let bytes = draw.to_be_bytes();
    let hash = bytes
        .iter()
        .chain(key)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
