//! The lock in etcd's queue: one name within one client.
//!
//! The head of the wait queue enters the store's queue ([`enter`]), waits there until no older key is left
//! ([`wait_deletes`]), and holds the lock from then on ([`hold`], [`held`]). Waiters of the same name have one key between
//! them (requirement E7). At any time the client has at most one live key under a name for each of its leases: that of the
//! contender, or that of the hold.

mod cleanup;
mod context;
mod enter;
mod held;
mod hold;
pub(crate) mod query;
mod session;
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
use enter::{Enter, Step, What};
use hold::{Hold, WriteCall};
use query::Query;
use session::{News, Session};
use sessions::{SessionId, Sessions, seconds};
use wait_deletes::Contender;
use watch_cache::Kept;

use super::config::{Config, Settings};
use super::message::KeyValue;
use super::request::{Queue, Reply, Request};
use super::seam::{LocksOutput, WatchId};
use crate::error::{Invalid, Misuse};
use crate::id::{CallId, LockId};
use crate::lock::{
    self, Acquire, Answer, Blocked, Ended, ErrorClass, Event, Failure, Grant, Loss, MAX_TTL, MIN_TTL, Release, Renew,
    ServerError, Store, Tenure, Terms, Token, check_name,
};
use crate::time::{Instant, nanos};

pub use hold::OwnerKey;

/// State machine for one lock name within one client.
pub(crate) type Lock = lock::Lock<Etcd>;

/// One acquisition that waits.
pub(crate) type Waiter = lock::Waiter<Bid>;

/// Which lease an acquisition hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseKind {
    /// The client's.
    Shared,
    /// One of its own, of so many seconds.
    Own(i64),
}

/// What an acquisition puts into the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bid {
    pub(crate) lease: LeaseKind,
    /// What its key is to hold: a candidate's proposal.
    pub(crate) value: Bytes,
    /// It is a candidate: taking over is always written to the store, where others observe it.
    pub(crate) candidate: bool,
}

/// What is remembered of one name in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etcd {
    cleanups: Vec<Cleanup>,
    /// What was last heard, for reports.
    answer: Answer,
    /// The watches of the last wait.
    kept: Option<Box<Kept>>,
    /// The sessions that it last used, which know of it, and whether each must stay alive for it.
    pub(crate) joined: Vec<(SessionId, bool)>,
}

/// How far the head of the queue is on its way to the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Contention {
    /// Nobody contends.
    #[default]
    Idle,
    /// The head's lease is being granted.
    Leasing(SessionId),
    /// On the way into the queue.
    Entering(Enter),
    /// In the queue, behind another key.
    Waiting(Contender),
}

/// What a hold that has ended leaves in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remains {
    session: SessionId,
    left: Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Left {
    /// The key is gone.
    Nothing,
    /// The key, whose last change is this one.
    Key(i64),
    /// A write under way changes the key first: its answer says what to delete.
    Write(u64),
}

