//! Waiting in the store's queue until no older key is left, watching one predecessor at a time. The
//! Go concurrency package calls this `waitDeletes`.
// E4, E5

use alloc::boxed::Box;

use bytes::Bytes;
use core::iter;
use core::mem;
use core::time::Duration;

use super::hold::HeldKey;
use super::watch_cache::{CachedWatches, Earlier};
use super::{Etcd, EtcdCall, EtcdContention, EtcdEnv, POLL, WatchedKey};
use crate::etcd::locks_output::WatchId;
use crate::etcd::message::KeyValue;
use crate::etcd::reading::QueueReading;
use crate::etcd::request::{Ahead, Found, Older, Reply, Request, SeenRevisions};
use crate::lock::{Answer, Blocked, Expiry, SessionId};
use crate::time::Instant;

/// How long events of a newly opened watch may be delayed, see [`EtcdContender::opened`].
const DELAY_LIMIT: Duration = Duration::from_millis(100);
/// Delay before the first extra read in that period.
const FIRST_REREAD: Duration = Duration::from_millis(2);

/// Index in [`Ahead::rest`] of the key whose deletion gives early notice.
const EARLIER: usize = 3;
/// Delay before the read that its deletion triggers, so as not to slow down the next holder.
const READ_AFTER: Duration = Duration::from_millis(2);

/// A contender that waits behind another key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EtcdContender {
    pub(super) session: SessionId,
    own: SeenRevisions,
    value: Bytes,
    /// The known state of the queue, and the schedule of the next read.
    reading: QueueReading,
    own_watch: WatchedKey,
    /// The known predecessors. `older_watch` is on the key of the direct one.
    ahead: Ahead,
    older_watch: Option<WatchedKey>,
    /// A watched key further ahead, if not all predecessors are known.
    earlier: Option<Box<Earlier>>,
    /// The watch on the predecessor has reported an event, so it is known to be live.
    live: bool,
    /// When the watch on the predecessor opened, if its events may be delayed.
    delayed_since: Option<Instant>,
    /// When to read the queue without a report: the server may have lost an event.
    recheck: Instant,
}

impl EtcdContender {
    pub(super) fn watched(&mut self, watch: WatchId) -> Option<&mut WatchedKey> {
        self.watches().find(|watched| watched.id == watch)
    }

    pub(super) fn watches(&mut self) -> impl Iterator<Item = &mut WatchedKey> {
        iter::once(&mut self.own_watch).chain(&mut self.older_watch)
    }

    pub(super) fn latest_reported(&mut self) -> i64 {
        let reported = self.reading.reported;
        self.watches().filter_map(|watched| watched.open).fold(reported, i64::max)
    }

    /// Backs off after a reply older than a reported event, as only a faulty server sends one.
    pub(super) fn handle_stale_reply(&mut self, now: Instant, revision: i64) {
        self.reading.reported = self.reading.reported.min(revision);
        for watched in self.watches() {
            watched.open = watched.open.map(|open| open.min(revision));
        }
        self.reading.retry.failed(now + POLL);
    }

    pub(super) fn is_earlier(&self, watch: WatchId) -> bool {
        self.earlier.as_ref().is_some_and(|earlier| earlier.watch.id == watch)
    }

    pub(super) fn close_earlier(&mut self, env: &mut EtcdEnv) {
        if let Some(earlier) = self.earlier.take() {
            env.close_watch(earlier.watch.id);
        }
    }

    /// Records an event of a watch. Returns true if the queue must be read again.
    pub(super) fn changed(&mut self, now: Instant, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) -> bool {
        let own = watch == self.own_watch.id && (gone || kv.mod_revision > self.own.modified);
        let older = gone && self.older_watch.is_some_and(|older| older.id == watch);
        if older {
            self.live = true;
            self.delayed_since = None;
        }
        if own || older {
            self.reading.report(revision);
        }
        if let Some(earlier) = self.earlier.as_mut().filter(|earlier| gone && earlier.watch.id == watch) {
            earlier.read_at = Some(now + READ_AFTER).filter(|_| self.ahead.rest.is_none());
        }
        own || older
    }

