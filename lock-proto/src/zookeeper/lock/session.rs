//! A session of this client: opened, renewed by writes, and ended or lost.
// ZK1, ZK6, T1, T2

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{Context, Nodes};
use crate::id::{CallOwner, NodeId};
use crate::jitter::jitter;
use crate::lock::{self, Answer, Cause, ErrorClass, Loss, Retry, ServerError, Session as _, SessionId, Users, pause};
use crate::time::{Instant, soonest};
use crate::zookeeper::codec::{ANY_VERSION, ErrorCode, MultiOp, MultiResult, Op, ReplyBody};
use crate::zookeeper::output::LocksOutput;
use crate::zookeeper::request::{Reply, Request};

/// The most nodes that one renewal compares. The others are compared by the next ones.
const MAX_CHECKS: usize = 64;

/// A session, and what its locks know of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    id: SessionId,
    users: Users,
    /// Shared by all locks without a session of their own.
    shared: bool,
    requested: Duration,
    state: State,
    /// It was requested from the connection.
    is_open: bool,
    /// The connection is established, so that requests can be sent.
    up: bool,
    /// The session's id on the server.
    pub(super) owner: i64,
    granted: Duration,
    /// How long a write proves the session.
    validity: Duration,
    /// The end of validity, proven by a write.
    until: Instant,
    /// When it is given up.
    lost_at: Instant,
    renewing: bool,
    /// A lock needs a renewal sent at or after this instant.
    renew_from: Option<Instant>,
    retry: Retry<Call>,
    /// The nodes of holds, by the slots of their locks.
    pub(super) nodes: BTreeMap<u32, Box<str>>,
    /// The nodes that the renewal in flight compares.
    checking: Vec<(u32, Box<str>)>,
    /// The first lock whose node the next renewal compares.
    next_check: u32,
    /// The last failure of the connection, while it is not established.
    pub(super) down: Option<Answer>,
    /// Consecutive connections that were refused for good.
    refusals: u32,
    /// When the shared session ends if no lock uses it.
    idle_until: Instant,
    /// The connection must stop its pings.
    hush: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Opening,
    Alive,
    /// Lost for its locks. Its nodes stay until the guards are dropped, or it has ended.
    // H6
    Lost(Loss),
    Ending,
    Over,
}

/// A renewal in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    serial: u64,
    emitted: Instant,
}

/// What the locks of a session are notified of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// It is usable for the first time.
    Alive,
    /// It continues on a new connection: all watches are gone.
    Up,
    /// The connection failed, and is opened again.
    Down(Answer),
    /// The servers refuse it.
    Refused(Answer),
    /// A write sent at this instant renewed it.
    Renewed(Instant),
    /// A renewal sent at this instant was not confirmed.
    Unrenewed(Instant, Answer),
    /// The node of the lock in this slot does not exist.
    Gone(u32),
    /// It is lost.
    Lost(Loss),
    /// It has ended, with its nodes. True if the server confirmed it.
    Ended(bool),
}

impl Session {
    fn new(id: SessionId, shared: bool, ttl: Duration, due: Instant, idle_until: Instant) -> Self {
        Self {
            id,
            users: Users::new(),
            shared,
            requested: ttl,
            state: State::Opening,
            is_open: false,
            up: false,
            owner: 0,
            granted: ttl,
            validity: Duration::ZERO,
            until: Instant::ZERO,
            lost_at: Instant::MAX,
            renewing: true,
            renew_from: None,
            retry: Retry::new(Some(due)),
            nodes: BTreeMap::new(),
            checking: Vec::new(),
            next_check: 0,
            down: None,
            refusals: 0,
            idle_until,
            hush: false,
        }
    }

    pub(super) const fn is_shared(&self) -> bool {
        self.shared
    }

    fn is_needed(&self) -> bool {
        self.users.values().any(|needs| *needs)
    }

    /// Returns true if nothing needs the session, and it is not kept for later locks.
    fn wants_end(&self) -> bool {
        let kept = self.shared && matches!(self.state, State::Opening | State::Alive);
        let ends = matches!(self.state, State::Opening | State::Alive | State::Lost(_));
        ends && !self.is_gone_on_server() && !kept && !self.is_needed()
    }

