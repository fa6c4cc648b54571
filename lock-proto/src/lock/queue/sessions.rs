//! The sessions of a client of a store whose keys live as long as a session: a shared one, and one
//! for each lock with a separate TTL.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::mem;
use core::time::Duration;

use super::queued::{QueueEnv, Queued};
use super::retry::Retry;
use super::store::{QueueClient, QueueStore};
use super::users::{Need, Users};
use crate::collections::Deadlines;
use crate::jitter::{doubled, jitter};
use crate::lock::answer::{Answer, ErrorClass, ServerError, printable};
use crate::lock::grant::Loss;
use crate::lock::hub::Locks;
use crate::time::{Instant, When};

/// First and longest backoff after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// A refusal by the client itself, of what a server grants.
pub(crate) fn refusal(text: &str) -> ServerError {
    ServerError { class: ErrorClass::Refused, text: printable(text, "") }
}

/// Returns the backoff after `tries` failures, with jitter.
pub(crate) fn pause(seed: u64, n: u64, tries: u32) -> Duration {
    let (first, max) = PAUSE;
    let pause = doubled(first, tries, max);
    pause + jitter(seed, n, pause / 2)
}

/// Returns when to send the next renewal: a third of `validity` after `emitted`, less jitter.
pub(crate) fn renew_at(seed: u64, emitted: Instant, validity: Duration) -> Instant {
    let third = validity / 3;
    emitted + (third - jitter(seed, emitted.as_nanos(), third / 10))
}

/// A session of this client, by its slot. A slot is reused only when no lock depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u32);

/// A session: a lease that the client renews, or a connection that it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueSession<S: QueueStore> {
    pub(crate) id: SessionId,
    /// Its place among the deadlines.
    timer: u32,
    /// Shared by all locks without a session of their own.
    pub(crate) shared: bool,
    /// It gets no new locks.
    pub(crate) retired: bool,
    pub(crate) users: Users,
    pub(crate) requested: Duration,
    /// The TTL that the server last granted.
    pub(crate) granted: Duration,
    pub(crate) state: SessionState,
    /// The end of validity of all its holds.
    pub(crate) until: Instant,
    pub(crate) renewing: bool,
    /// Since when its locks need it proven, if they do.
    pub(crate) proof_from: Option<Instant>,
    /// A lock needs a renewal sent at or after this instant.
    pub(crate) renew_from: Option<Instant>,
    /// When the shared session ends if no lock uses it.
    idle_until: Instant,
    pub(crate) retry: Retry<SessionCall>,
    pub(crate) own: <S::Client as QueueClient<S>>::Session,
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SessionState {
    Opening,
    /// The session exists on the server, but its remaining time is unknown. A renewal determines
    /// it.
    Checking,
    Alive,
    /// Lost for its locks. Its nodes stay until the guards are dropped, or it has ended.
    // H6
    Lost(Loss),
    Ending,
    Over(SessionEnd),
}

/// What is known of the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionEnd {
    /// A server has confirmed it: its nodes are gone.
    Confirmed,
    /// A server refuses it as expired. A leader without a majority does that too: the nodes then
    /// exist until another leader has ended the session.
    Refused,
    /// Its time has passed, but no server has confirmed the end.
    Unconfirmed,
}

/// A request of a session in flight: there is at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionCall {
    pub(crate) serial: u64,
    pub(crate) purpose: SessionPurpose,
    pub(crate) emitted: Instant,
}

/// Why a session makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionPurpose {
    /// To open the session.
    Open,
    /// To renew it.
    Renew,
    /// To end it.
    End,
}

/// What the locks of a session are notified of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    /// It is usable for the first time.
    Alive,
    /// It continues on a new connection: all watches are gone. Requests of earlier connections
    /// are decided.
    Up,
    /// Another server granted a shorter TTL: validity ends earlier.
    Shortened,
    /// It could not be opened, or the connection failed. The session tries again.
    Down(Answer),
    /// The servers refuse it.
    Refused(Answer),
    /// A renewal sent at this instant was confirmed.
    Renewed(Instant),
    /// A renewal sent at this instant was not confirmed.
    Unrenewed(Instant, Answer),
    /// The node of the lock in this slot does not exist.
    Gone(u32),
    /// It gets no new locks, and its waiters queue again in another one.
    Leave,
    /// It is lost.
    Lost(Loss),
    /// It has ended, with its nodes as far as is known.
    Ended(SessionEnd),
}

