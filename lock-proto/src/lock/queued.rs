//! The stores of the queue family, for the lifecycle of a lock and the hub: one implementation of
//! [`Store`] for all of them.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::fmt::{Debug, Display};
use core::hash::Hash;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use super::answer::{Answer, ErrorClass, ServerError, printable};
use super::client::{Client, Transport};
use super::config::Config;
use super::context::Context;
use super::election::Elections;
use super::event::{Blocked, Event, Failure};
use super::grant::{Grant, Loss, Release, Token};
use super::hub::Locks;
use super::lifecycle::{Ended, Lock};
use super::queries::{Queries, QueryStore};
use super::queue_config::QueueSettings;
use super::queue_hold::Hold;
use super::queue_output::QueueOutput;
use super::request::{Acquire, Renew};
use super::retry::Retry;
use super::sessions::{End, Session, SessionId, SessionStore, Sessions, State, pause};
use super::store::Store;
use super::tenure::{Tenure, Terms};
use super::tuning::check_name;
use super::users::Need;
use super::waiters::Waiter;
use crate::error::{Invalid, Misuse};
use crate::fault::Fault;
use crate::id::{CallId, CallOwner, ClientId, LockId};
use crate::jitter::jitter;
use crate::time::{Instant, nanos};

use super::queue::{Cleanup, Keep, Progress, QueueStore};

/// A store of the queue family: the state for one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queued<S: QueueStore> {
    pub(crate) cleanups: Vec<S::Cleanup>,
    /// The last reply, for reports.
    pub(crate) answer: Answer,
    /// Sessions that this lock last joined, and what it needs of each one.
    pub(crate) joined: Vec<(SessionId, Need)>,
    pub(crate) own: S,
}

/// The state machine of one name.
pub type QueueLock<S> = Lock<Queued<S>>;
/// The settings of a client.
pub type QueueConfig<S> = Config<QueueSettings<<S as QueueStore>::Settings>>;
/// The environment of a step.
pub type QueueContext<S> = Context<Queued<S>>;

/// Terms of an acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bid {
    /// The TTL of a separate session; `None` for the shared one.
    pub(crate) session: Option<Duration>,
    /// The value of the node: a candidate's proposal.
    pub(crate) value: Bytes,
    /// A candidate always writes its node on taking over, so that observers see it.
    pub(crate) candidate: bool,
}

/// State that the locks of a client share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared<S: QueueStore> {
    pub(crate) client: ClientId,
    pub(crate) sessions: Sessions<S>,
    pub(crate) queries: Queries<S>,
    /// Number of ids derived from that of the client so far.
    ids: u64,
    pub(crate) own: S::Shared,
}

impl<S: QueueStore> Shared<S> {
    pub(crate) fn new(client: ClientId) -> Self {
        Self { client, sessions: Sessions::default(), queries: Queries::default(), ids: 0, own: S::Shared::default() }
    }

    /// Returns the number of the next id that is derived from that of the client.
    pub(crate) const fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// Progress of the head of the local queue towards the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Contention<S: QueueStore> {
    /// Nobody contends.
    #[default]
    Idle,
    /// The session is not established.
    Opening(SessionId),
    /// Entering the store's queue.
    Entering(S::Enter),
    /// Waiting in the store's queue, behind another node.
    Waiting(S::Contender),
}

impl<S: QueueStore> Contention<S> {
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self {
            Self::Idle => None,
            Self::Opening(session) => Some(*session),
            Self::Entering(enter) => Some(enter.session()),
            Self::Waiting(contender) => Some(contender.session()),
        }
    }

    /// Returns true if it waits on this session, and is the next to hold the lock.
    fn is_next_on(&self, session: SessionId) -> bool {
        matches!(self, Self::Waiting(contender) if contender.session() == session && contender.is_next())
    }
}

/// What an ended hold leaves in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remains<S: QueueStore> {
    pub(crate) session: SessionId,
    pub(crate) left: S::Left,
}

