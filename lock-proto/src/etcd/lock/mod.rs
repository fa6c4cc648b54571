//! State machine for one lock name on etcd, within one client. All waiters of a name share one key,
//! and a client has at most one live key per name and lease. The head enters the queue ([`enter`]),
//! waits until its key is the oldest ([`wait_deletes`]), and holds the lock ([`hold`], [`held`]).
// E7

mod cleanup;
mod context;
mod enter;
mod held;
mod hold;
pub(crate) mod query;
pub(crate) mod session;
pub(crate) mod sessions;
mod wait_deletes;
mod watch_cache;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use cleanup::{Cleanup, CleanupCall};
pub(crate) use context::{Context, Shared, Watched, Watcher};
use enter::{Action, Enter, Step};
use hold::{Hold, WriteCall};
use query::Query;
use session::{Session, SessionEvent};
use sessions::seconds;
use wait_deletes::Contender;
use watch_cache::CachedWatches;

use super::config::{Config, Settings};
use super::locks_output::{LocksOutput, WatchId};
use super::message::KeyValue;
use super::request::{Queue, Reply, Request};
use crate::error::{Invalid, Misuse};
use crate::id::{CallId, LockId};
use crate::lock::{
    self, Acquire, Answer, Blocked, ElectionEvent, ElectionStore, Ended, ErrorClass, Event, Failure, Grant, Loss,
    MAX_TTL, MIN_TTL, Queries, QueryId, Release, Renew, ServerError, Session as _, SessionId, SessionStore, Sessions,
    Store, Tenure, Terms, Token, check_name,
};
use crate::time::{Instant, nanos};

pub use hold::OwnerKey;

pub(crate) type Lock = lock::Lock<Etcd>;

pub(crate) type Waiter = lock::Waiter<Bid>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseKind {
    /// The lease that the client's locks share.
    Shared,
    /// A separate lease with this TTL in seconds.
    Own(i64),
}

/// Terms of an acquisition on etcd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bid {
    pub(crate) lease: LeaseKind,
    /// Value of the key: a candidate's proposal.
    pub(crate) value: Bytes,
    /// A candidate always writes its key on taking over, so that observers see it.
    pub(crate) candidate: bool,
}

/// Per-name state of the etcd store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etcd {
    cleanups: Vec<Cleanup>,
    /// The last reply, for reports.
    answer: Answer,
    /// Watches of the previous wait, for reuse.
    watch_cache: Option<Box<CachedWatches>>,
    /// Sessions that this lock last joined, and whether it needs each one alive.
    pub(crate) joined: Vec<(SessionId, bool)>,
}

/// Progress of the head of the local queue towards the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Contention {
    #[default]
    Idle,
    /// The server has not granted the head's lease yet.
    Leasing(SessionId),
    Entering(Enter),
    /// Waiting in the store's queue, behind another key.
    Waiting(Contender),
}

/// What an ended hold leaves in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remains {
    session: SessionId,
    left: Leftover,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leftover {
    Nothing,
    /// The key, last changed at this revision.
    Key(i64),
    /// A put in flight may change the key; its reply gives the revision to delete.
    Write(u64),
}

/// State of a release without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Releasing {
    session: SessionId,
    valid_until: Instant,
    /// A delete sent while the hold was valid ended Unknown.
    maybe_deleted: bool,
    outcome: Option<Release>,
}

impl Store for Etcd {
    type Key = Queue;
    type Terms = Bid;
    type Contention = Contention;
    type Hold = Hold;
    type Remains = Remains;
    type Releasing = Releasing;
    type Settings = Settings;
    type Shared = Shared;
    type Request = Request;
    type Output = LocksOutput;

    fn new() -> Self {
        Self { cleanups: Vec::new(), answer: Answer::Silent, watch_cache: None, joined: Vec::new() }
    }

    fn contend(lock: &mut Lock, ctx: &mut Context) {
        lock.start(ctx);
    }

    fn new_head(lock: &mut Lock, ctx: &mut Context, left: &Waiter) {
        let head = lock.waiters.head().map(|head| head.terms.lease);
        let same = left.terms.lease == LeaseKind::Shared && head == Some(LeaseKind::Shared);
        match &lock.contention {
            Contention::Waiting(_) if same => lock.notify_blocked(ctx, Blocked::Held),
            Contention::Leasing(_) | Contention::Entering(_) if same => {}
            // The new head uses a different lease, and therefore a different key.
            Contention::Idle | Contention::Leasing(_) | Contention::Entering(_) | Contention::Waiting(_) => {
                lock.nobody_waits(ctx);
                lock.start(ctx);
            }
        }
    }

