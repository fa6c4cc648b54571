//! A Redis node that executes typed requests in virtual time, without bytes.

use std::collections::{BTreeMap, VecDeque};

use lock_proto::Expiry;
use lock_proto::redis::script::SIGNAL_TTL_MS;
use lock_proto::redis::{FenceBlock, Key, Reply, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) client: u128,
    pub(crate) number: u64,
    /// The last millisecond of its lifetime.
    pub(crate) until: u64,
    /// Written by a request of a closed connection, later than any client waits for it.
    pub(crate) written_late: bool,
}

/// Owner of a key that a request deleted.
pub(crate) type Deleted = Option<(u128, u64)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) keys: BTreeMap<Key, Value>,
    fence: u64,
    /// Expiry of each lock's waiter marker.
    markers: BTreeMap<Key, u64>,
    signals: BTreeMap<Key, u64>,
    /// Processes that block on the signal list of a lock, in FIFO order.
    pub(crate) waiting: BTreeMap<Key, VecDeque<usize>>,
    pub(crate) started: u64,
    pub(crate) starts: u64,
    /// Requests in flight from closed connections.
    pub(crate) late_requests: Vec<(u128, VecDeque<Request>)>,
}

impl Node {
    pub(crate) fn expire(&mut self, now: u64) {
        let ms = now / 1_000_000;
        self.keys.retain(|_, value| value.until >= ms);
        self.markers.retain(|_, until| *until >= ms);
        self.signals.retain(|_, until| *until >= ms);
    }

    pub(crate) fn restart(&mut self, now: u64, empty: bool) {
        self.started = now;
        self.starts += 1;
        self.late_requests.clear();
        self.waiting.clear();
        if empty {
            self.keys.clear();
            self.markers.clear();
            self.signals.clear();
        }
    }

    /// Returns the process that a signal on this lock wakes, if there are both.
    pub(crate) fn wake(&mut self, key: &Key) -> Option<usize> {
        self.signals.get(key)?;
        let first = self.waiting.get_mut(key)?.pop_front()?;
        self.signals.remove(key);
        Some(first)
    }

    fn announce(&mut self, now: u64, key: &Key) {
        self.signals.entry(key.clone()).or_insert(now / 1_000_000 + SIGNAL_TTL_MS);
    }

    /// Mints tokens as if the server's clock always had room for them.
    fn mint(&mut self, requested: u32) -> Option<FenceBlock> {
        let first = self.fence + 1;
        self.fence += u64::from(requested);
        (requested > 0).then_some(FenceBlock { first, count: requested, ahead_ms: 0 })
    }

    pub(crate) fn execute(&mut self, now: u64, client: u128, request: &Request) -> (Reply, Deleted) {
        self.expire(now);
        let ms = now / 1_000_000;
        let there = self.keys.get(request.key()).copied();
        match request {
            Request::Take { key, number, retired, ttl_ms, fence_block, clean, waiting_ms } => {
                if *waiting_ms > 0 {
                    self.markers.insert(key.clone(), ms + waiting_ms);
                }
                if let Some(value) = there {
                    let left = core::time::Duration::from_millis(value.until - ms);
                    let plain = *clean && *fence_block == 0 && *waiting_ms == 0;
                    if !plain && value.client == client && value.number == *number {
                        let value = self.keys.get_mut(key).unwrap();
                        value.until = value.until.max(ms + ttl_ms);
                        return (Reply::Granted { fence: self.mint(*fence_block) }, None);
                    }
                    if plain {
                        return (Reply::Busy { expires: Expiry::Unknown }, None);
                    }
                    if value.client != client || !retired.contains(value.number) {
                        return (Reply::Busy { expires: Expiry::In(left) }, None);
                    }
                }
                let fence = self.mint(*fence_block);
                let replaced = there.map(|value| (value.client, value.number));
                self.keys
                    .insert(key.clone(), Value { client, number: *number, until: ms + ttl_ms, written_late: false });
                (Reply::Granted { fence }, replaced)
            }
            Request::Extend { key, number, ttl_ms, fence_block } => match there {
                None => (Reply::Absent, None),
                Some(value) if value.client == client && value.number == *number => {
                    let value = self.keys.get_mut(key).unwrap();
                    value.until = value.until.max(ms + ttl_ms);
                    let fence = self.mint(*fence_block);
                    (if fence.is_some() { Reply::Granted { fence } } else { Reply::Extended }, None)
                }
                Some(_) => (Reply::Taken, None),
            },
            Request::Release { key, number, retired, announce } => match there {
                None => (Reply::Absent, None),
                Some(value)
                    if value.client == client
                        && (value.number == *number
                            || retired.is_some_and(|retired| retired.contains(value.number))) =>
                {
                    self.keys.remove(key);
                    let awaited = *announce && self.markers.remove(key).is_some();
                    if awaited {
                        self.announce(now, key);
                    }
                    (Reply::Deleted { number: value.number, awaited }, Some((client, value.number)))
                }
                Some(value) => {
                    // A request omits retired numbers only if none can be found. The exception is a
                    // take that arrives after the client's check and expires with its TTL.
                    let older = value.client == client && value.number < *number && !value.written_late;
                    let missed = older && retired.is_none();
                    assert!(!missed, "{request:?} finds {value:?}");
                    (Reply::Taken, None)
                }
            },
            Request::Announce { key } => {
                self.announce(now, key);
                (Reply::Announced, None)
            }
            _ => panic!("a request that the model does not know: {request:?}"),
        }
    }
}
