//! Blocking wait for releases on one node, over a second connection. Redis serves blocked clients
//! in the order of arrival and removes those that disconnect
//! (<https://redis.io/docs/latest/commands/blpop/>), so a release wakes one waiter in FIFO order.
//! To change the names in a `BLPOP`, the client ends it by `CLIENT UNBLOCK` on the command
//! connection.
//!
//! A `BLPOP` reports one release, and the next one sends all names again. That costs a server
//! about 0.4 µs for each name. So waits are short lists while releases arrive, and take turns.
// A7

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem;
use core::ops::Bound;
use core::time::Duration;

use super::key::Key;
use super::pipe::Pipe;
use super::server_error::refuses_key;
use crate::lock::{ErrorClass, ServerError};
use crate::time::Instant;

/// Maximum number of names in a `BLPOP`. A server is blocked for 0.4 ms while it reads them.
pub(super) const MAX_KEYS: usize = 1024;
/// How often that number is halved while waits end by releases or changes: 128 names.
const BUSY_HALVINGS: u32 = 3;
/// Timeout of a `BLPOP` without all names. The next one begins with the name behind its last. An
/// idle server looks at timeouts every 100 ms.
const TURN: Duration = Duration::from_millis(50);
/// Timeout of one `BLPOP`, repeated while there are waiters. Detects dead connections.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same on a server without `CLIENT UNBLOCK`.
const BLOCK_TIMEOUT_WITHOUT_UNBLOCK: Duration = Duration::from_secs(1);
/// How long the connection stays open without waiters. The listener decides, since it also ends one
/// that is being opened, or that pauses after a failure.
const LINGER: Duration = Duration::from_secs(1);
/// Pause before another `CLIENT UNBLOCK`, if the first one overtook the `BLPOP`. It doubles each
/// time, since the wait may have ended without the client's knowledge.
const UNBLOCK_RETRY: Duration = Duration::from_millis(2);
/// How often that pause doubles.
const UNBLOCK_DOUBLINGS: u32 = 8;
/// Pause after a permanent refusal. The server's ACL or the key may have changed by then.
pub(super) const RETRY_REFUSED: Duration = Duration::from_secs(60);
/// Pause after a transient error.
const RETRY_TRANSIENT: Duration = Duration::from_millis(500);

/// The wake-up subscriptions on one node, and the blocking wait that serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Listener {
    /// The locks that waits cover, all at once or in turn. True if the lock counts on wake-ups.
    subscriptions: BTreeMap<Key, bool>,
    /// The keys of the last `BLPOP`, in order.
    covered: Vec<Key>,
    /// That `BLPOP` is in flight.
    blocking: bool,
    /// The subscriptions have changed since it was compared with them.
    changed: bool,
    /// Where the next `BLPOP` begins: behind the lock that was woken, or behind the keys of the
    /// last one if there was no room for all. A server looks at the keys in order.
    next: Option<Key>,
    /// How often [`MAX_KEYS`] is halved for the next `BLPOP`.
    halvings: u32,
    /// Looks for the keys because of which the server has refused a `BLPOP`.
    searching: bool,
    /// The keys that were found, whether or not they are waited for.
    refused: BTreeSet<Key>,
    /// The locks with such a key, which only poll.
    polled: BTreeSet<Key>,
    /// When the refused keys are tried again.
    retry_keys_at: Option<Instant>,
    /// Connection id for `CLIENT UNBLOCK`; `None` while disconnected or if not reported.
    client: Option<i64>,
    up: bool,
    unblock: Unblock,
    /// Since when there are no subscriptions.
    idle_since: Option<Instant>,
    refused_until: Option<Instant>,
}

/// The `CLIENT UNBLOCK` of the wait in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Unblock {
    sent: bool,
    /// When to repeat it, because there was no wait to end.
    retry_at: Option<Instant>,
    /// How often there was no wait to end.
    misses: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WakeEvent {
    /// The node reports releases of this lock from now on.
    Subscribed(Key),
    /// The node no longer reports releases of this lock.
    Unsubscribed(Key),
    Signal(Key),
}

