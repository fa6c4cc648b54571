//! The machine of one name in a store of the queue family, and what the names of a client share: one
//! implementation of [`Store`] for all of them.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::fmt::{Debug, Display};
use core::hash::Hash;
use core::mem;
use core::time::Duration;

use bytes::Bytes;

use super::calls::CallTable;
use super::config::QueueSettings;
use super::hold::{HoldWrite, QueueHold};
use super::output::QueueOutput;
use super::retry::Retry;
use super::sessions::{QueueSession, SessionEnd, SessionId, SessionState, Sessions, pause};
use super::store::{Contending, ContentionStage, QueueClient, QueueProtocol, QueueStore};
use super::users::Need;
use crate::error::{Invalid, Misuse};
use crate::fault::Fault;
use crate::id::{CallId, CallOwner, ClientId, LockId, NodeId};
use crate::jitter::jitter;
use crate::lock::answer::{Answer, ErrorClass, ServerError, printable};
use crate::lock::client::{Client, Transport};
use crate::lock::config::Config;
use crate::lock::context::Env;
use crate::lock::election::Elections;
use crate::lock::event::Blocked;
use crate::lock::exchange::{Fact, Holding, Hopeless, Order, Terms};
use crate::lock::grant::{Loss, Release};
use crate::lock::hub::Locks;
use crate::lock::request::{Acquire, Renew, Wait};
use crate::lock::store::{SharedState, Store};
use crate::lock::tuning::check_name;
use crate::lock::waiters::Waiter;
use crate::time::Instant;

/// The machine of one name in a store of the queue family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queued<S: QueueStore> {
    pub(crate) key: S::Key,
    /// The waiter to contend for.
    pub(crate) head: Option<Waiter<Bid>>,
    pub(crate) contention: S::Contention,
    /// Attempts since the last grant.
    pub(crate) tries: u32,
    pub(crate) hold: Option<QueueHold<S>>,
    /// What lost holds left whose guards are alive.
    pub(crate) left: Vec<QueueRemains<S>>,
    releases: Vec<QueueRelease<S>>,
    pub(crate) calls: CallTable<S::Call>,
    /// The last reply, for reports.
    pub(crate) answer: Answer,
    /// Sessions that this lock last joined, and what it needs of each one.
    pub(crate) joined: Vec<(SessionId, Need)>,
    pub(crate) own: S,
}

/// The settings of a client.
pub type QueueConfig<S> = Config<QueueSettings<<S as QueueProtocol>::Settings>>;
/// The environment of a step.
pub type QueueEnv<S> = Env<Queued<S>>;

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

impl Terms for Bid {
    /// A session of its own is for one acquisition.
    fn may_follow(&self, holder: &Self) -> bool {
        self.session.is_none() && holder.session.is_none()
    }
}

/// State that the locks of a client share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueShared<S: QueueStore> {
    pub(crate) client: ClientId,
    pub(crate) sessions: Sessions<S>,
    /// Number of ids derived from that of the client so far.
    ids: u64,
    pub(crate) own: S::Client,
}

impl<S: QueueStore> QueueShared<S> {
    pub(crate) fn new(client: ClientId) -> Self {
        Self { client, sessions: Sessions::default(), ids: 0, own: S::Client::default() }
    }

    /// Returns the number of the next id that is derived from that of the client.
    pub(crate) const fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// What an ended hold leaves in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueRemains<S: QueueStore> {
    /// The acquisition that had the hold.
    id: LockId,
    pub(crate) session: SessionId,
    /// Its node, unless that is gone.
    pub(crate) node: Option<S::Node>,
    /// The node was being written when the hold was released.
    pub(crate) writes: bool,
    valid_until: Instant,
}

/// State of a release without a result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct QueueRelease<S: QueueStore> {
    remains: QueueRemains<S>,
    /// A delete sent while the hold was valid ended Unknown.
    maybe_deleted: bool,
}

impl<S: QueueStore> Store for Queued<S> {
    type Key = S::Key;
    type Terms = Bid;
    type Settings = QueueSettings<S::Settings>;
    type Shared = QueueShared<S>;
    type Output = QueueOutput<S::Request, S::Output>;

