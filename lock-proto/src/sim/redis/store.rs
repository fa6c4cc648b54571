//! The data: strings and lists with an expiry in the server's own wall clock.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::reply::Reply;

pub(super) const WRONG_TYPE: Reply = Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value");

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    String(Vec<u8>),
    List(VecDeque<Vec<u8>>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) value: Value,
    /// Unix time in ms after which the key is gone.
    pub(super) expires: Option<u64>,
}

/// One numbered database. A key whose time has passed is as good as absent: every look removes it first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Db {
    entries: BTreeMap<Vec<u8>, Entry>,
}

impl Db {
    /// The entry of `key` at server time `now`.
    pub(super) fn get(&mut self, now: u64, key: &[u8]) -> Option<&mut Entry> {
        self.drop_expired(now, key);
        self.entries.get_mut(key)
    }

    /// The same without removing what has expired.
    pub(super) fn peek(&self, now: u64, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| !is_over(entry, now))
    }

    pub(super) fn string(&mut self, now: u64, key: &[u8]) -> Result<Option<&[u8]>, Reply> {
        match self.get(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::List(_)) => Err(WRONG_TYPE),
        }
    }

    pub(super) fn list(&mut self, now: u64, key: &[u8]) -> Result<Option<&mut VecDeque<Vec<u8>>>, Reply> {
        match self.get(now, key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(Value::String(_)) => Err(WRONG_TYPE),
        }
    }

    pub(super) fn set(&mut self, key: &[u8], value: Value, expires: Option<u64>) {
        self.entries.insert(key.to_vec(), Entry { value, expires });
    }

    /// Whether there was such a key.
    pub(super) fn remove(&mut self, now: u64, key: &[u8]) -> bool {
        self.entries.remove(key).is_some_and(|entry| !is_over(&entry, now))
    }

    /// Takes up to `count` elements from the front; an empty list is no key.
    pub(super) fn pop_front(&mut self, now: u64, key: &[u8], count: usize) -> Result<Option<Vec<Vec<u8>>>, Reply> {
        let Some(list) = self.list(now, key)? else { return Ok(None) };
        let taken = list.drain(..count.min(list.len())).collect();
        if list.is_empty() {
            self.entries.remove(key);
        }
        Ok(Some(taken))
    }

    /// Every live key in order.
    pub(super) fn iter(&self, now: u64) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.entries.iter().filter(move |(_, entry)| !is_over(entry, now)).map(|(key, entry)| (key.as_slice(), entry))
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn drop_expired(&mut self, now: u64, key: &[u8]) {
        if self.entries.get(key).is_some_and(|entry| is_over(entry, now)) {
            self.entries.remove(key);
        }
    }
}

/// Redis keeps a key through the millisecond of its expiry.
const fn is_over(entry: &Entry, now: u64) -> bool {
    matches!(entry.expires, Some(at) if now > at)
}
