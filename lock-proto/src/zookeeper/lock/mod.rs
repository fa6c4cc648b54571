//! State machine for one lock name on ZooKeeper, within one client. Each attempt has a node of its
//! own: the head of the local queue creates it ([`enter`]), waits until it is first ([`wait`]), and
//! holds the lock ([`hold`]).

mod cleanup;
mod enter;
mod hold;
mod query;
mod session;
mod wait;

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use cleanup::Cleanup;
use enter::Enter;
use hold::Hold;
use query::Query;
pub(super) use session::{Session, SessionEvent};
use wait::Contender;

use super::codec::{ErrorCode, EventType, Op, WatcherEvent};
use super::config::{Config, Settings};
use super::output::LocksOutput;
use super::path::{Guid, Kind, Queue};
use super::request::{Reply, Request};
use crate::error::{Invalid, Misuse};
use crate::id::{CallId, CallOwner, ClientId, LockId, NodeId};
use crate::lock::{
    self, Acquire, Answer, Blocked, ElectionEvent, ElectionStore, Ended, ErrorClass, Event, Failure, Grant, Loss,
    MAX_TTL, Queries, QueryId, Release, Renew, ServerError, Session as _, SessionId, SessionStore, Sessions, Store,
    Tenure, Terms, Token, check_name, printable,
};
use crate::time::{Instant, nanos};

pub use hold::OwnerNode;

pub(crate) type Context = lock::Context<ZooKeeper>;
pub(crate) type Lock = lock::Lock<ZooKeeper>;
pub(crate) type Waiter = lock::Waiter<Bid>;

/// The longest value of a candidate, in bytes. ZooKeeper accepts requests of 1 MiB by default.
pub const MAX_VALUE: usize = 1_000_000;

/// Terms of an acquisition on ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bid {
    /// The TTL of a separate session; `None` for the shared one.
    session: Option<Duration>,
    /// The data of the node: a candidate's proposal.
    value: Bytes,
    candidate: bool,
}

/// Per-name state of the ZooKeeper store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZooKeeper {
    cleanups: Vec<Cleanup>,
    /// The call that creates the queue's node.
    creating_queue: Option<u64>,
    /// The last reply, for reports.
    answer: Answer,
    joined: Vec<(SessionId, bool)>,
}

/// Sessions and queries of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    pub(super) client: ClientId,
    pub(super) sessions: Sessions<ZooKeeper>,
    pub(super) queries: Queries<Query>,
    /// Number of nodes so far, to derive their names.
    pub(super) guids: u64,
}

/// Progress of the head of the local queue towards the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Contention {
    #[default]
    Idle,
    /// The session is not established.
    Opening(SessionId),
    Entering(Enter),
    /// Waiting in the store's queue, behind another node.
    Waiting(Contender),
}

/// A node of this client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    path: Box<str>,
    sequence: i32,
    /// The transaction that created it.
    czxid: i64,
    /// The number of changes of its data.
    version: i32,
}

/// What an ended hold leaves in the store: its node, unless that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remains {
    session: SessionId,
    path: Option<Box<str>>,
}

/// State of a release without a result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Releasing {
    session: SessionId,
    path: Box<str>,
    valid_until: Instant,
    /// A delete sent while the hold was valid ended Unknown.
    maybe_deleted: bool,
    outcome: Option<Release>,
}

impl Context {
    /// Sends a request of a lock, and returns the serial of its call. `None` while the session is
    /// not established: its next event says when it is.
    fn send(&mut self, session: SessionId, op: Op) -> Option<u64> {
        self.send_for(CallOwner::Lock(self.slot), session, op)
    }

    fn send_for(&mut self, owner: CallOwner, session: SessionId, op: Op) -> Option<u64> {
        if !self.session(session).is_some_and(Session::is_up) {
            return None;
        }
        let timeout = self.config.request_timeout;
        Some(self.call(owner, NodeId(0), Request { session, op }, timeout))
    }

    pub(super) fn session(&self, session: SessionId) -> Option<&Session> {
        self.shared.sessions.get(session)
    }

    fn until(&self, session: SessionId) -> Instant {
        self.session(session).map_or(Instant::ZERO, Session::until)
    }

    fn ttl(&self, session: SessionId) -> Duration {
        self.session(session).map_or(self.config.store.session_ttl, Session::ttl)
    }

    /// Returns true if the session is lost, or was ended.
    fn is_lost(&self, session: SessionId) -> bool {
        self.session(session).is_none_or(|found| found.is_lost())
    }

    /// A write of this session that left at `emitted` was committed.
    // ZK1
    fn committed(&mut self, session: SessionId, emitted: Instant) {
        let (seed, now) = (self.seed, self.now);
        self.session_step(session, |session, _| session.wrote(seed, now, emitted));
    }