/// State of a release without a result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Releasing<S: QueueStore> {
    pub(crate) remains: Remains<S>,
    valid_until: Instant,
    /// A delete sent while the hold was valid ended Unknown.
    maybe_deleted: bool,
    outcome: Option<Release>,
}

impl<S: QueueStore> Store for Queued<S> {
    type Key = S::Key;
    type Terms = Bid;
    type Contention = Contention<S>;
    type Hold = Hold<S>;
    type Remains = Remains<S>;
    type Releasing = Releasing<S>;
    type Settings = QueueSettings<S::Settings>;
    type Shared = Shared<S>;
    type Request = S::Request;
    type Output = QueueOutput<S::Request, S::Output>;

    fn new() -> Self {
        Self { cleanups: Vec::new(), answer: Answer::Silent, joined: Vec::new(), own: S::default() }
    }

    fn contend(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        lock.start(ctx);
    }

    fn new_head(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>, left: &Waiter<Bid>) {
        let same = lock.waiters.head().is_some_and(|head| {
            left.terms.session.is_none() && head.terms.session.is_none() && S::serves(&left.terms, &head.terms)
        });
        match &lock.contention {
            Contention::Waiting(_) if same => lock.notify_blocked(ctx, Blocked::Held),
            Contention::Opening(_) | Contention::Entering(_) if same => {}
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) | Contention::Waiting(_) => {
                lock.nobody_waits(ctx);
                lock.start(ctx);
            }
        }
    }

    fn nobody_waits(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        match mem::take(&mut lock.contention) {
            Contention::Idle | Contention::Opening(_) => {}
            Contention::Entering(enter) => enter.abandon(lock, ctx),
            Contention::Waiting(contender) => contender.abandon(lock, ctx),
        }
    }

    fn answers(lock: &QueueLock<S>) -> Box<[Answer]> {
        Box::new([lock.store.answer.clone()])
    }

    fn tenure(hold: &Hold<S>) -> &Tenure<Bid> {
        &hold.tenure
    }

    fn tenure_mut(hold: &mut Hold<S>) -> &mut Tenure<Bid> {
        &mut hold.tenure
    }

    fn terms(hold: &Hold<S>, ctx: &QueueContext<S>) -> Terms {
        // Warning and claim window are fractions of what the TTL proves (`S::validity`).
        let ttl = nanos(S::validity(&ctx.config, ctx.ttl(hold.session)));
        Terms { until: ctx.until(hold.session), ttl, at_risk: ctx.config.at_risk }
    }

    // T2
    fn loss(hold: &Hold<S>, ctx: &QueueContext<S>) -> Option<Loss> {
        (ctx.until(hold.session) <= ctx.now).then_some(Loss::Expired)
    }

    fn grant(hold: &mut Hold<S>, ctx: &mut QueueContext<S>) -> Grant {
        hold.extending.clear();
        ctx.number += 1;
        Grant {
            token: Token { client: ctx.shared.client, number: ctx.number },
            fence: Some(hold.grants.fence()),
            fence_ahead_ms: 0,
            ttl: ctx.ttl(hold.session),
            valid_until: hold.tenure.valid_until(ctx.until(hold.session)),
        }
    }

    fn keep(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        lock.keep(ctx);
    }

    fn extend(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        let Some(hold) = &mut lock.hold else { return };
        hold.extending.push(ctx.now);
        ctx.shared.sessions.extend.push(hold.session);
    }

    fn may_hand_over(hold: &Hold<S>, next: &Waiter<Bid>, ctx: &QueueContext<S>) -> bool {
        !ctx.is_lost(hold.session) && ctx.now < ctx.until(hold.session) && hold.may_hand_over(ctx.now, next)
    }

    fn hand_over(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>, next: Waiter<Bid>) {
        if let Some(hold) = &mut lock.hold {
            hold.tenure = Tenure::new(ctx.now, next);
            hold.grants.count += 1;
        }
        lock.take_over(ctx);
    }

    fn end(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>, hold: &Hold<S>, loss: Option<Loss>) -> Remains<S> {
        if let Some(loss @ (Loss::MaxHold | Loss::Expired)) = loss {
            // The session is no longer renewed. Without a drop of the guard, the node outlives the
            // hold by at most a TTL. A limited hold has a session of its own.
            // H6
            ctx.shared.sessions.lose(hold.session, loss);
        }
        Remains { session: hold.session, left: S::end(lock, ctx, hold, loss) }
    }

    fn lost(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>, ended: &Ended<Self>, _: bool) {
        // The nodes of a lost session end with it and need no cleanup.
        if !ctx.is_lost(ended.remains.session) {
            S::lost(lock, ctx, &ended.remains);
        }
    }

    fn clean_up(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>, ended: &Ended<Self>) {
        S::clean_up(lock, ctx, &ended.remains);
    }

    /// Waiters requeue behind the other clients.
    fn handover_window_ended(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>, _: &Hold<S>) {
        lock.start(ctx);
    }

    fn releasing(_: &QueueLock<S>, ctx: &QueueContext<S>, ended: &Ended<Self>) -> Releasing<S> {
        let remains = ended.remains.clone();
        let outcome = match ctx.session(remains.session).map(|session| session.state) {
            _ if remains.left == S::Left::default() => Some(Release::Expired),
            Some(State::Over(End::Refused | End::Unconfirmed)) => Some(Release::Unknown),
            Some(State::Over(End::Confirmed) | State::Lost(Loss::Gone)) | None => Some(Release::Expired),
            Some(State::Opening | State::Checking | State::Alive | State::Lost(_) | State::Ending) => None,
        };
        Releasing { remains, valid_until: ended.valid_until, maybe_deleted: false, outcome }
    }

    fn released(releasing: &Releasing<S>, _: &QueueContext<S>) -> Option<Release> {
        releasing.outcome
    }

    fn timeout(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        let is_due = Self::contention_deadline(&lock.contention).is_some_and(|(at, _)| at <= ctx.now);
        match &lock.contention {
            Contention::Entering(_) if is_due => S::Enter::timeout(lock, ctx),
            Contention::Waiting(_) if is_due => S::Contender::timeout(lock, ctx),
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) | Contention::Waiting(_) => {}
        }
        S::Cleanup::timeout(lock, ctx);
        S::timeout(lock, ctx);
    }

    fn contention_deadline(contention: &Contention<S>) -> Option<(Instant, &'static str)> {
        match contention {
            Contention::Idle | Contention::Opening(_) => None,
            Contention::Entering(enter) => enter.deadline().map(|at| (at, "next attempt")),
            Contention::Waiting(contender) => contender.deadline().map(|at| (at, "reread of the queue")),
        }
    }

    fn hold_deadline(hold: &Hold<S>, ctx: &QueueContext<S>) -> (Instant, &'static str) {
        (hold.deadline(ctx), "a hold")
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let cleanups = self.cleanups.iter().filter_map(Cleanup::deadline).min().map(|at| (at, "cleanup"));
        [cleanups, self.own.deadline()].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn shutdown(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        S::shutdown(lock, ctx);
    }

    /// Shutdown ends the sessions next, which deletes all nodes that are left. Without a session, a
    /// late request can no longer create one.
    fn is_drained(&self, _: &QueueContext<S>) -> bool {
        self.cleanups.iter().all(Cleanup::is_drained)
    }

    fn is_over(&self) -> bool {
        self.cleanups.is_empty() && self.own.deadline().is_none()
    }

    fn terms_of(config: &QueueConfig<S>, request: &Acquire) -> Result<(S::Key, Bid), Misuse> {
        check_name(&request.name)?;
        let checked = |ttl| S::check_ttl(config, ttl);
        // The default has been checked with the other settings.
        let own = request.ttl.map(checked).transpose()?;
        if request.renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold.into());
        }
        // A separate TTL, or an end independent of the session, requires a separate session.
        // E1, ZK8
        let default = config.store.session_ttl;
        let shared = request.renew == Renew::Auto && own.is_none_or(|ttl| checked(default) == Ok(ttl));
        let session = if shared { None } else { Some(own.map_or_else(|| checked(default), Ok)?) };
        let bid = Bid { session, value: Bytes::new(), candidate: false };
        Ok((S::key(config, &request.name)?, bid))
    }

    fn default_ttl(config: &QueueConfig<S>) -> Duration {
        config.store.session_ttl
    }

    fn request(call: CallId, request: S::Request, timeout: Duration) -> Self::Output {
        QueueOutput::Send { call, request, timeout }
    }

    fn event(lock: LockId, event: Event) -> Self::Output {
        QueueOutput::Event { lock, event }
    }

    fn ping(ctx: &mut QueueContext<S>) -> S::Request {
        S::ping(ctx)
    }

    fn stopped(locks: &mut Locks<Self>, unreleased: u32) -> Self::Output {
        locks.drop_locks();
        let sessions = mem::take(&mut locks.ctx.shared.sessions);
        QueueOutput::Stopped { unreleased: unreleased + sessions.unended(locks.ctx.now) }
    }

    fn after_step(lock: &mut QueueLock<S>, ctx: &mut QueueContext<S>) {
        lock.join_sessions(ctx);
    }

    fn settle_step(ctx: &mut QueueContext<S>) {
        ctx.settle_sessions();
    }

    fn is_unsettled(ctx: &QueueContext<S>) -> bool {
        ctx.shared.sessions.is_unsettled(ctx.now) || ctx.shared.queries.is_due(ctx.now)
    }

    /// Processes sessions before the locks that depend on them.
    fn settle_first(locks: &mut Locks<Self>) -> bool {
        locks.settle_session()
    }

    fn settle_last(locks: &mut Locks<Self>) {
        locks.ctx.settle_queries();
    }

    fn shared_deadline(shared: &Shared<S>) -> Option<(Instant, &'static str)> {
        [shared.sessions.first_deadline(), shared.queries.deadline()].into_iter().flatten().min()
    }

    fn elections(client: &mut Client<Self>) -> Option<&mut dyn Elections>
    where
        Self: Transport,
    {
        Some(client)
    }

    fn shutting_down(locks: &mut Locks<Self>) {
        locks.ctx.shared.sessions.unconfirmed = 0;
        locks.ctx.end_queries();
    }

    fn drain(locks: &mut Locks<Self>) -> bool {
        locks.drop_locks();
        locks.ctx.drain_sessions()
    }
}