/// What is known of a release that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Releasing {
    session: SessionId,
    /// The end of the hold's validity.
    valid_until: Instant,
    /// A delete, emitted while the hold was valid, ended Unknown.
    maybe: bool,
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
        Self { cleanups: Vec::new(), answer: Answer::Silent, kept: None, joined: Vec::new() }
    }

    // --- contending ---

    fn contend(lock: &mut Lock, ctx: &mut Context) {
        lock.start(ctx);
    }

    fn new_head(lock: &mut Lock, ctx: &mut Context, left: &Waiter) {
        let head = lock.waiters.head().map(|head| head.terms.lease);
        let same = left.terms.lease == LeaseKind::Shared && head == Some(LeaseKind::Shared);
        match &lock.contention {
            Contention::Waiting(_) if same => lock.notify_blocked(ctx, Blocked::Held),
            Contention::Leasing(_) | Contention::Entering(_) if same => {}
            // Another lease, another key.
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
                Step::Asked { serial, what: What::Create, .. } => {
                    lock.schedule_call(ctx, session, CleanupCall::create(serial))
                }
                Step::Asked { serial, what: What::Adopt, .. } => {
                    lock.schedule_call(ctx, session, CleanupCall::put(serial))
                }
                Step::Asked { what: What::Search(own), .. } => lock.schedule_key(ctx, session, own.modified),
                Step::Clearing | Step::Paused(_) => lock.wake_cleanup(ctx, session),
            },
            Contention::Waiting(mut contender) => {
                contender.close(ctx);
                lock.schedule_key(ctx, contender.session, contender.modified());
            }
        }
    }

    fn answers(lock: &Lock) -> Box<[Answer]> {
        Box::new([lock.store.answer.clone()])
    }

    // --- holding ---

    fn tenure(hold: &Hold) -> &Tenure<Bid> {
        &hold.tenure
    }

    fn tenure_mut(hold: &mut Hold) -> &mut Tenure<Bid> {
        &mut hold.tenure
    }

    fn terms(hold: &Hold, ctx: &Context) -> Terms {
        Terms { until: ctx.until(hold.session), ttl: nanos(ctx.ttl(hold.session)), at_risk: ctx.config.at_risk }
    }

    /// The end of the session comes as its news.
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
            hold.turn.grants += 1;
        }
        lock.take_over(ctx);
    }

    // --- the end of a hold ---

    fn end(lock: &mut Lock, ctx: &mut Context, hold: &Hold, loss: Option<Loss>) -> Remains {
        let put = match hold.write.as_ref().and_then(|write| write.retry.call()) {
            Some(WriteCall::Put(serial)) => Some(serial),
            Some(WriteCall::Look(_)) | None => None,
        };
        let left = match (loss, put) {
            (Some(Loss::Gone), _) => Left::Nothing,
            (None, Some(serial)) => Left::Write(serial),
            (_, _) => Left::Key(hold.key.modified),
        };
        if loss == Some(Loss::MaxHold) {
            // The lease is this hold's alone. It is not renewed from now on, so the key outlives the limit by a TTL at
            // most, even if the guard never comes back (requirement H6).
            ctx.shared.sessions.lose(hold.session, Loss::MaxHold);
        }
        if loss.is_none() {
            lock.keep_own(ctx, hold);
        } else {
            if let Some(own) = hold.own {
                ctx.close_watch(own.id);
            }
            lock.close_kept(ctx);
        }
        Remains { session: hold.session, left }
    }

    /// The keys of a lost lease go with it.
    fn lost(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>, _: bool) {
        let session = ended.remains.session;
        match ended.remains.left {
            _ if ctx.session(session).is_none_or(|found| found.is_lost()) => {}
            Left::Key(modified) => lock.schedule_key(ctx, session, modified),
            // An earlier create may yet land, now that the key is gone.
            Left::Nothing | Left::Write(_) => lock.wake_cleanup(ctx, session),
        }
    }

    /// The key hangs on a lease of its own time: no attempt since has used it.
    fn clean_up(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>) {
        let session = ended.remains.session;
        match ended.remains.left {
            _ if ctx.is_gone(session) => {}
            Left::Nothing => {}
            Left::Key(modified) => lock.schedule_key(ctx, session, modified),
            Left::Write(serial) => lock.schedule_call(ctx, session, CleanupCall::put(serial)),
        }
    }

    /// The waiters go to the end of the queue.
    fn turn_ended(lock: &mut Lock, ctx: &mut Context, _: &Hold) {
        lock.start(ctx);
    }

    fn releasing(_: &Lock, ctx: &Context, ended: &Ended<Self>) -> Releasing {
        let Remains { session, left } = ended.remains;
        let gone = left == Left::Nothing || ctx.is_gone(session);
        let outcome = gone.then_some(Release::Expired);
        Releasing { session, valid_until: ended.valid_until, maybe: false, outcome }
    }

    fn released(releasing: &Releasing, _: &Context) -> Option<Release> {
        releasing.outcome
    }

    // --- time, and the end ---

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        match &lock.contention {
            Contention::Entering(_) => lock.enter_due(ctx),
            Contention::Waiting(_) => lock.look(ctx),
            Contention::Idle | Contention::Leasing(_) => {}
        }
        lock.cleanups_due(ctx);
        lock.close_kept_due(ctx);
    }

    fn contention_deadline(contention: &Contention) -> Option<(Instant, &'static str)> {
        match contention {
            Contention::Idle | Contention::Leasing(_) => None,
            Contention::Entering(enter) => enter.deadline().map(|at| (at, "next attempt")),
            Contention::Waiting(contender) => contender.deadline().map(|at| (at, "another look at the queue")),
        }
    }

    fn hold_deadline(hold: &Hold, _: &Context) -> (Instant, &'static str) {
        (hold.deadline(), "a hold")
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let cleanups = self.cleanups.iter().filter_map(Cleanup::deadline).min().map(|at| (at, "cleanup"));
        let kept = self.kept.as_ref().map(|kept| (kept.until, "watches that are kept"));
        [cleanups, kept].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn shut_down(lock: &mut Lock, ctx: &mut Context) {
        lock.close_kept(ctx);
    }

    /// What could still land hangs on a lease that is revoked next.
    fn is_drained(&self, _: &Context) -> bool {
        self.cleanups.iter().all(Cleanup::is_only_a_watch)
    }

    fn is_over(&self) -> bool {
        self.cleanups.is_empty() && self.kept.is_none()
    }

    // --- the client ---

    fn terms_of(config: &Config, want: &Acquire) -> Result<(Queue, Bid), Misuse> {
        check_name(&want.name)?;
        let ttl = want.ttl.unwrap_or(config.store.session_ttl);
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Invalid::Ttl { given: ttl, min: MIN_TTL, max: MAX_TTL }.into());
        }
        if want.renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold.into());
        }
        // Its own life, or one that ends before the session's, needs a lease of its own (requirement E1).
        let shared = seconds(ttl) == seconds(config.store.session_ttl) && want.renew == Renew::Auto;
        let lease = if shared { LeaseKind::Shared } else { LeaseKind::Own(seconds(ttl)) };
        let queue = Queue::new(&config.prefix, &want.name);
        Ok((queue, Bid { lease, value: Bytes::new(), candidate: false }))
    }

    fn request(call: CallId, request: Request, timeout: Duration) -> LocksOutput {
        LocksOutput::Send { call, request, timeout }
    }

    fn event(lock: LockId, event: Event) -> LocksOutput {
        LocksOutput::Event { lock, event }
    }

    fn stopped(locks: &mut lock::Locks<Self>, unreleased: u32) -> LocksOutput {
        locks.drop_locks();
        let shared = &mut locks.ctx.shared;
        let unreleased = unreleased + shared.sessions.len() as u32;
        shared.sessions = Sessions::default();
        LocksOutput::Stopped { unreleased }
    }

    /// Notes which leases its keys hang on. Most steps change nothing about that.
    fn after_step(lock: &mut Lock, ctx: &mut Context) {
        if lock.uses().eq(lock.store.joined.iter().copied()) {
            return;
        }
        let uses: Vec<(SessionId, bool)> = lock.uses().collect();
        for (session, needs) in &uses {
            ctx.shared.sessions.join(*session, ctx.slot, *needs);
        }
        for (session, _) in mem::take(&mut lock.store.joined) {
            if !uses.iter().any(|(used, _)| *used == session) {
                ctx.shared.sessions.left.push((session, ctx.slot));
            }
        }
        lock.store.joined = uses;
    }

    fn settle_step(ctx: &mut Context) {
        ctx.settle_sessions();
    }

    fn is_unsettled(ctx: &Context) -> bool {
        let sessions = &ctx.shared.sessions;
        sessions.due(ctx.now).is_some() || sessions.has_news() || !ctx.shared.queries.is_empty()
    }

    /// Sessions come before the locks that hang on them.
    fn settle_first(locks: &mut lock::Locks<Self>) -> bool {
        let sessions = &mut locks.ctx.shared.sessions;
        if let Some(session) = sessions.due(locks.ctx.now) {
            locks.ctx.session_step(session, Session::timeout);
        } else if let Some((session, news)) = sessions.next_news() {
            let users: Vec<u32> = sessions.get(session).map_or_else(Vec::new, |s| s.users.keys().copied().collect());
            for slot in users {
                locks.step(slot, |lock, ctx| lock.session(ctx, session, &news));
            }
        } else {
            return false;
        }
        true
    }

    fn settle_last(locks: &mut lock::Locks<Self>) {
        let now = locks.ctx.now;
        let due = |query: &&Query| query.deadline().is_some_and(|at| at <= now);
        for slot in locks.ctx.shared.queries.values().filter(due).map(|query| query.id.slot).collect::<Vec<_>>() {
            locks.ctx.query_step(slot, Query::timeout);
        }
    }

    fn shared_deadline(shared: &Shared) -> Option<(Instant, &'static str)> {
        let query = shared.queries.values().filter_map(Query::deadline).min().map(|at| (at, "a query"));
        [shared.sessions.first_deadline(), query].into_iter().flatten().min()
    }

    fn shutting_down(locks: &mut lock::Locks<Self>) {
        for slot in locks.ctx.shared.queries.keys().copied().collect::<Vec<_>>() {
            locks.ctx.query_step(slot, Query::shut_down);
        }
    }

    /// What could still land hangs on a lease; without one it cannot.
    fn drain(locks: &mut lock::Locks<Self>) -> bool {
        locks.drop_locks();
        locks.ctx.drain_sessions()
    }
}

