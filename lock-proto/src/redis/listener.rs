//! Waiting for releases on one node: the second connection, its `BLPOP`, and when it changes (requirement A7).
//!
//! Redis serves clients blocked on a list in the order of their arrival and forgets those that hang up, so a release wakes one
//! waiter, first come first served, and a dead one stalls nobody (<https://redis.io/docs/latest/commands/blpop/>). A name joins or leaves the wait by
//! `CLIENT UNBLOCK` on the command connection.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::pipe::Pipe;
use super::request::Key;
use crate::lock::{ErrorClass, ServerError};
use crate::time::Instant;

/// Names beyond this are polled only: each change of the wait sends all of its names again.
const MOST_KEYS: usize = 128;
/// One blocking wait; it is begun again as long as somebody waits. So a dead connection is found out.
const WAIT: Duration = Duration::from_secs(5);
/// The same on a server that does not let us leave a wait.
const WAIT_WITHOUT_UNBLOCK: Duration = Duration::from_secs(1);
/// For how long the connection is kept when nobody waits any more.
const LINGER: Duration = Duration::from_secs(1);
/// A wait that had not come to the server when it was to be left is left after this.
const UNBLOCK_AGAIN: Duration = Duration::from_millis(2);
/// A server that refused for good is asked again after this: its rules may have changed.
const REFUSED: Duration = Duration::from_secs(60);
/// A server that could not is asked again after this.
const UNABLE: Duration = Duration::from_millis(500);

/// Who waits on one node, and how far the node knows of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Listener {
    wanted: BTreeSet<Key>,
    /// The keys of the wait under way.
    blocked: Option<Vec<Key>>,
    /// Names this connection to `CLIENT UNBLOCK`; `None` while it is down, or if the server does not tell.
    client: Option<i64>,
    up: bool,
    unblocking: bool,
    /// The server had no wait to end. It is asked again then, if that has not ended by itself.
    unblock_again: Option<Instant>,
    /// Since when nobody waits.
    idle: Option<Instant>,
    refused_until: Option<Instant>,
}

/// What the wait told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WakeEvent {
    /// From now on the node tells of this lock's release.
    Subscribed(Key),
    /// The node does not tell of it any more.
    Unsubscribed(Key),
    /// A release.
    Signal(Key),
}

impl Listener {
    pub(crate) fn want(&mut self, key: Key) {
        self.wanted.insert(key);
    }

    pub(crate) fn unwant(&mut self, key: &Key) {
        self.wanted.remove(key);
    }

    /// Brings the connection in line with what is wanted. `wake` is its pipe, `commands` the node's other one.
    pub(crate) fn sync(&mut self, now: Instant, wake: &mut Pipe, commands: &mut Pipe, heard: &mut Vec<WakeEvent>) {
        if self.wanted.is_empty() {
            if self.blocked.is_none() && !wake.is_closed() {
                let since = *self.idle.get_or_insert(now);
                if since + LINGER <= now {
                    self.shut(now, wake);
                }
                return;
            }
        } else {
            self.idle = None;
            if self.refused_until.is_some_and(|until| now < until) {
                return;
            }
            self.refused_until = None;
            wake.open(now);
        }
        if self.unblock_again.take_if(|at| *at <= now).is_some() {
            self.unblocking = false;
        }
        match &self.blocked {
            None if self.up && !self.wanted.is_empty() => {
                let keys: Vec<Key> = self.wanted.iter().take(MOST_KEYS).cloned().collect();
                heard.extend(keys.iter().cloned().map(WakeEvent::Subscribed));
                let wait = if self.client.is_some() { WAIT } else { WAIT_WITHOUT_UNBLOCK };
                wake.block(now, keys.clone(), wait);
                self.blocked = Some(keys);
            }
            Some(keys) if !self.unblocking && !self.covers(keys) => {
                if let Some(client) = self.client {
                    self.unblocking = true;
                    commands.unblock(now, client);
                }
            }
            Some(_) | None => {}
        }
    }

    /// Whether the wait under way is for just what is wanted.
    fn covers(&self, keys: &[Key]) -> bool {
        let most = self.wanted.len().min(MOST_KEYS);
        keys.len() == most && keys.iter().all(|key| self.wanted.contains(key))
    }

    /// Closes the connection, for good.
    pub(crate) fn shut(&mut self, now: Instant, wake: &mut Pipe) {
        wake.close(now);
        self.down(&mut Vec::new());
        self.idle = None;
    }

    pub(crate) fn connected(&mut self, client: Option<i64>) {
        self.up = true;
        self.client = client;
    }

    /// The node's command connection is new: what was sent on the old one may be lost.
    pub(crate) const fn commands_up(&mut self) {
        self.unblocking = false;
        self.unblock_again = None;
    }