    fn new(key: S::Key) -> Self {
        Self {
            key,
            head: None,
            contention: S::Contention::default(),
            tries: 0,
            hold: None,
            left: Vec::new(),
            releases: Vec::new(),
            calls: CallTable::new(),
            answer: Answer::Silent,
            joined: Vec::new(),
            own: S::default(),
        }
    }

    fn key(&self) -> &S::Key {
        &self.key
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

    fn order(&mut self, env: &mut QueueEnv<S>, order: Order<Bid>) {
        match order {
            Order::Contend(Some(head)) => self.contend(env, head),
            Order::Contend(None) => {
                self.head = None;
                S::leave(self, env);
            }
            Order::Claim(_) => self.keep(env),
            Order::Extend(id) => self.extend(env, id),
            Order::HandOver { from, to } => self.hand_over(env, from, to),
            Order::Leave { id, loss } => {
                let left = self.end_hold(env, id, Some(loss));
                self.left.extend(left);
            }
            Order::End { id, loss: Some(loss), .. } => {
                self.end_hold(env, id, Some(loss));
            }
            Order::End { id, loss: None, answer, .. } => {
                let left = self.left.iter().position(|left| left.id == id);
                let ended = match left {
                    Some(place) => Some(self.left.swap_remove(place)),
                    None => self.end_hold(env, id, None),
                };
                if let Some(remains) = ended {
                    self.clean_up(env, remains, answer);
                }
            }
            Order::GiveUp(id) => {
                self.releases.retain(|release| release.remains.id != id);
                env.report(Fact::Released(id, Release::Unknown, Box::default()));
            }
            Order::ShutDown => S::timeout(self, env),
        }
    }

    fn timeout(&mut self, env: &mut QueueEnv<S>) {
        self.keep(env);
    }

    fn deadline(&self, env: &QueueEnv<S>) -> Option<(Instant, &'static str)> {
        let is_up = self.hold.as_ref().is_some_and(|hold| env.is_up(hold.session));
        let write = self.hold.as_ref().and_then(|hold| hold.write_at(is_up)).map(|at| (at, "a hold"));
        [S::deadline(self, is_up), write].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn holding(&self, env: &QueueEnv<S>, id: LockId) -> Option<Holding> {
        self.hold.as_ref().filter(|hold| hold.id == id).map(|hold| hold.holding(env))
    }

    fn answers(&self) -> Box<[Answer]> {
        Box::new([self.answer.clone()])
    }

    fn after_step(&mut self, env: &mut QueueEnv<S>) {
        self.join_sessions(env);
        env.settle_sessions();
    }

    /// Shutdown ends the sessions next, which deletes all nodes that are left. Without a session, a
    /// late request can no longer create one.
    fn is_drained(&self, _: &QueueEnv<S>) -> bool {
        !S::cleanups(self).any(|cleanup| cleanup.delays_shutdown)
    }

    fn is_over(&self) -> bool {
        S::cleanups(self).next().is_none() && S::deadline(self, false).is_none()
    }
}

impl<S: QueueStore> SharedState<Queued<S>> for QueueShared<S> {
    type Query = <S::Client as QueueClient<S>>::Query;

    fn default_ttl(config: &QueueConfig<S>) -> Duration {
        config.store.session_ttl
    }

    fn ping(env: &mut QueueEnv<S>, call: CallId) {
        let request = S::ping(env);
        let timeout = env.config.request_timeout;
        env.out.push_back(QueueOutput::Send { call, request, timeout });
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.sessions.first_deadline()
    }

    fn is_unsettled(&self, now: Instant) -> bool {
        self.sessions.is_unsettled(now)
    }

    /// Processes sessions before the locks that depend on them.
    fn settle_first(locks: &mut Locks<Queued<S>>) -> bool {
        locks.settle_session()
    }

    fn shutting_down(locks: &mut Locks<Queued<S>>) {
        locks.ctx.env.shared.sessions.unconfirmed = 0;
    }

    fn drain(locks: &mut Locks<Queued<S>>) -> bool {
        locks.drop_locks();
        locks.ctx.env.drain_sessions()
    }

    fn stopped(locks: &mut Locks<Queued<S>>, unreleased: u32) -> QueueOutput<S::Request, S::Output> {
        locks.drop_locks();
        let sessions = mem::take(&mut locks.ctx.env.shared.sessions);
        QueueOutput::Stopped { unreleased: unreleased + sessions.unended(locks.ctx.env.now) }
    }

    fn elections(client: &mut Client<Queued<S>>) -> Option<&mut dyn Elections>
    where
        Queued<S>: Transport,
    {
        Some(client)
    }
}

impl<S: QueueStore> QueueEnv<S> {
    /// Emits a request with a timeout, and returns the serial of its call.
    pub(crate) fn call(&mut self, owner: CallOwner, node: NodeId, request: S::Request, timeout: Duration) -> u64 {
        let call = self.next_call(owner, node);
        self.out.push_back(QueueOutput::Send { call, request, timeout });
        call.serial
    }

    pub(crate) fn session(&self, session: SessionId) -> Option<&QueueSession<S>> {
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
        self.session(session).is_some_and(S::Client::is_up)
    }

    /// Returns true if the session is lost, or was ended.
    pub(crate) fn is_lost(&self, session: SessionId) -> bool {
        self.session(session).is_none_or(QueueSession::is_lost)
    }

    /// Returns true if the session no longer exists on the server.
    pub(crate) fn is_gone(&self, session: SessionId) -> bool {
        self.session(session).is_none_or(QueueSession::is_gone)
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

impl<S: QueueStore> Queued<S> {
    /// Contends for this waiter, from the point that the one before it had reached.
    fn contend(&mut self, env: &mut QueueEnv<S>, head: Waiter<Bid>) {
        let serves = |left: &Waiter<Bid>| {
            head.terms.may_follow(&left.terms) && (!S::NODES_SHOW_BIDS || left.terms == head.terms)
        };
        let same = self.head.as_ref().is_some_and(serves);
        self.head = Some(head);
        match S::contending(&self.contention).filter(|_| same).map(|contending| contending.stage) {
            Some(ContentionStage::Waiting | ContentionStage::Next) => env.blocked(Blocked::Held),
            Some(ContentionStage::Opening | ContentionStage::Entering) => {}
            None => {
                S::leave(self, env);
                self.start(env);
            }
        }
    }

    /// Starts contending for the waiter, if there is one.
    pub(crate) fn start(&mut self, env: &mut QueueEnv<S>) {
        self.contention = S::Contention::default();
        let Some(head) = &self.head else { return };
        let session = match head.terms.session {
            None => env.shared_session(),
            Some(ttl) => env.open_session(false, ttl),
        };
        S::enter(self, env, session);
    }

    /// Returns true if the waiter makes a single attempt.
    pub(crate) fn tries_once(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.wait == Wait::Try)
    }

    /// Ends the attempt of a waiter that makes a single one. Returns true if it does. The line then
    /// says what becomes of the contention.
    pub(crate) fn end_try(&self, env: &mut QueueEnv<S>) -> bool {
        let once = self.tries_once();
        if once {
            env.report(Fact::NotTaken);
        }
        once
    }

    /// Ends the hold of this acquisition, and returns what it leaves.
    fn end_hold(&mut self, env: &mut QueueEnv<S>, id: LockId, loss: Option<Loss>) -> Option<QueueRemains<S>> {
        let hold = self.hold.take_if(|hold| hold.id == id)?;
        let (session, valid_until) = (hold.session, hold.valid_until(env));
        let writes = loss.is_none() && hold.write.as_ref().is_some_and(HoldWrite::is_in_flight);
        if let Some(loss @ (Loss::MaxHold | Loss::Expired)) = loss {
            // The session is no longer renewed. Without a drop of the guard, the node outlives the
            // hold by at most a TTL. A limited hold has a session of its own.
            // H6
            env.shared.sessions.lose(session, loss);
        }
        let node = S::end(self, env, hold, loss);
        Some(QueueRemains { id, session, node, writes, valid_until })
    }

    /// Deletes what a hold left. `answer`: report the outcome.
    fn clean_up(&mut self, env: &mut QueueEnv<S>, remains: QueueRemains<S>, answer: bool) {
        let outcome = match env.session(remains.session).map(|session| session.state) {
            _ if remains.node.is_none() => Some(Release::Expired),
            Some(SessionState::Over(SessionEnd::Refused | SessionEnd::Unconfirmed)) => Some(Release::Unknown),
            Some(SessionState::Over(SessionEnd::Confirmed) | SessionState::Lost(Loss::Gone)) | None => {
                Some(Release::Expired)
            }
            Some(
                SessionState::Opening
                | SessionState::Checking
                | SessionState::Alive
                | SessionState::Lost(_)
                | SessionState::Ending,
            ) => None,
        };
        if answer && outcome.is_none() {
            self.releases.push(QueueRelease { remains: remains.clone(), maybe_deleted: false });
        }
        S::clean_up(self, env, &remains);
        if let (true, Some(outcome)) = (answer, outcome) {
            env.report(Fact::Released(remains.id, outcome, Box::default()));
        }
    }

    /// Handles the reply to a call of this lock.
    fn answered(&mut self, env: &mut QueueEnv<S>, serial: u64, reply: &S::Reply) {
        if let Some(call) = self.calls.answered(serial) {
            S::answered(self, env, call, reply);
        }
    }

    /// Returns the sessions that this lock uses, and what it needs of each one.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (SessionId, Need)> {
        let contending = S::contending(&self.contention);
        let next = contending.filter(|contending| contending.stage == ContentionStage::Next);
        let need = move |session| {
            let held = || self.hold.as_ref().is_some_and(|hold| hold.session == session);
            if S::RENEWALS_PROVE && (held() || next.is_some_and(|next| next.session == session)) {
                Need::Proof
            } else if self.guarded().any(|own| own == session)
                || S::cleanups(self).any(|cleanup| cleanup.session == session && cleanup.needs_session)
            {
                Need::Alive
            } else {
                Need::Nothing
            }
        };
        let releases = self.releases.iter().filter(|_| S::END_RESOLVES);
        let all = self.guarded().chain(S::cleanups(self).map(|cleanup| cleanup.session));
        all.chain(releases.map(|release| release.remains.session)).map(move |session| (session, need(session)))
    }

    /// Returns the session of the contention.
    pub(crate) fn contending_in(&self) -> Option<SessionId> {
        S::contending(&self.contention).map(|contending| contending.session)
    }

    fn guarded(&self) -> impl Iterator<Item = SessionId> {
        let held = self.hold.as_ref().map(|hold| hold.session);
        self.contending_in().into_iter().chain(held).chain(self.left.iter().map(|left| left.session))
    }

    /// The head cannot reach the servers for now. Ends a single attempt.
    pub(crate) fn unreachable(&mut self, env: &mut QueueEnv<S>, answer: Answer) {
        // What is known of the holder remains for reports.
        let waits = |contending: Contending| match contending.stage {
            ContentionStage::Waiting | ContentionStage::Next => true,
            ContentionStage::Opening | ContentionStage::Entering => false,
        };
        if !(matches!(self.answer, Answer::Taken(_)) && S::contending(&self.contention).is_some_and(waits)) {
            self.answer = answer;
        }
        env.blocked(Blocked::Unreachable);
        self.end_try(env);
    }

    /// Fails all waiters because a retry would not help.
    pub(crate) fn fail_refused(&mut self, env: &mut QueueEnv<S>, answer: Answer) {
        self.answer = answer;
        env.report(Fact::Hopeless(Hopeless::Refused));
    }

    /// Fails all waiters because a foreign node occupies the queue.
    // E2, ZK7
    pub(crate) fn fail_foreign(&mut self, env: &mut QueueEnv<S>, node: &dyn Display) {
        let text = printable(&format!("not of this lock, and in the way: {node}"), "");
        self.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text });
        env.report(Fact::Hopeless(Hopeless::KeyInUse));
    }

