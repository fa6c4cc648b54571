//! The hub: many locks and elections, typed requests in and out.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use super::config::Config;
use super::lock::{Bid, Context, Etcd, LeaseKind, Lock, OwnerKey, View};
use super::message::KeyValue;
use super::query::{Query, QueryContext};
use super::request::{Queue, Reply};
use super::seam::{LocksOutput, WatchId};
use super::sessions::{Around, SessionId, Sessions, seconds};
use crate::collections::Slots;
use crate::error::{ConfigError, Invalid, Misuse};
use crate::id::{CallId, CallOwner, ClientId, LockId};
use crate::lock::{self, Acquire, Hub, QueryId, Renew, ServerError, Surroundings as _};
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
pub type Locks = lock::Locks<Etcd>;

/// What the locks of a client share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    client: ClientId,
    sessions: Sessions,
    queries: BTreeMap<u32, Query>,
    query_ids: Slots,
    watchers: BTreeMap<WatchId, Watcher>,
    /// The last watch.
    watch: u64,
}

impl Hub for Etcd {
    type Config = Config;
    type Output = LocksOutput;
    type Shared = Shared;

    fn limit(config: &Config) -> u32 {
        config.max_locks
    }

    fn view<'a>(config: &'a Config, shared: &'a Shared) -> View<'a> {
        View { config, sessions: &shared.sessions }
    }

