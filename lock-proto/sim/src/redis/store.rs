//! The data: strings and lists, with expiry by the server's wall clock.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::memory;
use super::reply::RespReply;

pub(super) const WRONG_TYPE: RespReply =
    RespReply::error("WRONGTYPE Operation against a key holding the wrong kind of value");

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RedisValue {
    String(Vec<u8>),
    List(VecDeque<Vec<u8>>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RedisEntry {
    pub(super) value: RedisValue,
    /// Unix time in ms after which the key is expired.
    expires: Option<u64>,
    /// Time of the last access, for eviction.
    used: u64,
    /// Number of the last change, for `WATCH`.
    version: u64,
}

impl RedisEntry {
    pub(super) const fn expires(&self) -> Option<u64> {
        self.expires
    }

    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Redis keeps a key through the millisecond of its expiry.
    const fn is_over(&self, now: u64) -> bool {
        matches!(self.expires, Some(at) if now > at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Unix time in ms.
    pub(super) now: u64,
    pub(super) expired: Expired,
}

/// How a view treats expired keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// Removes them: on a primary.
    Removed,
    /// Hides them: on a replica, which waits for its primary to remove them.
    Hidden,
    /// Keeps them visible: for commands from the primary.
    Alive,
}

/// A numbered database. On a primary, any access to an expired key removes it first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Db {
    entries: BTreeMap<Vec<u8>, RedisEntry>,
    /// Approximate size, see [`memory`].
    bytes: usize,
    /// No key expires earlier.
    soonest: u64,
    /// Set by writes; the reader clears it.
    pub(super) dirty: bool,
    /// Number of changes of keys.
    changes: u64,
    /// Keys removed because they expired or were evicted, still to be propagated to replicas.
    pub(super) removed: Vec<Vec<u8>>,
}

impl Default for Db {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), bytes: 0, soonest: u64::MAX, dirty: false, changes: 0, removed: Vec::new() }
    }
}

impl Db {
    pub(super) fn get(&mut self, view: View, key: &[u8]) -> Option<&mut RedisEntry> {
        let over = view.now > self.soonest
            && view.expired != Expired::Alive
            && self.entries.get(key).is_some_and(|entry| entry.is_over(view.now));
        if over {
            if view.expired == Expired::Removed {
                self.take_expired(key);
            }
            return None;
        }
        let entry = self.entries.get_mut(key)?;
        entry.used = view.now;
        Some(entry)
    }

    /// Returns the entry of `key` without side effects.
    pub(super) fn peek(&self, now: u64, key: &[u8]) -> Option<&RedisEntry> {
        self.entries.get(key).filter(|entry| !entry.is_over(now))
    }

    pub(super) fn string(&mut self, view: View, key: &[u8]) -> Result<Option<&[u8]>, RespReply> {
        match self.get(view, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(RedisValue::String(text)) => Ok(Some(text)),
            Some(RedisValue::List(_)) => Err(WRONG_TYPE),
        }
    }

    pub(super) fn list(&mut self, view: View, key: &[u8]) -> Result<Option<&mut VecDeque<Vec<u8>>>, RespReply> {
        match self.get(view, key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(RedisValue::List(list)) => Ok(Some(list)),
            Some(RedisValue::String(_)) => Err(WRONG_TYPE),
        }
    }

    pub(super) fn set(&mut self, view: View, key: &[u8], text: &[u8], expires: Option<u64>) {
        self.dirty = true;
        self.changes += 1;
        self.soonest = self.soonest.min(expires.unwrap_or(u64::MAX));
        if let Some(entry) = self.entries.get_mut(key) {
            self.bytes = self.bytes - memory::value(&entry.value) + memory::string(text);
            match &mut entry.value {
                RedisValue::String(old) => {
                    old.clear();
                    old.extend_from_slice(text);
                }
                RedisValue::List(_) => entry.value = RedisValue::String(text.to_vec()),
            }
            (entry.expires, entry.used, entry.version) = (expires, view.now, self.changes);
            return;
        }
        self.bytes += memory::key(key) + memory::string(text);
        let (value, version) = (RedisValue::String(text.to_vec()), self.changes);
        self.entries.insert(key.to_vec(), RedisEntry { value, expires, used: view.now, version });
    }