impl<S: QueueStore> QueueContext<S> {
    pub(crate) fn session(&self, session: SessionId) -> Option<&Session<S>> {
        self.shared.sessions.get(session)
    }

    pub(crate) fn until(&self, session: SessionId) -> Instant {
        self.session(session).map_or(Instant::ZERO, |found| found.until)
    }

    pub(crate) fn ttl(&self, session: SessionId) -> Duration {
        self.session(session).map_or(self.config.store.session_ttl, |found| found.granted)
    }

    /// Returns true if requests of the session can be sent.
    pub(crate) fn is_up(&self, session: SessionId) -> bool {
        self.session(session).is_some_and(S::Session::is_up)
    }

    /// Returns true if the session is lost, or was ended.
    pub(crate) fn is_lost(&self, session: SessionId) -> bool {
        self.session(session).is_none_or(Session::is_lost)
    }

    /// Returns true if the session no longer exists on the server.
    pub(crate) fn is_gone(&self, session: SessionId) -> bool {
        self.session(session).is_none_or(Session::is_gone)
    }

    /// Schedules a failed request again, after a pause.
    pub(crate) fn back_off<C: Copy>(&self, retry: &mut Retry<C>) {
        retry.failed(self.now + self.pause(retry.tries()));
    }

    /// Returns the backoff after `tries` failures.
    pub(crate) fn pause(&self, tries: u32) -> Duration {
        pause(self.seed ^ u64::from(self.slot), self.now.as_nanos(), tries)
    }