    const fn is_gone_on_server(&self) -> bool {
        matches!(self.state, State::Lost(Loss::Gone) | State::Over)
    }

    /// A lost session that is not renewed ends on the server when it would have ended by itself,
    /// even if its guards are still out.
    fn end_at(&self) -> Option<Instant> {
        let unguarded = self.state == State::Lost(Loss::Expired) && !self.renewing;
        unguarded.then(|| self.until + self.granted.saturating_sub(self.validity))
    }

    /// The session was created, or continues on a new connection.
    pub(crate) fn opened(
        &mut self,
        ctx: &mut Context,
        emitted: Instant,
        granted: Duration,
        owner: i64,
    ) -> Option<SessionEvent> {
        self.down = None;
        self.refusals = 0;
        match self.state {
            State::Opening => {
                let least = ctx.config.least_ttl();
                if granted < least {
                    let text = format!(
                        "it grants a session of {granted:?}, and five ticks of {:?} (setting `tick`) are needed",
                        ctx.config.store.tick
                    );
                    return self.refuse(ctx, Answer::Rejected(refusal(&text)));
                }
                (self.state, self.up, self.owner, self.granted) = (State::Alive, true, owner, granted);
                self.validity = ctx.config.validity(granted);
                // The creation of a session is a write.
                self.record(ctx.seed, emitted);
                Some(SessionEvent::Alive)
            }
            State::Alive => {
                self.up = true;
                // The first write on a connection: all requests of earlier ones are decided before it.
                // ZK6
                self.renew(ctx);
                Some(SessionEvent::Up)
            }
            State::Lost(_) | State::Ending | State::Over => None,
        }
    }

    /// The connection failed, or could not be opened.
    pub(crate) fn disconnected(&mut self, ctx: &mut Context, cause: &Cause) -> Option<SessionEvent> {
        self.up = false;
        let answer = Answer::Unreachable(cause.clone());
        self.refusals = if cause.is_refusal() { self.refusals + 1 } else { 0 };
        if self.state == State::Opening && self.refusals as usize >= ctx.config.store.servers.len() {
            return self.refuse(ctx, answer);
        }
        if !matches!(self.state, State::Opening | State::Alive) {
            return None;
        }
        self.down = Some(answer.clone());
        Some(SessionEvent::Down(answer))
    }

    fn refuse(&mut self, ctx: &mut Context, answer: Answer) -> Option<SessionEvent> {
        ctx.out.push_back(LocksOutput::End { session: self.id });
        (self.state, self.up) = (State::Ending, false);
        Some(SessionEvent::Refused(answer))
    }

    /// The server has ended the session.
    pub(crate) fn expired(&mut self) -> Option<SessionEvent> {
        match self.state {
            State::Opening | State::Alive => {
                self.hush = false;
                lock::Session::lose(self, Loss::Gone)
            }
            State::Lost(_) | State::Ending => {
                self.state = State::Over;
                Some(SessionEvent::Ended(false))
            }
            State::Over => None,
        }
    }

    /// The session was ended as requested.
    pub(crate) fn ended(&mut self, confirmed: bool) -> Option<SessionEvent> {
        if self.state == State::Over {
            return None;
        }
        self.state = State::Over;
        Some(SessionEvent::Ended(confirmed))
    }

