//! A session of this client: opened, renewed by writes, and ended or lost.
// ZK1, ZK6, T1, T2

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::query::ZooKeeperQuery;
use super::{ZooKeeperEnv, ZooKeeperName};
use crate::id::{CallOwner, NodeId};
use crate::lock::{
    self, Answer, Cause, Loss, Need, OpenOperation, QueueClient, QueueOutput, SessionCall, SessionEnd, SessionEvent,
    SessionId, SessionPurpose, SessionState, renew_at,
};
use crate::time::{Instant, When, soonest};
use crate::zookeeper::codec::{ANY_VERSION, ErrorCode, MultiOp, MultiResult, Op, ReplyBody};
use crate::zookeeper::output::SessionOutput;
use crate::zookeeper::path::Guid;
use crate::zookeeper::request::{Reply, Request, SessionReport};

/// The most nodes that one renewal compares. The others are compared by the next ones.
const MAX_CHECKS: usize = 64;

/// The most attempts that are remembered of those whose create was never executed.
const MAX_UNEXECUTED: usize = 16;

/// The most contacts that are remembered: those of eight ticks, for writes that take long.
const MAX_CONTACTS: usize = 64;

pub(crate) type ZooKeeperSession = lock::QueueSession<ZooKeeperName>;

/// The connection of a session, and the nodes in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionConnection {
    /// Since when there is no connection; `None` until an attempt has failed.
    down_since: Option<Instant>,
    /// The first write on this connection has not been committed: requests of earlier connections
    /// may still be executed.
    // ZK6
    undecided: bool,
    /// The session's id on the server.
    pub(super) owner: i64,
    /// The least timeout granted since the session's creation: a new leader gives a session the one
    /// of its creation, and a server that it has left still reports it with its own.
    least: Duration,
    /// How long a proven session is valid.
    validity: Duration,
    /// When a session that must be proven is given up, unless it is proven for longer.
    prove_by: Instant,
    /// The nodes of holds, by the slots of their locks.
    pub(super) nodes: BTreeMap<u32, Box<str>>,
    /// The nodes that the renewal in flight compares.
    checking: Vec<(u32, Box<str>)>,
    /// The first lock whose node the next renewal compares.
    next_check: u32,
    /// What the server has heard of the session, newest first.
    contacts: VecDeque<Contact>,
    /// When the last connect request left that was answered: the leader has handled it.
    connected: Instant,
    /// When the latest request left of which the leader has heard, by what writes have proven.
    heard: Instant,
    /// When the last committed write left, and when its reply came.
    wrote: Instant,
    committed: Instant,
    /// How long replies take on this connection, as a moving average.
    usual: Duration,
    /// The next write proves nothing new before this.
    prove_after: Instant,
    /// The last creates that were never executed, by what a server has shown. Should it be wrong,
    /// their nodes are deleted.
    // ZK6
    pub(super) unexecuted: VecDeque<Guid>,
    /// The last failure, while it is not established.
    pub(super) down: Option<Answer>,
    /// Consecutive failures to connect, and how many of them refused for good.
    failures: u32,
    refusals: u32,
    /// It was told to stop its pings.
    quiet: bool,
}

/// Proof that the server heard of the session at or after `emitted`. A leader that runs has heard of
/// it by `known_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Contact {
    emitted: Instant,
    known_at: Instant,
}

impl ZooKeeperSession {
    /// Returns true if nothing needs the session, and it is not kept for later locks.
    fn wants_end(&self) -> bool {
        self.state != SessionState::Ending && !self.is_gone() && !self.is_offered() && !self.is_needed()
    }

    /// Returns when it is given up: without a connection once the server has ended it, and with one
    /// if writes do not prove it. Its holds are lost at the end of their validity in any case.
    // ZK1, ZK6
    fn lost_at(&self) -> Option<Instant> {
        // Until its locks need a proof, the session is kept by pings, which prove nothing. It is then
        // not given up before a renewal can be answered.
        let answered = || self.proof_from.map_or(self.own.prove_by, |at| self.own.prove_by.max(at + self.own.validity));
        let proof = || (self.need() == Need::Proof).then(|| self.until.max(answered()));
        self.own.down_since.map(|since| since + self.granted).or_else(proof)
    }

    /// Returns true if it is lost, and the connection must stop its pings.
    fn must_be_quiet(&self) -> bool {
        matches!(self.state, SessionState::Lost(loss) if loss != Loss::Gone) && !self.own.quiet
    }

