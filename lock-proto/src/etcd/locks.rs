//! The hub: many locks and elections, typed requests in and out.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use super::config::Config;
use super::election::QueryId;
use super::lock::{Context, LeaseKind, Lock, OwnerKey, Waiter};
use super::message::KeyValue;
use super::query::{OF_QUERY, Query, QueryContext};
use super::request::{Queue, Reply};
use super::seam::{LocksOutput, WatchId};
use super::sessions::{Around, OF_SESSION, SessionId, Sessions, seconds};
use crate::collections::Slots;
use crate::error::{ConfigError, Invalid, Misuse};
use crate::id::{CallId, ClientId, LockId};
use crate::lock::{Acquire, Machine, Registry, Renew, ServerError};
use crate::lock::{MAX_NAME, MAX_TTL, MIN_TTL};
use crate::time::Instant;

/// Whose a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Watcher {
    Name(u32),
    Query(u32),
}

/// All locks and elections of one client, as typed requests and replies.
///
/// This is the seam for those who bring their own etcd client: carry out each [`LocksOutput`] (see
/// [`Request::rpc`](super::Request::rpc)) and report what came of it. Verbs are called by the application, `handle_*` tell what the world did,
/// `poll_output` gives what is to be done. After each call drain `poll_output` until it is empty, and call
/// [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline).
///
/// No order among requests is assumed: each is safe whenever it is executed (requirement E6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Locks {
    config: Config,
    client: ClientId,
    seed: u64,
    locks: Registry<Lock>,
    sessions: Sessions,
    queries: BTreeMap<u32, Query>,
    query_ids: Slots,
    watchers: BTreeMap<WatchId, Watcher>,
    out: VecDeque<LocksOutput>,
    number: u64,
    serial: u64,
    watch: u64,
}

impl Machine for Lock {
    type Key = Queue;

    fn new(queue: Queue) -> Self {
        Self::new(queue)
    }

    fn key(&self) -> &Queue {
        self.queue()
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }
}

