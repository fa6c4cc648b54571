//! What a machine tells its application, and whether it may.

use alloc::format;

use super::World;
use super::process::Fact;
use crate::etcd::{ElectionEvent, OwnerKey, QueryId, Queue};
use crate::id::LockId;
use crate::lock::{Event, Grant, Loss};
use crate::sim::check::Rule;

impl World {
    pub(super) fn told(&mut self, client: usize, lock: LockId, event: Event) {
        self.journal.write(self.now, format_args!("c{client} {lock} {event:?}"));
        self.journal.facts.event(self.now, client, lock, &event);
        let now = self.now;
        let until = self.valid_until(client, &event);
        let owner = self.clients[client].machine.owner(lock).filter(|_| matches!(event, Event::Granted(_)));
        // The store's order of grants is that of the revisions that prove them.
        let order = owner.as_ref().map(|owner| owner.revision.unsigned_abs());
        self.checker.told(now, client, lock, &event, until, order);
        self.check_extend(client, lock, &event);
        self.check();
        let Some(record) = self.clients[client].records.get_mut(&lock) else { return };
        record.events.push(event.clone());
        record.times.push(now);
        self.point_told(client, lock, &event, until);
        if let Event::Lost(Loss::Gone) = event {
            // A key that is gone may be made again for somebody else.
            self.clients[client].owners.remove(&lock);
        }
        if let Event::Granted(grant) = event {
            self.granted(client, lock, grant, owner);
        }
    }

    fn granted(&mut self, client: usize, lock: LockId, grant: Grant, owner: Option<OwnerKey>) {
        let Some(record) = self.clients[client].records.get_mut(&lock) else { return };
        record.grant = Some(grant);
        let (claim, hold, write_every) = (record.claim, record.hold, record.write_every);
        let proven = owner.as_ref().map(|owner| self.queue_log.proves(&Queue::new(b"", &record.name), owner));
        self.clients[client].owners.extend(owner.map(|owner| (lock, owner)));
        match proven {
            Some(Ok(())) => {}
            Some(Err(text)) => self.report(Rule::Fifo, text),
            None => self.report(Rule::Contract, format!("client {client} {lock} was granted without a key")),
        }
        if let Some(hold) = hold {
            self.agenda.plan(self.now + hold, (client, Fact::Release(lock)));
        }
        if claim {
            self.take(client, lock);
        }
        if let Some(every) = write_every {
            self.agenda.plan(self.now + every, (client, Fact::Write(lock)));
        }
    }

    pub(super) fn heard_of_election(&mut self, client: usize, query: QueryId, event: ElectionEvent) {
        self.journal.write(self.now, format_args!("c{client} {query:?} {event:?}"));
        self.journal.facts.election(self.now, client, &event);
        let process = &mut self.clients[client];
        let Some(observed) = process.queries.get_mut(&query).filter(|observed| !observed.over) else {
            let text = format!("client {client} tells of {query:?}, which is over: {event:?}");
            return self.report(Rule::OneOutcome, text);
        };
        let foreign = match &event {
            ElectionEvent::Leader(leader) => Queue::new(b"", &observed.name).is_foreign(&leader.key),
            ElectionEvent::NoLeader | ElectionEvent::Disconnected | ElectionEvent::Failed(_) => false,
        };
        // A question has one answer, an observation goes on until it fails.
        observed.over = !observed.observes || matches!(event, ElectionEvent::Failed(_));
        observed.events.push(event.clone());
        let name = observed.name.clone();
        self.heard(client, &name, &event);
        if foreign {
            let text = format!("client {client} hears that {} is led by {event:?}", name.escape_ascii());
            self.report(Rule::Contract, text);
        }
    }
}