    /// A lost session that is not renewed ends on the server when it would have ended by itself,
    /// even if its guards are still out.
    fn end_at(&self) -> Option<Instant> {
        let unguarded = self.state == SessionState::Lost(Loss::Expired) && !self.renewing;
        unguarded.then(|| self.until + self.granted.saturating_sub(self.own.validity))
    }

    pub(crate) fn reported(&mut self, env: &mut ZooKeeperEnv, report: &SessionReport) -> Option<SessionEvent> {
        match report {
            SessionReport::Up { emitted, timeout, owner } => self.opened(env, *emitted, *timeout, *owner),
            SessionReport::Down(cause) => self.disconnected(env, cause),
            SessionReport::Contact(emitted) => {
                let known_at = env.now + env.config.report_within();
                // More than eight in a tick would displace those that a write can prove.
                let spacing = env.config.store.own.tick / 8;
                // A single reply that was held up counts for little.
                let took = env.now.since(*emitted).min(self.own.usual * 2 + spacing);
                self.own.usual = (self.own.usual * 7 + took) / 8;
                if self.own.contacts.front().is_none_or(|newest| newest.known_at + spacing <= known_at) {
                    self.own.contacts.truncate(MAX_CONTACTS - 1);
                    self.own.contacts.push_front(Contact { emitted: *emitted, known_at });
                }
                None
            }
            // Within the bounds no leader ends it by itself while it is valid: somebody else did.
            // ZK1
            SessionReport::Expired if self.is_open() && env.now < self.until => self.lose(Loss::Gone),
            SessionReport::Expired => self.ended(SessionEnd::Refused),
            SessionReport::Ended { confirmed } => {
                self.ended(if *confirmed { SessionEnd::Confirmed } else { SessionEnd::Unconfirmed })
            }
        }
    }

    /// The session was created, or continues on a new connection.
    fn opened(
        &mut self,
        env: &mut ZooKeeperEnv,
        emitted: Instant,
        granted: Duration,
        owner: i64,
    ) -> Option<SessionEvent> {
        (self.own.down_since, self.own.down, self.own.undecided) = (None, None, false);
        (self.own.failures, self.own.refusals) = (0, 0);
        // The leader has created it, or was asked whether it exists.
        self.own.connected = emitted;
        self.own.usual = env.now.since(emitted).min(env.config.store.own.tick);
        match self.state {
            SessionState::Opening => {
                let validity = match env.config.check_granted(self.requested, granted) {
                    Ok(validity) => validity,
                    Err(error) => return self.refuse(env, Answer::Rejected(error)),
                };
                (self.state, self.own.owner, self.granted) = (SessionState::Alive, owner, granted);
                (self.own.least, self.own.validity) = (granted, validity);
                self.record(env, emitted);
                Some(SessionEvent::Alive)
            }
            SessionState::Checking | SessionState::Alive => {
                if env.config.check_granted(self.requested, granted).is_err() {
                    return self.lose(Loss::Expired);
                }
                let shortened = self.adjust(env, emitted, granted);
                // The first write on a connection. Once it is committed, all requests of earlier ones
                // are decided. Nothing else is sent before that.
                // ZK6
                self.own.undecided = true;
                self.retry.forget_call();
                self.write(env);
                shortened
            }
            SessionState::Lost(_) | SessionState::Ending | SessionState::Over(_) => None,
        }
    }

    /// Adopts the timeout that this server granted. If it is shorter than that of the servers
    /// before, the session may end before the last write of the former connection allowed. A longer
    /// one does not count.
    // T3, ZK1
    fn adjust(&mut self, env: &ZooKeeperEnv, emitted: Instant, granted: Duration) -> Option<SessionEvent> {
        self.own.least = self.own.least.min(granted);
        let (validity, before) = (env.config.validity(self.own.least), self.until);
        self.until = before.min(emitted + validity);
        (self.granted, self.own.validity, self.own.prove_by) = (granted, validity, emitted + validity);
        (self.until < before).then_some(SessionEvent::Shortened)
    }

    /// Returns true if there is a connection for the session, even one on which only renewals may
    /// be sent so far.
    fn is_connected(&self) -> bool {
        self.own.down_since.is_none() && self.state == SessionState::Alive
    }

    /// Returns true if renewals are due: for holds, or to decide the requests of earlier
    /// connections.
    fn needs_renewal(&self) -> bool {
        self.need() == Need::Proof || self.own.undecided
    }