    /// Schedules a read, in case a watch stays closed.
    pub(super) fn poll_later(&mut self, now: Instant) {
        self.reading.poll_at(now + POLL);
    }

    /// Schedules a read if a watch has not opened: it may never do so.
    fn poll_without_watch(&mut self, now: Instant) {
        if self.lacks_watch() {
            self.poll_later(now);
        }
    }

    fn lacks_watch(&mut self) -> bool {
        self.watches().any(|watched| watched.open.is_none())
    }

    /// Handles an opened watch, and checks whether events of the predecessor may be delayed.
    ///
    /// etcd reads the store's revision and then opens the watch after it (`recvLoop` in
    /// `server/etcdserver/api/v3rpc/watch.go`, at least up to 3.5). After a write in between, the
    /// watch joins a list that etcd processes every 100 ms. If the watch on the client's own key,
    /// requested next, opens at the same revision, no write came in between. Otherwise the queue is
    /// reread a few times.
    // E5
    pub(super) fn opened(&mut self, now: Instant, watch: WatchId, revision: i64) {
        self.reading.opened_at(revision);
        let older = self.older_watch.and_then(|older| older.open);
        if self.delayed_since.is_none() && self.reading.retry.tries() == 0 && !self.lacks_watch() {
            self.reading.retry.set_due(None);
        }
        if watch == self.own_watch.id && older.is_some() && older != self.own_watch.open {
            self.delayed_since = Some(now);
            self.check_delay(now, None);
        }
    }

    /// Schedules a reread while events of the predecessor may be delayed.
    pub(super) fn check_delay(&mut self, now: Instant, read: Option<i64>) {
        let Some(since) = self.delayed_since else { return };
        let at = now + (2 * now.since(since)).max(FIRST_REREAD);
        let proven = read.is_some() && self.older_watch.is_some_and(|older| older.open == read);
        if proven || at > since + DELAY_LIMIT {
            self.delayed_since = None;
        } else if self.reading.retry.tries() == 0 {
            self.reading.read_by(at);
        }
    }

    /// Requests refused watches again, in the order that [`opened`](Self::opened) needs.
    fn reopen_refused(&mut self, env: &mut EtcdEnv, own: Bytes) {
        if self.older_watch.is_some_and(|older| !env.has_watch(older.id)) {
            self.older_watch = Some(WatchedKey::until_deleted(env, self.ahead.next.key.clone()));
        }
        if !env.has_watch(self.own_watch.id) {
            self.own_watch = WatchedKey::new(env, own);
        }
    }

    fn close(&mut self, env: &mut EtcdEnv) {
        env.close_watch(self.own_watch.id);
        self.close_older(env);
        self.close_earlier(env);
    }

    pub(super) fn close_older(&mut self, env: &mut EtcdEnv) {
        self.delayed_since = None;
        self.live = false;
        if let Some(older) = self.older_watch.take() {
            env.close_watch(older.id);
        }
    }

    /// Ends the wait, and caches its watches if the one on the predecessor is known to be live.
    pub(super) fn cache_watches(&mut self, env: &mut EtcdEnv, long: bool) -> Option<Box<CachedWatches>> {
        let watch = self.older_watch.filter(|older| self.live && older.open.is_some());
        let Some(watch) = watch else {
            self.close_older(env);
            self.close_earlier(env);
            return None;
        };
        let older = mem::take(&mut self.ahead.next.key);
        let earlier = self.earlier.take().map(|earlier| Box::new(Earlier { read_at: None, ..*earlier }));
        let long = long || earlier.is_some();
        Some(Box::new(CachedWatches::new(env.now, self.session, older, watch, earlier, long)))
    }
}