impl Lock {
    // --- questions ---

    /// The sessions that its keys hang on, and whether each must stay alive for it.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (SessionId, bool)> {
        let all = self.guarded().chain(self.store.cleanups.iter().map(|cleanup| cleanup.session));
        all.map(|session| (session, self.needs(session)))
    }

    /// The session of the head that contends.
    const fn contending(&self) -> Option<SessionId> {
        match &self.contention {
            Contention::Idle => None,
            Contention::Leasing(session) => Some(*session),
            Contention::Entering(enter) => Some(enter.session),
            Contention::Waiting(contender) => Some(contender.session),
        }
    }

    /// Those of attempts and guards.
    fn guarded(&self) -> impl Iterator<Item = SessionId> {
        let held = self.hold.as_ref().map(|hold| hold.session);
        self.contending().into_iter().chain(held).chain(self.lost.iter().map(|lost| lost.remains.session))
    }

    fn needs(&self, session: SessionId) -> bool {
        self.guarded().any(|own| own == session)
            || self.store.cleanups.iter().any(|cleanup| cleanup.session == session && !cleanup.is_for_good())
    }

    /// The key that this acquisition holds.
    pub(crate) fn owner(&self, id: LockId, ctx: &Context) -> Option<OwnerKey> {
        let hold = self.hold.as_ref().filter(|hold| hold.tenure.id() == id && hold.is_prepared())?;
        Some(hold.owner_key(&self.key, ctx.session(hold.session)?.lease))
    }

    // --- facts ---

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

    /// Something happened to a session that this name depends on.
    pub(crate) fn session(&mut self, ctx: &mut Context, session: SessionId, news: &News) {
        if let News::Lost(_) | News::Refused(_) = news {
            self.cleanups_lost(ctx, session);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.session == session) {
            return match news {
                News::Lost(loss) => self.lose(ctx, *loss),
                News::Renewed(emitted) => self.renewed(ctx, *emitted),
                News::Unrenewed(emitted, answer) => self.unrenewed(ctx, *emitted, answer),
                News::Alive | News::Trouble(_) | News::Refused(_) => {}
            };
        }
        if self.contending() != Some(session) {
            return;
        }
        if let News::Lost(_) = news {
            if let Contention::Waiting(contender) = &mut self.contention {
                contender.close(ctx);
            }
            return self.start(ctx);
        }
        if !matches!(self.contention, Contention::Leasing(_)) {
            return;
        }
        match news {
            News::Alive => self.enter(ctx, session),
            News::Trouble(answer) => {
                self.store.answer = answer.clone();
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
            News::Refused(answer) => {
                self.store.answer = answer.clone();
                self.contention = Contention::Idle;
                self.fail_all(ctx, Failure::Refused);
            }
            News::Lost(_) | News::Renewed(_) | News::Unrenewed(..) => {}
        }
    }

    /// The watch is open: everything after `revision` is told.
    pub(crate) fn watching(&mut self, ctx: &mut Context, watch: WatchId, revision: i64) {
        if let Some(watched) = self.watched(watch) {
            watched.open = Some(revision);
        }
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.watches(watch)) {
            return self.read_cleanup(ctx, place);
        }
        self.look_after(ctx);
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.opened(ctx.now, watch);
            self.look(ctx);
        }
    }

    /// A watched key has changed.
    pub(crate) fn changed(&mut self, ctx: &mut Context, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) {
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.watches(watch)) {
            return self.cleanup_changed(ctx, place, kv, gone);
        }
        if let Some(kept) = self.store.kept.as_mut().filter(|kept| kept.is(watch)) {
            return kept.told(watch, revision, gone);
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

    /// The watch is not open at present.
    pub(crate) fn unsubscribed(&mut self, ctx: &mut Context, watch: WatchId) {
        if self.store.kept.as_ref().is_some_and(|kept| kept.is(watch)) {
            return self.close_kept(ctx);
        }
        if let Contention::Waiting(contender) = &mut self.contention
            && contender.is_earlier(watch)
        {
            // A hint is missed, and nothing else.
            return contender.close_earlier(ctx);
        }
        if let Some(watched) = self.watched(watch) {
            watched.open = None;
        }
        if let Contention::Waiting(contender) = &mut self.contention {
            contender.poll_later(ctx.now);
        }
    }

    // --- inside ---

    fn watched(&mut self, watch: WatchId) -> Option<&mut Watched> {
        let own = self.hold.as_mut().and_then(|hold| hold.own.as_mut()).filter(|own| own.id == watch);
        match &mut self.contention {
            Contention::Waiting(contender) => contender.watched(watch).or(own),
            Contention::Idle | Contention::Leasing(_) | Contention::Entering(_) => own,
        }
    }

    /// A key that is no contender's stands in the way (requirement E2).
    fn fail_foreign(&mut self, ctx: &mut Context, key: &[u8]) {
        let text = alloc::format!("the key {} is in the way, and is not of this lock", key.escape_ascii());
        self.store.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text: text.into() });
        self.fail_all(ctx, Failure::KeyInUse);
    }
}
