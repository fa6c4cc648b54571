//! The sessions of a client of a store whose keys live as long as a session: a shared one, and one
//! for each lock with a separate TTL.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::mem;
use core::time::Duration;

use super::grant::Loss;
use super::hub::Locks;
use super::queue::{QueueContext, QueueLock, QueueStore, Queued};
use crate::collections::Deadlines;
use crate::jitter::{doubled, jitter};
use crate::time::Instant;

/// First and longest backoff after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Returns the backoff after `tries` failures, with jitter.
pub(crate) fn pause(seed: u64, n: u64, tries: u32) -> Duration {
    let (first, max) = PAUSE;
    let pause = doubled(first, tries, max);
    pause + jitter(seed, n, pause / 2)
}

/// A session of this client, by its slot. A slot is reused only when no lock depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u32);

/// The locks of a session, by their slots, and whether each needs it alive.
pub(crate) type Users = BTreeMap<u32, bool>;

/// A session: a lease that the client renews, or a connection that it keeps.
pub trait Session<S: QueueStore>: Clone + Debug + PartialEq + Eq + Hash {
    /// What its locks are notified of.
    type Event: Clone + Debug + PartialEq + Eq + Hash;

    /// Returns its locks.
    fn users(&self) -> &Users;
    /// Returns its locks, for modification.
    fn users_mut(&mut self) -> &mut Users;
    /// Adds a lock. `needs` means that the session must stay alive for it. Returns true if its
    /// deadline may have changed.
    fn join(&mut self, user: u32, needs: bool, _now: Instant) -> bool {
        self.users_mut().insert(user, needs);
        false
    }
    /// Returns its next deadline and the reason.
    fn deadline(&self) -> Option<(Instant, &'static str)>;
    /// Returns true if requests can be sent.
    fn is_up(&self) -> bool;
    /// Returns the end of validity of its holds.
    fn until(&self) -> Instant;
    /// Returns the TTL that the server has granted.
    fn ttl(&self) -> Duration;
    /// Returns true if it is lost for its locks.
    fn is_lost(&self) -> bool;
    /// Returns true if the server has ended it, and its keys with it.
    fn is_gone(&self) -> bool;
    /// Returns whether the event shows that the server knows the session, or that it does not.
    fn is_known(event: &Self::Event) -> Option<bool>;
    /// Loses it, unless it is lost.
    fn lose(&mut self, loss: Loss) -> Option<Self::Event>;
    /// Renews it now.
    fn extend(&mut self, ctx: &mut QueueContext<S>) -> Option<Self::Event>;
    /// Stops the automatic renewal. It then lives as long as it is extended.
    fn stop_renewing(&mut self);
    /// The last lock has left.
    fn unused(&mut self, ctx: &mut QueueContext<S>) -> Option<Self::Event>;
    /// Ends it on the server.
    fn revoke(&mut self, ctx: &mut QueueContext<S>) -> Option<Self::Event>;
    /// Does the work that is due.
    fn timeout(&mut self, ctx: &mut QueueContext<S>) -> Option<Self::Event>;
}

type Event<S> = <<S as QueueStore>::Session as Session<S>>::Event;

/// All sessions of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sessions<S: QueueStore> {
    list: BTreeMap<SessionId, S::Session>,
    free: u32,
    pub(crate) shared: Option<SessionId>,
    /// Opened for a lock in this step, which may no longer need it.
    opened: Vec<SessionId>,
    /// Sessions that a lock stopped using in this step, with its slot.
    left: Vec<(SessionId, u32)>,
    /// Extends requested in this step.
    pub(crate) extend: Vec<SessionId>,
    deadlines: Deadlines,
    events: VecDeque<(SessionId, Event<S>)>,
    /// Consecutive sessions that the server did not know before it confirmed one.
    unknown: u32,
}

impl<S: QueueStore> Default for Sessions<S> {
    fn default() -> Self {
        Self {
            list: BTreeMap::new(),
            free: 0,
            shared: None,
            opened: Vec::new(),
            left: Vec::new(),
            extend: Vec::new(),
            deadlines: Deadlines::default(),
            events: VecDeque::new(),
            unknown: 0,
        }
    }
}