    fn step<R>(locks: &mut Locks, slot: u32, step: impl FnOnce(&mut Lock, &mut Context<'_>) -> R) -> Option<R> {
        let (now, stopping) = (locks.locks.now(), locks.locks.is_stopping());
        let lock = locks.locks.get_mut(slot)?;
        let was_held = lock.hold.is_some();
        let (mut ended, mut watches, mut extend) = (Vec::new(), Vec::new(), Vec::new());
        let mut ctx = Context {
            now,
            config: &locks.config,
            client: locks.shared.client,
            stopping,
            seed: locks.seed,
            name: slot,
            number: &mut locks.number,
            serial: &mut locks.serial,
            watch: &mut locks.shared.watch,
            sessions: &mut locks.shared.sessions,
            out: &mut locks.out,
            watches: &mut watches,
            extend: &mut extend,
            ended: &mut ended,
        };
        let result = step(lock, &mut ctx);
        let deadline = lock.deadline(ctx.view()).map(|(at, _)| at);
        // Most steps change nothing about the leases that its keys hang on.
        let moved = !lock.uses().eq(lock.store.joined.iter().copied());
        let (uses, joined) = if moved {
            let uses: Vec<(SessionId, bool)> = lock.uses().collect();
            let joined = mem::replace(&mut lock.store.joined, uses.clone());
            (uses, joined)
        } else {
            (Vec::new(), Vec::new())
        };
        locks.locks.stepped(slot, was_held, deadline, ended);
        for (watch, open) in watches {
            if open {
                locks.shared.watchers.insert(watch, Watcher::Name(slot))
            } else {
                locks.shared.watchers.remove(&watch)
            };
        }
        for (session, needs) in &uses {
            locks.shared.sessions.join(*session, slot, *needs);
        }
        locks.around(|all, around| {
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

    fn is_unsettled(shared: &Shared, now: Instant) -> bool {
        shared.sessions.due(now).is_some() || shared.sessions.has_news() || !shared.queries.is_empty()
    }

    /// Sessions come before the locks that hang on them.
    fn settle_first(locks: &mut Locks) -> bool {
        if let Some(session) = locks.shared.sessions.due(locks.locks.now()) {
            locks.around(|sessions, around| sessions.timeout(around, session));
        } else if let Some((session, news)) = locks.shared.sessions.next_news() {
            let users: Vec<u32> =
                locks.shared.sessions.get(session).map_or_else(Vec::new, |s| s.users.keys().copied().collect());
            for slot in users {
                Self::step(locks, slot, |lock, ctx| lock.session(ctx, session, &news));
            }
        } else {
            return false;
        }
        true
    }

    fn settle_last(locks: &mut Locks) {
        let now = locks.locks.now();
        let due = |query: &&Query| query.deadline().is_some_and(|at| at <= now);
        for slot in locks.shared.queries.values().filter(due).map(|query| query.id.slot).collect::<Vec<_>>() {
            locks.query_step(slot, Query::timeout);
        }
    }

    fn shared_deadline(shared: &Shared) -> Option<(Instant, &'static str)> {
        let query = shared.queries.values().filter_map(Query::deadline).min().map(|at| (at, "a query"));
        [shared.sessions.first_deadline(), query].into_iter().flatten().min()
    }

    fn shutting_down(locks: &mut Locks) {
        for slot in locks.shared.queries.keys().copied().collect::<Vec<_>>() {
            locks.query_step(slot, |query, ctx| {
                query.shut_down(ctx);
                true
            });
        }
    }

    /// What could still land hangs on a lease; without one it cannot.
    fn drain(locks: &mut Locks) -> bool {
        locks.drop_locks();
        locks.around(Sessions::drain)
    }

    fn stopped(locks: &mut Locks, unreleased: u32) -> LocksOutput {
        locks.drop_locks();
        let unreleased = unreleased + locks.shared.sessions.len() as u32;
        locks.shared.sessions = Sessions::new(locks.shared.client, locks.seed);
        LocksOutput::Stopped { unreleased }
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
        let shared = Shared {
            client,
            sessions: Sessions::new(client, seed),
            queries: BTreeMap::new(),
            query_ids: Slots::default(),
            watchers: BTreeMap::new(),
            watch: 0,
        };
        Ok(Self::with(now, config, seed, shared))
    }

    /// Lets the numbers of calls and watches begin after these, for a search that tells numbers apart by their size: see
    /// [`Canon`](crate::sim::search::Canon). Only before anything was asked for.
    #[cfg(feature = "sim")]
    #[must_use]
    pub const fn count_from(mut self, calls: u64, watches: u64) -> Self {
        self.serial = calls;
        self.shared.watch = watches;
        self
    }

    // --- verbs ---

    /// Requests a lock. Progress is reported as events for the returned id.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    pub fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.contend(now, want, None)
    }

    /// Stands for election with this value. Progress is reported as events for the returned id; `Granted` means elected.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.contend(now, want, Some(value))
    }

    fn contend(&mut self, now: Instant, want: &Acquire, value: Option<Bytes>) -> Result<LockId, Misuse> {
        self.admit(now)?;
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
        let lease = if shared { LeaseKind::Shared } else { LeaseKind::Own(seconds(ttl)) };
        let bid = Bid { lease, candidate: value.is_some(), value: value.unwrap_or_default() };
        Ok(self.begin(queue, want, bid))
    }

    fn queue(&self, name: &[u8]) -> Result<Queue, Invalid> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Invalid::NameLength { len: name.len(), max: MAX_NAME });
        }
        Ok(Queue::new(&self.config.prefix, name))
    }

    /// Changes the value of a candidate that leads. Answered by `Proclaimed` or `ProclaimFailed`.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it does not lead.
    pub fn proclaim(&mut self, now: Instant, id: LockId, value: Bytes) -> Result<(), Misuse> {
        self.verb(now, id, |lock, ctx| lock.proclaim(ctx, id, value))
    }

    /// The key that the holder has, for transactions of its own that compare its `mod_revision`. From now on the lock is not passed on
    /// before that has changed (requirement E7).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn owner_guard(&mut self, now: Instant, id: LockId) -> Result<OwnerKey, Misuse> {
        self.verb(now, id, |lock, ctx| lock.owner_guard(ctx, id))
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
        if self.shared.query_ids.len() >= limit as usize {
            return Err(Misuse::TooMany { limit });
        }
        let queue = self.queue(name)?;
        let (slot, generation) = self.shared.query_ids.take(0);
        let id = QueryId { slot, generation };
        let until = (!observe).then(|| self.locks.now() + self.config.release_within);
        let watch = observe.then(|| {
            self.shared.watch += 1;
            WatchId(self.shared.watch)
        });
        if let Some(watch) = watch {
            self.shared.watchers.insert(watch, Watcher::Query(slot));
        }
        self.shared.queries.insert(slot, Query::new(id, queue, self.locks.now(), until));
        self.query_step(slot, |query, ctx| {
            query.start(ctx, watch);
            false
        });
        Ok(id)
    }

    /// Ends a question or an observation: no event of it follows.
    pub fn close_query(&mut self, now: Instant, id: QueryId) {
        self.advance(now);
        if self.shared.queries.get(&id.slot).is_some_and(|query| query.id == id) {
            self.end_query(id.slot);
        }
    }

    // --- facts ---

    /// What became of a request. Answers to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &Reply) {
        self.advance(now);
        match call.owner {
            CallOwner::Lock(slot) => {
                Etcd::step(self, slot, |lock, ctx| lock.reply(ctx, call.serial, reply));
            }
            CallOwner::Session(slot) => {
                self.around(|sessions, around| sessions.answered(around, slot, call.serial, reply));
            }
            CallOwner::Query(slot) => self.query_step(slot, |query, ctx| query.answered(ctx, call.serial, reply)),
            CallOwner::Nobody => {}
        }
        self.settle();
    }

    /// The watch is open: every change after `revision` will be told. Told again after each re-opening.
    pub fn handle_watching(&mut self, now: Instant, watch: WatchId, revision: i64) {
        self.advance(now);
        match self.shared.watchers.get(&watch).copied() {
            Some(Watcher::Name(slot)) => {
                Etcd::step(self, slot, |lock, ctx| lock.watching(ctx, watch, revision));
            }
            Some(Watcher::Query(slot)) => self.query_step(slot, |query, ctx| {
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
        match self.shared.watchers.get(&watch).copied() {
            Some(Watcher::Name(slot)) => {
                Etcd::step(self, slot, |lock, ctx| lock.changed(ctx, watch, revision, kv, deleted));
            }
            Some(Watcher::Query(slot)) => self.query_step(slot, |query, ctx| {
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
        match self.shared.watchers.get(&watch).copied() {
            Some(Watcher::Name(slot)) => {
                Etcd::step(self, slot, |lock, ctx| lock.deaf(ctx, watch));
            }
            Some(Watcher::Query(slot)) => self.query_step(slot, |query, ctx| {
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

    // --- questions ---

    /// The key that a holder has.
    #[must_use]
    pub fn owner(&self, id: LockId) -> Option<OwnerKey> {
        self.locks.of(id)?.owner(id, Etcd::view(&self.config, &self.shared))
    }

    // --- inside ---

    fn around<R>(&mut self, f: impl FnOnce(&mut Sessions, &mut Around<'_>) -> R) -> R {
        let mut around =
            Around { now: self.locks.now(), config: &self.config, serial: &mut self.serial, out: &mut self.out };
        f(&mut self.shared.sessions, &mut around)
    }

    fn query_step(&mut self, slot: u32, f: impl FnOnce(&mut Query, &mut QueryContext<'_>) -> bool) {
        let Some(query) = self.shared.queries.get_mut(&slot) else { return };
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
        let Some(query) = self.shared.queries.remove(&slot) else { return };
        self.shared.query_ids.end(slot);
        if let Some(watch) = query.watch {
            self.shared.watchers.remove(&watch.id);
            self.out.push_back(LocksOutput::Unwatch { watch: watch.id });
        }
    }

    /// Nothing more is done for any lock.
    fn drop_locks(&mut self) {
        for (slot, lock) in self.locks.clear() {
            self.around(|all, around| {
                for (session, _) in &lock.store.joined {
                    all.leave(around, *session, slot);
                }
            });
        }
        self.shared.watchers.clear();
    }
}