    /// Returns when to reread a queue whose watches report nothing.
    pub(crate) fn recheck_at(&self) -> Instant {
        self.recheck_of(self.slot)
    }

    /// Returns when to reread what is watched for this slot. Jitter spreads the reads.
    pub(crate) fn recheck_of(&self, slot: u32) -> Instant {
        let every = self.config.store.recheck;
        self.now + (every - jitter(self.seed ^ u64::from(slot), self.now.as_nanos(), every / 4))
    }
}

impl<S: QueueStore> QueueLock<S> {
    /// Starts contending for the head of the local queue.
    pub(crate) fn start(&mut self, ctx: &mut QueueContext<S>) {
        self.contention = Contention::Idle;
        let Some(head) = self.waiters.head() else { return };
        let session = match head.terms.session {
            None => ctx.shared_session(),
            Some(ttl) => ctx.open_session(false, ttl),
        };
        S::enter(self, ctx, session);
    }

    /// Handles the reply to a call of this lock.
    pub(crate) fn answered(&mut self, ctx: &mut QueueContext<S>, serial: u64, reply: &S::Reply) {
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.awaits(serial)) {
            return S::Cleanup::answered(self, ctx, place, reply);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.awaits(serial)) {
            return S::Watch::answered(self, ctx, serial, reply);
        }
        match &self.contention {
            Contention::Entering(enter) if enter.awaits(serial) => S::Enter::answered(self, ctx, serial, reply),
            Contention::Waiting(contender) if contender.awaits(serial) => {
                S::Contender::answered(self, ctx, serial, reply);
            }
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) | Contention::Waiting(_) => {}
        }
    }

    /// Returns the sessions that this lock uses, and what it needs of each one.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (SessionId, Need)> {
        let cleanups = &self.store.cleanups;
        let need = move |session| {
            let held = || self.hold.as_ref().is_some_and(|hold| hold.session == session);
            if S::RENEWALS_PROVE && (held() || self.contention.is_next_on(session)) {
                Need::Proof
            } else if self.guarded().any(|own| own == session)
                || cleanups.iter().any(|cleanup| cleanup.session() == session && !cleanup.is_open_ended())
            {
                Need::Alive
            } else {
                Need::Nothing
            }
        };
        let releases = self.releases.iter().map(|release| &release.store);
        let releases = releases.filter(|store| S::END_RESOLVES && store.outcome.is_none());
        let all = self.guarded().chain(cleanups.iter().map(Cleanup::session));
        all.chain(releases.map(|store| store.remains.session)).map(move |session| (session, need(session)))
    }

    fn guarded(&self) -> impl Iterator<Item = SessionId> {
        let held = self.hold.as_ref().map(|hold| hold.session);
        self.contention.session().into_iter().chain(held).chain(self.lost.iter().map(|lost| lost.remains.session))
    }

    /// The head cannot reach the servers for now. Ends a single attempt.
    pub(crate) fn unreachable(&mut self, ctx: &mut QueueContext<S>, answer: Answer) {
        // What is known of the holder remains for reports.
        if !matches!((&self.contention, &self.store.answer), (Contention::Waiting(_), Answer::Taken(_))) {
            self.store.answer = answer;
        }
        self.notify_blocked(ctx, Blocked::Unreachable);
        self.end_try(ctx);
    }

    /// Fails all waiters because a retry would not help.
    pub(crate) fn fail_refused(&mut self, ctx: &mut QueueContext<S>, answer: Answer) {
        self.store.answer = answer;
        self.fail_all(ctx, Failure::Refused);
    }

    /// Fails all waiters because a foreign node occupies the queue.
    // E2, ZK7
    pub(crate) fn fail_foreign(&mut self, ctx: &mut QueueContext<S>, node: &dyn Display) {
        let text = printable(&format!("not of this lock, and in the way: {node}"), "");
        self.store.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text });
        self.fail_all(ctx, Failure::KeyInUse);
    }

    /// A delete that left at `emitted` may have been executed.
    pub(crate) fn delete_unknown(&mut self, emitted: Instant, of: impl Fn(&Remains<S>) -> bool) {
        for release in self.releases.iter_mut().map(|release| &mut release.store) {
            release.maybe_deleted |= of(&release.remains) && emitted < release.valid_until;
        }
    }

    /// Resolves the releases of a node that is gone, unless the outcome is unknown. A delete of
    /// ours may have removed it while the hold was valid.
    pub(crate) fn resolve(&mut self, ctx: &mut QueueContext<S>, outcome: Release, of: impl Fn(&Remains<S>) -> bool) {
        let releases = self.releases.iter_mut().map(|release| &mut release.store);
        for release in releases.filter(|release| of(&release.remains)) {
            let deleted = release.maybe_deleted && outcome != Release::Unknown;
            release.outcome = Some(if deleted { Release::Released } else { outcome });
        }
        self.answer_releases(ctx);
    }
}

