//! Elections: candidates, queries and observations.

use alloc::format;
use alloc::vec::Vec;

use bytes::Bytes;

use super::{Zookeeper, ZookeeperClient};
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::{Acquire, ElectionEvent, Elections, QueryId};
use crate::sim::check::Rule;
use crate::sim::trace::Lane;
use crate::sim::world::World;
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) observes: bool,
    pub(super) events: Vec<ElectionEvent>,
    pub(super) over: bool,
}

/// Calls a verb of the elections of a client.
fn elect<C: ZookeeperClient, T>(
    machine: &mut C,
    verb: impl FnOnce(&mut dyn Elections) -> Result<T, Misuse>,
) -> Result<T, Misuse> {
    machine.elections().map_or(Err(Misuse::ShuttingDown), verb)
}

impl<C: ZookeeperClient> World<Zookeeper<C>> {
    /// Client `client` becomes a candidate with this value.
    pub fn campaign(&mut self, client: usize, want: Acquire, value: impl AsRef<[u8]>) -> LockId {
        self.start_campaign(client, &want, value.as_ref(), None)
    }

    /// Like [`campaign`](Self::campaign), but gives up the leadership after `hold`.
    pub fn campaign_for(
        &mut self,
        client: usize,
        want: Acquire,
        value: impl AsRef<[u8]>,
        hold: core::time::Duration,
    ) -> LockId {
        self.start_campaign(client, &want, value.as_ref(), Some(hold))
    }

    fn start_campaign(
        &mut self,
        client: usize,
        want: &Acquire,
        value: &[u8],
        hold: Option<core::time::Duration>,
    ) -> LockId {
        let value = Bytes::copy_from_slice(value);
        self.annotate(Some(Lane::Client(client)), || format!("campaigns as {}", value.escape_ascii()));
        self.start(client, want, "campaign", hold, |machine, now| {
            elect(machine, |elections| elections.campaign(now, want, value))
        })
    }

    /// Makes a leader proclaim another value.
    pub fn proclaim(&mut self, client: usize, lock: LockId, value: impl AsRef<[u8]>) {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.journal.write(self.now, format_args!("c{client} {lock} proclaim {}", value.escape_ascii()));
        self.must(client, lock, |machine, now| elect(machine, |elections| elections.proclaim(now, lock, value)));
        self.pump_client(client);
    }

    /// Queries the current leader.
    pub fn leader(&mut self, client: usize, name: impl AsRef<[u8]>) -> QueryId {
        self.query(client, "leader", false, |elections, now| elections.leader(now, name.as_ref()))
    }

    /// Observes the leadership.
    pub fn observe(&mut self, client: usize, name: impl AsRef<[u8]>) -> QueryId {
        self.query(client, "observe", true, |elections, now| elections.observe(now, name.as_ref()))
    }

    fn query(
        &mut self,
        client: usize,
        verb: &str,
        observes: bool,
        ask: impl FnOnce(&mut dyn Elections, Instant) -> Result<QueryId, Misuse>,
    ) -> QueryId {
        let query = match self.verb(client, |machine, now| elect(machine, |elections| ask(elections, now))) {
            Ok(query) => query,
            Err(misuse) => self.fail(&format!("client {client} cannot query the leader: {misuse}")),
        };
        self.journal.write(self.now, format_args!("c{client} {query:?} {verb}"));
        let observed = Observed { observes, events: Vec::new(), over: false };
        self.clients[client].own.queries.insert(query, observed);
        self.pump_client(client);
        query
    }

    /// Ends a query or observation.
    pub fn close_query(&mut self, client: usize, query: QueryId) {
        self.journal.write(self.now, format_args!("c{client} {query:?} close"));
        if let Some(observed) = self.clients[client].own.queries.get_mut(&query) {
            observed.over = true;
        }
        self.call_machine(client, |machine, now| {
            if let Some(elections) = machine.elections() {
                elections.close_query(now, query);
            }
        });
    }

    pub(super) fn deliver_election_event(&mut self, client: usize, query: QueryId, event: ElectionEvent) {
        self.journal.write(self.now, format_args!("c{client} {query:?} {event:?}"));
        self.journal.fingerprint.election(self.now, client, &event);
        let process = &mut self.clients[client];
        let Some(observed) = process.own.queries.get_mut(&query).filter(|observed| !observed.over) else {
            let text = format!("client {client} emits an event of {query:?}, which is over: {event:?}");
            return self.report(Rule::OneOutcome, text);
        };
        // A query has one answer; an observation goes on until it fails.
        observed.over = !observed.observes || matches!(event, ElectionEvent::Failed(_));
        observed.events.push(event);
    }
}
