//! The application of one client, which checks what it is told.

use std::collections::{BTreeMap, BTreeSet};

use lock_proto::{Event, LockId, OperationId};

use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Offered,
    Held,
    Lost,
    Released,
}

#[derive(Clone, Copy, Debug)]
struct Acquisition {
    name: u8,
    state: State,
}

pub(crate) struct Fences {
    seen: BTreeMap<u8, BTreeSet<u64>>,
    /// Keys are deleted by hand. Grants may be reported out of order, but no token is repeated.
    by_hand: bool,
}

impl Fences {
    pub(crate) const fn new(by_hand: bool) -> Self {
        Self { seen: BTreeMap::new(), by_hand }
    }

    fn record(&mut self, name: u8, fence: u64) {
        let seen = self.seen.entry(name).or_default();
        let last = seen.last().copied().unwrap_or(0);
        assert!(fence > last || self.by_hand, "fence {fence} after {last} of {name}");
        assert!(seen.insert(fence), "fence {fence} of {name} comes twice");
    }
}

pub(crate) struct App {
    pub(crate) client: usize,
    acquisitions: BTreeMap<LockId, Acquisition>,
    pub(crate) queries: BTreeSet<OperationId>,
    /// Closed queries, and how many events they had.
    closed: BTreeMap<OperationId, usize>,
    /// How many events it has handled.
    seen: usize,
}

impl App {
    pub(crate) fn new(client: usize) -> Self {
        let (acquisitions, queries, closed) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { client, acquisitions, queries, closed, seen: 0 }
    }

    pub(crate) fn requested(&mut self, lock: LockId, name: u8) {
        self.acquisitions.insert(lock, Acquisition { name, state: State::Waiting });
    }

    pub(crate) fn set(&mut self, lock: LockId, state: State) {
        if let Some(known) = self.acquisitions.get_mut(&lock) {
            known.state = state;
        }
    }

    pub(crate) fn claimed(&mut self, lock: LockId) {
        assert_eq!(self.acquisitions[&lock].state, State::Offered);
        self.set(lock, State::Held);
    }

    pub(crate) fn release_all(&mut self) {
        for known in self.acquisitions.values_mut() {
            if matches!(known.state, State::Held | State::Lost) {
                known.state = State::Released;
            }
        }
    }

    pub(crate) fn forget(&mut self, lock: LockId) {
        self.acquisitions.remove(&lock);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.acquisitions.is_empty()
    }

    pub(crate) fn locks(&self) -> Vec<LockId> {
        self.acquisitions.keys().copied().collect()
    }

    pub(crate) fn in_state(&self, states: &[State]) -> Vec<LockId> {
        let found = self.acquisitions.iter().filter(|(_, known)| states.contains(&known.state));
        found.map(|(lock, _)| *lock).collect()
    }

    pub(crate) fn name_of(&self, lock: LockId) -> u8 {
        self.acquisitions[&lock].name
    }

    /// Returns a query to close, if there are several.
    pub(crate) fn surplus_query(&mut self) -> Option<OperationId> {
        if self.queries.len() < 3 { None } else { self.queries.pop_first() }
    }

    pub(crate) fn closed(&mut self, query: OperationId, events: usize) {
        self.closed.insert(query, events);
    }

    fn read(&mut self, w: &World, fences: &mut Fences) {
        while let Some((lock, event)) = w.all_events(self.client).get(self.seen) {
            self.seen += 1;
            self.handle_event(*lock, event, fences);
        }
        for (query, events) in &self.closed {
            assert_eq!(w.election_events(self.client, *query).len(), *events, "{query:?} has ended");
        }
    }

    fn handle_event(&mut self, lock: LockId, event: &Event, fences: &mut Fences) {
        let known = self.acquisitions.get_mut(&lock).unwrap_or_else(|| panic!("{lock} has ended: {event:?}"));
        match (event, known.state) {
            (Event::Granted(grant), State::Waiting) => {
                known.state = State::Offered;
                fences.record(known.name, grant.fence.unwrap().get());
            }
            (Event::Lost(_), State::Held) => known.state = State::Lost,
            (Event::Withdrawn, State::Offered)
            | (Event::Failed(_), State::Waiting | State::Offered)
            | (Event::Released(_), State::Released) => {
                self.acquisitions.remove(&lock);
            }
            // A lock that ends before it is claimed was never held.
            (Event::Blocked(_), State::Waiting)
            | (Event::Renewed { .. }, State::Offered | State::Held)
            | (Event::Extended | Event::ExtendFailed(_), State::Held)
            | (Event::Proclaimed { .. } | Event::ProclaimFailed(_), State::Held)
            | (Event::AtRisk { .. }, State::Held)
            // Emitted before the guard was released, and delivered after it.
            | (Event::Lost(_) | Event::AtRisk { .. } | Event::Renewed { .. }, State::Released) => {}
            (event, state) => panic!("{event:?} while {state:?}"),
        }
    }
}

/// Checks that each event fits, and that at most one client holds each lock.
pub(crate) fn check(w: &World, apps: &mut [App], fences: &mut Fences, by_hand: bool) {
    let mut holders: BTreeMap<u8, (usize, LockId)> = BTreeMap::new();
    for app in apps {
        app.read(w, fences);
        for (lock, known) in &app.acquisitions {
            let until = w.clients[app.client].hub.valid_until(*lock);
            assert!(until.is_none() || known.state == State::Held, "{lock} is {:?}", known.state);
            if w.is_held(app.client, *lock) {
                let other = holders.insert(known.name, (app.client, *lock));
                assert!(other.is_none() || by_hand, "{other:?} and {lock} both hold {}: {}", known.name, w.describe());
            }
        }
    }
}