    /// The create of this attempt was never executed.
    pub(super) fn forget_create(&mut self, guid: Guid) {
        self.own.unexecuted.truncate(MAX_UNEXECUTED - 1);
        self.own.unexecuted.push_front(guid);
    }

    /// A write was committed on this connection. The locks go on.
    // ZK6
    fn decided(&mut self, env: &mut ZooKeeperEnv) {
        if mem::take(&mut self.own.undecided) {
            self.own.down = None;
            env.shared.sessions.emit(self.id, SessionEvent::Up);
        }
    }

    /// The connection failed, or could not be opened.
    fn disconnected(&mut self, env: &mut ZooKeeperEnv, cause: &Cause) -> Option<SessionEvent> {
        self.own.down_since.get_or_insert(env.now);
        let answer = Answer::Unreachable(cause.clone());
        let servers = env.config.store.own.servers.len();
        self.own.failures = self.own.failures.saturating_add(1);
        self.own.refusals = if cause.is_refusal() { self.own.refusals + 1 } else { 0 };
        if self.state == SessionState::Opening && self.own.refusals as usize >= servers {
            return self.refuse(env, answer);
        }
        // The next server may be up.
        if self.is_lost() || (self.own.failures as usize) < servers {
            return None;
        }
        self.own.down = Some(answer.clone());
        Some(SessionEvent::Down(answer))
    }

    /// It is being connected, so the last failure is no answer for a new attempt. `afresh`: all
    /// servers are tried before the next pause.
    // P9
    pub(crate) fn reopens(&mut self, afresh: bool) -> Option<SessionEvent> {
        self.own.down = None;
        if afresh {
            self.own.failures = 0;
        }
        None
    }

    fn refuse(&mut self, env: &mut ZooKeeperEnv, answer: Answer) -> Option<SessionEvent> {
        self.revoke(env);
        Some(SessionEvent::Refused(answer))
    }

    fn ended(&mut self, end: SessionEnd) -> Option<SessionEvent> {
        let before = mem::replace(&mut self.state, SessionState::Over(end));
        (!matches!(before, SessionState::Over(_))).then_some(SessionEvent::Ended(end))
    }

    /// A write of a lock that left at `emitted` was committed, which renews the session. While there
    /// are holds, it only counts if more than a third of the validity is over: all of them are then
    /// notified, and that happens rarely.
    pub(super) fn wrote(&mut self, env: &mut ZooKeeperEnv, emitted: Instant) -> Option<SessionEvent> {
        let counts = self.state == SessionState::Alive && self.renewing && !env.config.store.own.revalidate;
        if !counts || emitted + self.own.validity <= self.until {
            return None;
        }
        let fresh = self.until.since(env.now) >= self.own.validity / 3 * 2;
        if fresh && !self.own.nodes.is_empty() {
            return None;
        }
        let proven = self.record(env, emitted);
        if self.renew_from.is_some() {
            ZooKeeperClientState::renew(self, env);
        }
        (!fresh).then_some(SessionEvent::Renewed(proven))
    }

    /// A write that left at `emitted` was committed. A session that is renewed by hand only counts
    /// the writes that it was asked for. Returns from when on the validity counts.
    ///
    /// The write itself does not renew the session at the leader: its server tells it later. So the
    /// validity counts from what the leader has heard, plus the time that this may be old while the
    /// client pings. The two ticks by which it ends earlier cover that. More time passes between
    /// contacts if the process was stopped, or the network.
    // ZK1
    fn record(&mut self, env: &ZooKeeperEnv, emitted: Instant) -> Instant {
        let tick = env.config.store.own.tick;
        self.own.heard = self.own.heard.max(self.own.connected);
        // The leader may have been stopped before the write: it hears of the contacts within the
        // time for a report, unless it ends the session before. If the write took longer than the
        // network explains, the leader may have been stopped until it handled the write, and may be
        // stopped again before that. Then only an earlier write counts: one that was committed
        // before this one left, not one that the leader has handled together with it.
        let is_slow = env.now.since(emitted) > self.own.usual * 2 + tick / 4;
        let earlier = if self.own.committed <= emitted { self.own.wrote } else { Instant::ZERO };
        let by = if is_slow { earlier } else { emitted };
        if !env.config.store.own.revalidate
            && env.now < self.proven_by_contacts_until(env)
            && let Some(known) = self.own.contacts.iter().find(|contact| contact.known_at <= by)
        {
            self.own.heard = self.own.heard.max(known.emitted);
        }
        (self.own.wrote, self.own.committed) = (emitted, env.now);
        let proven = emitted.min(self.own.heard + tick * 7 / 4);
        self.prolong(proven, self.own.validity);
        let next = renew_at(env.seed ^ self.own.owner.unsigned_abs(), emitted, self.own.validity);
        let mut next = next.min(self.proven_by_contacts_until(env));
        if proven < emitted {
            self.own.prove_after = env.now + env.config.report_within();
            next = next.min(self.own.prove_after);
        }
        self.retry.set_due(self.renewing.then_some(next));
        proven
    }