impl EtcdContender {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let QueueReading { retry, .. } = &self.reading;
        if retry.is_in_flight() {
            return None;
        }
        let near = self.earlier.as_ref().and_then(|earlier| earlier.read_at);
        let next = near.map_or(self.recheck, |at| at.min(self.recheck));
        // After a failure, only the backoff applies.
        Some(retry.due().map_or(next, |at| if retry.tries() > 0 { at } else { at.min(next) }))
    }
}

impl Etcd {
    /// Nobody waits any more, or the session is lost.
    pub(super) fn leave_queue(&mut self, env: &mut EtcdEnv, mut contender: EtcdContender) {
        self.calls.forget(|call| *call == EtcdCall::Look);
        contender.close(env);
        if !env.is_lost(contender.session) {
            self.schedule_key(env, contender.session, contender.own.modified);
        }
    }

    /// Joins the queue behind `ahead`: watches the predecessor's key and the client's own.
    // E4
    pub(super) fn join(
        &mut self,
        env: &mut EtcdEnv,
        session: SessionId,
        own: SeenRevisions,
        revision: i64,
        value: Bytes,
        ahead: Ahead,
    ) {
        let Some(lease) = env.lease(session) else { return };
        self.answer = Answer::Taken(Expiry::Unknown);
        if self.tries_once() {
            self.schedule_key(env, session, own.modified);
            self.contention = EtcdContention::Idle;
            self.end_try(env);
            return;
        }
        let watching = self.watch_queue(env, session, self.key.key(lease), &ahead.next.key);
        let mut contender = EtcdContender {
            session,
            own,
            value,
            reading: QueueReading::new(revision, watching.reported),
            own_watch: watching.own,
            ahead,
            older_watch: Some(watching.older),
            earlier: watching.earlier,
            live: watching.live,
            delayed_since: None,
            recheck: env.recheck_at(),
        };
        contender.poll_without_watch(env.now);
        self.contention = EtcdContention::Waiting(Box::new(contender));
        env.blocked(Blocked::Held);
        self.look(env);
    }

    /// Watches a key further ahead in a long queue. Its deletion leaves time to read the
    /// predecessors, so that a hand-over costs only two or three reads of single keys.
    pub(super) fn watch_earlier(&mut self, env: &mut EtcdEnv, rest: &[Older]) {
        let EtcdContention::Waiting(contender) = &mut self.contention else { return };
        let Some(older) = rest.get(EARLIER).filter(|_| contender.ahead.rest.is_none()) else { return };
        if contender.earlier.as_ref().is_none_or(|earlier| earlier.key != older.key) {
            contender.close_earlier(env);
            let watch = WatchedKey::until_deleted(env, older.key.clone());
            contender.earlier = Some(Box::new(Earlier { key: older.key.clone(), watch, read_at: None }));
        }
    }

    /// Lists the newest keys of a long queue, to find one further ahead to watch.
    pub(super) fn list_once(&mut self, env: &mut EtcdEnv) {
        if let EtcdContention::Waiting(contender) = &self.contention
            && contender.ahead.rest.is_none()
            && contender.earlier.is_none()
            && !contender.reading.retry.is_in_flight()
        {
            self.read_queue(env, None);
        }
    }

    /// Rereads the queue if its known state may be outdated.
    pub(super) fn look(&mut self, env: &mut EtcdEnv) {
        let EtcdContention::Waiting(contender) = &mut self.contention else { return };
        let due = contender.deadline().is_some_and(|at| at <= env.now);
        let QueueReading { known, retry, .. } = contender.reading;
        let paused = retry.due().is_some() && retry.tries() > 0;
        let missed = contender.reading.is_behind() || contender.watches().any(|watched| watched.is_ahead_of(known));
        if retry.is_in_flight() || !(due || (missed && !paused)) {
            return;
        }
        let near = contender.earlier.as_mut().and_then(|earlier| earlier.read_at.take_if(|at| *at <= env.now));
        // List the predecessors even if the direct one still exists.
        let search = near.is_some() && contender.ahead.rest.is_none();
        let ahead = (!search).then(|| contender.ahead.clone());
        self.read_queue(env, ahead);
    }

