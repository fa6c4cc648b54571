//! Waiting for releases on one node: the second connection, its `BLPOP`, and when it changes (requirement A7).
//!
//! Redis serves clients blocked on a list in the order of their arrival and forgets those that hang up, so a release wakes one
//! waiter, first come first served, and a dead one stalls nobody (<https://redis.io/docs/latest/commands/blpop/>). A name joins or leaves the wait by
//! `CLIENT UNBLOCK` on the command connection.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::pipe::Pipe;
use super::request::{ErrorClass, Key, ServerError};
use crate::time::Instant;

/// Names beyond this are polled only: each change of the wait sends all of its names again.
const MOST_KEYS: usize = 128;
/// One blocking wait; it is begun again as long as somebody waits. So a dead connection is found out.
const WAIT: Duration = Duration::from_secs(5);
/// The same on a server that does not let us leave a wait.
const WAIT_WITHOUT_UNBLOCK: Duration = Duration::from_secs(1);
/// For how long the connection is kept when nobody waits any more.
const LINGER: Duration = Duration::from_secs(1);
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
    /// Since when nobody waits.
    idle: Option<Instant>,
    refused_until: Option<Instant>,
}

/// What the wait told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// From now on the node tells of this lock's release.
    Listening(Key),
    /// The node does not tell of it any more.
    Deaf(Key),
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
    pub(crate) fn sync(&mut self, now: Instant, wake: &mut Pipe, commands: &mut Pipe, heard: &mut Vec<Heard>) {
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
        match &self.blocked {
            None if self.up && !self.wanted.is_empty() => {
                let keys: Vec<Key> = self.wanted.iter().take(MOST_KEYS).cloned().collect();
                heard.extend(keys.iter().cloned().map(Heard::Listening));
                let wait = if self.client.is_some() { WAIT } else { WAIT_WITHOUT_UNBLOCK };
                wake.block(now, keys.clone(), wait, WAIT);
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
    }

    /// The connection is gone, and with it the wait.
    pub(crate) fn down(&mut self, heard: &mut Vec<Heard>) {
        self.up = false;
        self.client = None;
        self.unblocking = false;
        heard.extend(self.blocked.take().into_iter().flatten().map(Heard::Deaf));
    }

    /// The wait has ended: by a release, by its time, or because it was to change.
    pub(crate) fn woken(&mut self, list: Option<&[u8]>, heard: &mut Vec<Heard>) {
        self.unblocking = false;
        let keys = self.blocked.take().unwrap_or_default();
        if let Some(key) = list.and_then(|list| keys.into_iter().find(|key| key.signal() == list)) {
            // Whoever is woken tries, and asks again if that fails: most often it does not, and a wait that was begun anew would have to be
            // left again.
            self.wanted.remove(&key);
            heard.push(Heard::Signal(key));
        }
    }

    /// The server does not let us wait: polling alone, for a while.
    pub(crate) fn refused(&mut self, now: Instant, error: &ServerError, wake: &mut Pipe, heard: &mut Vec<Heard>) {
        let pause = match error.class {
            ErrorClass::Transient | ErrorClass::Reconnect => UNABLE,
            ErrorClass::Refused | ErrorClass::KeyInUse | ErrorClass::Unclear => REFUSED,
        };
        wake.close(now);
        self.down(heard);
        self.refused_until = Some(now + pause);
    }

    /// The server does not let us leave a wait: waits become short.
    pub(crate) const fn cannot_unblock(&mut self) {
        self.unblocking = false;
        self.client = None;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let idle = self.idle.map(|since| since + LINGER);
        let refused = self.refused_until.filter(|_| !self.wanted.is_empty());
        [idle, refused].into_iter().flatten().min()
    }
}