impl<S: QueueStore> QueueSession<S> {
    /// Returns true if it is not lost and not ended.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, SessionState::Opening | SessionState::Checking | SessionState::Alive)
    }

    /// Returns true if it is lost for its locks.
    pub(crate) const fn is_lost(&self) -> bool {
        !self.is_open()
    }

    /// Returns true if it has ended, and its nodes with it as far as is known.
    pub(crate) const fn is_gone(&self) -> bool {
        matches!(self.state, SessionState::Lost(Loss::Gone) | SessionState::Over(_))
    }

    /// Returns what its locks need.
    pub(crate) const fn need(&self) -> Need {
        self.users.need()
    }

    /// Returns true if a lock needs it alive.
    pub(crate) fn is_needed(&self) -> bool {
        self.need() >= Need::Alive
    }

    /// Loses it, unless it is lost.
    pub(crate) fn lose(&mut self, loss: Loss) -> Option<SessionEvent> {
        if self.is_lost() {
            return None;
        }
        (self.state, self.retry) = (SessionState::Lost(loss), Retry::new(None));
        Some(SessionEvent::Lost(loss))
    }

    /// Renews it for a full TTL, even if it is not renewed automatically.
    fn extend(&mut self, env: &mut QueueEnv<S>) -> Option<SessionEvent> {
        self.renew_from = Some(env.now);
        S::Client::renew(self, env);
        None
    }

    /// Returns true if it can get more locks.
    pub(crate) const fn is_offered(&self) -> bool {
        self.shared && !self.retired && self.is_open()
    }

    fn is_idle(&self) -> bool {
        self.users.is_empty() && self.is_offered()
    }

    /// The last lock has left. The shared session is kept for later ones for some time.
    fn unused(&mut self, env: &mut QueueEnv<S>) -> Option<SessionEvent> {
        if !self.is_offered() {
            return self.revoke(env);
        }
        self.idle_until = env.now + env.config.idle_timeout;
        None
    }

    /// Returns the next deadline and its reason.
    fn deadline(&self) -> (When, &'static str) {
        let own = S::Client::session_deadline(self);
        let idle = When::from(Some(self.idle_until).filter(|_| self.is_idle()));
        if idle < own.0 { (idle, "idle session") } else { own }
    }

    /// Does the work that is due. An unused session ends, unless a query may use it.
    fn timeout(&mut self, env: &mut QueueEnv<S>) -> Option<SessionEvent> {
        if self.is_idle() && self.idle_until <= env.now {
            if !S::QUERIES_USE_SESSION || env.operations.queries().next().is_none() {
                return self.revoke(env);
            }
            self.idle_until = env.now + env.config.idle_timeout;
        }
        S::Client::session_timeout(self, env)
    }

    /// A renewal that was emitted at this instant is confirmed.
    pub(crate) fn prolong(&mut self, emitted: Instant, validity: Duration) {
        self.until = self.until.max(emitted + validity);
        self.renew_from = self.renew_from.filter(|at| emitted < *at);
        self.retry.succeeded();
    }

    /// Ends it on the server, if it may exist there.
    pub(crate) fn revoke(&mut self, env: &mut QueueEnv<S>) -> Option<SessionEvent> {
        match self.state {
            SessionState::Ending | SessionState::Over(_) => {}
            SessionState::Lost(Loss::Gone) => self.state = SessionState::Over(SessionEnd::Confirmed),
            SessionState::Opening | SessionState::Checking | SessionState::Alive | SessionState::Lost(_) => {
                S::Client::end_session(self, env)
            }
        }
        None
    }

    pub(super) fn answered(&mut self, env: &mut QueueEnv<S>, serial: u64, reply: &S::Reply) -> Option<SessionEvent> {
        let call = self.retry.answered(|call| call.serial == serial)?;
        S::Client::session_answered(self, env, call, reply)
    }
}