    /// The connection is gone, and with it the wait.
    pub(crate) fn down(&mut self, heard: &mut Vec<WakeEvent>) {
        self.up = false;
        self.client = None;
        self.unblocking = false;
        self.unblock_again = None;
        heard.extend(self.blocked.take().into_iter().flatten().map(WakeEvent::Unsubscribed));
    }

    /// The wait has ended: by a release, by its time, or because it was to change.
    pub(crate) fn woken(&mut self, list: Option<&[u8]>, heard: &mut Vec<WakeEvent>) {
        self.unblocking = false;
        self.unblock_again = None;
        let keys = self.blocked.take().unwrap_or_default();
        if let Some(key) = list.and_then(|list| keys.into_iter().find(|key| key.signal() == list)) {
            // Whoever is woken tries, and asks again if that fails: most often it does not, and a wait that was begun anew would have to be
            // left again.
            self.wanted.remove(&key);
            heard.push(WakeEvent::Signal(key));
        }
    }

    /// The server does not let us wait: polling alone, for a while.
    pub(crate) fn refused(&mut self, now: Instant, error: &ServerError, wake: &mut Pipe, heard: &mut Vec<WakeEvent>) {
        let pause = match error.class {
            ErrorClass::Transient | ErrorClass::Reconnect => UNABLE,
            ErrorClass::Refused | ErrorClass::KeyInUse | ErrorClass::Unclear => REFUSED,
        };
        wake.close(now);
        self.down(heard);
        self.refused_until = Some(now + pause);
    }

    /// There was no wait to leave. The two connections are independent: it may have been overtaken.
    pub(crate) fn not_blocked(&mut self, now: Instant) {
        if self.unblocking {
            self.unblock_again = Some(now + UNBLOCK_AGAIN);
        }
    }

