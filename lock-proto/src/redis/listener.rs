//! Blocking wait for releases on one node, over a second connection. Redis serves blocked clients
//! in the order of arrival and removes those that disconnect
//! (<https://redis.io/docs/latest/commands/blpop/>), so a release wakes one waiter in FIFO order.
//! To change the names in a `BLPOP`, the client ends it by `CLIENT UNBLOCK` on the command
//! connection.
// A7

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::pipe::Pipe;
use super::request::Key;
use crate::lock::{ErrorClass, ServerError};
use crate::time::Instant;

/// Further names are only polled, because every change of the wait sends all names again.
const MAX_KEYS: usize = 128;
/// Timeout of one `BLPOP`, repeated while there are waiters. Detects dead connections.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same on a server without `CLIENT UNBLOCK`.
const BLOCK_TIMEOUT_WITHOUT_UNBLOCK: Duration = Duration::from_secs(1);
/// How long the connection stays open without waiters.
const LINGER: Duration = Duration::from_secs(1);
/// Pause before another `CLIENT UNBLOCK`, if the first one overtook the `BLPOP`. It doubles each
/// time, since the wait may have ended without the client's knowledge.
const UNBLOCK_RETRY: Duration = Duration::from_millis(2);
/// How often that pause doubles.
const UNBLOCK_DOUBLINGS: u32 = 8;
/// Pause after a permanent refusal. The server's ACL may have changed by then.
const RETRY_REFUSED: Duration = Duration::from_secs(60);
/// Pause after a transient error.
const RETRY_TRANSIENT: Duration = Duration::from_millis(500);

/// The wake-up subscriptions on one node, and the blocking wait that serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Listener {
    subscriptions: BTreeSet<Key>,
    /// The keys of the last `BLPOP`, in order. Their locks count on its wake-ups.
    covered: Vec<Key>,
    /// That `BLPOP` is in flight.
    blocking: bool,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WakeEvent {
    /// The node reports releases of this lock from now on.
    Subscribed(Key),
    /// The node no longer reports releases of this lock.
    Unsubscribed(Key),
    Signal(Key),
}

impl Listener {
    pub(crate) fn subscribe(&mut self, key: Key) {
        self.subscriptions.insert(key);
    }

    pub(crate) fn unsubscribe(&mut self, key: &Key) {
        self.subscriptions.remove(key);
    }

