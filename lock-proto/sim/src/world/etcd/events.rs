//! Checks of lock events.

use alloc::format;
use alloc::string::ToString as _;

use super::{EtcdClient, EtcdServers, WriteAgain};
use crate::check::Rule;
use crate::world::World;
use crate::world::check::contains;
use crate::world::process::Input;
use lock_proto::LockId;
use lock_proto::etcd::message::KeyValue;
use lock_proto::etcd::{LeaseId, OwnerKey, Queue};
use lock_proto::{Event, Loss, Token};

impl<C: EtcdClient> World<EtcdServers<C>> {
    /// Checks that a grant is proven by the queue.
    pub(super) fn after_event(&mut self, client: usize, lock: LockId, event: &Event) {
        if matches!(event, Event::Lost(Loss::Gone)) {
            // A deleted key may be created again for another owner.
            self.clients[client].own.owners.remove(&lock);
        }
        if matches!(event, Event::Renewed { .. }) {
            self.check_renewal(client, lock);
        }
        let Some(record) = self.clients[client].records.get(&lock) else { return };
        let Event::Granted(grant) = event else { return };
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
        } else if let Some(owner) = self.key_of(grant.token) {
            // A key that is written later, by a call whose reply was lost, does not count.
            self.clients[client].own.owners.insert(lock, owner);
        }
        if let Some(every) = every {
            self.plan(self.now + every, client, Input::Chore(WriteAgain(lock)));
        }
    }

    /// Checks that the client was not told that the lease of its renewed hold is gone.
    // E1
    fn check_renewal(&mut self, client: usize, lock: LockId) {
        let own = &self.clients[client].own;
        let lease = own.owners.get(&lock).map(|owner| owner.lease.get());
        let until = lease.and_then(|lease| own.granted.get(&lease));
        if until.is_some_and(|until| *until <= self.now) {
            let text = format!("client {client} {lock} was renewed, although the reply says that its lease is gone");
            self.report(Rule::Notified, text);
        }
    }

    /// Returns the key whose value contains this token, if there is one.
    fn key_of(&self, token: Token) -> Option<OwnerKey> {
        let token = token.to_string();
        let kv = self.store.cluster.keys().into_iter().find(|kv| contains(&kv.value, token.as_bytes()))?;
        let KeyValue { key, create_revision, mod_revision, lease, .. } = kv;
        let lease = LeaseId::from_bits(lease.cast_unsigned());
        Some(OwnerKey::new(key, create_revision, mod_revision, lease))
    }
}
