//! State that the locks of a client share.

use alloc::collections::BTreeMap;

use bytes::Bytes;

use super::Etcd;
use crate::etcd::locks_output::{LocksOutput, WatchId, WatchOutput};
use crate::etcd::request::{LeaseId, Queue, Request};
use crate::id::{CallOwner, NodeId};
use crate::lock::{self, Loss, SessionId};
use crate::time::Instant;

pub(crate) type EtcdEnv = lock::Env<Etcd>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WatchOwner {
    Lock(u32),
    Query(u32),
}

/// Watches of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EtcdWatches {
    pub(crate) watchers: BTreeMap<WatchId, WatchOwner>,
    pub(crate) watch: u64,
}

impl EtcdEnv {
    /// Sends a request about a key of this session, and returns the serial of its call.
    pub(crate) fn send(&mut self, session: SessionId, request: Request) -> u64 {
        let found = self.session(session);
        let timeout = found.map_or(self.config.request_timeout, |found| found.request_timeout(&self.config));
        self.call(CallOwner::Lock(self.slot), NodeId(0), request, timeout)
    }

    pub(crate) fn watch_key(&mut self, key: Bytes) -> WatchId {
        self.watch(WatchOwner::Lock(self.slot), key, Bytes::new(), false)
    }

    fn watch_deletion(&mut self, key: Bytes) -> WatchId {
        self.watch(WatchOwner::Lock(self.slot), key, Bytes::new(), true)
    }

    /// Watches a queue for the query in this slot.
    pub(crate) fn watch_queue(&mut self, slot: u32, queue: &Queue) -> WatchId {
        let (key, end) = queue.range();
        self.watch(WatchOwner::Query(slot), key.clone(), end.clone(), false)
    }

    fn watch(&mut self, whose: WatchOwner, key: Bytes, end: Bytes, deletions: bool) -> WatchId {
        self.shared.own.watch += 1;
        let watch = WatchId(self.shared.own.watch);
        self.shared.own.watchers.insert(watch, whose);
        self.out.push_back(LocksOutput::Store(WatchOutput::Watch { watch, key, end, deletions }));
        watch
    }

    /// Returns false once the watch is closed or refused.
    pub(crate) fn has_watch(&self, watch: WatchId) -> bool {
        self.shared.own.watchers.contains_key(&watch)
    }

    pub(crate) fn close_watch(&mut self, watch: WatchId) {
        self.shared.own.watchers.remove(&watch);
        self.out.push_back(LocksOutput::Store(WatchOutput::Unwatch { watch }));
    }

    pub(crate) fn lease(&self, session: SessionId) -> Option<LeaseId> {
        self.session(session).map(|found| found.own.id)
    }

    /// Somebody waits for the lease that locks share only until `by`. `unsent`: no request has left.
    pub(crate) fn hurry_lease(&mut self, by: Instant, unsent: bool) {
        if let Some(session) = self.shared.sessions.shared {
            self.session_step(session, |session, env| session.hurry(env, by, unsent));
        }
    }

    /// Handles a reply that the session's lease does not exist. Users are notified after this step.
    pub(crate) fn lost_lease(&mut self, session: SessionId) {
        self.shared.sessions.lose(session, Loss::Gone);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WatchedKey {
    pub(crate) id: WatchId,
    /// The watch reports everything after this revision; `None` while it is not open.
    pub(crate) open: Option<i64>,
}

impl WatchedKey {
    pub(crate) fn new(env: &mut EtcdEnv, key: Bytes) -> Self {
        Self { id: env.watch_key(key), open: None }
    }

    /// Watches another contender's key, of which only the deletion matters.
    pub(crate) fn until_deleted(env: &mut EtcdEnv, key: Bytes) -> Self {
        Self { id: env.watch_deletion(key), open: None }
    }

    /// Returns true if a read at revision `known` may have missed a change before the watch opened.
    pub(crate) fn is_ahead_of(&self, known: i64) -> bool {
        self.open.is_some_and(|open| open > known)
    }
}