impl Listener {
    pub(crate) fn subscribe(&mut self, key: Key) {
        if self.refused.contains(&key) {
            self.polled.insert(key);
        } else {
            self.subscriptions.entry(key).or_default();
            self.changed = true;
        }
    }

    pub(crate) fn unsubscribe(&mut self, key: &Key) {
        self.subscriptions.remove(key);
        self.polled.remove(key);
        self.changed = true;
    }

    /// Brings the connections in line with the subscriptions.
    pub(crate) fn sync(&mut self, now: Instant, wake: &mut Pipe, commands: &mut Pipe, events: &mut Vec<WakeEvent>) {
        if self.retry_keys_at.take_if(|at| *at <= now).is_some() {
            self.refused.clear();
            self.subscriptions.extend(mem::take(&mut self.polled).into_iter().map(|key| (key, false)));
            self.changed = true;
        }
        if self.subscriptions.is_empty() {
            if !self.blocking && !wake.is_closed() {
                let since = *self.idle_since.get_or_insert(now);
                if since + LINGER <= now {
                    self.close(now, wake, events);
                }
                return;
            }
        } else {
            self.idle_since = None;
            if self.refused_until.is_some_and(|until| now < until) {
                return;
            }
            self.refused_until = None;
            wake.open(now);
        }
        if self.unblock.retry_at.take_if(|at| *at <= now).is_some() {
            (self.unblock.sent, self.changed) = (false, true);
        }
        if !self.blocking && self.up && !self.subscriptions.is_empty() {
            self.block(now, wake, events);
        }
        if !self.blocking || self.unblock.sent || !mem::take(&mut self.changed) {
            return;
        }
        if self.is_current() {
            // A lock may have left and come back.
            self.tell(events);
        } else if let Some(client) = self.client {
            self.unblock.sent = true;
            commands.unblock(now, client);
        }
    }

    fn block(&mut self, now: Instant, wake: &mut Pipe, events: &mut Vec<WakeEvent>) {
        let from = self.next.take();
        let start = from.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let before = from.as_ref().map(|from| self.subscriptions.range(..from)).into_iter().flatten();
        let mut keys = self.subscriptions.range((start, Bound::Unbounded)).chain(before).map(|(key, _)| key.clone());
        self.covered = keys.by_ref().take(self.width()).collect();
        self.next = keys.next();
        let wait = match (&self.next, self.client) {
            (Some(_), _) => TURN,
            (None, Some(_)) => BLOCK_TIMEOUT,
            (None, None) => BLOCK_TIMEOUT_WITHOUT_UNBLOCK,
        };
        if self.next.is_none() {
            self.searching = false;
            self.halvings = self.halvings.min(BUSY_HALVINGS);
        }
        self.changed = self.searching;
        self.tell(events);
        wake.block(now, self.covered.clone(), wait);
        self.blocking = true;
    }

    /// Returns the maximum number of keys of a wait.
    const fn width(&self) -> usize {
        MAX_KEYS >> self.halvings
    }

    /// Tells the locks that the wait covers for the first time.
    fn tell(&mut self, events: &mut Vec<WakeEvent>) {
        for key in &self.covered {
            if self.subscriptions.get_mut(key).is_some_and(|told| !mem::replace(told, true)) {
                events.push(WakeEvent::Subscribed(key.clone()));
            }
        }
    }

    /// Returns true if the wait in flight may go on: all its keys are waited for, and it has all of
    /// them or ends soon. A search does not wait.
    fn is_current(&self) -> bool {
        let takes_turns = self.next.is_some() && !self.searching;
        (takes_turns || self.covered.len() == self.subscriptions.len())
            && self.covered.iter().all(|key| self.subscriptions.contains_key(key))
    }

    /// Closes the connection without reconnecting. If there are subscriptions, `sync` opens it.
    pub(crate) fn close(&mut self, now: Instant, wake: &mut Pipe, events: &mut Vec<WakeEvent>) {
        wake.close(now);
        self.disconnected(events);
        self.idle_since = None;
    }

    /// The node's address may lead to another server now, which may refuse other things.
    // P5
    pub(crate) fn restart(&mut self, now: Instant, wake: &mut Pipe, events: &mut Vec<WakeEvent>) {
        self.close(now, wake, events);
        self.refused_until = None;
        self.retry_keys_at = self.retry_keys_at.map(|_| now);
    }

