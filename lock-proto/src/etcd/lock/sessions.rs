//! The sessions of a client: a shared one, and one for each lock with a separate lease.
// E1

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::Context;
use super::session::{Session, SessionEvent, pause};
use crate::collections::Deadlines;
use crate::etcd::request::{LeaseId, Reply, Request};
use crate::id::{CallOwner, ClientId, NodeId};
use crate::jitter::mix;
use crate::lock::Loss;
use crate::time::Instant;

/// A session of this client, by its slot. A slot is reused only when no lock depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u32);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sessions {
    list: BTreeMap<SessionId, Session>,
    free: u32,
    shared: Option<SessionId>,
    /// Opened for a lock in this step, which may no longer need it.
    opened: Vec<SessionId>,
    /// Sessions that a lock stopped using in this step, with its slot.
    pub(crate) left: Vec<(SessionId, u32)>,
    /// Extends requested in this step.
    pub(crate) extend: Vec<SessionId>,
    /// Retired sessions, which are lost once no lock needs them.
    retired: Vec<SessionId>,
    deadlines: Deadlines,
    events: VecDeque<(SessionId, SessionEvent)>,
    /// Number of leases so far, to derive their ids.
    leases: u64,
    /// Consecutive leases that the server did not know before it confirmed a keep-alive.
    unknown: u32,
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.list.get(&id)
    }

    pub(crate) fn first_deadline(&self) -> Option<(Instant, &'static str)> {
        let (at, slot) = self.deadlines.first()?;
        let reason =
            self.list.get(&SessionId(slot)).and_then(Session::deadline).map_or("a lease", |(_, reason)| reason);
        Some((at, reason))
    }

    pub(crate) fn due(&self, now: Instant) -> Option<SessionId> {
        let (at, slot) = self.deadlines.first()?;
        (at <= now && at < Instant::MAX).then_some(SessionId(slot))
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn next_event(&mut self) -> Option<(SessionId, SessionEvent)> {
        self.events.pop_front()
    }

    fn open(&mut self, due: Instant, lease: LeaseId, shared: bool, seconds: i64) -> SessionId {
        let mut slot = self.free;
        while self.list.contains_key(&SessionId(slot)) {
            slot = slot.wrapping_add(1);
        }
        self.free = slot.wrapping_add(1);
        let id = SessionId(slot);
        self.list.insert(id, Session::new(id, lease, shared, seconds, due));
        self.deadlines.set(slot, Some(due));
        id
    }

    /// Adds a user. `needs` means that the session must stay alive for it.
    pub(crate) fn join(&mut self, id: SessionId, user: u32, needs: bool) {
        if let Some(session) = self.list.get_mut(&id) {
            session.users.insert(user, needs);
        }
    }

    /// Retires a session whose create may still be executed. Its lease gets no new keys.
    // E3
    pub(crate) fn retire(&mut self, id: SessionId) {
        let Some(session) = self.list.get_mut(&id).filter(|session| !session.retired) else { return };
        session.retired = true;
        self.retired.push(id);
        if self.shared == Some(id) {
            self.shared = None;
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

    fn emit(&mut self, id: SessionId, event: SessionEvent) {
        match event {
            SessionEvent::Lost(Loss::Gone) => self.unknown = self.unknown.saturating_add(1),
            SessionEvent::Renewed(_) => self.unknown = 0,
            SessionEvent::Alive
            | SessionEvent::Unrenewed(..)
            | SessionEvent::GrantFailed(_)
            | SessionEvent::Refused(_)
            | SessionEvent::Lost(_) => {}
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
        if session.users.is_empty() && session.is_gone() {
            self.list.remove(&id);
            self.deadlines.set(id.0, None);
        } else {
            self.deadlines.set(id.0, session.deadline().map(|(at, _)| at));
        }
    }
}

impl Context {
    pub(crate) fn shared_session(&mut self) -> SessionId {
        if let Some(id) = self.shared.sessions.shared {
            return id;
        }
        let id = self.open_session(true, seconds(self.config.store.session_ttl));
        self.shared.sessions.shared = Some(id);
        id
    }

    pub(crate) fn own_session(&mut self, seconds: i64) -> SessionId {
        let id = self.open_session(false, seconds);
        self.shared.sessions.opened.push(id);
        id
    }

    fn open_session(&mut self, shared: bool, seconds: i64) -> SessionId {
        let lease = self.fresh_lease();
        // Back off if the server grants leases and then does not know them.
        let due = match self.shared.sessions.unknown.checked_sub(2) {
            None => self.now,
            Some(tries) => self.now + pause(self.seed, self.now.as_nanos(), tries),
        };
        self.shared.sessions.open(due, lease, shared, seconds)
    }

    /// Returns an unused lease id: a hash of the client's random id and a counter.
    // E1
    pub(crate) fn fresh_lease(&mut self) -> LeaseId {
        self.shared.sessions.leases += 1;
        fresh(self.shared.client, self.shared.sessions.leases)
    }

    /// Sends a request of a session, and returns the serial of its call.
    pub(crate) fn send_for(&mut self, session: SessionId, request: Request, timeout: Duration) -> u64 {
        self.call(CallOwner::Session(session.0), NodeId(0), request, timeout)
    }

    /// Called after every step of a lock. Leaves and closes unused sessions, runs requested
    /// extends, and ends retired sessions that no lock needs.
    pub(crate) fn settle_sessions(&mut self) {
        for (id, user) in mem::take(&mut self.shared.sessions.left) {
            self.leave_session(id, user);
        }
        for id in mem::take(&mut self.shared.sessions.extend) {
            self.session_step(id, Session::extend);
        }
        while let Some(id) = self.shared.sessions.opened.pop() {
            if self.session(id).is_some_and(|session| session.users.is_empty()) {
                self.session_step(id, Session::unused);
            }
        }
        let sessions = &mut self.shared.sessions;
        let mut place = 0;
        while let Some(id) = sessions.retired.get(place).copied() {
            if sessions.get(id).is_some_and(|session| session.users.values().any(|needs| *needs)) {
                place += 1;
            } else {
                sessions.retired.swap_remove(place);
                // The remaining users only watch. The last one to leave revokes the lease.
                sessions.lose(id, Loss::Expired);
            }
        }
    }

    pub(crate) fn leave_session(&mut self, id: SessionId, user: u32) {
        let left = self.shared.sessions.list.get_mut(&id);
        if left.is_some_and(|session| session.users.remove(&user).is_some() && session.users.is_empty()) {
            self.session_step(id, Session::unused);
        }
    }

    pub(crate) fn session_answered(&mut self, slot: u32, serial: u64, reply: &Reply) {
        self.session_step(SessionId(slot), |session, ctx| session.answered(ctx, serial, reply));
    }

    /// Revokes all unused leases, the shared one included. Returns true once none is left.
    pub(crate) fn drain_sessions(&mut self) -> bool {
        let idle = self.shared.sessions.list.iter().filter(|(_, session)| session.users.is_empty());
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.session_step(id, Session::revoke);
        }
        self.shared.sessions.list.is_empty()
    }

    pub(crate) fn session_step(
        &mut self,
        id: SessionId,
        f: impl FnOnce(&mut Session, &mut Self) -> Option<SessionEvent>,
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

fn fresh(client: ClientId, number: u64) -> LeaseId {
    let bits = client.bits();
    LeaseId::from_bits(mix(mix(bits as u64, number) ^ (bits >> 64) as u64, number))
}

pub(crate) fn seconds(ttl: Duration) -> i64 {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    seconds.max(1) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_rounded_up_to_whole_seconds_and_never_zero() {
        let given = [0, 1, 999, 1_000, 1_001, 2_000].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(given, [1, 1, 1, 1, 2, 2]);
        assert_eq!(seconds(Duration::from_nanos(3_000_000_001)), 4);
    }

    #[test]
    fn slot_in_use_is_not_reused() {
        let mut sessions = Sessions::default();
        let mut open = |free: Option<u32>| {
            sessions.free = free.unwrap_or(sessions.free);
            sessions.open(Instant::ZERO, fresh(ClientId::from_bits(1), 1), false, 5).0
        };
        // The counter has wrapped around, and the first slots are still in use.
        assert_eq!([open(None), open(None), open(Some(0)), open(None)], [0, 1, 2, 3]);
    }

    #[test]
    fn lease_ids_are_unique_and_positive() {
        // E1
        let ids: alloc::collections::BTreeSet<i64> = [0, 1, 1 << 64, (1 << 64) + 1]
            .into_iter()
            .flat_map(|client| (1..=100).map(move |number| fresh(ClientId::from_bits(client), number).get()))
            .collect();
        assert_eq!((ids.len(), ids.iter().all(|id| *id > 0)), (400, true));
    }
}