    pub(super) fn set_expiry(&mut self, view: View, key: &[u8], expires: Option<u64>) {
        let version = self.changes + 1;
        let Some(entry) = self.get(view, key) else { return };
        (entry.expires, entry.version) = (expires, version);
        self.changes = version;
        self.soonest = self.soonest.min(expires.unwrap_or(u64::MAX));
        self.dirty = true;
    }

    pub(super) fn remove(&mut self, view: View, key: &[u8]) -> bool {
        if self.get(view, key).is_none() {
            return false;
        }
        self.forget(key);
        self.dirty = true;
        true
    }

    /// Pushes to a list, which is created if it is absent, and returns its length.
    pub(super) fn push(&mut self, view: View, key: &[u8], items: &[&[u8]], front: bool) -> Result<usize, RespReply> {
        let grown = items.iter().map(|item| memory::item(item)).sum::<usize>();
        let add = |list: &mut VecDeque<Vec<u8>>| {
            for item in items {
                if front { list.push_front(item.to_vec()) } else { list.push_back(item.to_vec()) }
            }
            list.len()
        };
        let length = if let Some(list) = self.list(view, key)? {
            let length = add(list);
            self.touch(key);
            length
        } else {
            let mut list = VecDeque::new();
            let length = add(&mut list);
            self.bytes += memory::key(key);
            self.changes += 1;
            let (value, version) = (RedisValue::List(list), self.changes);
            self.entries.insert(key.to_vec(), RedisEntry { value, expires: None, used: view.now, version });
            length
        };
        self.bytes += grown;
        self.dirty = true;
        Ok(length)
    }

    /// Pops up to `count` elements from the front, and removes a list that becomes empty.
    pub(super) fn pop_front(
        &mut self,
        view: View,
        key: &[u8],
        count: usize,
    ) -> Result<Option<Vec<Vec<u8>>>, RespReply> {
        let Some(list) = self.list(view, key)? else { return Ok(None) };
        let taken: Vec<Vec<u8>> = list.drain(..count.min(list.len())).collect();
        let empty = list.is_empty();
        self.bytes -= taken.iter().map(|item| memory::item(item)).sum::<usize>();
        self.dirty |= !taken.is_empty();
        if empty {
            self.forget(key);
        } else if !taken.is_empty() {
            self.touch(key);
        }
        Ok(Some(taken))
    }

    pub(super) fn iter(&self, now: u64) -> impl Iterator<Item = (&[u8], &RedisEntry)> {
        self.entries.iter().filter(move |(_, entry)| !entry.is_over(now)).map(|(key, entry)| (key.as_slice(), entry))
    }

    /// Returns the number of keys. A replica also counts hidden ones.
    pub(super) fn len(&self, view: View) -> usize {
        match view.expired {
            Expired::Removed if view.now > self.soonest => self.iter(view.now).count(),
            Expired::Removed | Expired::Hidden | Expired::Alive => self.entries.len(),
        }
    }

    fn touch(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.get_mut(key) {
            self.changes += 1;
            entry.version = self.changes;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { removed: core::mem::take(&mut self.removed), ..Self::default() };
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A lower bound of the next expiry, if any key has one.
    pub(super) const fn soonest(&self) -> Option<u64> {
        if self.soonest == u64::MAX { None } else { Some(self.soonest) }
    }

    /// Removes all expired keys, as the server does periodically.
    pub(super) fn collect(&mut self, now: u64) {
        if now <= self.soonest {
            return;
        }
        let over: Vec<Vec<u8>> =
            self.entries.iter().filter(|(_, entry)| entry.is_over(now)).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.take_expired(&key);
        }
        self.soonest = self.entries.values().filter_map(RedisEntry::expires).min().unwrap_or(u64::MAX);
    }

    /// Evicts the key with the lowest `rank`, among those that have one.
    pub(super) fn evict<R: Ord>(&mut self, rank: impl Fn(&[u8], &RedisEntry) -> Option<R>) -> bool {
        let ranked = self.entries.iter().filter_map(|(key, entry)| Some((rank(key, entry)?, key)));
        let Some(key) = ranked.min().map(|(_, key)| key.clone()) else { return false };
        self.take_expired(&key);
        true
    }

    fn take_expired(&mut self, key: &[u8]) {
        if let Some(key) = self.forget(key) {
            self.removed.push(key);
        }
    }

    fn forget(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.bytes -= memory::key(&key) + memory::value(&entry.value);
        Some(key)
    }
}
