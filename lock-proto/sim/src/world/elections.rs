//! Elections, for stores that have them: candidates, queries and observations.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::super::check::Rule;
use super::super::record::RecordHabits;
use super::super::trace::Lane;
use super::World;
use super::store::SimServers;
use lock_proto::LockId;
use lock_proto::Misuse;
use lock_proto::{Acquire, Elections, LockClient, Machine, Operation, OperationEvent, OperationId};

/// Requests with which an observer follows a change.
const PER_CHANGE: u64 = 4;

/// A query or an observation, and its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    name: Arc<[u8]>,
    observes: bool,
    events: Vec<OperationEvent>,
    over: bool,
}

impl Observed {
    pub(super) const fn is_open(&self) -> bool {
        !self.over
    }

    /// Returns the election of a query that has no answer yet.
    pub(super) fn unanswered(&self) -> Option<&[u8]> {
        (self.is_open() && !self.observes).then_some(&*self.name)
    }
}

/// Calls a verb of the elections of a client.
fn elect<T>(
    machine: &mut impl Machine,
    verb: impl FnOnce(&mut dyn Elections) -> Result<T, Misuse>,
) -> Result<T, Misuse> {
    machine.elections().map_or(Err(Misuse::ShuttingDown), verb)
}

impl<S: SimServers> World<S> {
    /// Client `client` becomes a candidate with this value.
    pub fn campaign(&mut self, client: usize, want: Acquire, value: impl AsRef<[u8]>) -> LockId {
        self.start_campaign(client, &want, value.as_ref(), None)
    }

    /// Like [`campaign`](Self::campaign), but gives up the leadership after `hold`.
    pub fn campaign_for(&mut self, client: usize, want: Acquire, value: impl AsRef<[u8]>, hold: Duration) -> LockId {
        self.start_campaign(client, &want, value.as_ref(), Some(hold))
    }

    fn start_campaign(&mut self, client: usize, want: &Acquire, value: &[u8], hold: Option<Duration>) -> LockId {
        let claim = self.claims(hold);
        match self.try_campaign(client, want, value, claim, hold) {
            Ok(lock) => lock,
            Err(misuse) => self.fail(&format!("client {client} cannot campaign: {misuse}")),
        }
    }