    fn nobody_waits(lock: &mut Lock, ctx: &mut Context) {
        match mem::take(&mut lock.contention) {
            Contention::Idle | Contention::Leasing(_) => {}
            Contention::Entering(Enter { session, step }) => match step {
                Step::InFlight { serial, action: Action::Create, .. } => {
                    lock.schedule_call(ctx, session, CleanupCall::create(serial))
                }
                Step::InFlight { serial, action: Action::Adopt, .. } => {
                    lock.schedule_call(ctx, session, CleanupCall::put(serial))
                }
                Step::InFlight { action: Action::Search(own), .. } => lock.schedule_key(ctx, session, own.modified),
                Step::Clearing | Step::Paused(_) => lock.resume_cleanup(ctx, session),
            },
            Contention::Waiting(mut contender) => {
                contender.close(ctx);
                lock.schedule_key(ctx, contender.session, contender.modified());
            }
        }
    }

    fn answers(lock: &Lock, _: &Context) -> Box<[Answer]> {
        Box::new([lock.store.answer.clone()])
    }

    fn tenure(hold: &Hold) -> &Tenure<Bid> {
        &hold.tenure
    }

    fn tenure_mut(hold: &mut Hold) -> &mut Tenure<Bid> {
        &mut hold.tenure
    }

    fn terms(hold: &Hold, ctx: &Context) -> Terms {
        Terms { until: ctx.until(hold.session), ttl: nanos(ctx.ttl(hold.session)), at_risk: ctx.config.at_risk }
    }

    /// Sessions report losses by events, so nothing is polled here.
    fn loss(_: &Hold, _: &Context) -> Option<Loss> {
        None
    }

    fn grant(hold: &mut Hold, ctx: &mut Context) -> Grant {
        hold.extending.clear();
        ctx.number += 1;
        Grant {
            token: Token { client: ctx.shared.client, number: ctx.number },
            fence: Some(hold.fence()),
            fence_ahead_ms: 0,
            ttl: ctx.ttl(hold.session),
            valid_until: hold.tenure.valid_until(ctx.until(hold.session)),
        }
    }

    fn keep(lock: &mut Lock, ctx: &mut Context) {
        lock.keep(ctx);
    }

    fn extend(lock: &mut Lock, ctx: &mut Context) {
        let Some(hold) = &mut lock.hold else { return };
        hold.extending.push(ctx.now);
        ctx.shared.sessions.extend.push(hold.session);
    }

    fn may_hand_over(hold: &Hold, next: &Waiter, ctx: &Context) -> bool {
        ctx.is_alive(hold.session) && hold.may_hand_over(ctx.now, next)
    }

    fn hand_over(lock: &mut Lock, ctx: &mut Context, next: Waiter) {
        if let Some(hold) = &mut lock.hold {
            hold.tenure = Tenure::new(ctx.now, next);
            hold.grants.count += 1;
        }
        lock.take_over(ctx);
    }

    fn end(lock: &mut Lock, ctx: &mut Context, hold: &Hold, loss: Option<Loss>) -> Remains {
        let put = match hold.write.as_ref().and_then(|write| write.retry.call()) {
            Some(WriteCall::Put(serial)) => Some(serial),
            Some(WriteCall::Look(_)) | None => None,
        };
        let left = match (loss, put) {
            (Some(Loss::Gone), _) => Leftover::Nothing,
            (None, Some(serial)) => Leftover::Write(serial),
            (_, _) => Leftover::Key(hold.key.modified),
        };
        if loss == Some(Loss::MaxHold) {
            // This hold has its own lease, which is no longer renewed. Without a drop of the guard,
            // the key outlives the limit by at most a TTL.
            // H6
            ctx.shared.sessions.lose(hold.session, Loss::MaxHold);
        }
        if loss.is_none() {
            lock.cache_own_watch(ctx, hold);
        } else {
            if let Some(own) = hold.own {
                ctx.close_watch(own.id);
            }
            lock.close_cached_watches(ctx);
        }
        Remains { session: hold.session, left }
    }

