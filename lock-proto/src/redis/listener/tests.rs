#![allow(clippy::unwrap_used, reason = "tests")]

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::*;
use crate::lock::Backoff;
use crate::redis::{Endpoint, Identity, KeyLayout, Limits, PipeConfig};
use crate::{ClientId, NodeId, Role};

/// A listener and its two pipes. That for commands is up.
struct ListenerRig {
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

impl ListenerRig {
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
            Pipe::new(config, Identity::new(ClientId::from_bits(1), KeyLayout::default(), b""), 42)
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
    let mut rig = ListenerRig::waiting(Some(7), &["a", "b"]);
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
    let mut rig = ListenerRig::waiting(Some(7), &["a"]);
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
    let mut rig = ListenerRig::waiting(Some(7), &["a"]);
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
    let mut rig = ListenerRig::waiting(None, &["a"]);
    rig.listener.subscribe(key("b"));
    assert!(!rig.unblocks());
    assert_eq!(rig.woken(None), []);
    rig.blocks(&["a", "b"], BLOCK_TIMEOUT_WITHOUT_UNBLOCK);

    let mut rig = ListenerRig::waiting(Some(7), &["a"]);
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
    let mut rig = ListenerRig::waiting(Some(7), &["a", "b"]);
    assert_eq!(rig.woken(Some(&key("a"))), [WakeEvent::Signal(key("a"))]);
    rig.blocks(&["b"], BLOCK_TIMEOUT);
    assert_eq!(rig.woken(Some(&key("a"))), [], "nobody waits for it");
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{n:04}")).collect()
}

/// Waiting for this many names, in the middle of the first wait.
fn waiting_for_many(count: usize) -> ListenerRig {
    let mut rig = ListenerRig::new();
    numbered(count).iter().for_each(|name| rig.listener.subscribe(key(name)));
    rig.listener.connected(Some(7));
    rig.sync();
    rig
}

#[test]
fn names_beyond_the_limit_take_turns() {
    // A7
    let names = numbered(2 * MAX_KEYS + 10);
    let mut rig = waiting_for_many(names.len());
    assert!(!rig.unblocks(), "the wait is full");
    // Each is told once. The last wait begins again at the first name.
    for (from, to) in [(MAX_KEYS, 2 * MAX_KEYS), (2 * MAX_KEYS, names.len())] {
        assert_eq!(rig.woken(None), []);
        let told: Vec<_> = names[from..to].iter().map(|name| WakeEvent::Subscribed(key(name))).collect();
        assert_eq!(rig.sync(), told);
    }
    assert_eq!(rig.listener.covered.len(), MAX_KEYS);
    assert_eq!(rig.listener.covered[10], key(&names[0]));
    // A wait that lacks names is short, and need not be ended for another one.
    assert_eq!(rig.listener.next, Some(key(&names[MAX_KEYS - 10])));
    rig.listener.subscribe(key("a"));
    assert!(!rig.unblocks());
    rig.listener.unsubscribe(&key(&names[0]));
    assert!(rig.unblocks(), "it would take a signal from others");
}

#[test]
fn waits_are_short_lists_while_releases_arrive() {
    // A7
    const BUSY_KEYS: usize = MAX_KEYS >> BUSY_HALVINGS;
    let names = numbered(MAX_KEYS);
    let mut rig = waiting_for_many(MAX_KEYS);
    assert_eq!(rig.listener.covered.len(), MAX_KEYS);
    assert_eq!(rig.woken(Some(&key(&names[500]))), [WakeEvent::Signal(key(&names[500]))]);
    // It begins behind the lock that was woken.
    let next: Vec<&str> = names[501..501 + BUSY_KEYS].iter().map(String::as_str).collect();
    rig.blocks(&next, TURN);
    // Signals have stopped.
    for count in [2 * BUSY_KEYS, 4 * BUSY_KEYS, MAX_KEYS - 1] {
        assert_eq!(rig.woken(None), []);
        assert_eq!(rig.sync(), [], "all have been told");
        assert_eq!(rig.listener.covered.len(), count);
    }
    // Changes make it short as well.
    rig.listener.subscribe(key(&names[500]));
    assert!(rig.unblocks());
    assert_eq!(rig.woken(None), []);
    rig.sync();
    assert_eq!(rig.listener.covered.len(), BUSY_KEYS);
}

/// With the same list each time, a server would report the first ones only.
#[test]
fn wait_begins_behind_the_lock_that_was_woken() {
    // A7
    let mut rig = ListenerRig::waiting(Some(7), &["a", "b", "c"]);
    assert_eq!(rig.woken(Some(&key("b"))), [WakeEvent::Signal(key("b"))]);
    rig.listener.subscribe(key("bb"));
    rig.blocks(&["bb", "c", "a"], BLOCK_TIMEOUT);
    assert_eq!(rig.woken(Some(&key("c"))), [WakeEvent::Signal(key("c"))]);
    rig.blocks(&["a", "bb"], BLOCK_TIMEOUT);
}

#[test]
fn lock_that_left_and_came_back_is_told_again() {
    // A7
    let mut rig = ListenerRig::waiting(Some(7), &["a", "b"]);
    rig.listener.unsubscribe(&key("a"));
    rig.listener.subscribe(key("a"));
    assert_eq!(rig.sync(), [WakeEvent::Subscribed(key("a"))]);
    assert!(!rig.unblocks());
}

/// Plays a server that refuses these keys, until a wait stays. Returns the number of waits.
fn settle(rig: &mut ListenerRig, refused: &[&str], error: &str, events: &mut Vec<WakeEvent>) -> usize {
    for waits in 0..1_000 {
        events.extend(rig.sync());
        if rig.listener.blocking && rig.listener.covered.iter().any(|covered| keys(refused).contains(covered)) {
            rig.listener.block_refused(rig.now, &ServerError::classify(error), &mut rig.wake, events);
        } else if rig.listener.unblock.sent {
            rig.listener.woken(None, events);
        } else {
            return waits;
        }
    }
    panic!("the search does not end");
}

#[test]
fn refused_keys_are_found_and_left_out() {
    // A7
    for error in ["WRONGTYPE no", "NOPERM this user has no permissions to access one of the keys used as arguments"] {
        for (count, refused, most) in
            [(1, &["0000"][..], 1), (2, &["0001"], 4), (8, &["0000", "0007"], 18), (1_000, &["0000", "0500"], 60)]
        {
            let names = numbered(count);
            let mut rig = waiting_for_many(count);
            let mut events = vec![];
            let waits = settle(&mut rig, refused, error, &mut events);
            assert!(waits <= most, "{waits} waits for {refused:?} of {count}");
            let mut covered = rig.listener.covered.clone();
            covered.sort();
            let healthy: Vec<_> = names.iter().filter(|name| !refused.contains(&name.as_str())).collect();
            if !healthy.is_empty() {
                assert_eq!(covered, healthy.iter().map(|name| key(name)).collect::<Vec<_>>());
            }
            assert!(!rig.wake.is_closed());
            // Its lock, which counted on wake-ups, polls.
            for name in refused {
                assert!(events.contains(&WakeEvent::Unsubscribed(key(name))));
            }
            // It is not tried again by another waiter.
            let known = key(refused[0]);
            rig.listener.unsubscribe(&known);
            rig.listener.subscribe(known);
            assert_eq!((rig.sync(), settle(&mut rig, refused, error, &mut events)), (vec![], 0));
        }
    }
}

#[test]
fn refused_keys_are_retried_after_pause() {
    // A7
    let mut rig = ListenerRig::waiting(Some(7), &["a", "b"]);
    let mut events = vec![];
    settle(&mut rig, &["b"], "WRONGTYPE no", &mut events);
    assert_eq!(rig.listener.deadline(), Some(rig.now + RETRY_REFUSED));
    rig.now = rig.now + RETRY_REFUSED;
    assert!(rig.unblocks());
    assert_eq!(rig.woken(None), []);
    assert_eq!(rig.sync(), [WakeEvent::Subscribed(key("b"))]);
    assert_eq!(rig.listener.deadline(), None);

    // At once on a new connection.
    settle(&mut rig, &["b"], "WRONGTYPE no", &mut events);
    rig.listener.restart(rig.now, &mut rig.wake, &mut events);
    rig.sync();
    rig.listener.connected(Some(8));
    rig.blocks(&["a", "b"], BLOCK_TIMEOUT);
}

#[test]
fn number_of_refused_keys_that_are_remembered_is_limited() {
    // A7
    let mut rig = ListenerRig::new();
    rig.listener.connected(Some(7));
    for name in numbered(MAX_KEYS + 10) {
        rig.listener.subscribe(key(&name));
        settle(&mut rig, &[&name], "WRONGTYPE no", &mut vec![]);
        rig.listener.unsubscribe(&key(&name));
    }
    assert_eq!((rig.listener.refused.len(), rig.listener.polled.len()), (MAX_KEYS, 0));
    assert_eq!(rig.listener.deadline(), rig.listener.idle_since.map(|since| since + LINGER));
}

#[test]
fn connection_closes_after_linger_without_waiters() {
    // A7
    let mut rig = ListenerRig::waiting(Some(7), &["a"]);
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
        let mut rig = ListenerRig::waiting(Some(7), &["a"]);
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