    fn fresh_guid(&mut self) -> Guid {
        self.shared.guids += 1;
        Guid::new(self.shared.client, self.shared.guids)
    }

    /// Returns the backoff after `tries` failures.
    fn pause(&self, tries: u32) -> Duration {
        lock::pause(self.seed ^ u64::from(self.slot), self.now.as_nanos(), tries)
    }
}

impl Store for ZooKeeper {
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
        Self { cleanups: Vec::new(), creating_queue: None, answer: Answer::Silent, joined: Vec::new() }
    }

    fn contend(lock: &mut Lock, ctx: &mut Context) {
        lock.start(ctx);
    }

    fn new_head(lock: &mut Lock, ctx: &mut Context, left: &Waiter) {
        // The node of a candidate has its value.
        let same = left.terms.session.is_none() && lock.waiters.head().is_some_and(|head| head.terms == left.terms);
        match &lock.contention {
            Contention::Waiting(_) if same => lock.notify_blocked(ctx, Blocked::Held),
            Contention::Opening(_) | Contention::Entering(_) if same => {}
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) | Contention::Waiting(_) => {
                lock.nobody_waits(ctx);
                lock.start(ctx);
            }
        }
    }

    fn nobody_waits(lock: &mut Lock, ctx: &mut Context) {
        match mem::take(&mut lock.contention) {
            Contention::Idle | Contention::Opening(_) => {}
            Contention::Entering(enter) => lock.abandon_entry(ctx, enter),
            Contention::Waiting(contender) => {
                lock.stop_watching(ctx, &contender);
                lock.schedule_delete(ctx, contender.session, contender.node.path);
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
        // The holder is warned and its claim limited by what the TTL leaves.
        let ttl = nanos(ctx.config.validity(ctx.ttl(hold.session)));
        Terms { until: ctx.until(hold.session), ttl, at_risk: ctx.config.at_risk }
    }

    // T2
    fn loss(hold: &Hold, ctx: &Context) -> Option<Loss> {
        (ctx.until(hold.session) <= ctx.now).then_some(Loss::Expired)
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
        !ctx.is_lost(hold.session) && ctx.now < ctx.until(hold.session) && hold.may_hand_over(ctx.now, next)
    }

    fn hand_over(lock: &mut Lock, ctx: &mut Context, next: Waiter) {
        if let Some(hold) = &mut lock.hold {
            hold.tenure = Tenure::new(ctx.now, next);
            hold.grants.count += 1;
        }
        lock.take_over(ctx);
    }

    fn end(_: &mut Lock, ctx: &mut Context, hold: &Hold, loss: Option<Loss>) -> Remains {
        if let Some(session) = ctx.shared.sessions.get_mut(hold.session) {
            session.nodes.remove(&ctx.slot);
        }
        if let Some(loss @ (Loss::MaxHold | Loss::Expired)) = loss {
            // The session is no longer kept alive. Without a drop of the guard, the node outlives the
            // hold by at most a TTL. A limited hold has a session of its own.
            // H6
            ctx.shared.sessions.lose(hold.session, loss);
        }
        let path = (loss != Some(Loss::Gone)).then(|| hold.node.path.clone());
        Remains { session: hold.session, path }
    }

    /// The nodes of a lost session end with it, and a node that is gone needs no cleanup.
    fn lost(_: &mut Lock, _: &mut Context, _: &Ended<Self>, _: bool) {}

    /// A session of its own ends with its last user.
    fn clean_up(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>) {
        let Remains { session, path } = &ended.remains;
        if let (Some(path), Some(true)) = (path, ctx.session(*session).map(Session::is_shared)) {
            lock.schedule_delete(ctx, *session, path.clone());
        }
    }

    /// Waiters requeue behind the other clients.
    fn handover_window_ended(lock: &mut Lock, ctx: &mut Context, _: &Hold) {
        lock.start(ctx);
    }

    fn releasing(_: &Lock, ctx: &Context, ended: &Ended<Self>) -> Releasing {
        let Remains { session, path } = ended.remains.clone();
        let gone = path.is_none() || ctx.session(session).is_none_or(|found| found.is_gone());
        Releasing {
            session,
            path: path.unwrap_or_default(),
            valid_until: ended.valid_until,
            maybe_deleted: false,
            outcome: gone.then_some(Release::Expired),
        }
    }

    fn released(releasing: &Releasing, _: &Context) -> Option<Release> {
        releasing.outcome
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        match &lock.contention {
            Contention::Entering(_) => lock.enter_due(ctx),
            Contention::Waiting(_) => lock.wait_due(ctx),
            Contention::Idle | Contention::Opening(_) => {}
        }
        lock.cleanups_due(ctx);
    }

    fn contention_deadline(contention: &Contention) -> Option<(Instant, &'static str)> {
        match contention {
            Contention::Idle | Contention::Opening(_) => None,
            Contention::Entering(enter) => enter.deadline().map(|at| (at, "next attempt")),
            Contention::Waiting(contender) => contender.deadline().map(|at| (at, "reread of the queue")),
        }
    }

    fn hold_deadline(hold: &Hold, ctx: &Context) -> (Instant, &'static str) {
        (hold.deadline(ctx), "a hold")
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.cleanups.iter().filter_map(Cleanup::deadline).min().map(|at| (at, "cleanup"))
    }

    fn shut_down(_: &mut Lock, _: &mut Context) {}

    /// Ending the sessions, which is next, deletes all nodes that are left.
    fn is_drained(&self, _: &Context) -> bool {
        self.cleanups.is_empty()
    }

    fn is_over(&self) -> bool {
        self.cleanups.is_empty()
    }

    fn terms_of(config: &Config, request: &Acquire) -> Result<(Queue, Bid), Misuse> {
        check_name(&request.name)?;
        let Settings { chroot, dialect, tick, session_ttl, .. } = &config.store;
        let (given, least) = (request.ttl.unwrap_or(*session_ttl), config.least_ttl());
        if given < least {
            return Err(Invalid::TtlUnderTicks { given, least, tick: *tick }.into());
        }
        if given > MAX_TTL {
            return Err(Invalid::Ttl { given, min: least, max: MAX_TTL }.into());
        }
        if request.renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold.into());
        }
        // A separate TTL, or an end independent of the session, requires a separate session.
        // ZK8
        let shared = given == *session_ttl && request.renew == Renew::Auto;
        let queue = Queue::new(chroot, &config.prefix, &request.name, Kind::Lock(*dialect))?;
        Ok((queue, Bid { session: (!shared).then_some(given), value: Bytes::new(), candidate: false }))
    }

    fn request(call: CallId, request: Request, _: Duration) -> LocksOutput {
        LocksOutput::Send { call, request }
    }

    fn event(lock: LockId, event: Event) -> LocksOutput {
        LocksOutput::Event { lock, event }
    }

    /// The leader answers a `sync`. It needs no permission.
    fn ping(ctx: &mut Context) -> Request {
        let session = ctx.shared_session();
        Request { session, op: Op::Sync { path: "/".into() } }
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

    fn drain(locks: &mut lock::Locks<Self>) -> bool {
        locks.drop_locks();
        locks.ctx.drain_sessions()
    }
}

