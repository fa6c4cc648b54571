//! Checks of lock and election events.

use alloc::format;

use super::{Etcd, EtcdClient, WriteAgain};
use crate::etcd::{ElectionEvent, QueryId, Queue};
use crate::id::LockId;
use crate::lock::{Event, Loss};
use crate::sim::check::Rule;
use crate::sim::world::World;
use crate::sim::world::process::Input;

impl<C: EtcdClient> World<Etcd<C>> {
    /// Checks that a grant is proven by the queue.
    pub(super) fn after_event(&mut self, client: usize, lock: LockId, event: &Event) {
        if matches!(event, Event::Lost(Loss::Gone)) {
            // A deleted key may be created again for another owner.
            self.clients[client].own.owners.remove(&lock);
        }
        let Some(record) = self.clients[client].records.get(&lock) else { return };
        if !matches!(event, Event::Granted(_)) {
            return;
        }
        let every = record.habits.write_every;
        if C::PROVES {
            let Some(owner) = self.clients[client].machine.owner(lock) else {
                return self.report(Rule::Contract, format!("client {client} {lock} was granted without a key"));
            };
            let proven = self.store.queue_log.proves(&Queue::new(b"", &record.name), &owner);
            self.clients[client].own.owners.insert(lock, owner);
            if let Err(text) = proven {
                self.report(Rule::Fifo, text);
            }
        }
        if let Some(every) = every {
            self.plan(self.now + every, client, Input::Chore(WriteAgain(lock)));
        }
    }

    pub(super) fn deliver_election_event(&mut self, client: usize, query: QueryId, event: ElectionEvent) {
        self.journal.write(self.now, format_args!("c{client} {query:?} {event:?}"));
        self.journal.fingerprint.election(self.now, client, &event);
        let process = &mut self.clients[client];
        let Some(observed) = process.own.queries.get_mut(&query).filter(|observed| !observed.over) else {
            let text = format!("client {client} emits an event of {query:?}, which is over: {event:?}");
            return self.report(Rule::OneOutcome, text);
        };
        let foreign = match &event {
            ElectionEvent::Leader(leader) => Queue::new(b"", &observed.name).is_foreign(&leader.key),
            ElectionEvent::NoLeader | ElectionEvent::Disconnected | ElectionEvent::Failed(_) => false,
        };
        // A query has one answer; an observation goes on until it fails.
        observed.over = !observed.observes || matches!(event, ElectionEvent::Failed(_));
        observed.events.push(event.clone());
        let name = observed.name.clone();
        self.record_query_event(client, &name, &event);
        if foreign {
            let text = format!("client {client} observes that {} is led by {event:?}", name.escape_ascii());
            self.report(Rule::Contract, text);
        }
    }
}