    /// The keys of a lost lease end with it and need no cleanup.
    fn lost(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>, _: bool) {
        let session = ended.remains.session;
        match ended.remains.left {
            _ if ctx.session(session).is_none_or(|found| found.is_lost()) => {}
            Leftover::Key(modified) => lock.schedule_key(ctx, session, modified),
            // The key is gone, but an earlier create may still be executed.
            Leftover::Nothing | Leftover::Write(_) => lock.resume_cleanup(ctx, session),
        }
    }

    /// After a loss, attempts use a new lease, so none of them has used this key.
    fn clean_up(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>) {
        let session = ended.remains.session;
        match ended.remains.left {
            _ if ctx.is_gone(session) => {}
            Leftover::Nothing => {}
            Leftover::Key(modified) => lock.schedule_key(ctx, session, modified),
            Leftover::Write(serial) => lock.schedule_call(ctx, session, CleanupCall::put(serial)),
        }
    }

    /// Waiters requeue behind the other clients.
    fn handover_window_ended(lock: &mut Lock, ctx: &mut Context, _: &Hold) {
        lock.start(ctx);
    }

    fn releasing(_: &Lock, ctx: &Context, ended: &Ended<Self>) -> Releasing {
        let Remains { session, left } = ended.remains;
        let gone = left == Leftover::Nothing || ctx.is_gone(session);
        let outcome = gone.then_some(Release::Expired);
        Releasing { session, valid_until: ended.valid_until, maybe_deleted: false, outcome }
    }

    fn released(releasing: &Releasing, _: &Context) -> Option<Release> {
        releasing.outcome
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        match &lock.contention {
            Contention::Entering(_) => lock.enter_due(ctx),
            Contention::Waiting(_) => lock.look(ctx),
            Contention::Idle | Contention::Leasing(_) => {}
        }
        lock.cleanups_due(ctx);
        lock.expire_cached_watches(ctx);
    }

    fn contention_deadline(contention: &Contention) -> Option<(Instant, &'static str)> {
        match contention {
            Contention::Idle | Contention::Leasing(_) => None,
            Contention::Entering(enter) => enter.deadline().map(|at| (at, "next attempt")),
            Contention::Waiting(contender) => contender.deadline().map(|at| (at, "reread of the queue")),
        }
    }

    fn hold_deadline(hold: &Hold, _: &Context) -> (Instant, &'static str) {
        (hold.deadline(), "a hold")
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let cleanups = self.cleanups.iter().filter_map(Cleanup::deadline).min().map(|at| (at, "cleanup"));
        let cached = self.watch_cache.as_ref().map(|cached| (cached.until, "cached watches"));
        [cleanups, cached].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn shut_down(lock: &mut Lock, ctx: &mut Context) {
        lock.close_cached_watches(ctx);
    }

    /// A request that may still be executed needs a lease, and shutdown revokes the leases next.
    fn is_drained(&self, _: &Context) -> bool {
        self.cleanups.iter().all(Cleanup::is_only_a_watch)
    }

    fn is_over(&self) -> bool {
        self.cleanups.is_empty() && self.watch_cache.is_none()
    }

    fn terms_of(config: &Config, request: &Acquire) -> Result<(Queue, Bid), Misuse> {
        check_name(&request.name)?;
        let ttl = request.ttl.unwrap_or(config.store.session_ttl);
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Invalid::Ttl { given: ttl, min: MIN_TTL, max: MAX_TTL }.into());
        }
        if request.renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold.into());
        }
        // A separate TTL, or an end independent of the session, requires a separate lease.
        // E1
        let shared = seconds(ttl) == seconds(config.store.session_ttl) && request.renew == Renew::Auto;
        let lease = if shared { LeaseKind::Shared } else { LeaseKind::Own(seconds(ttl)) };
        let queue = Queue::new(&config.prefix, &request.name);
        Ok((queue, Bid { lease, value: Bytes::new(), candidate: false }))
    }

    fn request(call: CallId, request: Request, timeout: Duration) -> LocksOutput {
        LocksOutput::Send { call, request, timeout }
    }

    fn event(lock: LockId, event: Event) -> LocksOutput {
        LocksOutput::Event { lock, event }
    }

    /// Any reply shows that the cluster has a quorum and accepts the login.
    fn ping(ctx: &mut Context) -> Request {
        Request::First { queue: Queue::new(&ctx.config.prefix, b"lock-proto:ping") }
    }

    fn stopped(locks: &mut lock::Locks<Self>, unreleased: u32) -> LocksOutput {
        locks.drop_locks();
        let shared = &mut locks.ctx.shared;
        let unreleased = unreleased + shared.sessions.len() as u32;
        shared.sessions = Sessions::default();
        LocksOutput::Stopped { unreleased }
    }

    fn after_step(lock: &mut Lock, ctx: &mut Context) {
        lock.join_sessions(ctx);
    }

    fn settle_step(ctx: &mut Context) {
        ctx.settle_sessions();
        ctx.end_retired();
    }

    fn is_unsettled(ctx: &Context) -> bool {
        ctx.shared.sessions.is_unsettled(ctx.now) || !ctx.shared.queries.is_empty()
    }

    /// Processes sessions before the locks that depend on them.
    fn settle_first(locks: &mut lock::Locks<Self>) -> bool {
        locks.settle_session()
    }

    fn settle_last(locks: &mut lock::Locks<Self>) {
        locks.ctx.settle_queries();
    }

    fn shared_deadline(shared: &Shared) -> Option<(Instant, &'static str)> {
        [shared.sessions.first_deadline(), shared.queries.deadline()].into_iter().flatten().min()
    }

    fn shutting_down(locks: &mut lock::Locks<Self>) {
        locks.ctx.end_queries();
    }

    /// Without a lease, a late request can no longer create a key.
    fn drain(locks: &mut lock::Locks<Self>) -> bool {
        locks.drop_locks();
        locks.ctx.drain_sessions()
    }
}