impl<S: QueueStore> Locks<Queued<S>> {
    /// Handles the reply to a request. Replies to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &S::Reply) {
        self.handle_timeout(now);
        let serial = call.serial;
        match call.owner {
            CallOwner::Lock(slot) => {
                self.step(slot, |lock, ctx| lock.answered(ctx, serial, reply));
            }
            CallOwner::Session(slot) => {
                self.ctx.session_step(SessionId(slot), |session, ctx| session.answered(ctx, serial, reply));
            }
            CallOwner::Query(slot) => {
                self.ctx.query_step(slot, |query, ctx| S::Query::answered(query, ctx, serial, reply))
            }
            // On ZooKeeper the session has ended, and the check goes on in the next one.
            CallOwner::Ping if S::pong(reply) == Answer::Unreachable(Fault::NotNeeded.into()) => self.ping_again(call),
            CallOwner::Ping => self.pong(call, S::pong(reply)),
            CallOwner::Nobody => {}
        }
        self.settle();
    }

    /// Returns the node of the holder.
    pub fn owner(&self, id: LockId) -> Option<S::Owner> {
        self.locks.of(id)?.owner(id, &self.ctx)
    }

    /// Returns the holder's node, for transactions of the application that compare its version. The
    /// client then changes that version before each hand-over.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    // E7
    pub fn owner_guard(&mut self, now: Instant, id: LockId) -> Result<S::Owner, Misuse> {
        self.verb(now, id, |lock, ctx| lock.owner_guard(ctx, id))
    }

    /// Drops all locks, and leaves their sessions.
    fn drop_locks(&mut self) {
        for (slot, mut lock) in self.locks.clear() {
            for (session, _) in &lock.store.joined {
                // The session of a lost hold is left to the guard. Nothing renews it.
                // H6
                if lock.lost.iter().all(|lost| lost.remains.session != *session) || !self.ctx.is_lost(*session) {
                    self.ctx.leave_session(*session, slot);
                }
            }
            lock.stop(&mut self.ctx);
        }
    }
}

impl<S: QueueStore> Client<Queued<S>>
where
    Queued<S>: Transport,
{
    /// Returns the node of the holder: its key on etcd. Unlike [`owner_guard`](Self::owner_guard),
    /// this does not make the client change the node before a hand-over.
    pub fn owner(&self, lock: LockId) -> Option<S::Owner> {
        self.locks.owner(lock)
    }

    /// Returns the holder's node, for transactions of the application that compare its version. The
    /// client then changes that version before each hand-over.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn owner_guard(&mut self, now: Instant, lock: LockId) -> Result<S::Owner, Misuse> {
        self.verb(now, |locks, now| locks.owner_guard(now, lock))
    }
}
