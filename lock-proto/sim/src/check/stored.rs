//! Rules about stored keys and about writes to the protected resource.

use alloc::format;
use core::time::Duration;

use super::{CheckedNode, Checker, Minted, Permit, Presence, Rule, TAKES_PER_SCRIPT};
use lock_proto::Instant;
use lock_proto::LockId;

impl Checker {
    /// Reports the content of `key` on a node: its value, and its expiry by the node's clock. Call
    /// this whenever it may have changed.
    pub fn stored(&mut self, now: Instant, node: usize, key: &[u8], content: Option<(&[u8], Option<u64>)>) {
        self.note_stored(now, node, key, content);
    }

    /// Like [`stored`](Self::stored). Returns true if there is a new value or another expiry.
    pub(crate) fn note_stored(
        &mut self,
        now: Instant,
        node: usize,
        key: &[u8],
        content: Option<(&[u8], Option<u64>)>,
    ) -> bool {
        let CheckedNode { stored, changed, .. } = self.node(node);
        let Some((value, expires)) = content else {
            if let Some(seen) = stored.get_mut(key) {
                seen.presence = Presence::Missing;
                seen.missing = Some(now);
            }
            return false;
        };
        let seen = match stored.get_mut(key) {
            Some(seen) => seen,
            None => stored.entry(key.to_vec()).or_default(),
        };
        let before = core::mem::replace(&mut seen.expires, expires);
        let presence = core::mem::replace(&mut seen.presence, Presence::There);
        if presence == Presence::Missing || seen.value != value {
            seen.value.clear();
            seen.value.extend_from_slice(value);
            let changed = *changed;
            self.minted(key, value, changed);
            return true;
        }
        if presence == Presence::There && before.is_some_and(|before| expires.is_some_and(|new| new < before)) {
            let text = format!("the TTL of {} on node {node} was shortened", key.escape_ascii());
            self.report(now, Rule::ShortenedKey, text);
        }
        before != expires
    }

    /// Returns the value last seen under `key` on a node, if `content` replaces it before its expiry
    /// by the node's clock, in ms.
    pub(crate) fn ended_early(
        &self,
        node: usize,
        key: &[u8],
        content: Option<(&[u8], Option<u64>)>,
        clock: u64,
    ) -> Option<&[u8]> {
        let seen = self.nodes.get(node)?.stored.get(key).filter(|seen| seen.presence == Presence::There)?;
        let same = content.is_some_and(|(value, _)| seen.value == value);
        let expired = seen.expires.is_some_and(|at| at <= clock);
        (!same && !expired).then_some(&*seen.value)
    }

    /// Returns whether a node had this value under `key` when it was last seen.
    pub(crate) fn has_stored(&self, node: usize, key: &[u8], value: &[u8]) -> bool {
        let seen = self.nodes.get(node).and_then(|node| node.stored.get(key));
        seen.is_some_and(|seen| seen.presence != Presence::Missing && seen.value == value)
    }

    /// A process that is not a client creates the key of a free lock on the only node.
    pub fn foreign_key_created(&mut self, now: Instant, key: &[u8]) {
        self.minted(key, b"", 0);
        if let Some((client, id, _)) = self.locks.get(key).and_then(|lock| self.valid_holder(lock, now, None)) {
            let text = format!("a stranger found {} free, and client {client} {id} holds it", key.escape_ascii());
            self.report(now, Rule::MutualExclusion, text);
        }
    }

    /// The clock of a node was set back.
    pub fn clock_set_back(&mut self, node: usize, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        let node = self.node(node);
        node.set_back = node.set_back.saturating_add(by);
    }

    /// Reports the fencing counter of a node and the node's clock, both in µs since the Unix epoch.
    /// Call this whenever the counter may have changed.
    pub fn counter_stored(&mut self, now: Instant, node: usize, counter: u64, clock: u64) {
        // A9
        let set_back = self.nodes.get(node).map_or(0, |node| node.set_back);
        if counter > clock.saturating_add(set_back).saturating_add(TAKES_PER_SCRIPT) {
            let text =
                format!("the fence counter of node {node} is {} µs ahead of the clock", counter.saturating_sub(clock));
            self.report(now, Rule::FenceAhead, text);
        }
    }

    /// Something other than a client changed the data of a node. `clock` is the node's clock, in
    /// µs since the Unix epoch.
    pub fn data_changed(&mut self, node: usize, clock: u64) {
        let node = self.node(node);
        node.changed = clock;
        for seen in node.stored.values_mut() {
            if seen.presence == Presence::There {
                seen.presence = Presence::Doubtful;
            }
        }
    }

    /// Returns when this key, which a client has created on a node, was last seen missing there.
    #[must_use]
    pub fn missing_at(&self, node: usize, key: &[u8]) -> Option<Instant> {
        self.nodes.get(node)?.stored.get(key)?.missing
    }

    /// Returns the position of a grant in the order in which values appeared under `key`, as seen
    /// by [`stored`](Self::stored). If restored data has made `value` appear again, the fencing
    /// token, which is a time, tells which appearance it belongs to.
    #[must_use]
    pub fn order(&self, key: &[u8], value: &[u8], fence: Option<u64>) -> Option<u64> {
        let Minted { first, last, changed } = *self.locks.get(key)?.minted.get(value)?;
        Some(if fence.is_some_and(|fence| fence >= changed) { last } else { first })
    }

    /// Like [`order`](Self::order), for the last time that the value appeared. A lock that uses one
    /// value for several attempts is ordered by it.
    #[must_use]
    pub fn latest_order(&self, key: &[u8], value: &[u8]) -> Option<u64> {
        self.locks.get(key)?.minted.get(value).map(|minted| minted.last)
    }

    fn node(&mut self, index: usize) -> &mut CheckedNode {
        if self.nodes.len() <= index {
            self.nodes.resize_with(index + 1, CheckedNode::default);
        }
        &mut self.nodes[index]
    }

    fn minted(&mut self, key: &[u8], value: &[u8], changed: u64) {
        // Ignore names that were never requested.
        let Some(lock) = self.locks.get_mut(key) else { return };
        lock.order += 1;
        match lock.minted.get_mut(value) {
            Some(minted) => (minted.last, minted.changed) = (lock.order, changed),
            None => {
                let minted = Minted { first: lock.order, last: lock.order, changed };
                lock.minted.insert(value.to_vec(), minted);
            }
        }
        match &mut lock.last {
            Some((last, position)) if last == value => *position = lock.order,
            last => lock.before_last = last.replace((value.to_vec(), lock.order)).map_or(0, |(_, position)| position),
        }
    }
}

impl Checker {
    /// A write of this acquisition reaches the resource that `key` protects. Returns true if it is
    /// accepted. The resource rejects a fencing token smaller than the greatest that it has seen,
    /// and accepts every write without a token.
    pub fn write(&mut self, now: Instant, key: &[u8], grant: Permit) -> bool {
        let key = self.key(key);
        let lock = self.lock(&key);
        let (accepted, stale) = lock.resource.write(grant.fence, grant.order);
        if stale {
            let text = format!(
                "the resource of {} took a write of client {} {} after one of a newer grant",
                key.escape_ascii(),
                grant.client,
                grant.lock
            );
            self.report(now, Rule::StaleWrite, text);
        }
        accepted
    }

    /// Returns the credentials for a write, or `None` if the acquisition was not granted.
    #[must_use]
    pub fn permit(&self, client: usize, lock: LockId) -> Option<Permit> {
        let granted = self.clients.get(client)?.live.get(&lock)?.granted?;
        Some(Permit { client, lock, fence: granted.fence, order: granted.order })
    }
}