    /// Handles the reply to a renewal.
    pub(crate) fn answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) -> Option<SessionEvent> {
        let call = self.retry.answered(|call| call.serial == serial)?;
        if self.state != State::Alive {
            return None;
        }
        // A transaction that fails is committed as well.
        if let Reply::Done(ReplyBody::Multi(results)) = reply {
            if self.renewing || self.renew_from.is_some() {
                self.record(ctx.seed, call.emitted);
            }
            let checked = core::mem::take(&mut self.checking);
            let failed = results.iter().position(|result| *result == MultiResult::Error(ErrorCode::NO_NODE));
            if let Some((slot, path)) = failed.and_then(|place| checked.get(place))
                && self.nodes.get(slot) == Some(path)
            {
                self.nodes.remove(slot);
                self.renew(ctx);
                return Some(SessionEvent::Gone(*slot));
            }
            if self.renew_from.is_some() {
                self.renew(ctx);
            }
            return Some(SessionEvent::Renewed(call.emitted));
        }
        self.retry.failed(ctx.now + pause(ctx.seed, ctx.now.as_nanos(), self.retry.tries()));
        Some(SessionEvent::Unrenewed(call.emitted, reply.answer()))
    }

    /// A write of a lock that left at `emitted` was committed. It renews the session if more than a
    /// third of the validity is over: every hold is then notified, and that happens rarely.
    pub(super) fn wrote(&mut self, seed: u64, now: Instant, emitted: Instant) -> Option<SessionEvent> {
        if self.state != State::Alive || !self.renewing {
            return None;
        }
        if self.until.since(now) >= self.validity / 3 * 2 || emitted + self.validity <= self.until {
            // A hold may begin, which is not valid for longer.
            self.lost_at = self.until;
            return None;
        }
        self.record(seed, emitted);
        Some(SessionEvent::Renewed(emitted))
    }

    /// A write that left at `emitted` was committed. A session that is renewed by hand only counts
    /// the writes that it was asked for.
    fn record(&mut self, seed: u64, emitted: Instant) {
        self.until = self.until.max(emitted + self.validity);
        self.lost_at = if self.lost_at == Instant::MAX { self.until } else { self.lost_at.max(self.until) };
        self.renew_from = self.renew_from.filter(|at| emitted < *at);
        self.retry.succeeded();
        let third = self.validity / 3;
        let spread = jitter(seed ^ self.owner.unsigned_abs(), emitted.as_nanos(), third / 10);
        self.retry.set_due(self.renewing.then(|| emitted + third.saturating_sub(spread)));
    }

    /// Renews the session by a write that a quorum must commit.
    // ZK1
    fn renew(&mut self, ctx: &mut Context) {
        if !self.is_up() || self.retry.is_in_flight() {
            return;
        }
        let (before, from) = (self.nodes.range(..self.next_check), self.nodes.range(self.next_check..));
        self.checking = from.chain(before).take(MAX_CHECKS).map(|(slot, path)| (*slot, path.clone())).collect();
        self.next_check = self.checking.last().map_or(0, |(slot, _)| slot + 1);
        let check = |path: &str| MultiOp::Check { path: path.into(), version: ANY_VERSION };
        let mut checks: Vec<MultiOp> = self.checking.iter().map(|(_, path)| check(path)).collect();
        if checks.is_empty() {
            checks.push(check("/"));
        }
        let request = Request { session: self.id, op: Op::Multi(checks) };
        let serial = ctx.call(CallOwner::Session(self.id.0), NodeId(0), request, ctx.config.request_timeout);
        self.retry.sent(Call { serial, emitted: ctx.now });
    }
}

fn refusal(text: &str) -> ServerError {
    ServerError { class: ErrorClass::Refused, text: lock::printable(text, "") }
}

impl lock::Session<Nodes> for Session {
    type Event = SessionEvent;

    fn users(&self) -> &Users {
        &self.users
    }

    fn users_mut(&mut self) -> &mut Users {
        &mut self.users
    }

    /// Without users, the session is kept by pings, which prove nothing. It is then not given up
    /// before its first lock could renew it.
    fn join(&mut self, user: u32, needs: bool, now: Instant) -> bool {
        let was_needed = self.is_needed();
        self.users.insert(user, needs);
        if self.state == State::Alive && !was_needed && self.is_needed() {
            self.lost_at = self.until.max(now + self.validity);
            if self.renewing {
                self.retry.set_due(Some(now + self.validity / 3));
            }
        }
        true
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        if self.hush || self.wants_end() {
            return Some((Instant::ZERO, "end of a session"));
        }
        let (at, why) = match self.state {
            State::Opening if !self.is_open => (self.retry.deadline(), "session"),
            State::Alive if self.is_needed() => {
                (soonest([self.retry.deadline().filter(|_| self.up), Some(self.lost_at)]), "session")
            }
            State::Alive if self.users.is_empty() => (Some(self.idle_until), "idle session"),
            State::Lost(_) => (self.end_at(), "end of a session"),
            State::Opening | State::Alive | State::Ending | State::Over => (None, ""),
        };
        at.map(|at| (at, why))
    }