/// All sessions of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sessions<S: QueueStore> {
    list: BTreeMap<SessionId, QueueSession<S>>,
    free: u32,
    pub(crate) shared: Option<SessionId>,
    /// Opened for a lock in this step, which may no longer need it.
    opened: Vec<SessionId>,
    /// Sessions that a lock stopped using in this step, with its slot.
    left: Vec<(SessionId, u32)>,
    /// Extensions requested in this step.
    pub(crate) extend: Vec<SessionId>,
    deadlines: Deadlines,
    /// The session of each deadline. Its number would not do: numbers grow for ever.
    timers: Vec<Option<SessionId>>,
    events: VecDeque<(SessionId, SessionEvent)>,
    /// Consecutive sessions that the server did not know before it confirmed one, by a renewal or at
    /// its end.
    pub(crate) unknown: u32,
    /// When the latest session was to be opened.
    last_due: Instant,
    /// Sessions that have ended since the shutdown began, without a confirmation.
    pub(crate) unconfirmed: u32,
    /// Until then a session may live that ended earlier, without a confirmation: a server may have
    /// heard of it until that moment.
    doubtful_until: Instant,
}

impl<S: QueueStore> Sessions<S> {
    pub(crate) fn get(&self, id: SessionId) -> Option<&QueueSession<S>> {
        self.list.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut QueueSession<S>> {
        self.list.get_mut(&id)
    }

    pub(crate) fn first_deadline(&self) -> Option<(Instant, &'static str)> {
        let (at, timer) = self.deadlines.first()?;
        let session = self.of_timer(timer).and_then(|id| self.list.get(&id));
        let reason = session.map_or("a session", |session| session.deadline().1);
        Some((at, reason))
    }

    fn due(&self, now: Instant) -> Option<SessionId> {
        let (at, timer) = self.deadlines.first()?;
        self.of_timer(timer).filter(|_| at <= now && at < Instant::MAX)
    }

    fn of_timer(&self, timer: u32) -> Option<SessionId> {
        *self.timers.get(timer as usize)?
    }

    fn take_timer(&mut self, id: SessionId) -> u32 {
        let free = self.timers.iter().position(Option::is_none).unwrap_or(self.timers.len());
        if free == self.timers.len() {
            self.timers.push(None);
        }
        self.timers[free] = Some(id);
        free as u32
    }

    /// Returns true if a session is due, or its locks have to be notified.
    pub(crate) fn is_unsettled(&self, now: Instant) -> bool {
        self.due(now).is_some() || !self.events.is_empty()
    }

    fn next_id(&mut self) -> SessionId {
        let mut slot = self.free;
        while self.list.contains_key(&SessionId(slot)) {
            slot = slot.wrapping_add(1);
        }
        self.free = slot.wrapping_add(1);
        SessionId(slot)
    }

    /// Adds a user, or changes what it needs.
    fn join(&mut self, id: SessionId, user: u32, need: Need, now: Instant) {
        let Some(session) = self.list.get_mut(&id) else { return };
        let before = session.need();
        session.users.set(user, need);
        if before < Need::Proof && session.need() == Need::Proof {
            session.proof_from = Some(now);
        }
        self.after(id);
    }

    /// Marks a session as lost, and queues an event for its users.
    pub(crate) fn lose(&mut self, id: SessionId, loss: Loss) {
        let Some(session) = self.list.get_mut(&id) else { return };
        if let Some(event) = session.lose(loss) {
            self.emit(id, event);
        }
        self.after(id);
    }

    pub(crate) fn emit(&mut self, id: SessionId, event: SessionEvent) {
        if let SessionEvent::Renewed(_) = event {
            self.unknown = 0;
        } else if let SessionEvent::Lost(Loss::Gone) | SessionEvent::Ended(SessionEnd::Refused) = event {
            self.unknown = self.unknown.saturating_add(1);
        }
        self.events.push_back((id, event));
    }

    /// Gives later locks another session. Returns false if this one is retired or gone already.
    pub(crate) fn retire(&mut self, id: SessionId) -> bool {
        let Some(session) = self.list.get_mut(&id).filter(|session| !session.retired) else { return false };
        session.retired = true;
        if self.shared == Some(id) {
            self.shared = None;
        }
        self.after(id);
        true
    }

    /// Retires a session that can only end as a whole, and moves its waiters to another one.
    pub(crate) fn leave(&mut self, id: SessionId) {
        if self.retire(id) {
            self.emit(id, SessionEvent::Leave);
        }
    }

    pub(crate) fn stop_renewing(&mut self, id: SessionId) {
        if let Some(session) = self.list.get_mut(&id) {
            session.renewing = false;
            session.retry.set_due(None);
        }
    }

    /// Returns the number of sessions that may exist on the server.
    pub(crate) fn unended(&self, now: Instant) -> u32 {
        let before = self.unconfirmed == 0 && now < self.doubtful_until;
        self.list.len() as u32 + self.unconfirmed + u32::from(before)
    }

    /// Updates the deadline after a step, and removes a session that is gone and unused.
    fn after(&mut self, id: SessionId) {
        let Some(session) = self.list.get(&id) else { return };
        if session.is_lost() && self.shared == Some(id) {
            self.shared = None;
        }
        let timer = session.timer;
        if session.users.is_empty() && session.is_gone() {
            self.unconfirmed += u32::from(session.state == SessionState::Over(SessionEnd::Unconfirmed));
            self.list.remove(&id);
            self.deadlines.set(timer, None);
            self.timers[timer as usize] = None;
        } else {
            self.deadlines.set(timer, session.deadline().0.instant());
        }
    }
}

impl<S: QueueStore> QueueEnv<S> {
    /// Returns the session that the locks without one of their own share.
    pub(crate) fn shared_session(&mut self) -> SessionId {
        let ttl = self.config.store.session_ttl;
        let ttl = S::check_ttl(&self.config, ttl).unwrap_or(ttl);
        self.shared.sessions.shared.unwrap_or_else(|| self.open_session(true, ttl))
    }

