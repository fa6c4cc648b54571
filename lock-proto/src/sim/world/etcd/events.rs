//! Checks of lock events.

use alloc::format;

use super::{Etcd, EtcdClient, WriteAgain};
use crate::etcd::Queue;
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
}