impl SessionStore for ZooKeeper {
    type Session = Session;

    fn sessions(shared: &Shared) -> &Sessions<Self> {
        &shared.sessions
    }

    fn sessions_mut(shared: &mut Shared) -> &mut Sessions<Self> {
        &mut shared.sessions
    }

    fn uses(lock: &Lock) -> impl Iterator<Item = (SessionId, bool)> {
        let releases = lock.releases.iter().map(|release| &release.store).filter(|store| store.outcome.is_none());
        let all = lock.needed().chain(releases.map(|store| store.session));
        all.map(|session| (session, lock.needed().any(|needed| needed == session)))
    }

    fn joined(&mut self) -> &mut Vec<(SessionId, bool)> {
        &mut self.joined
    }

    fn session_event(lock: &mut Lock, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        lock.session(ctx, session, event);
    }

    fn after_session_event(ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        for slot in ctx.shared.queries.iter().map(|(slot, _)| slot).collect::<Vec<_>>() {
            ctx.query_step(slot, |query, ctx| query.session(ctx, session, event));
        }
    }
}

impl ElectionStore for ZooKeeper {
    type Query = Query;

    fn queries(shared: &Shared) -> &Queries<Query> {
        &shared.queries
    }

    fn queries_mut(shared: &mut Shared) -> &mut Queries<Query> {
        &mut shared.queries
    }

    fn election(config: &Config, name: &[u8]) -> Result<Queue, Misuse> {
        Queue::new(&config.store.chroot, &config.prefix, name, Kind::Latch)
    }

    fn candidacy(bid: &mut Bid, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        (bid.value, bid.candidate) = (value, true);
        Ok(())
    }

    fn proclaim(lock: &mut Lock, ctx: &mut Context, id: LockId, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        lock.proclaim(ctx, id, value)
    }

    fn election_event(query: QueryId, event: ElectionEvent) -> LocksOutput {
        LocksOutput::Election { query, event }
    }
}

/// Checks the length of a candidate's value.
pub(super) fn check_value(value: &[u8]) -> Result<(), Invalid> {
    let len = value.len();
    if len > MAX_VALUE { Err(Invalid::ValueLength { len, max: MAX_VALUE }) } else { Ok(()) }
}

impl Lock {
    pub(super) fn joined_sessions(&self) -> &[(SessionId, bool)] {
        &self.store.joined
    }