impl SessionStore for Etcd {
    type Session = Session;

    fn sessions(shared: &Shared) -> &Sessions<Self> {
        &shared.sessions
    }

    fn sessions_mut(shared: &mut Shared) -> &mut Sessions<Self> {
        &mut shared.sessions
    }

    fn uses(lock: &Lock) -> impl Iterator<Item = (SessionId, bool)> {
        let all = lock.guarded().chain(lock.store.cleanups.iter().map(|cleanup| cleanup.session));
        all.map(|session| (session, lock.needs(session)))
    }

    fn joined(&mut self) -> &mut Vec<(SessionId, bool)> {
        &mut self.joined
    }

    fn session_event(lock: &mut Lock, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        lock.session(ctx, session, event);
    }
}

impl ElectionStore for Etcd {
    type Query = Query;

    fn queries(shared: &Shared) -> &Queries<Query> {
        &shared.queries
    }

    fn queries_mut(shared: &mut Shared) -> &mut Queries<Query> {
        &mut shared.queries
    }

    /// An election shares the queue of the lock with its name.
    fn election(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Ok(Queue::new(&config.prefix, name))
    }

    fn candidacy(bid: &mut Bid, value: Bytes) -> Result<(), Misuse> {
        *bid = Bid { lease: bid.lease, value, candidate: true };
        Ok(())
    }

    fn proclaim(lock: &mut Lock, ctx: &mut Context, id: LockId, value: Bytes) -> Result<(), Misuse> {
        lock.proclaim(ctx, id, value)
    }

    fn election_event(query: QueryId, event: ElectionEvent) -> LocksOutput {
        LocksOutput::Election { query, event }
    }
}

impl Lock {
    const fn contending(&self) -> Option<SessionId> {
        match &self.contention {
            Contention::Idle => None,
            Contention::Leasing(session) => Some(*session),
            Contention::Entering(enter) => Some(enter.session),
            Contention::Waiting(contender) => Some(contender.session),
        }
    }

    fn guarded(&self) -> impl Iterator<Item = SessionId> {
        let held = self.hold.as_ref().map(|hold| hold.session);
        self.contending().into_iter().chain(held).chain(self.lost.iter().map(|lost| lost.remains.session))
    }

    fn needs(&self, session: SessionId) -> bool {
        self.guarded().any(|own| own == session)
            || self.store.cleanups.iter().any(|cleanup| cleanup.session == session && !cleanup.is_open_ended())
    }

    /// Returns the key of this acquisition if it holds the lock.
    pub(crate) fn owner(&self, id: LockId, ctx: &Context) -> Option<OwnerKey> {
        let hold = self.hold.as_ref().filter(|hold| hold.tenure.id() == id && hold.is_prepared())?;
        Some(hold.owner_key(&self.key, ctx.session(hold.session)?.lease))
    }