impl<S: QueueStore> Sessions<S> {
    pub(crate) fn get(&self, id: SessionId) -> Option<&S::Session> {
        self.list.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut S::Session> {
        self.list.get_mut(&id)
    }

    pub(crate) fn first_deadline(&self) -> Option<(Instant, &'static str)> {
        let (at, slot) = self.deadlines.first()?;
        let reason =
            self.list.get(&SessionId(slot)).and_then(Session::deadline).map_or("a session", |(_, reason)| reason);
        Some((at, reason))
    }

    fn due(&self, now: Instant) -> Option<SessionId> {
        let (at, slot) = self.deadlines.first()?;
        (at <= now && at < Instant::MAX).then_some(SessionId(slot))
    }

    /// Returns true if a session is due, or its locks have to be notified.
    pub(crate) fn is_unsettled(&self, now: Instant) -> bool {
        self.due(now).is_some() || !self.events.is_empty()
    }

    fn open(&mut self, due: Instant, new: impl FnOnce(SessionId, Instant) -> S::Session) -> SessionId {
        let mut slot = self.free;
        while self.list.contains_key(&SessionId(slot)) {
            slot = slot.wrapping_add(1);
        }
        self.free = slot.wrapping_add(1);
        let id = SessionId(slot);
        self.list.insert(id, new(id, due));
        self.deadlines.set(slot, Some(due));
        id
    }

    /// Adds a user. `needs` means that the session must stay alive for it.
    fn join(&mut self, id: SessionId, user: u32, needs: bool, now: Instant) {
        if self.list.get_mut(&id).is_some_and(|session| session.join(user, needs, now)) {
            self.after(id);
        }
    }

    /// Marks a session as lost, and queues an event for its users.
    pub(crate) fn lose(&mut self, id: SessionId, loss: Loss) {
        let Some(session) = self.list.get_mut(&id) else { return };
        if let Some(event) = session.lose(loss) {
            self.emit(id, event);
        }
        self.after(id);
    }

    fn emit(&mut self, id: SessionId, event: Event<S>) {
        match S::Session::is_known(&event) {
            Some(true) => self.unknown = 0,
            Some(false) => self.unknown = self.unknown.saturating_add(1),
            None => {}
        }
        self.events.push_back((id, event));
    }

    pub(crate) fn stop_renewing(&mut self, id: SessionId) {
        if let Some(session) = self.list.get_mut(&id) {
            session.stop_renewing();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Updates the deadline after a step, and removes a session that is gone and unused.
    fn after(&mut self, id: SessionId) {
        let Some(session) = self.list.get(&id) else { return };
        if session.is_lost() && self.shared == Some(id) {
            self.shared = None;
        }
        if session.users().is_empty() && session.is_gone() {
            self.list.remove(&id);
            self.deadlines.set(id.0, None);
        } else {
            self.deadlines.set(id.0, session.deadline().map(|(at, _)| at));
        }
    }
}

impl<S: QueueStore> QueueContext<S> {
    /// Opens the session that the locks of the client share, or one for a single lock.
    pub(crate) fn open_session(
        &mut self,
        shared: bool,
        new: impl FnOnce(SessionId, Instant) -> S::Session,
    ) -> SessionId {
        // Back off if the server grants sessions and then does not know them.
        let due = match self.shared.sessions.unknown.checked_sub(2) {
            None => self.now,
            Some(tries) => self.now + pause(self.seed, self.now.as_nanos(), tries),
        };
        let sessions = &mut self.shared.sessions;
        let id = sessions.open(due, new);
        if shared {
            sessions.shared = Some(id);
        } else {
            sessions.opened.push(id);
        }
        id
    }

    /// Called after every step of a lock. Leaves and closes unused sessions, and runs requested
    /// extends.
    pub(crate) fn settle_sessions(&mut self) {
        for (id, user) in mem::take(&mut self.shared.sessions.left) {
            self.leave_session(id, user);
        }
        for id in mem::take(&mut self.shared.sessions.extend) {
            self.session_step(id, Session::extend);
        }
        while let Some(id) = self.shared.sessions.opened.pop() {
            if self.shared.sessions.get(id).is_some_and(|session| session.users().is_empty()) {
                self.session_step(id, Session::unused);
            }
        }
    }

    pub(crate) fn leave_session(&mut self, id: SessionId, user: u32) {
        let left = self.shared.sessions.list.get_mut(&id).map(Session::users_mut);
        if left.is_some_and(|users| users.remove(&user).is_some() && users.is_empty()) {
            self.session_step(id, Session::unused);
        }
    }

    /// Ends all unused sessions, the shared one included. Returns true once none is left.
    pub(crate) fn drain_sessions(&mut self) -> bool {
        let list = &self.shared.sessions.list;
        let idle = list.iter().filter(|(_, session)| session.users().is_empty());
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.session_step(id, Session::revoke);
        }
        self.shared.sessions.list.is_empty()
    }

    pub(crate) fn session_step(
        &mut self,
        id: SessionId,
        f: impl FnOnce(&mut S::Session, &mut Self) -> Option<Event<S>>,
    ) {
        // Removed from the map during the step, so that `f` can borrow the context.
        let Some(mut session) = self.shared.sessions.list.remove(&id) else { return };
        let event = f(&mut session, self);
        let sessions = &mut self.shared.sessions;
        sessions.list.insert(id, session);
        if let Some(event) = event {
            sessions.emit(id, event);
        }
        sessions.after(id);
    }
}

impl<S: QueueStore> QueueLock<S> {
    /// Updates the sessions that this lock uses. Most steps change nothing.
    pub(crate) fn join_sessions(&mut self, ctx: &mut QueueContext<S>) {
        let joined = mem::take(&mut self.store.joined);
        if self.uses().eq(joined.iter().copied()) {
            self.store.joined = joined;
            return;
        }
        let uses: Vec<(SessionId, bool)> = self.uses().collect();
        let sessions = &mut ctx.shared.sessions;
        for (session, needs) in &uses {
            sessions.join(*session, ctx.slot, *needs, ctx.now);
        }
        for (session, _) in joined {
            if !uses.iter().any(|(used, _)| *used == session) {
                sessions.left.push((session, ctx.slot));
            }
        }
        self.store.joined = uses;
    }
}

impl<S: QueueStore> Locks<Queued<S>> {
    /// Does the due work of one session, or notifies its locks of one event. Returns true if there
    /// was any: sessions come before the locks that depend on them.
    pub(crate) fn settle_session(&mut self) -> bool {
        let sessions = &mut self.ctx.shared.sessions;
        if let Some(session) = sessions.due(self.ctx.now) {
            self.ctx.session_step(session, Session::timeout);
        } else if let Some((session, event)) = sessions.events.pop_front() {
            let users: Vec<u32> =
                sessions.get(session).map_or_else(Vec::new, |session| session.users().keys().copied().collect());
            for slot in users {
                self.step(slot, |lock, ctx| S::session_event(lock, ctx, session, &event));
            }
            S::after_session_event(&mut self.ctx, session, &event);
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