    /// Returns the sessions that must stay alive for this lock.
    fn needed(&self) -> impl Iterator<Item = SessionId> {
        let contending = match &self.contention {
            Contention::Idle => None,
            Contention::Opening(session) => Some(*session),
            Contention::Entering(enter) => Some(enter.session),
            Contention::Waiting(contender) => Some(contender.session),
        };
        let held = self.hold.as_ref().map(|hold| hold.session);
        let lost = self.lost.iter().map(|lost| lost.remains.session);
        let cleanups = self.store.cleanups.iter().map(|cleanup| cleanup.session);
        contending.into_iter().chain(held).chain(lost).chain(cleanups)
    }

    pub(crate) fn reply(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        if let Some(place) = self.store.cleanups.iter().position(|cleanup| cleanup.awaits(serial)) {
            return self.cleanup_answered(ctx, place, reply);
        }
        if self.hold.as_ref().is_some_and(|hold| hold.awaits(serial)) {
            return self.hold_answered(ctx, serial, reply);
        }
        if self.store.creating_queue == Some(serial) {
            return self.queue_created(ctx, reply);
        }
        match &self.contention {
            Contention::Entering(enter) if enter.awaits(serial) => self.enter_answered(ctx, serial, reply),
            Contention::Waiting(contender) if contender.awaits(serial) => self.wait_answered(ctx, serial, reply),
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) | Contention::Waiting(_) => {}
        }
    }

    /// Handles an event of a session that this lock uses.
    fn session(&mut self, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        match event {
            SessionEvent::Lost(_) | SessionEvent::Refused(_) | SessionEvent::Ended(_) => {
                self.cleanups_lost(ctx, session, event);
            }
            SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Down(_)
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_) => {}
        }
        if self.hold.as_ref().is_some_and(|hold| hold.session == session) {
            self.hold_session(ctx, event);
        }
        let contending = match &self.contention {
            Contention::Idle => None,
            Contention::Opening(own) => Some(*own),
            Contention::Entering(enter) => Some(enter.session),
            Contention::Waiting(contender) => Some(contender.session),
        };
        if contending == Some(session) {
            self.contend_session(ctx, event);
        }
        if *event == SessionEvent::Up {
            self.cleanups_up(ctx, session);
        }
    }

    fn contend_session(&mut self, ctx: &mut Context, event: &SessionEvent) {
        match event {
            // The nodes of a lost session end with it.
            SessionEvent::Lost(_) | SessionEvent::Ended(_) => self.start(ctx),
            SessionEvent::Refused(answer) => {
                self.store.answer = answer.clone();
                self.contention = Contention::Idle;
                self.fail_all(ctx, Failure::Refused);
            }
            SessionEvent::Down(answer) => {
                if !matches!(self.contention, Contention::Waiting(_)) {
                    self.store.answer = answer.clone();
                }
                self.notify_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
            SessionEvent::Alive | SessionEvent::Up => match &self.contention {
                Contention::Opening(session) => {
                    let session = *session;
                    self.enter(ctx, session);
                }
                Contention::Entering(_) => self.enter_up(ctx),
                Contention::Waiting(_) => {
                    self.notify_blocked(ctx, Blocked::Held);
                    self.forget_watches();
                    self.read_queue(ctx);
                }
                Contention::Idle => {}
            },
            SessionEvent::Renewed(_) => {
                if let Contention::Waiting(_) = self.contention {
                    self.take_turn(ctx);
                }
            }
            SessionEvent::Unrenewed(..) | SessionEvent::Gone(_) => {}
        }
    }

    /// Handles a triggered watch on a child of the queue.
    pub(crate) fn watched(&mut self, ctx: &mut Context, session: SessionId, event: &WatcherEvent) {
        let changed = match event.kind {
            EventType::Deleted => false,
            EventType::DataChanged => true,
            EventType::None
            | EventType::Created
            | EventType::ChildrenChanged
            | EventType::DataWatchRemoved
            | EventType::ChildWatchRemoved => return,
        };
        if self.hold.as_ref().is_some_and(|hold| hold.session == session && hold.node.path == event.path) {
            return self.own_node_changed(ctx, changed);
        }
        if let Contention::Waiting(contender) = &self.contention
            && contender.session == session
        {
            self.contender_watched(ctx, &event.path, changed);
        }
    }

    /// Fails all waiters because a foreign node occupies the queue.
    // ZK7
    fn fail_foreign(&mut self, ctx: &mut Context, name: &str) {
        let text = printable(&format!("the node {} is in the way, and is not of this lock", self.key.child(name)), "");
        self.store.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text });
        self.fail_all(ctx, Failure::KeyInUse);
    }

    /// Fails all waiters because a retry would not help.
    fn fail_refused(&mut self, ctx: &mut Context, code: ErrorCode) {
        self.store.answer = Reply::Failed(code).answer();
        self.fail_all(ctx, Failure::Refused);
    }
}
