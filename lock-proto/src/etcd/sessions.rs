//! The sessions of a client: one that its locks share, and those of locks with a lease of their own (requirement E1).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::config::Config;
use super::request::{LeaseId, Reply, Request};
use super::seam::LocksOutput;
use super::session::{News, Session, SessionContext, pause};
use crate::collections::Deadlines;
use crate::id::{CallId, CallOwner, ClientId, NodeId};
use crate::jitter::mix;
use crate::lock::Loss;
use crate::time::Instant;

/// A session of this client, by its slot. A slot is used again only once nobody depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u32);

/// All sessions of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sessions {
    list: BTreeMap<SessionId, Session>,
    free: u32,
    shared: Option<SessionId>,
    /// Opened for a lock in this step, which may have changed its mind since.
    opened: Vec<SessionId>,
    /// To be lost as soon as nobody needs them.
    retired: Vec<SessionId>,
    deadlines: Deadlines,
    /// What users have to be told, in order.
    news: VecDeque<(SessionId, News)>,
    /// Leases so far, to tell them apart.
    leases: u64,
    /// Leases in a row that the server did not know of, before it had confirmed a sign of life.
    unknown: u32,
    client: ClientId,
    seed: u64,
}

/// The surroundings of a step.
pub(crate) struct Around<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) serial: &'a mut u64,
    pub(crate) out: &'a mut VecDeque<LocksOutput>,
}

impl Sessions {
    pub(crate) const fn new(client: ClientId, seed: u64) -> Self {
        Self {
            list: BTreeMap::new(),
            free: 0,
            shared: None,
            opened: Vec::new(),
            retired: Vec::new(),
            deadlines: Deadlines::new(),
            news: VecDeque::new(),
            leases: 0,
            unknown: 0,
            client,
            seed,
        }
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.list.get(&id)
    }

    pub(crate) fn first_deadline(&self) -> Option<(Instant, &'static str)> {
        let (at, slot) = self.deadlines.first()?;
        let reason =
            self.list.get(&SessionId(slot)).and_then(Session::deadline).map_or("a lease", |(_, reason)| reason);
        Some((at, reason))
    }