    pub(crate) fn connected(&mut self, client: Option<i64>) {
        self.up = true;
        self.client = client;
    }

    /// The connection was lost, and the wait with it.
    pub(crate) fn disconnected(&mut self, events: &mut Vec<WakeEvent>) {
        self.up = false;
        self.client = None;
        self.unblock = Unblock::default();
        self.blocking = false;
        for (key, told) in &mut self.subscriptions {
            if mem::take(told) {
                events.push(WakeEvent::Unsubscribed(key.clone()));
            }
        }
    }

    /// The wait ended: by a release, by its timeout or by `CLIENT UNBLOCK`.
    pub(crate) fn woken(&mut self, list: Option<&[u8]>, events: &mut Vec<WakeEvent>) {
        let unblock = mem::take(&mut self.unblock);
        let blocking = mem::take(&mut self.blocking);
        // Short lists are cheap to send again, and a search goes on with longer ones.
        self.halvings = if list.is_none() && (self.searching || !unblock.sent) {
            self.halvings.saturating_sub(1)
        } else {
            self.halvings.max(BUSY_HALVINGS)
        };
        let place = list.and_then(|list| self.covered.iter().position(|key| key.signal() == list));
        if let Some(place) = place.filter(|_| blocking) {
            let key = self.covered.remove(place);
            // The woken lock makes an attempt, and subscribes again if that fails.
            self.subscriptions.remove(&key);
            self.next = Some(key.clone());
            events.push(WakeEvent::Signal(key));
        }
    }

    /// The server refused the wait. If that concerns some of its keys, their locks fall back to
    /// polling for a while, else all do.
    pub(crate) fn block_refused(
        &mut self,
        now: Instant,
        error: &ServerError,
        wake: &mut Pipe,
        events: &mut Vec<WakeEvent>,
    ) {
        if self.blocking && refuses_key(error) {
            return self.key_refused(now, events);
        }
        let pause = match error.class {
            ErrorClass::Transient | ErrorClass::Reconnect => RETRY_TRANSIENT,
            ErrorClass::Refused | ErrorClass::KeyInUse | ErrorClass::Unclear => RETRY_REFUSED,
        };
        self.close(now, wake, events);
        self.refused_until = Some(now + pause);
    }

    /// The server does not say which key it refuses. Halves the wait, down to that key.
    fn key_refused(&mut self, now: Instant, events: &mut Vec<WakeEvent>) {
        self.unblock = Unblock::default();
        self.blocking = false;
        self.searching = true;
        let half = self.covered.len() / 2;
        if half > 0 {
            self.next = self.covered.first().cloned();
            while self.width() > half {
                self.halvings += 1;
            }
            return;
        }
        let Some(key) = self.covered.pop() else { return };
        if let Some(told) = self.subscriptions.remove(&key) {
            self.polled.insert(key.clone());
            if told {
                events.push(WakeEvent::Unsubscribed(key.clone()));
            }
        }
        self.retry_keys_at.get_or_insert(now + RETRY_REFUSED);
        if self.refused.len() >= MAX_KEYS {
            // It is found again if its lock waits again.
            self.refused.pop_first();
        }
        self.refused.insert(key);
    }

    /// The server had no wait to end: on the other connection, the `BLPOP` may still be on its way.
    pub(crate) fn not_blocked(&mut self, now: Instant) {
        let Unblock { sent, retry_at, misses } = &mut self.unblock;
        if *sent {
            *retry_at = Some(now + UNBLOCK_RETRY * (1 << *misses));
            *misses = (*misses + 1).min(UNBLOCK_DOUBLINGS);
        }
    }

    /// The server refused `CLIENT UNBLOCK`, so waits become short.
    pub(crate) fn unblock_refused(&mut self) {
        self.unblock = Unblock::default();
        self.client = None;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let idle = self.idle_since.map(|since| since + LINGER);
        let refused = self.refused_until.filter(|_| !self.subscriptions.is_empty());
        let retry = self.retry_keys_at.filter(|_| !self.polled.is_empty());
        [idle, refused, retry, self.unblock.retry_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