    /// Opens the session that the locks of the client share, or one for a single lock.
    pub(crate) fn open_session(&mut self, shared: bool, ttl: Duration) -> SessionId {
        // Back off if the server grants sessions and then does not know them.
        let before = self.shared.sessions.last_due.min(self.now);
        let due = match self.shared.sessions.unknown.checked_sub(2) {
            None => self.now,
            Some(tries) => self.now.max(before + pause(self.seed, self.now.as_nanos(), tries)),
        };
        let own = S::Client::new_session(self);
        let sessions = &mut self.shared.sessions;
        sessions.last_due = due;
        let id = sessions.next_id();
        let timer = sessions.take_timer(id);
        let session = QueueSession {
            id,
            timer,
            shared,
            retired: false,
            users: Users::default(),
            requested: ttl,
            granted: ttl,
            state: SessionState::Opening,
            until: Instant::ZERO,
            renewing: true,
            proof_from: None,
            renew_from: None,
            idle_until: self.now + self.config.idle_timeout,
            retry: Retry::new(Some(due)),
            own,
        };
        sessions.list.insert(id, session);
        sessions.deadlines.set(timer, Some(due));
        if shared {
            sessions.shared = Some(id);
        } else {
            sessions.opened.push(id);
        }
        id
    }

    /// Called after every step of a lock. Leaves and closes unused sessions, and runs requested
    /// extensions.
    pub(crate) fn settle_sessions(&mut self) {
        for (id, user) in mem::take(&mut self.shared.sessions.left) {
            self.leave_session(id, user);
        }
        for id in mem::take(&mut self.shared.sessions.extend) {
            self.session_step(id, QueueSession::extend);
        }
        while let Some(id) = self.shared.sessions.opened.pop() {
            if self.shared.sessions.get(id).is_some_and(|session| session.users.is_empty()) {
                self.session_step(id, QueueSession::unused);
            }
        }
    }

    pub(crate) fn leave_session(&mut self, id: SessionId, user: u32) {
        let Some(session) = self.shared.sessions.list.get_mut(&id) else { return };
        if session.users.remove(user) && session.users.is_empty() {
            self.session_step(id, QueueSession::unused);
        } else {
            // The others may need less of it.
            self.shared.sessions.after(id);
        }
    }

    /// Ends all unused sessions, the shared one included. Returns true once none is left but those
    /// of lost holds, which end by their TTL.
    pub(crate) fn drain_sessions(&mut self) -> bool {
        let list = &self.shared.sessions.list;
        let idle = list.iter().filter(|(_, session)| session.users.is_empty() && session.state != SessionState::Ending);
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.session_step(id, QueueSession::revoke);
        }
        self.shared.sessions.list.values().all(|session| matches!(session.state, SessionState::Lost(_)))
    }

    pub(crate) fn session_step(
        &mut self,
        id: SessionId,
        f: impl FnOnce(&mut QueueSession<S>, &mut Self) -> Option<SessionEvent>,
    ) {
        // Removed from the map during the step, so that `f` can borrow the context.
        let Some(mut session) = self.shared.sessions.list.remove(&id) else { return };
        let before = session.state;
        let event = f(&mut session, self);
        let sessions = &mut self.shared.sessions;
        if session.state != before && session.state == SessionState::Over(SessionEnd::Unconfirmed) {
            sessions.doubtful_until = sessions.doubtful_until.max(self.now + session.granted);
        }
        if before == SessionState::Ending && session.state == SessionState::Over(SessionEnd::Confirmed) {
            sessions.unknown = 0;
        }
        sessions.list.insert(id, session);
        if let Some(event) = event {
            sessions.emit(id, event);
        }
        sessions.after(id);
    }
}