    /// A delete that left at `emitted` may have been executed.
    pub(crate) fn delete_unknown(&mut self, emitted: Instant, of: impl Fn(&QueueRemains<S>) -> bool) {
        for release in self.releases.iter_mut().filter(|release| of(&release.remains)) {
            release.maybe_deleted |= emitted < release.remains.valid_until;
        }
    }

    /// Reports the releases of a node that is gone, unless the outcome is unknown. A delete of ours
    /// may have removed it while the hold was valid.
    pub(crate) fn resolve(&mut self, env: &mut QueueEnv<S>, outcome: Release, of: impl Fn(&QueueRemains<S>) -> bool) {
        for release in self.releases.extract_if(.., |release| of(&release.remains)) {
            let deleted = release.maybe_deleted && outcome != Release::Unknown;
            let outcome = if deleted { Release::Released } else { outcome };
            env.report(Fact::Released(release.remains.id, outcome, Box::default()));
        }
    }
}

impl<S: QueueStore> Locks<Queued<S>> {
    /// Handles the reply to a request. Replies to unknown calls are dropped.
    pub fn handle_reply(&mut self, now: Instant, call: CallId, reply: &S::Reply) {
        self.handle_timeout(now);
        let serial = call.serial;
        match call.owner {
            CallOwner::Lock(slot) => {
                self.input(slot, |queued, env| queued.answered(env, serial, reply));
            }
            CallOwner::Session(slot) => {
                self.ctx.env.session_step(SessionId(slot), |session, env| session.answered(env, serial, reply));
            }
            CallOwner::Operation(_) => {
                // On ZooKeeper the session has ended, and a check goes on in the next one.
                let unneeded = Answer::Unreachable(Fault::NotNeeded.into());
                let pong = Some(S::pong(reply)).filter(|pong| *pong != unneeded);
                self.ctx.env.operation_answered(call, pong, Some(reply));
            }
            CallOwner::Nobody => {}
        }
        self.settle();
    }