impl Locks {
    /// A hub for the cluster of `config`. `seed` is 64 bits of entropy for jitter.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn new(now: Instant, config: Config, client: ClientId, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            client,
            seed,
            locks: Registry::new(now),
            sessions: Sessions::new(client, seed),
            queries: BTreeMap::new(),
            query_ids: Slots::default(),
            watchers: BTreeMap::new(),
            out: VecDeque::new(),
            number: 0,
            serial: 0,
            watch: 0,
        })
    }

    /// Lets the numbers of calls and watches begin after these, for a search that tells numbers apart by their size: see
    /// [`Canon`](crate::sim::search::Canon). Only before anything was asked for.
    #[cfg(feature = "sim")]
    #[must_use]
    pub const fn count_from(mut self, calls: u64, watches: u64) -> Self {
        self.serial = calls;
        self.watch = watches;
        self
    }

    // --- verbs ---

    /// Wishes for a lock. Its fate comes as events of the id that is returned.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    pub fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.contend(now, want, None)
    }

    /// Stands for election with this value. Its fate comes as events of the id that is returned: `Granted` means elected.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.contend(now, want, Some(value))
    }

    fn contend(&mut self, now: Instant, want: &Acquire, value: Option<Bytes>) -> Result<LockId, Misuse> {
        self.advance(now);
        self.locks.admit(self.config.max_locks)?;
        let queue = self.queue(&want.name)?;
        let ttl = want.ttl.unwrap_or(self.config.session_ttl);
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Invalid::Ttl { given: ttl, min: MIN_TTL, max: MAX_TTL }.into());
        }
        if want.renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold.into());
        }
        // Its own life, or one that ends before the session's, needs a lease of its own (requirement E1).
        let shared = seconds(ttl) == seconds(self.config.session_ttl) && want.renew == Renew::Auto;
        let (slot, id) = self.locks.begin(queue);
        let waiter = Waiter {
            id,
            lease: if shared { LeaseKind::Shared } else { LeaseKind::Own(seconds(ttl)) },
            renew: want.renew,
            wait: want.wait.or_try(),
            since: self.locks.now(),
            candidate: value.is_some(),
            value: value.unwrap_or_default(),
        };
        self.step(slot, |lock, ctx| lock.acquire(ctx, waiter));
        self.settle();
        Ok(id)
    }

    fn queue(&self, name: &[u8]) -> Result<Queue, Invalid> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Invalid::NameLength { len: name.len(), max: MAX_NAME });
        }
        Ok(Queue::new(&self.config.prefix, name))
    }

    /// Takes the lock that was offered by `Granted`.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] or [`Misuse::Stale`] if the offer was withdrawn, or nothing was offered.
    pub fn claim(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.advance(now);
        self.verb(id, |lock, ctx| lock.claim(ctx, id))
    }

    /// Gives the lock's lease a full TTL from now on. Each call is answered by an `Extended` or `ExtendFailed` of its own, in the order of
    /// the calls, unless the lock is lost or given back first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn extend(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.advance(now);
        self.verb(id, |lock, ctx| {
            let session = lock.extend(ctx.now, id)?;
            ctx.extend.push(session);
            Ok(())
        })
    }

    /// Changes the value of a candidate that leads. Answered by `Proclaimed` or `ProclaimFailed`.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it does not lead.
    pub fn proclaim(&mut self, now: Instant, id: LockId, value: Bytes) -> Result<(), Misuse> {
        self.advance(now);
        self.verb(id, |lock, ctx| lock.proclaim(ctx, id, value))
    }

    /// The key that the holder has, for transactions of its own that compare its `mod_revision`. From now on the lock is not passed on
    /// before that has changed (requirement E7).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn owner_guard(&mut self, now: Instant, id: LockId) -> Result<OwnerKey, Misuse> {
        self.advance(now);
        self.verb(id, |lock, ctx| lock.owner_guard(ctx, id))
    }

    /// Gives the lock back, or resigns. Answered by `Released`. Legal for a lock that is held, offered or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it has ended, is waited for only, or is being released already.
    pub fn release(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        self.advance(now);
        self.verb(id, |lock, ctx| lock.release(ctx, id))
    }

    /// Ends the acquisition, whatever state it is in: no event of it follows, nothing of it is left behind. Legal in every state; for an
    /// id that has ended it does nothing. This is what `Drop` calls.
    pub fn abandon(&mut self, now: Instant, id: LockId) {
        self.advance(now);
        if let Ok(slot) = self.locks.slot_of(id) {
            self.step(slot, |lock, ctx| lock.abandon(ctx, id));
            self.settle();
        }
    }

    /// Asks who leads. Answered by one event.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: the name is too long or empty, or the client is shutting down.
    pub fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.query(now, name, false)
    }

    /// Observes who leads, until the query is closed. The last event says why it could not go on.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.query(now, name, true)
    }

    fn query(&mut self, now: Instant, name: &[u8], observe: bool) -> Result<QueryId, Misuse> {
        self.advance(now);
        if self.locks.is_stopping() {
            return Err(Misuse::ShuttingDown);
        }
        let limit = self.config.max_locks;
        if self.query_ids.len() >= limit as usize {
            return Err(Misuse::TooMany { limit });
        }
        let queue = self.queue(name)?;
        let (slot, generation) = self.query_ids.take(0);
        let id = QueryId { slot, generation };
        let until = (!observe).then(|| self.locks.now() + self.config.release_within);
        let watch = observe.then(|| {
            self.watch += 1;
            WatchId(self.watch)
        });
        if let Some(watch) = watch {
            self.watchers.insert(watch, Watcher::Query(slot));
        }
        self.queries.insert(slot, Query::new(id, queue, self.locks.now(), until));
        self.query_step(slot, |query, ctx| {
            query.start(ctx, watch);
            false
        });
        Ok(id)
    }

    /// Ends a question or an observation: no event of it follows.
    pub fn close_query(&mut self, now: Instant, id: QueryId) {
        self.advance(now);
        if self.queries.get(&id.slot).is_some_and(|query| query.id == id) {
            self.end_query(id.slot);
        }
    }

    /// Gives back what is held, answers who waits, revokes every lease, and takes no new wishes. [`LocksOutput::Stopped`] follows when
    /// that is confirmed, or after `within`.
    pub fn shut_down(&mut self, now: Instant, within: Duration) {
        self.advance(now);
        if self.locks.begin_shutdown(within) {
            for slot in self.locks.slots() {
                self.step(slot, Lock::shut_down);
            }
            for slot in self.queries.keys().copied().collect::<Vec<_>>() {
                self.query_step(slot, |query, ctx| {
                    query.shut_down(ctx);
                    true
                });
            }
        }
        self.settle();
    }

    // --- facts ---

    /// What became of a request. Answers to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.advance(now);
        if call.name & OF_SESSION != 0 {
            self.around(|sessions, around| sessions.answered(around, call, reply));
        } else if call.name & OF_QUERY != 0 {
            self.query_step(call.name & !OF_QUERY, |query, ctx| query.answered(ctx, call.serial, reply));
        } else {
            self.step(call.name, |lock, ctx| lock.reply(ctx, call.serial, reply));
        }
        self.settle();
    }

    /// The watch is open: every change after `revision` will be told. Told again after each re-opening.
    pub fn handle_watching(&mut self, now: Instant, watch: WatchId, revision: i64) {
        self.advance(now);
        match self.watchers.get(&watch) {
            Some(Watcher::Name(slot)) => {
                self.step(*slot, |lock, ctx| lock.watching(ctx, watch, revision));
            }
            Some(Watcher::Query(slot)) => self.query_step(*slot, |query, ctx| {
                query.watching(ctx, revision);
                false
            }),
            None => {}
        }
        self.settle();
    }

    /// A watched key was written, or deleted, at `revision`.
    pub fn handle_changed(&mut self, now: Instant, watch: WatchId, revision: i64, deleted: bool, kv: &KeyValue) {
        self.advance(now);
        match self.watchers.get(&watch) {
            Some(Watcher::Name(slot)) => {
                self.step(*slot, |lock, ctx| lock.changed(ctx, watch, revision, kv, deleted));
            }
            Some(Watcher::Query(slot)) => self.query_step(*slot, |query, ctx| {
                query.changed(ctx, revision);
                false
            }),
            None => {}
        }
        self.settle();
    }

    /// The watch cannot be heard at present; it is opened again.
    pub fn handle_deaf(&mut self, now: Instant, watch: WatchId) {
        self.advance(now);
        match self.watchers.get(&watch) {
            Some(Watcher::Name(slot)) => {
                self.step(*slot, |lock, ctx| lock.deaf(ctx, watch));
            }
            Some(Watcher::Query(slot)) => self.query_step(*slot, |query, ctx| {
                query.deaf(ctx);
                false
            }),
            None => {}
        }
        self.settle();
    }

    /// The watch will not be opened. Whoever wanted it reads now and then instead; those readings will be refused as well, and say so.
    pub fn handle_watch_refused(&mut self, now: Instant, watch: WatchId, _: &ServerError) {
        self.handle_deaf(now, watch);
    }

    /// Does what is due. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.settle();
    }

    // --- drains ---

    /// The next thing to be done, in the order in which it was decided.
    #[must_use = "an output that is not carried out stalls its lock"]
    pub fn poll_output(&mut self) -> Option<LocksOutput> {
        self.out.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; now, while output is queued.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline_reason().map(|(at, _)| at)
    }

    /// [`next_deadline`](Self::next_deadline) and what it is for.
    #[must_use]
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.out.is_empty() {
            return Some((self.locks.now(), "output is queued"));
        }
        let first = self.locks.next_deadline().map(|(at, _)| (at, "a lock"));
        let query = self.queries.values().filter_map(Query::deadline).min().map(|at| (at, "a query"));
        let stop = self.locks.stop_at().map(|at| (at, "end of the shutdown"));
        let all = [first, self.sessions.first_deadline(), query, stop];
        all.into_iter().flatten().filter(|(at, _)| *at < Instant::MAX).min()
    }

    // --- questions ---

    /// The end of the validity of a lock that is held; `None` if it is not. Whether it is still held is for the clock to say.
    #[must_use]
    pub fn valid_until(&self, id: LockId) -> Option<Instant> {
        self.locks.of(id)?.valid_until(id, &self.sessions)
    }

    /// The key that a holder has.
    #[must_use]
    pub fn owner(&self, id: LockId) -> Option<OwnerKey> {
        self.locks.of(id)?.owner(id, &self.sessions)
    }

    /// How many locks are held.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.locks.held()
    }

    /// Whether the shutdown is over.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.locks.is_stopped()
    }

    /// The settings.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    // --- inside ---

    /// Time never runs backwards here (requirement M1), and what is due comes before any news: after a pause the first word is
    /// `Lost` (requirement T2).
    fn advance(&mut self, now: Instant) {
        self.locks.advance(now);
        self.settle();
    }

    /// Does all that is due or follows from what was done: sessions before the locks that hang on them.
    fn settle(&mut self) {
        loop {
            if let Some(session) = self.sessions.due(self.locks.now()) {
                self.around(|sessions, around| sessions.timeout(around, session));
            } else if let Some((session, news)) = self.sessions.next_news() {
                let users: Vec<u32> =
                    self.sessions.get(session).map_or_else(Vec::new, |s| s.users.keys().copied().collect());
                for slot in users {
                    self.step(slot, |lock, ctx| lock.session(ctx, session, &news));
                }
            } else if let Some(slot) = self.locks.due() {
                self.step(slot, Lock::timeout);
                if self.sessions.due(self.locks.now()).is_none() {
                    self.locks.served(slot);
                }
            } else {
                break;
            }
        }
        let now = self.locks.now();
        let due = |query: &&Query| query.deadline().is_some_and(|at| at <= now);
        for slot in self.queries.values().filter(due).map(|query| query.id.slot).collect::<Vec<_>>() {
            self.query_step(slot, Query::timeout);
        }
        self.check_stopped();
    }

    fn around<R>(&mut self, f: impl FnOnce(&mut Sessions, &mut Around<'_>) -> R) -> R {
        let mut around =
            Around { now: self.locks.now(), config: &self.config, serial: &mut self.serial, out: &mut self.out };
        f(&mut self.sessions, &mut around)
    }

    fn verb<R>(
        &mut self,
        id: LockId,
        f: impl FnOnce(&mut Lock, &mut Context<'_>) -> Result<R, Misuse>,
    ) -> Result<R, Misuse> {
        let slot = self.locks.slot_of(id)?;
        let result = self.step(slot, f).unwrap_or(Err(Misuse::Stale(id)));
        self.settle();
        result
    }

    /// One step of one lock, and what follows from it for the hub.
    fn step<R>(&mut self, slot: u32, f: impl FnOnce(&mut Lock, &mut Context<'_>) -> R) -> Option<R> {
        let (now, stopping) = (self.locks.now(), self.locks.is_stopping());
        let lock = self.locks.get_mut(slot)?;
        let was_held = lock.is_held();
        let (mut ended, mut watches, mut extend) = (Vec::new(), Vec::new(), Vec::new());
        let mut ctx = Context {
            now,
            config: &self.config,
            client: self.client,
            stopping,
            seed: self.seed,
            name: slot,
            number: &mut self.number,
            serial: &mut self.serial,
            watch: &mut self.watch,
            sessions: &mut self.sessions,
            out: &mut self.out,
            watches: &mut watches,
            extend: &mut extend,
            ended: &mut ended,
        };
        let result = f(lock, &mut ctx);
        let deadline = lock.deadline(&ctx).map(|(at, _)| at);
        // Most steps change nothing about the leases that its keys hang on.
        let moved = !lock.uses().eq(lock.joined.iter().copied());
        let (uses, joined) = if moved {
            let uses: Vec<(SessionId, bool)> = lock.uses().collect();
            let joined = mem::replace(&mut lock.joined, uses.clone());
            (uses, joined)
        } else {
            (Vec::new(), Vec::new())
        };
        self.locks.stepped(slot, was_held, |_| deadline, ended);
        for (watch, open) in watches {
            if open {
                self.watchers.insert(watch, Watcher::Name(slot))
            } else {
                self.watchers.remove(&watch)
            };
        }
        for (session, needs) in &uses {
            self.sessions.join(*session, slot, *needs);
        }
        self.around(|all, around| {
            let left = |session: &SessionId| !uses.iter().any(|(used, _)| used == session);
            for session in joined.iter().map(|(session, _)| session).filter(|session| left(session)) {
                all.leave(around, *session, slot);
            }
            for session in extend {
                all.extend(around, session);
            }
            all.settle(around);
        });
        Some(result)
    }

    fn query_step(&mut self, slot: u32, f: impl FnOnce(&mut Query, &mut QueryContext<'_>) -> bool) {
        let Some(query) = self.queries.get_mut(&slot) else { return };
        let mut ctx = QueryContext {
            now: self.locks.now(),
            config: &self.config,
            seed: self.seed,
            slot,
            serial: &mut self.serial,
            out: &mut self.out,
        };
        if f(query, &mut ctx) {
            self.end_query(slot);
        }
    }

    fn end_query(&mut self, slot: u32) {
        let Some(query) = self.queries.remove(&slot) else { return };
        self.query_ids.end(slot);
        if let Some(watch) = query.watch {
            self.watchers.remove(&watch.id);
            self.out.push_back(LocksOutput::Unwatch { watch: watch.id });
        }
    }

    fn check_stopped(&mut self) {
        let Some(until) = self.locks.stop_at() else { return };
        let all = self.locks.is_drained(Lock::is_drained);
        if all {
            // What could still land hangs on a lease; without one it cannot.
            self.drop_locks();
        }
        let revoked = all && self.around(Sessions::drain);
        if !revoked && until > self.locks.now() {
            return;
        }
        self.locks.stop();
        let left = self.locks.iter().filter(|lock| !lock.is_drained()).count();
        for slot in self.locks.slots() {
            self.step(slot, Lock::stop);
        }
        self.drop_locks();
        let unreleased = (left + self.sessions.len()) as u32;
        self.sessions = Sessions::new(self.client, self.seed);
        self.out.push_back(LocksOutput::Stopped { unreleased });
    }

    /// Nothing more is done for any lock.
    fn drop_locks(&mut self) {
        for (slot, lock) in self.locks.clear() {
            self.around(|all, around| {
                for (session, _) in &lock.joined {
                    all.leave(around, *session, slot);
                }
            });
        }
        self.watchers.clear();
    }
}