    /// The server does not let us leave a wait: waits become short.
    pub(crate) const fn cannot_unblock(&mut self) {
        self.unblocking = false;
        self.unblock_again = None;
        self.client = None;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let idle = self.idle.map(|since| since + LINGER);
        let refused = self.refused_until.filter(|_| !self.wanted.is_empty());
        [idle, refused, self.unblock_again].into_iter().flatten().min()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use alloc::format;
    use alloc::vec;

    use super::*;
    use crate::lock::Backoff;
    use crate::redis::{Endpoint, Identity, Limits, PipeConfig};
    use crate::{ClientId, NodeId, Role};

    /// A listener, and the two pipes that it steers. Nobody is at their other ends.
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
                    connect_timeout: ms(2_000),
                    request_timeout: ms(500),
                    reconnect: Backoff::default(),
                    limits: Limits::default(),
                };
                Pipe::new(config, Identity::new(ClientId::from_bits(1), b""), 42)
            };
            let listener = Listener::default();
            Self { listener, wake: pipe(Role::Wake), commands: pipe(Role::Commands), now: Instant::from_millis(1_000) }
        }

        /// Connected, and waiting for `names`.
        fn waiting(client: Option<i64>, names: &[&str]) -> Self {
            let mut rig = Self::new();
            names.iter().for_each(|name| rig.listener.want(key(name)));
            assert_eq!(rig.sync(), []);
            rig.listener.connected(client);
            assert_eq!(rig.sync(), names.iter().map(|name| WakeEvent::Subscribed(key(name))).collect::<Vec<_>>());
            rig
        }

        fn sync(&mut self) -> Vec<WakeEvent> {
            let mut heard = Vec::new();
            self.listener.sync(self.now, &mut self.wake, &mut self.commands, &mut heard);
            heard
        }

        /// Whether it asked the server to end the wait.
        fn unblocks(&mut self) -> bool {
            let mut expected = self.commands.clone();
            expected.unblock(self.now, 7);
            assert_eq!(self.sync(), []);
            self.commands == expected
        }

        /// Begins to wait for `names`, for so long.
        fn blocks(&mut self, names: &[&str], wait: Duration) {
            let mut expected = self.wake.clone();
            expected.block(self.now, keys(names), wait);
            self.sync();
            assert_eq!(self.wake, expected);
        }

        fn woken(&mut self, list: Option<&Key>) -> Vec<WakeEvent> {
            let mut heard = Vec::new();
            self.listener.woken(list.map(Key::signal), &mut heard);
            heard
        }

        fn pass(&mut self, by: u64) {
            self.now = self.now + ms(by);
        }
    }

    #[test]
    fn a7_a_wait_is_left_once_when_what_is_wanted_has_changed() {
        let mut rig = Rig::waiting(Some(7), &["a", "b"]);
        assert!(!rig.unblocks(), "it waits for just what is wanted");
        rig.listener.want(key("c"));
        assert!(rig.unblocks());
        assert!(!rig.unblocks(), "the server has been asked");
        // What was sent on an old connection may be lost.
        rig.listener.commands_up();
        assert!(rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.blocks(&["a", "b", "c"], WAIT);
        rig.listener.unwant(&key("b"));
        assert!(rig.unblocks(), "one less");
        assert_eq!(rig.woken(None), []);
        rig.sync();
        rig.listener.unwant(&key("a"));
        rig.listener.want(key("b"));
        assert!(rig.unblocks(), "another one");
    }

    #[test]
    fn a7_a_wait_that_was_overtaken_when_it_was_to_be_left_is_left_a_moment_later() {
        let mut rig = Rig::waiting(Some(7), &["a"]);
        rig.listener.want(key("b"));
        assert!(rig.unblocks());
        rig.listener.not_blocked(rig.now);
        assert_eq!(rig.listener.deadline(), Some(rig.now + UNBLOCK_AGAIN));
        rig.pass(1);
        assert!(!rig.unblocks());
        rig.pass(1);
        assert!(rig.unblocks());
        // It had ended by itself.
        rig.listener.not_blocked(rig.now);
        assert_eq!(rig.woken(None), []);
        assert_eq!(rig.listener.deadline(), None);
        rig.blocks(&["a", "b"], WAIT);
    }

    #[test]
    fn a7_where_a_wait_cannot_be_left_it_is_short() {
        let mut rig = Rig::waiting(None, &["a"]);
        rig.listener.want(key("b"));
        assert!(!rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.blocks(&["a", "b"], WAIT_WITHOUT_UNBLOCK);

        let mut rig = Rig::waiting(Some(7), &["a"]);
        rig.listener.want(key("b"));
        assert!(rig.unblocks());
        rig.listener.cannot_unblock();
        assert!(!rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.blocks(&["a", "b"], WAIT_WITHOUT_UNBLOCK);
    }

    #[test]
    fn a7_who_was_woken_is_waited_for_no_more() {
        let mut rig = Rig::waiting(Some(7), &["a", "b"]);
        assert_eq!(rig.woken(Some(&key("a"))), [WakeEvent::Signal(key("a"))]);
        rig.blocks(&["b"], WAIT);
        assert_eq!(rig.woken(Some(&key("a"))), [], "nobody waits for it");
    }

    #[test]
    fn a7_not_more_than_so_many_names_are_waited_for() {
        let names: Vec<_> = (0..MOST_KEYS + 1).map(|n| format!("{n:03}")).collect();
        let mut rig = Rig::new();
        names.iter().for_each(|name| rig.listener.want(key(name)));
        rig.listener.connected(Some(7));
        assert_eq!(rig.sync().len(), MOST_KEYS);
        assert!(!rig.unblocks(), "there is no room for the last");
        rig.listener.unwant(&key(&names[0]));
        assert!(rig.unblocks());
    }

    #[test]
    fn a7_the_connection_is_open_only_while_somebody_waits_and_a_moment_longer() {
        let mut rig = Rig::waiting(Some(7), &["a"]);
        assert_eq!(rig.listener.deadline(), None);
        rig.listener.unwant(&key("a"));
        assert!(rig.unblocks());
        assert_eq!(rig.woken(None), []);
        rig.sync();
        assert_eq!(rig.listener.deadline(), Some(rig.now + LINGER));
        rig.pass(999);
        rig.sync();
        assert!(!rig.wake.is_closed());
        // Somebody waits again: the moment begins anew after that.
        rig.listener.want(key("a"));
        rig.blocks(&["a"], WAIT);
        assert_eq!(rig.listener.deadline(), None);
        rig.listener.unwant(&key("a"));
        assert_eq!(rig.woken(None), []);
        rig.sync();
        rig.pass(1_000);
        rig.sync();
        assert_eq!((rig.wake.is_closed(), rig.listener.deadline()), (true, None));
        rig.sync();
        assert_eq!(rig.listener.deadline(), None);
    }

    #[test]
    fn a7_a_server_that_does_not_let_us_wait_is_asked_again_after_a_while() {
        for (text, pause) in [("NOPERM no", REFUSED), ("LOADING later", UNABLE)] {
            let mut rig = Rig::waiting(Some(7), &["a"]);
            let mut heard = vec![];
            rig.listener.refused(rig.now, &ServerError::classify(text), &mut rig.wake, &mut heard);
            assert_eq!((heard, rig.wake.is_closed()), (vec![WakeEvent::Unsubscribed(key("a"))], true));
            assert_eq!(rig.listener.deadline(), Some(rig.now + pause));
            rig.now = rig.now + (pause - ms(1));
            assert_eq!((rig.sync(), rig.wake.is_closed()), (vec![], true));
            rig.pass(1);
            assert_eq!((rig.sync(), rig.wake.is_closed()), (vec![], false));
            // As long as nobody waits there is nothing to ask for.
            rig.listener.refused(rig.now, &ServerError::classify(text), &mut rig.wake, &mut vec![]);
            rig.listener.unwant(&key("a"));
            assert_eq!(rig.listener.deadline(), None);
        }
    }
}