    /// Returns true if no write can prove that the session lives on: only the leader's answer to a
    /// connect request can. The leader may have been stopped for so long that it ends the session
    /// before it hears of any contact.
    // ZK1
    fn must_reconnect(&self, env: &ZooKeeperEnv) -> bool {
        if env.config.store.own.revalidate {
            return self.own.connected <= self.own.heard;
        }
        self.proven_by_contacts_until(env) <= env.now
    }

    /// Returns until when the leader hears of contacts before it can end the session.
    // ZK1
    fn proven_by_contacts_until(&self, env: &ZooKeeperEnv) -> Instant {
        let SessionConnection { heard, connected, least, .. } = self.own;
        (heard.max(connected) + least).back(env.config.report_within())
    }

    /// Called before a lock enters the queue. A session that was idle for long continues on a new
    /// connection first.
    // ZK1
    pub(super) fn refresh(&mut self, env: &mut ZooKeeperEnv) -> Option<SessionEvent> {
        if ZooKeeperClientState::is_up(self)
            && !self.retry.is_in_flight()
            && !self.proves_hold(env.now)
            && self.must_reconnect(env)
        {
            self.reconnect(env);
        }
        None
    }

    fn reconnect(&mut self, env: &mut ZooKeeperEnv) {
        self.own.down_since = Some(env.now);
        let timeout = self.requested;
        env.out.push_back(QueueOutput::Store(SessionOutput::Open { session: self.id, timeout }));
    }

    /// Returns true if a hold may begin: it is not lost before the first renewal can be answered.
    // ZK1
    pub(super) fn proves_hold(&self, now: Instant) -> bool {
        self.until.since(now) > self.own.validity / 3
    }

    /// Renews the session for a hold, unless a renewal is in flight.
    pub(super) fn prove(&mut self, env: &mut ZooKeeperEnv) -> Option<SessionEvent> {
        if !self.retry.is_in_flight() {
            self.renew_from = Some(env.now);
            ZooKeeperClientState::renew(self, env);
        }
        None
    }

    /// Renews the session, on a new connection if the present one cannot prove it.
    // ZK1
    fn send_renewal(&mut self, env: &mut ZooKeeperEnv) {
        if !self.is_connected() || self.retry.is_in_flight() {
            return;
        }
        if self.must_reconnect(env) { self.reconnect(env) } else { self.write(env) }
    }

    /// Sends a write that a quorum must commit.
    // ZK1
    fn write(&mut self, env: &mut ZooKeeperEnv) {
        if !self.is_connected() || self.retry.is_in_flight() {
            return;
        }
        let (before, from) = (self.own.nodes.range(..self.own.next_check), self.own.nodes.range(self.own.next_check..));
        self.own.checking = from.chain(before).take(MAX_CHECKS).map(|(slot, path)| (*slot, path.clone())).collect();
        self.own.next_check = self.own.checking.last().map_or(0, |(slot, _)| slot + 1);
        let check = |path: &str| MultiOp::Check { path: path.into(), version: ANY_VERSION };
        let mut checks: Vec<MultiOp> = self.own.checking.iter().map(|(_, path)| check(path)).collect();
        if checks.is_empty() {
            checks.push(check("/"));
        }
        let request = Request { session: self.id, op: Op::Multi(checks) };
        let serial = env.call(CallOwner::Session(self.id.0), NodeId(0), request, env.config.request_timeout);
        self.retry.sent(SessionCall { serial, purpose: SessionPurpose::Renew, emitted: env.now });
    }
}

/// The locks of a client share nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ZooKeeperClientState;

impl QueueClient<ZooKeeperName> for ZooKeeperClientState {
    type Session = SessionConnection;
    type Query = ZooKeeperQuery;

    fn new_session(_: &mut ZooKeeperEnv) -> SessionConnection {
        SessionConnection::default()
    }

    fn is_up(session: &ZooKeeperSession) -> bool {
        session.is_connected() && !session.own.undecided
    }