    /// Passes an input to the store machine of a lock.
    pub(crate) fn input(&mut self, slot: u32, input: impl FnOnce(&mut Queued<S>, &mut QueueEnv<S>)) {
        self.step(slot, |lock, ctx| lock.step(ctx, |lock, ctx| input(&mut lock.store, &mut ctx.env)));
    }

    /// Passes a verb of the holder to the store machine of its lock.
    pub(crate) fn holder_verb<R>(
        &mut self,
        now: Instant,
        id: LockId,
        verb: impl FnOnce(&mut Queued<S>, &mut QueueEnv<S>) -> R,
    ) -> Result<R, Misuse> {
        self.verb(now, id, |lock, ctx| {
            lock.step(ctx, |lock, ctx| {
                lock.line.check_held(id)?;
                Ok(verb(&mut lock.store, &mut ctx.env))
            })
        })
    }

    /// Returns the node of the holder.
    pub fn owner(&self, id: LockId) -> Option<S::Owner> {
        self.locks.of(id)?.store.owner(id, &self.ctx.env)
    }

    /// Returns the holder's node, for transactions of the application that compare its version. The
    /// client then changes that version before each hand-over.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    // E7
    pub fn owner_guard(&mut self, now: Instant, id: LockId) -> Result<S::Owner, Misuse> {
        self.holder_verb(now, id, |queued, env| queued.owner_guard(env, id))?.ok_or(Misuse::NotHeld(id))
    }

    /// Drops all locks, and leaves their sessions.
    fn drop_locks(&mut self) {
        for (slot, mut lock) in self.locks.clear() {
            let Queued { joined, left, .. } = &lock.store;
            for (session, _) in joined {
                // The session of a lost hold is left to the guard. Nothing renews it.
                // H6
                if left.iter().all(|left| left.session != *session) || !self.ctx.env.is_lost(*session) {
                    self.ctx.env.leave_session(*session, slot);
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