    fn is_up(&self) -> bool {
        self.up && matches!(self.state, State::Alive)
    }

    fn until(&self) -> Instant {
        self.until
    }

    fn ttl(&self) -> Duration {
        self.granted
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_) | State::Ending | State::Over)
    }

    fn is_gone(&self) -> bool {
        self.is_gone_on_server()
    }

    fn is_known(event: &SessionEvent) -> Option<bool> {
        match event {
            SessionEvent::Lost(Loss::Gone) => Some(false),
            SessionEvent::Renewed(_) => Some(true),
            SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Down(_)
            | SessionEvent::Refused(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_)
            | SessionEvent::Lost(_)
            | SessionEvent::Ended(_) => None,
        }
    }

    fn lose(&mut self, loss: Loss) -> Option<SessionEvent> {
        if !matches!(self.state, State::Opening | State::Alive) {
            return None;
        }
        (self.state, self.up) = (State::Lost(loss), false);
        self.retry = Retry::new(None);
        self.hush = loss != Loss::Gone;
        Some(SessionEvent::Lost(loss))
    }

    fn extend(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        self.renew_from = Some(ctx.now);
        self.renew(ctx);
        None
    }

    fn stop_renewing(&mut self) {
        self.renewing = false;
        self.retry.set_due(None);
    }

    fn unused(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        self.idle_until = ctx.now + ctx.config.idle_timeout;
        if self.wants_end() { self.revoke(ctx) } else { None }
    }

    fn revoke(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        match self.state {
            State::Opening if !self.is_open => self.state = State::Over,
            State::Lost(Loss::Gone) => self.state = State::Over,
            State::Opening | State::Alive | State::Lost(_) => {
                (self.state, self.up, self.hush) = (State::Ending, false, false);
                ctx.out.push_back(LocksOutput::End { session: self.id });
            }
            State::Ending | State::Over => {}
        }
        None
    }

    fn timeout(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        if self.wants_end() || self.end_at().is_some_and(|at| at <= ctx.now) {
            return self.revoke(ctx);
        }
        if core::mem::take(&mut self.hush) {
            ctx.out.push_back(LocksOutput::Quiet { session: self.id });
        }
        match self.state {
            State::Opening if !self.is_open && self.retry.is_due(ctx.now) => {
                self.is_open = true;
                ctx.out.push_back(LocksOutput::Open { session: self.id, timeout: self.requested });
                None
            }
            State::Alive if self.is_needed() && self.lost_at <= ctx.now => self.lose(Loss::Expired),
            State::Alive if self.is_needed() && self.retry.is_due(ctx.now) => {
                self.renew(ctx);
                None
            }
            State::Alive if self.users.is_empty() && self.idle_until <= ctx.now => {
                if ctx.shared.queries.is_empty() {
                    return self.revoke(ctx);
                }
                self.idle_until = ctx.now + ctx.config.idle_timeout;
                None
            }
            State::Opening | State::Alive | State::Lost(_) | State::Ending | State::Over => None,
        }
    }
}

impl Context {
    /// Returns the session that the locks without one of their own share.
    pub(super) fn shared_session(&mut self) -> SessionId {
        if let Some(id) = self.shared.sessions.shared {
            return id;
        }
        let ttl = self.config.store.session_ttl;
        self.new_session(true, ttl)
    }

    pub(super) fn new_session(&mut self, shared: bool, ttl: Duration) -> SessionId {
        let idle = self.config.idle_timeout;
        let id = self.open_session(shared, |id, due| Session::new(id, shared, ttl, due, due + idle));
        if shared {
            // Without a lock, such as that of a ping, nothing else would.
            self.session_step(id, lock::Session::timeout);
        }
        id
    }
}