    /// Like [`try_acquire`](Self::try_acquire), for a candidate with this value.
    ///
    /// # Errors
    ///
    /// Returns the error of the client.
    pub fn try_campaign(
        &mut self,
        client: usize,
        want: &Acquire,
        value: impl AsRef<[u8]>,
        claim: Option<Duration>,
        hold: Option<Duration>,
    ) -> Result<LockId, Misuse> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.annotate(Some(Lane::Client(client)), || format!("campaigns as {}", value.escape_ascii()));
        let habits = RecordHabits { claim, hold, write_every: None };
        self.try_start(client, want, "campaign", habits, |machine, now| {
            elect(machine, |elections| elections.campaign(now, want, value))
        })
    }

    /// Makes a leader proclaim another value.
    pub fn proclaim(&mut self, client: usize, lock: LockId, value: impl AsRef<[u8]>) {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.journal.write(self.now, format_args!("c{client} {lock} proclaim {}", value.escape_ascii()));
        self.annotate(Some(Lane::Client(client)), || format!("proclaims {}", value.escape_ascii()));
        S::proclaiming(self, client, lock, &value);
        self.must(client, lock, |machine, now| elect(machine, |elections| elections.proclaim(now, lock, value)));
        if let Some(record) = self.clients[client].records.get_mut(&lock) {
            record.proclaims = true;
        }
        self.pump_client(client);
    }

    /// Queries the current leader.
    pub fn leader(&mut self, client: usize, name: impl AsRef<[u8]>) -> OperationId {
        self.operate(client, Operation::Leader(Bytes::copy_from_slice(name.as_ref())))
    }

    /// Observes the leadership.
    pub fn observe(&mut self, client: usize, name: impl AsRef<[u8]>) -> OperationId {
        self.operate(client, Operation::Observe(Bytes::copy_from_slice(name.as_ref())))
    }

    /// Checks the servers.
    pub fn ping(&mut self, client: usize) -> OperationId {
        self.operate(client, Operation::Ping)
    }

    fn operate(&mut self, client: usize, operation: Operation) -> OperationId {
        let (verb, annotation, name) = match &operation {
            Operation::Ping => ("ping", "checks the servers for", Bytes::new()),
            Operation::Leader(name) => ("leader", "queries the leader of", name.clone()),
            Operation::Observe(name) => ("observe", "observes", name.clone()),
        };
        let observes = matches!(operation, Operation::Observe(_));
        let query = match self.verb(client, |machine, now| machine.start(now, operation)) {
            Ok(query) => query,
            Err(misuse) => self.fail(&format!("client {client} cannot {verb}: {misuse}")),
        };
        self.journal.write(self.now, format_args!("c{client} {query:?} {verb} {}", name.escape_ascii()));
        let name = self.full_name(client, &name);
        self.annotate(Some(Lane::Client(client)), || format!("{annotation} {}", name.escape_ascii()));
        let observed = Observed { name, observes, events: Vec::new(), over: false };
        self.clients[client].queries.insert(query, observed);
        self.count_queries(client);
        self.pump_client(client);
        query
    }

    /// Ends a query or observation.
    pub fn close_query(&mut self, client: usize, query: OperationId) {
        self.journal.write(self.now, format_args!("c{client} {query:?} close"));
        if let Some(observed) = self.clients[client].queries.get_mut(&query) {
            observed.over = true;
        }
        self.count_queries(client);
        self.call_machine(client, |machine, now| machine.cancel(now, query));
    }

    /// Returns the events of an election query so far.
    #[must_use]
    pub fn observed(&self, client: usize, query: OperationId) -> &[OperationEvent] {
        self.clients[client].queries.get(&query).map_or(&[], |observed| &observed.events)
    }

    /// Returns the open election queries of this client.
    pub fn queries(&self, client: usize) -> impl Iterator<Item = OperationId> {
        self.clients[client].queries.iter().filter(|(_, observed)| observed.is_open()).map(|(query, _)| *query)
    }

    fn count_queries(&mut self, client: usize) {
        let count = self.queries(client).count() as u64;
        self.checker.set_open_queries(client, count);
    }

    pub(super) fn deliver_operation_event(&mut self, client: usize, query: OperationId, event: OperationEvent) {
        self.journal.write(self.now, format_args!("c{client} {query:?} {event:?}"));
        self.journal.fingerprint.election(self.now, client, &event);
        let Some(observed) = self.clients[client].queries.get_mut(&query).filter(|observed| observed.is_open()) else {
            let text = format!("client {client} emits an event of {query:?}, which is over: {event:?}");
            return self.report(Rule::OneOutcome, text);
        };
        // A query has one answer; an observation goes on until it fails.
        observed.over = !observed.observes || matches!(event, OperationEvent::Failed(_));
        if observed.events.last() != Some(&event) {
            self.checker.allow(client, PER_CHANGE);
        }
        observed.events.push(event.clone());
        let name = observed.name.clone();
        self.count_queries(client);
        self.record_election_event(client, &name, &event);
        if let OperationEvent::Leader(leader) = &event
            && !S::is_candidate(&name, &leader.key)
        {
            let text = format!("client {client} observes that {} is led by {event:?}", name.escape_ascii());
            self.report(Rule::Contract, text);
        }
    }

    fn record_election_event(&mut self, client: usize, name: &[u8], event: &OperationEvent) {
        let name = || name.escape_ascii();
        self.annotate(Some(Lane::Client(client)), || match event {
            OperationEvent::Leader(leader) => format!("observes: {} is led by {}", name(), leader.value.escape_ascii()),
            OperationEvent::Done => String::from("has checked the servers"),
            OperationEvent::NoLeader => format!("observes: nobody leads {}", name()),
            OperationEvent::Disconnected => format!("cannot observe {}", name()),
            OperationEvent::Failed(why) => format!("stops observing {}: {why}", name()),
        });
    }

    /// Closes all queries of clients that run.
    pub(super) fn close_queries(&mut self) {
        for client in 0..self.clients.len() {
            for query in self.queries(client).collect::<Vec<_>>() {
                if self.is_running(client) {
                    self.close_query(client, query);
                }
            }
        }
    }

    /// Checks that every observer learns that nobody leads. Call this once no candidate is left.
    pub(super) fn check_observers(&mut self, within: Duration) {
        self.require_none(within, |w| Box::new(w.outdated_observers()));
    }

    fn outdated_observers(&self) -> impl Iterator<Item = String> {
        let running = (0..self.clients.len()).filter(|client| self.is_running(*client));
        running.flat_map(move |client| {
            let open = self.clients[client].queries.values().filter(|observed| observed.observes && observed.is_open());
            let wrong = open.filter(|observed| observed.events.last() != Some(&OperationEvent::NoLeader));
            wrong.map(move |observed| {
                let name = observed.name.escape_ascii();
                let last = observed.events.last();
                format!("client {client} observes {name}, which nobody leads, and last received {last:?}")
            })
        })
    }
}