impl<S: QueueStore> Queued<S> {
    /// Updates the sessions that this lock uses. Most steps change nothing.
    pub(crate) fn join_sessions(&mut self, env: &mut QueueEnv<S>) {
        let joined = mem::take(&mut self.joined);
        if self.uses().eq(joined.iter().copied()) {
            self.joined = joined;
            return;
        }
        let uses: Vec<(SessionId, Need)> = self.uses().collect();
        let sessions = &mut env.shared.sessions;
        for (session, need) in &uses {
            sessions.join(*session, env.slot, *need, env.now);
        }
        for (session, _) in joined {
            if !uses.iter().any(|(used, _)| *used == session) {
                sessions.left.push((session, env.slot));
            }
        }
        self.joined = uses;
    }
}

impl<S: QueueStore> Queued<S> {
    /// Handles an event of a session that this lock uses.
    fn session_event(&mut self, env: &mut QueueEnv<S>, session: SessionId, event: &SessionEvent) {
        let held = self.hold.as_ref().is_some_and(|hold| hold.session == session);
        S::session_event(self, env, session, event);
        if held {
            self.hold_event(env, event);
        }
        if self.contending_in() == Some(session) {
            self.contention_event(env, event);
        }
    }

    fn hold_event(&mut self, env: &mut QueueEnv<S>, event: &SessionEvent) {
        match event {
            SessionEvent::Lost(loss) => self.lost(env, *loss),
            SessionEvent::Ended(_) => self.lost(env, Loss::Gone),
            SessionEvent::Gone(slot) if *slot == env.slot => self.lost(env, Loss::Gone),
            SessionEvent::Renewed(emitted) => self.renewed(env, *emitted),
            SessionEvent::Unrenewed(emitted, answer) => self.unrenewed(env, *emitted, answer),
            SessionEvent::Shortened => self.keep(env),
            SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Down(_)
            | SessionEvent::Refused(_)
            | SessionEvent::Gone(_)
            | SessionEvent::Leave => {}
        }
    }

    fn contention_event(&mut self, env: &mut QueueEnv<S>, event: &SessionEvent) {
        match event {
            // The nodes of a lost session end with it.
            SessionEvent::Lost(_) | SessionEvent::Ended(_) | SessionEvent::Leave => {
                S::leave(self, env);
                self.start(env);
            }
            SessionEvent::Refused(answer) => self.fail_refused(env, answer.clone()),
            SessionEvent::Down(answer) => self.unreachable(env, answer.clone()),
            SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Shortened
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_) => {}
        }
    }
}

impl<S: QueueStore> Locks<Queued<S>> {
    /// Does the due work of one session, or notifies its locks of one event. Returns true if there
    /// was any: sessions come before the locks that depend on them.
    pub(crate) fn settle_session(&mut self) -> bool {
        let sessions = &mut self.ctx.env.shared.sessions;
        if let Some(session) = sessions.due(self.ctx.env.now) {
            self.ctx.env.session_step(session, QueueSession::timeout);
        } else if let Some((session, event)) = sessions.events.pop_front() {
            let users = sessions.get(session).map_or_else(Vec::new, |session| session.users.slots());
            for slot in users {
                self.input(slot, |queued, env| queued.session_event(env, session, &event));
            }
            if S::QUERIES_USE_SESSION {
                self.ctx.env.query_steps(|query, op, env| S::Client::query_event(query, op, env, session, &event));
            }
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_limit_with_jitter_up_to_half() {
        for (tries, ms) in [(0, 20), (1, 40), (2, 80), (6, 1_280), (7, 2_000), (u32::MAX, 2_000)] {
            let least = Duration::from_millis(ms);
            let pauses: Vec<_> = (0..200).map(|n| pause(n, 7, tries)).collect();
            assert!(pauses.iter().all(|pause| (least..=least * 3 / 2).contains(pause)), "{tries} {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause > least * 4 / 3), "{tries}");
        }
    }
}