    /// Brings the connections in line with the subscriptions.
    pub(crate) fn sync(&mut self, now: Instant, wake: &mut Pipe, commands: &mut Pipe, events: &mut Vec<WakeEvent>) {
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
            self.unblock.sent = false;
        }
        if !self.blocking {
            if self.up && !self.subscriptions.is_empty() {
                self.block(now, wake, events);
            }
        } else if !self.unblock.sent
            && !self.is_current()
            && let Some(client) = self.client
        {
            self.unblock.sent = true;
            commands.unblock(now, client);
        }
    }

    fn block(&mut self, now: Instant, wake: &mut Pipe, events: &mut Vec<WakeEvent>) {
        let keys: Vec<Key> = self.subscriptions.iter().take(MAX_KEYS).cloned().collect();
        let displaced = |key: &Key| keys.binary_search(key).is_err() && self.subscriptions.contains(key);
        events.extend(self.covered.drain(..).filter(displaced).map(WakeEvent::Unsubscribed));
        events.extend(keys.iter().cloned().map(WakeEvent::Subscribed));
        let wait = if self.client.is_some() { BLOCK_TIMEOUT } else { BLOCK_TIMEOUT_WITHOUT_UNBLOCK };
        wake.block(now, keys.clone(), wait);
        self.covered = keys;
        self.blocking = true;
    }

    /// Returns true if the wait in flight covers exactly the current subscriptions.
    fn is_current(&self) -> bool {
        let count = self.subscriptions.len().min(MAX_KEYS);
        self.covered.len() == count && self.covered.iter().all(|key| self.subscriptions.contains(key))
    }

    /// Closes the connection without reconnecting. If there are subscriptions, `sync` opens it.
    pub(crate) fn close(&mut self, now: Instant, wake: &mut Pipe, events: &mut Vec<WakeEvent>) {
        wake.close(now);
        self.disconnected(events);
        self.idle_since = None;
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
        events.extend(self.covered.drain(..).map(WakeEvent::Unsubscribed));
    }

    /// The wait ended: by a release, by its timeout or by `CLIENT UNBLOCK`.
    pub(crate) fn woken(&mut self, list: Option<&[u8]>, events: &mut Vec<WakeEvent>) {
        self.unblock = Unblock::default();
        let blocking = mem::take(&mut self.blocking);
        let place = list.and_then(|list| self.covered.iter().position(|key| key.signal() == list));
        if let Some(place) = place.filter(|_| blocking) {
            let key = self.covered.remove(place);
            // The woken lock makes an attempt, and subscribes again if that fails.
            self.subscriptions.remove(&key);
            events.push(WakeEvent::Signal(key));
        }
    }

    /// The server refused the wait. The locks fall back to polling for a while.
    pub(crate) fn block_refused(
        &mut self,
        now: Instant,
        error: &ServerError,
        wake: &mut Pipe,
        events: &mut Vec<WakeEvent>,
    ) {
        let pause = match error.class {
            ErrorClass::Transient | ErrorClass::Reconnect => RETRY_TRANSIENT,
            ErrorClass::Refused | ErrorClass::KeyInUse | ErrorClass::Unclear => RETRY_REFUSED,
        };
        self.close(now, wake, events);
        self.refused_until = Some(now + pause);
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
        [idle, refused, self.unblock.retry_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;

    use super::*;
    use crate::lock::Backoff;
    use crate::redis::{Endpoint, Identity, Limits, PipeConfig};
    use crate::{ClientId, NodeId, Role};

    /// A listener and its two pipes. That for commands is up.
    struct Rig {
        listener: Listener,
        wake: Pipe,
        commands: Pipe,
        now: Instant,
    }

    fn key(name: &str) -> Key {
        Key::new(b"", name.as_bytes())
    }

    fn keys(names: &[&str]) -> Vec<Key> {
        names.iter().map(|name| key(name)).collect()
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    impl Rig {
        fn new() -> Self {
            let pipe = |role| {
                let config = PipeConfig {
                    endpoint: Endpoint::parse("redis://h").unwrap(),
                    node: NodeId::new(0),
                    role,
                    server_info: false,
                    request_credentials: false,
                    idle_checks: None,
                    connect_timeout: ms(2_000),
                    request_timeout: ms(500),
                    reconnect: Backoff::default(),
                    limits: Limits::default(),
                };
                Pipe::new(config, Identity::new(ClientId::from_bits(1), b""), 42)
            };
            let (mut commands, now) = (pipe(Role::Commands), Instant::from_millis(1_000));
            commands.open(now);
            commands.handle_connected(now, commands.current().unwrap());
            Self { listener: Listener::default(), wake: pipe(Role::Wake), commands, now }
        }

        /// Connected and waiting for `names`.
        fn waiting(client: Option<i64>, names: &[&str]) -> Self {
            let mut rig = Self::new();
            names.iter().for_each(|name| rig.listener.subscribe(key(name)));
            assert_eq!(rig.sync(), []);
            rig.listener.connected(client);
            assert_eq!(rig.sync(), names.iter().map(|name| WakeEvent::Subscribed(key(name))).collect::<Vec<_>>());
            rig
        }

        fn sync(&mut self) -> Vec<WakeEvent> {
            let mut events = Vec::new();
            self.listener.sync(self.now, &mut self.wake, &mut self.commands, &mut events);
            events
        }

        fn unblocks(&mut self) -> bool {
            let mut expected = self.commands.clone();
            expected.unblock(self.now, 7);
            assert_eq!(self.sync(), []);
            self.commands == expected
        }

        fn blocks(&mut self, names: &[&str], wait: Duration) {
            let mut expected = self.wake.clone();
            expected.block(self.now, keys(names), wait);
            self.sync();
            assert_eq!(self.wake, expected);
        }

        fn woken(&mut self, list: Option<&Key>) -> Vec<WakeEvent> {
            let mut events = Vec::new();
            self.listener.woken(list.map(Key::signal), &mut events);
            events
        }

        fn pass(&mut self, by: u64) {
            self.now = self.now + ms(by);
        }
    }

    #[test]
    fn subscription_change_unblocks_wait_once() {
        // A7
        let mut rig = Rig::waiting(Some(7), &["a", "b"]);
        assert!(!rig.unblocks(), "it waits for just what is wanted");
        rig.listener.subscribe(key("c"));
        assert!(rig.unblocks());
        assert!(!rig.unblocks(), "the server has been asked");
        assert_eq!(rig.woken(None), []);
        rig.blocks(&["a", "b", "c"], BLOCK_TIMEOUT);
        rig.listener.unsubscribe(&key("b"));
        assert!(rig.unblocks(), "one less");
        assert_eq!(rig.woken(None), []);
        rig.sync();
        rig.listener.unsubscribe(&key("a"));
        rig.listener.subscribe(key("b"));
        assert!(rig.unblocks(), "another one");
    }

    #[test]
    fn unblock_that_found_no_wait_is_retried() {
        // A7
        let mut rig = Rig::waiting(Some(7), &["a"]);
        rig.listener.subscribe(key("b"));
        assert!(rig.unblocks());
        rig.listener.not_blocked(rig.now);
        assert_eq!(rig.listener.deadline(), Some(rig.now + UNBLOCK_RETRY));
        rig.pass(1);
        assert!(!rig.unblocks());
        rig.pass(1);
        assert!(rig.unblocks());
        // The pause doubles, up to 512 ms.
        for pause in [4, 8, 16, 32, 64, 128, 256, 512, 512] {
            rig.listener.not_blocked(rig.now);
            rig.pass(pause - 1);
            assert!(!rig.unblocks(), "{pause}");
            rig.pass(1);
            assert!(rig.unblocks(), "{pause}");
        }
        // The wait ended by itself.
        rig.listener.not_blocked(rig.now);
        assert_eq!(rig.woken(None), []);
        assert_eq!(rig.listener.deadline(), None);
        rig.blocks(&["a", "b"], BLOCK_TIMEOUT);
    }

    /// The node's address may lead to another server now.
    #[test]
    fn wait_starts_again_on_new_connection() {
        // A7, P5
        let mut rig = Rig::waiting(Some(7), &["a"]);
        rig.listener.subscribe(key("b"));
        assert!(rig.unblocks());
        let mut events = vec![];
        rig.listener.close(rig.now, &mut rig.wake, &mut events);
        assert_eq!((events, rig.wake.is_closed()), (vec![WakeEvent::Unsubscribed(key("a"))], true));
        assert!(!rig.unblocks(), "there is no wait to end");
        assert!(!rig.wake.is_closed());
        rig.listener.connected(Some(8));
        rig.blocks(&["a", "b"], BLOCK_TIMEOUT);
    }

    #[test]
    fn block_timeout_is_short_without_unblock() {
        // A7
        let mut rig = Rig::waiting(None, &["a"]);
        rig.listener.subscribe(key("b"));
        assert!(!rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.blocks(&["a", "b"], BLOCK_TIMEOUT_WITHOUT_UNBLOCK);

        let mut rig = Rig::waiting(Some(7), &["a"]);
        rig.listener.subscribe(key("b"));
        assert!(rig.unblocks());
        rig.listener.unblock_refused();
        assert!(!rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.blocks(&["a", "b"], BLOCK_TIMEOUT_WITHOUT_UNBLOCK);
    }

    #[test]
    fn woken_waiter_is_unsubscribed() {
        // A7
        let mut rig = Rig::waiting(Some(7), &["a", "b"]);
        assert_eq!(rig.woken(Some(&key("a"))), [WakeEvent::Signal(key("a"))]);
        rig.blocks(&["b"], BLOCK_TIMEOUT);
        assert_eq!(rig.woken(Some(&key("a"))), [], "nobody waits for it");
    }

    #[test]
    fn number_of_keys_per_wait_is_limited() {
        // A7
        let names: Vec<_> = (0..MAX_KEYS + 1).map(|n| format!("{n:03}")).collect();
        let mut rig = Rig::new();
        names.iter().for_each(|name| rig.listener.subscribe(key(name)));
        rig.listener.connected(Some(7));
        assert_eq!(rig.sync().len(), MAX_KEYS);
        assert!(!rig.unblocks(), "there is no room for the last");
        rig.listener.unsubscribe(&key(&names[0]));
        assert!(rig.unblocks());
    }

    /// The lock would otherwise count on wake-ups and poll rarely.
    #[test]
    fn lock_displaced_from_wait_is_told() {
        // A7
        let names: Vec<_> = (0..MAX_KEYS).map(|n| format!("{n:03}")).collect();
        let mut rig = Rig::waiting(Some(7), &names.iter().map(String::as_str).collect::<Vec<_>>());
        rig.listener.subscribe(key("000-a"));
        assert!(!rig.unblocks(), "it is told nothing, and polls");
        assert_eq!(rig.woken(None), []);
        let events = rig.sync();
        assert_eq!(events[0], WakeEvent::Unsubscribed(key("127")));
        assert!(events.contains(&WakeEvent::Subscribed(key("000-a"))));
        // One that no longer waits, and one that was woken, need not be told.
        rig.listener.unsubscribe(&key("000"));
        assert_eq!(rig.woken(Some(&key("001"))), [WakeEvent::Signal(key("001"))]);
        let events = rig.sync();
        assert_eq!(events.len(), MAX_KEYS - 1);
        assert!(events.iter().all(|event| matches!(event, WakeEvent::Subscribed(_))));
    }

    #[test]
    fn connection_closes_after_linger_without_waiters() {
        // A7
        let mut rig = Rig::waiting(Some(7), &["a"]);
        assert_eq!(rig.listener.deadline(), None);
        rig.listener.unsubscribe(&key("a"));
        assert!(rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.sync();
        assert_eq!(rig.listener.deadline(), Some(rig.now + LINGER));
        rig.pass(999);
        rig.sync();
        assert!(!rig.wake.is_closed());
        // A new waiter restarts the linger period.
        rig.listener.subscribe(key("a"));
        rig.blocks(&["a"], BLOCK_TIMEOUT);
        assert_eq!(rig.listener.deadline(), None);
        rig.listener.unsubscribe(&key("a"));
        assert_eq!(rig.woken(None), []);
        rig.sync();
        rig.pass(1_000);
        rig.sync();
        assert_eq!((rig.wake.is_closed(), rig.listener.deadline()), (true, None));
        rig.sync();
        assert_eq!(rig.listener.deadline(), None);
    }

    #[test]
    fn refused_block_is_retried_after_pause() {
        // A7
        for (text, pause) in [("NOPERM no", RETRY_REFUSED), ("LOADING later", RETRY_TRANSIENT)] {
            let mut rig = Rig::waiting(Some(7), &["a"]);
            let mut events = vec![];
            rig.listener.block_refused(rig.now, &ServerError::classify(text), &mut rig.wake, &mut events);
            assert_eq!((events, rig.wake.is_closed()), (vec![WakeEvent::Unsubscribed(key("a"))], true));
            assert_eq!(rig.listener.deadline(), Some(rig.now + pause));
            rig.now = rig.now + (pause - ms(1));
            assert_eq!((rig.sync(), rig.wake.is_closed()), (vec![], true));
            rig.pass(1);
            assert_eq!((rig.sync(), rig.wake.is_closed()), (vec![], false));
            // Without subscriptions there is nothing to retry.
            rig.listener.block_refused(rig.now, &ServerError::classify(text), &mut rig.wake, &mut vec![]);
            rig.listener.unsubscribe(&key("a"));
            assert_eq!(rig.listener.deadline(), None);
        }
    }
}
