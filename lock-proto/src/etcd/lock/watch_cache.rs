//! Watches of the previous wait, cached for the next one. Clients that lock a name repeatedly tend
//! to queue in the same order. Reusing an open watch saves requests and a read of the queue.
// E5

use alloc::boxed::Box;

use bytes::Bytes;
use core::ops::RangeInclusive;
use core::time::Duration;

use super::{Etcd, EtcdEnv, EtcdHold, WatchedKey};
use crate::etcd::locks_output::WatchId;
use crate::lock::SessionId;
use crate::time::Instant;

/// How long watches stay cached after a grant, and again after the end of the hold.
const CACHE_TTL: Duration = Duration::from_millis(100);
/// Bounds of the pause before the client queues again. Timers have a resolution of about 1 ms.
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(5);

/// Cached watches. Their events may be newer than the reply that starts the next wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CachedWatches {
    session: SessionId,
    /// The watch on the client's key, once the holder has returned it.
    own: Option<WatchedKey>,
    older: Bytes,
    older_watch: WatchedKey,
    /// The watch on a key ahead of the predecessor.
    earlier: Option<Box<Earlier>>,
    long: bool,
    /// Latest reported revision at which the client's key changed or the predecessor was deleted.
    reported: i64,
    held: Duration,
    enter_at: Option<Instant>,
    pub(super) until: Instant,
}

impl CachedWatches {
    /// `older_watch` must be known to be live.
    pub(super) fn new(
        now: Instant,
        session: SessionId,
        older: Bytes,
        older_watch: WatchedKey,
        earlier: Option<Box<Earlier>>,
        long: bool,
    ) -> Self {
        let until = now + CACHE_TTL;
        Self {
            session,
            own: None,
            older,
            older_watch,
            earlier,
            long,
            reported: 0,
            held: Duration::ZERO,
            enter_at: None,
            until,
        }
    }

    /// Returns the expected predecessor of the client's next key, and whether the queue was long.
    pub(super) fn expects(&self, session: SessionId) -> Option<(Bytes, bool)> {
        (self.session == session && self.own.is_some()).then(|| (self.older.clone(), self.long))
    }

    /// Records that the key was deleted, by a request that took `took`. The client pauses for the
    /// next holder, which is reading the queue.
    pub(super) fn released(&mut self, now: Instant, took: Duration) {
        if self.held >= *PAUSE.start() {
            self.enter_at = Some(now + took.clamp(*PAUSE.start(), *PAUSE.end()).min(self.held));
        }
    }

    /// Returns the end of the pause before the client queues again, while it lasts.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        self.enter_at.filter(|at| now < *at)
    }

    pub(super) fn is(&self, watch: WatchId) -> bool {
        self.older_watch.id == watch
            || self.own.is_some_and(|own| own.id == watch)
            || self.earlier.as_ref().is_some_and(|earlier| earlier.watch.id == watch)
    }

    pub(super) fn record(&mut self, watch: WatchId, revision: i64, gone: bool) {
        match &mut self.earlier {
            Some(earlier) if earlier.watch.id == watch => {}
            Some(_) | None if gone || watch != self.older_watch.id => self.reported = self.reported.max(revision),
            Some(_) | None => {}
        }
    }

    fn close(&self, env: &mut EtcdEnv) {
        if let Some(own) = self.own {
            env.close_watch(own.id);
        }
        env.close_watch(self.older_watch.id);
        if let Some(earlier) = &self.earlier {
            env.close_watch(earlier.watch.id);
        }
    }
}

/// A watched key ahead of the predecessor. Its deletion triggers an early read of the queue.
// E4
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Earlier {
    pub(super) key: Bytes,
    pub(super) watch: WatchedKey,
    /// When to read the queue, after the key was deleted.
    pub(super) read_at: Option<Instant>,
}

pub(super) struct Watching {
    pub(super) own: WatchedKey,
    pub(super) older: WatchedKey,
    /// The latest revision that cached watches reported.
    pub(super) reported: i64,
    /// The watch on the predecessor is known to be live.
    pub(super) live: bool,
    pub(super) earlier: Option<Box<Earlier>>,
}

impl Etcd {
    pub(super) fn close_cached_watches(&mut self, env: &mut EtcdEnv) {
        if let Some(cached) = self.own.watch_cache.take() {
            cached.close(env);
        }
    }

    pub(super) fn expire_cached_watches(&mut self, env: &mut EtcdEnv) {
        if self.own.watch_cache.as_ref().is_some_and(|cached| cached.until <= env.now || env.is_stopping) {
            self.close_cached_watches(env);
        }
    }

    /// Caches the holder's watch on its own key, or closes it.
    pub(super) fn cache_own_watch(&mut self, env: &mut EtcdEnv, hold: &EtcdHold) {
        let Some(own) = hold.node.watch else { return };
        match &mut self.own.watch_cache {
            Some(cached) if cached.own.is_none() && own.open.is_some() => {
                cached.own = Some(own);
                cached.held = env.now.since(hold.since);
                cached.until = env.now + CACHE_TTL;
            }
            Some(_) | None => env.close_watch(own.id),
        }
    }

    /// Watches the predecessor's key and the client's own. Reuses cached watches if they match.
    pub(super) fn watch_queue(&mut self, env: &mut EtcdEnv, session: SessionId, own: Bytes, older: &Bytes) -> Watching {
        match self.own.watch_cache.take().map(|cached| *cached) {
            Some(CachedWatches { session: of, own: Some(own), older: key, older_watch, earlier, reported, .. })
                if of == session && key == *older =>
            {
                Watching { own, older: older_watch, reported, live: true, earlier }
            }
            cached => {
                if let Some(cached) = cached {
                    cached.close(env);
                }
                // The order matters, see `Contender::opened`.
                let older = WatchedKey::until_deleted(env, older.clone());
                let own = WatchedKey::new(env, own);
                Watching { own, older, reported: 0, live: false, earlier: None }
            }
        }
    }
}