    /// The session that is due at `now`.
    pub(crate) fn due(&self, now: Instant) -> Option<SessionId> {
        let (at, slot) = self.deadlines.first()?;
        (at <= now && at < Instant::MAX).then_some(SessionId(slot))
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    pub(crate) fn next_news(&mut self) -> Option<(SessionId, News)> {
        self.news.pop_front()
    }

    /// The shared session, made if there is none.
    pub(crate) fn shared(&mut self, now: Instant, config: &Config) -> SessionId {
        if let Some(id) = self.shared {
            return id;
        }
        let id = self.open(now, true, seconds(config.session_ttl));
        self.shared = Some(id);
        id
    }

    /// A session of a lock's own.
    pub(crate) fn own(&mut self, now: Instant, seconds: i64) -> SessionId {
        let id = self.open(now, false, seconds);
        self.opened.push(id);
        id
    }

    /// The end of a lock's step: what it opened on the way and does not depend on is given up (waiters with leases of their own whose waits
    /// end at one time are each the head of their queue for a moment), and what is retired ends if this lock was the last that needed it.
    pub(crate) fn settle(&mut self, around: &mut Around<'_>) {
        while let Some(id) = self.opened.pop() {
            if self.get(id).is_some_and(|session| session.users.is_empty()) {
                self.step(around, id, |session, ctx| {
                    session.unused(ctx);
                    None
                });
            }
        }
        let mut place = 0;
        while let Some(id) = self.retired.get(place).copied() {
            if self.get(id).is_some_and(|session| session.users.values().any(|needs| *needs)) {
                place += 1;
            } else {
                self.retired.swap_remove(place);
                // Those who only watch leave when they are told, and the last one to leave has it revoked.
                self.lose(id, Loss::Expired);
            }
        }
    }

    fn open(&mut self, now: Instant, shared: bool, seconds: i64) -> SessionId {
        let mut slot = self.free;
        while self.list.contains_key(&SessionId(slot)) {
            slot = slot.wrapping_add(1);
        }
        self.free = slot.wrapping_add(1);
        let lease = self.fresh();
        // A server that grants leases and then does not know of them is not asked in a circle.
        let due = match self.unknown.checked_sub(2) {
            None => now,
            Some(tries) => now + pause(self.seed, now.as_nanos(), tries),
        };
        self.list.insert(SessionId(slot), Session::new(lease, shared, seconds, due));
        self.deadlines.set(slot, Some(due));
        SessionId(slot)
    }

    /// A lease id that nobody has (requirement E1): a hash of the client's random id and a number.
    fn fresh(&mut self) -> LeaseId {
        self.leases += 1;
        fresh(self.client, self.leases)
    }

    /// `needs`: it must stay alive for this user.
    pub(crate) fn join(&mut self, id: SessionId, user: u32, needs: bool) {
        if let Some(session) = self.list.get_mut(&id) {
            session.users.insert(user, needs);
        }
    }

    /// A create on this lease may land at any time from now on (requirement E3). The lease is used for nothing new, and revoked as soon as
    /// it can be: then it can land no more.
    pub(crate) fn retire(&mut self, id: SessionId) {
        let Some(session) = self.list.get_mut(&id).filter(|session| !session.retired) else { return };
        session.retired = true;
        self.retired.push(id);
        if self.shared == Some(id) {
            self.shared = None;
        }
    }

    pub(crate) fn leave(&mut self, around: &mut Around<'_>, id: SessionId, user: u32) {
        let left = self
            .list
            .get_mut(&id)
            .is_some_and(|session| session.users.remove(&user).is_some() && session.users.is_empty());
        if left {
            self.step(around, id, |session, ctx| {
                session.unused(ctx);
                None
            });
        }
    }

    /// Its users are told by way of the news.
    pub(crate) fn lose(&mut self, id: SessionId, loss: Loss) {
        let Some(session) = self.list.get_mut(&id) else { return };
        if let Some(news) = session.lose(loss) {
            self.tell(id, news);
        }
        self.after(id);
    }

    fn tell(&mut self, id: SessionId, news: News) {
        match news {
            News::Lost(Loss::Gone) => self.unknown = self.unknown.saturating_add(1),
            News::Renewed(_) => self.unknown = 0,
            News::Alive | News::Unrenewed(..) | News::Trouble(_) | News::Refused(_) | News::Lost(_) => {}
        }
        self.news.push_back((id, news));
    }

    pub(crate) fn timeout(&mut self, around: &mut Around<'_>, id: SessionId) {
        self.step(around, id, Session::timeout);
    }

    pub(crate) fn answered(&mut self, around: &mut Around<'_>, slot: u32, serial: u64, reply: &Reply) {
        self.step(around, SessionId(slot), |session, ctx| session.answered(ctx, serial, reply));
    }

    pub(crate) fn extend(&mut self, around: &mut Around<'_>, id: SessionId) {
        self.step(around, id, |session, ctx| {
            session.extend(ctx);
            None
        });
    }

    pub(crate) fn stop_renewing(&mut self, id: SessionId) {
        if let Some(session) = self.list.get_mut(&id) {
            session.stop_renewing();
        }
    }

    /// The end of the client: every lease that nobody depends on is revoked, the shared one too. True once none is left.
    pub(crate) fn drain(&mut self, around: &mut Around<'_>) -> bool {
        let idle = self.list.iter().filter(|(_, session)| session.users.is_empty()).map(|(id, _)| *id);
        for id in idle.collect::<Vec<_>>() {
            self.step(around, id, |session, ctx| {
                session.revoke(ctx);
                None
            });
        }
        self.list.is_empty()
    }

    /// How many leases there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    fn step(
        &mut self,
        around: &mut Around<'_>,
        id: SessionId,
        f: impl FnOnce(&mut Session, &mut SessionContext<'_>) -> Option<News>,
    ) {
        let Some(session) = self.list.get_mut(&id) else { return };
        let Around { now, config, serial, out } = around;
        let mut send = |request: Request, patience| {
            **serial += 1;
            let call = CallId { owner: CallOwner::Session(id.0), node: NodeId(0), serial: **serial };
            out.push_back(LocksOutput::Send { call, request, patience });
            **serial
        };
        let (client, leases) = (self.client, &mut self.leases);
        let mut fresh = || {
            *leases += 1;
            fresh(client, *leases)
        };
        let mut ctx = SessionContext { now: *now, config, seed: self.seed, send: &mut send, fresh: &mut fresh };
        if let Some(news) = f(session, &mut ctx) {
            self.tell(id, news);
        }
        self.after(id);
    }

    /// What follows from a step.
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

fn fresh(client: ClientId, number: u64) -> LeaseId {
    let bits = client.bits();
    LeaseId::from_bits(mix(mix(bits as u64, number) ^ (bits >> 64) as u64, number))
}

/// A TTL in etcd's whole seconds, rounded up.
pub(crate) fn seconds(ttl: core::time::Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    whole.max(1) as i64
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_whole_seconds_and_never_zero() {
        let given = [0, 1, 999, 1_000, 1_001, 2_000].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(given, [1, 1, 1, 1, 2, 2]);
        assert_eq!(seconds(Duration::from_nanos(3_000_000_001)), 4);
    }

    #[test]
    fn a_slot_that_is_in_use_is_not_given_twice() {
        let mut sessions = Sessions::new(ClientId::from_bits(1), 1);
        let mut open = |free: Option<u32>| {
            sessions.free = free.unwrap_or(sessions.free);
            sessions.own(Instant::ZERO, 5).0
        };
        // The numbers have come round, and the first slots are still in use.
        assert_eq!([open(None), open(None), open(Some(0)), open(None)], [0, 1, 2, 3]);
    }

    #[test]
    fn e1_every_lease_has_an_id_of_its_own() {
        let ids: alloc::collections::BTreeSet<i64> = [0, 1, 1 << 64, (1 << 64) + 1]
            .into_iter()
            .flat_map(|client| (1..=100).map(move |number| fresh(ClientId::from_bits(client), number).get()))
            .collect();
        assert_eq!((ids.len(), ids.iter().all(|id| *id > 0)), (400, true));
    }
}