    fn session_deadline(session: &ZooKeeperSession) -> (When, &'static str) {
        if session.must_be_quiet() || session.wants_end() {
            return (When::Now, "end of a session");
        }
        let (at, why) = match session.state {
            SessionState::Opening => (session.retry.deadline(), "session"),
            SessionState::Alive => {
                let renews = session.needs_renewal() && session.is_connected();
                (soonest([session.retry.deadline().filter(|_| renews), session.lost_at()]), "session")
            }
            SessionState::Lost(_) => (session.end_at(), "end of a session"),
            SessionState::Checking | SessionState::Ending | SessionState::Over(_) => (None, ""),
        };
        (at.into(), why)
    }

    fn session_timeout(session: &mut ZooKeeperSession, env: &mut ZooKeeperEnv) -> Option<SessionEvent> {
        if session.wants_end() || session.end_at().is_some_and(|at| at <= env.now) {
            return session.revoke(env);
        }
        if session.must_be_quiet() {
            session.own.quiet = true;
            env.out.push_back(QueueOutput::Store(SessionOutput::Quiet { session: session.id }));
        }
        match session.state {
            SessionState::Opening if session.retry.is_due(env.now) => {
                session.retry.set_due(None);
                env.out.push_back(QueueOutput::Store(SessionOutput::Open {
                    session: session.id,
                    timeout: session.requested,
                }));
            }
            SessionState::Alive if session.lost_at().is_some_and(|at| at <= env.now) => {
                return session.lose(Loss::Expired);
            }
            SessionState::Alive if session.needs_renewal() && session.retry.is_due(env.now) => {
                session.send_renewal(env)
            }
            SessionState::Opening
            | SessionState::Checking
            | SessionState::Alive
            | SessionState::Lost(_)
            | SessionState::Ending
            | SessionState::Over(_) => {}
        }
        None
    }

    /// Renews the session once that proves something new.
    fn renew(session: &mut ZooKeeperSession, env: &mut ZooKeeperEnv) {
        if env.now < session.own.prove_after && !session.must_reconnect(env) {
            session.retry.set_due(Some(session.own.prove_after));
        } else {
            session.send_renewal(env);
        }
    }

    fn session_answered(
        session: &mut ZooKeeperSession,
        env: &mut ZooKeeperEnv,
        call: SessionCall,
        reply: &Reply,
    ) -> Option<SessionEvent> {
        if session.state != SessionState::Alive {
            return None;
        }
        // A transaction that fails is committed as well, unless the session failed it. If the
        // session has moved, the connection ends, and there is no reply.
        // ZK1
        if let Reply::Done(ReplyBody::Multi(results)) = reply {
            if results.contains(&MultiResult::Error(ErrorCode::SESSION_EXPIRED)) {
                return session.reported(env, &SessionReport::Expired);
            }
            session.decided(env);
            let checked = mem::take(&mut session.own.checking);
            let failed = results.iter().position(|result| *result == MultiResult::Error(ErrorCode::NO_NODE));
            if let Some((slot, path)) = failed.and_then(|place| checked.get(place))
                && session.own.nodes.get(slot) == Some(path)
            {
                session.own.nodes.remove(slot);
                // The next renewal counts instead of this one, and notifies all holders.
                session.write(env);
                return Some(SessionEvent::Gone(*slot));
            }
            let counts = session.renewing || session.renew_from.is_some();
            let proven = if counts { session.record(env, call.emitted) } else { call.emitted };
            if session.renew_from.is_some() {
                Self::renew(session, env);
            }
            return counts.then_some(SessionEvent::Renewed(proven));
        }
        env.back_off(&mut session.retry);
        if let (true, Reply::Refused(_)) = (session.own.undecided, reply) {
            session.own.down = Some(reply.answer());
            env.shared.sessions.emit(session.id, SessionEvent::Down(reply.answer()));
        }
        Some(SessionEvent::Unrenewed(call.emitted, reply.answer()))
    }

    fn end_session(session: &mut ZooKeeperSession, env: &mut ZooKeeperEnv) {
        if session.state == SessionState::Opening && session.retry.due().is_some() {
            // It was not requested.
            session.state = SessionState::Over(SessionEnd::Confirmed);
            return;
        }
        session.state = SessionState::Ending;
        env.out.push_back(QueueOutput::Store(SessionOutput::End { session: session.id }));
    }

    fn query_event(
        query: &mut ZooKeeperQuery,
        op: &mut OpenOperation,
        env: &mut ZooKeeperEnv,
        session: SessionId,
        event: &SessionEvent,
    ) -> bool {
        query.session_event(op, env, session, event)
    }
}