    fn read_queue(&mut self, env: &mut EtcdEnv, ahead: Option<Ahead>) {
        let EtcdContention::Waiting(contender) = &mut self.contention else { return };
        let Some(lease) = env.lease(contender.session) else { return };
        contender.reopen_refused(env, self.key.key(lease));
        contender.recheck = env.recheck_at();
        let reported = contender.latest_reported();
        let request = Request::Look { queue: self.key.clone(), lease, before: Some(contender.own.created), ahead };
        self.calls.put(env.send(contender.session, request), EtcdCall::Look);
        contender.reading.sent(reported);
    }

    pub(super) fn look_answered(&mut self, env: &mut EtcdEnv, reply: &Reply) {
        let EtcdContention::Waiting(contender) = &mut self.contention else { return };
        contender.reading.retry.forget_call();
        let session = contender.session;
        match reply {
            Reply::Done(Found::Queue { revision, own: Some(own), older, rest, all, long, .. })
                if *own == contender.own =>
            {
                contender.reading.known = *revision;
                match older {
                    // No older key, and the client's own key exists: this read proves ownership,
                    // unless a change of that key was reported meanwhile. No event would repeat it.
                    // E4, E8
                    None if contender.reading.is_behind() => {}
                    None => {
                        let value = mem::take(&mut contender.value);
                        let (own, own_watch) = (*own, contender.own_watch);
                        // The cache is empty: `join` took its watches.
                        self.own.watch_cache = contender.cache_watches(env, *long);
                        return self.win(env, session, own, *revision, value, Some(own_watch));
                    }
                    Some(older) if self.key.is_foreign(&older.key) => {
                        return self.fail_foreign_key(env, &older.key);
                    }
                    Some(older) => {
                        let next = Older { key: older.key.clone(), created: older.create_revision };
                        if next.key != contender.ahead.next.key || contender.older_watch.is_none() {
                            contender.close_older(env);
                            contender.older_watch = Some(WatchedKey::until_deleted(env, older.key.clone()));
                        }
                        contender.ahead = Ahead { next, rest: all.then(|| rest.clone()) };
                    }
                }
                if *long {
                    self.watch_earlier(env, rest);
                }
                let EtcdContention::Waiting(contender) = &mut self.contention else { return };
                contender.reading.retry.succeeded();
                if contender.reading.min_revision > *revision {
                    contender.handle_stale_reply(env.now, *revision);
                }
                contender.check_delay(env.now, Some(*revision));
                contender.poll_without_watch(env.now);
                self.look(env);
            }
            // Another client wrote the key, perhaps without a lease.
            Reply::Done(Found::Queue { own: Some(own), .. }) => {
                contender.close(env);
                let own = *own;
                self.adopt(env, session, own);
            }
            // The key is gone. If the lease is gone too, the next request reports it.
            Reply::Done(Found::Queue { own: None, .. }) => {
                contender.close(env);
                self.enter(env, session);
            }
            Reply::Refused(_) if reply.is_refusal() => {
                self.fail_refused(env, reply.answer());
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                env.back_off(&mut contender.reading.retry);
            }
        }
    }

    /// Takes the lock. A read or write at `revision` proved that the key is first.
    pub(super) fn win(
        &mut self,
        env: &mut EtcdEnv,
        session: SessionId,
        own: SeenRevisions,
        revision: i64,
        value: Bytes,
        watch: Option<WatchedKey>,
    ) {
        let key = HeldKey::new(own, watch.filter(|own| env.has_watch(own.id)), revision);
        self.take(env, session, key, revision, value);
    }
}