    pub(crate) fn reply(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.awaits(serial)) {
            return self.cleanup_answered(ctx, place, reply);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.awaits(serial)) {
            return self.hold_answered(ctx, serial, reply);
        }
        match &self.contention {
            Contention::Entering(enter) if enter.awaits(serial) => self.enter_answered(ctx, reply),
            Contention::Waiting(contender) if contender.awaits(serial) => self.look_answered(ctx, reply),
            Contention::Idle | Contention::Leasing(_) | Contention::Entering(_) | Contention::Waiting(_) => {}
        }
    }

    /// Handles an event of a session that this lock uses.
    pub(crate) fn session(&mut self, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        if let SessionEvent::Lost(_) | SessionEvent::Refused(_) = event {
            self.cleanups_lost(ctx, session);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.session == session) {
            return match event {
                SessionEvent::Lost(loss) => self.lose(ctx, *loss),
                SessionEvent::Renewed(emitted) => self.renewed(ctx, *emitted),
                SessionEvent::Unrenewed(emitted, answer) => self.unrenewed(ctx, *emitted, answer),
                SessionEvent::Alive | SessionEvent::GrantFailed(_) | SessionEvent::Refused(_) => {}
            };
        }
        if self.contending() != Some(session) {
            return;
        }
        if let SessionEvent::Lost(_) = event {
            if let Contention::Waiting(contender) = &mut self.contention {
                contender.close(ctx);
            }
            return self.start(ctx);
        }
        if !matches!(self.contention, Contention::Leasing(_)) {
            return;
        }
        match event {
            SessionEvent::Alive => self.enter(ctx, session),
            SessionEvent::GrantFailed(answer) => {
                self.store.answer = answer.clone();
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
            SessionEvent::Refused(answer) => {
                self.store.answer = answer.clone();
                self.contention = Contention::Idle;
                self.fail_all(ctx, Failure::Refused);
            }
            SessionEvent::Lost(_) | SessionEvent::Renewed(_) | SessionEvent::Unrenewed(..) => {}
        }
    }

    /// Handles an opened watch. It reports everything after `revision`.
    pub(crate) fn watching(&mut self, ctx: &mut Context, watch: WatchId, revision: i64) {
        if let Some(watched) = self.watched(watch) {
            watched.open = Some(revision);
        }
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.watches(watch)) {
            return self.read_cleanup(ctx, place);
        }
        self.recheck_key(ctx);
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.opened(ctx.now, watch);
            self.look(ctx);
        }
    }

    pub(crate) fn changed(&mut self, ctx: &mut Context, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) {
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.watches(watch)) {
            return self.cleanup_changed(ctx, place, kv, gone);
        }
        if let Some(cached) = self.store.watch_cache.as_mut().filter(|cached| cached.is(watch)) {
            return cached.record(watch, revision, gone);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.own.is_some_and(|own| own.id == watch)) {
            return self.own_key_changed(ctx, revision, kv, gone);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.changed(ctx.now, watch, revision, kv, gone)
        {
            self.look(ctx);
        }
    }

    pub(crate) fn unsubscribed(&mut self, ctx: &mut Context, watch: WatchId) {
        if self.store.watch_cache.as_ref().is_some_and(|cached| cached.is(watch)) {
            return self.close_cached_watches(ctx);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.is_earlier(watch)
        {
            // This watch is an optimization only.
            return contender.close_earlier(ctx);
        }
        if let Some(watched) = self.watched(watch) {
            watched.open = None;
        }
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.poll_later(ctx.now);
        }
    }

    fn watched(&mut self, watch: WatchId) -> Option<&mut Watched> {
        let own = self.hold.as_mut().and_then(|hold| hold.own.as_mut()).filter(|own| own.id == watch);
        match &mut self.contention {
            Contention::Waiting(contender) => contender.watched(watch).or(own),
            Contention::Idle | Contention::Leasing(_) | Contention::Entering(_) => own,
        }
    }

    /// Fails all waiters because a foreign key occupies the queue.
    // E2
    fn fail_foreign(&mut self, ctx: &mut Context, key: &[u8]) {
        let text = alloc::format!("the key {} is in the way, and is not of this lock", key.escape_ascii());
        self.store.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text: text.into() });
        self.fail_all(ctx, Failure::KeyInUse);
    }
}
