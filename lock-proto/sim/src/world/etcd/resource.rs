//! The protected resource: a key in the store, written if the owner's key is unchanged.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use bytes::Bytes;

use super::{EtcdClient, EtcdServers, WriteAgain};
use crate::check::{Permit, Rule};
use crate::trace::{Delivery, Lane, MessageId, TraceEvent};
use crate::world::World;
use crate::world::process::Input;
use crate::world::store::Planned;
use lock_proto::LockId;
use lock_proto::etcd::OwnerKey;
use lock_proto::etcd::message::{DELETED, WatchEvent};
use lock_proto::time::nanos;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    name: Arc<[u8]>,
    permit: Permit,
    /// The key that the write compares, of clients that have one.
    owner: Option<OwnerKey>,
    message: Option<MessageId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaderResource {
    /// Newest grant whose write was accepted, by name.
    newest: BTreeMap<Arc<[u8]>, i64>,
    accepted: u64,
    refused: u64,
}

impl LeaderResource {
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.accepted, self.refused)
    }
}

impl<C: EtcdClient> World<EtcdServers<C>> {
    /// Writes in a transaction that compares the holder's key. Panics if the lock is not held.
    pub(super) fn write_guarded(&mut self, client: usize, lock: LockId) {
        let owner =
            match C::PROVES.then(|| self.verb(client, |machine, now| machine.owner_guard(now, lock))).transpose() {
                Ok(owner) => owner,
                Err(misuse) => self.fail(&format!("client {client} {lock} cannot write: {misuse}")),
            };
        let record = self.clients[client].records.get(&lock);
        let (Some(record), Some(permit)) = (record, self.checker.permit(client, lock)) else { return };
        let name = record.name.clone();
        let label = || permit.fence.map_or_else(|| "write".into(), |fence| format!("write, fence {fence}"));
        let message = self.recorder.sent(self.now, Lane::Client(client), Lane::Resource, label);
        let write = Write { name, permit, owner, message };
        self.journal.write(self.now, format_args!("c{client} {lock} writes with {:?}", permit.fence));
        // Some writes are in flight for longer than any lease lives.
        let longest = if self.rng.one_in(4) { Duration::from_secs(15) } else { Duration::from_millis(20) };
        let at = self.now + Duration::from_nanos(self.rng.below(nanos(longest)));
        self.agenda.plan(at, Planned::Write(write));
        self.pump_client(client);
    }

    /// Writes if the application believes to hold the lock, and schedules the next write.
    pub(super) fn write_again(&mut self, client: usize, lock: LockId) {
        if !self.is_held(client, lock) {
            return;
        }
        self.write(client, lock);
        let every = self.clients[client].records.get(&lock).and_then(|record| record.habits.write_every);
        if let Some(every) = every {
            self.plan(self.now + every, client, Input::Chore(WriteAgain(lock)));
        }
    }

    pub(super) fn write_arrives(&mut self, write: Write) {
        let Write { name, permit, owner, message } = write;
        self.recorder.set_delivery(message, Delivery::Arrived(self.now));
        let Permit { client, lock, fence, .. } = permit;
        let fencing = || fence.map_or(0, u64::cast_signed);
        let order = owner.as_ref().map_or_else(fencing, |owner| owner.revision);
        // A second, external resource checks the fencing token alone.
        self.checker.write(self.now, &name, permit);
        // Without a leader the cluster accepts no writes.
        let unchanged = |owner: &OwnerKey| {
            self.store.cluster.get(&owner.key).is_some_and(|kv| kv.mod_revision == owner.mod_revision)
        };
        let newest = || order >= self.store.resource.newest.get(&name).copied().unwrap_or(0);
        let accepted = owner.as_ref().map_or_else(newest, unchanged) && self.store.cluster.leader().is_some();
        let what = if accepted { "accepted" } else { "refused" };
        self.journal.write(self.now, format_args!("write of c{client} {lock} with {fence:?} {what}"));
        let shown = || format!("{}", name.escape_ascii());
        self.recorder.note(self.now, || TraceEvent::Write { client, lock, name: shown(), fence, accepted });
        if accepted {
            self.store.resource.accepted += 1;
            let newest = self.store.resource.newest.entry(name).or_default();
            if *newest > order {
                let text = format!("client {client} {lock}, of revision {order}, wrote after {newest} had");
                self.checker.report(self.now, Rule::StaleWrite, text);
            }
            *newest = order.max(*newest);
        } else {
            self.store.resource.refused += 1;
        }
        self.check();
    }
}

/// Proclaimed values: client, lock, and the revision that created its key.
pub(super) type Proclaimed = BTreeMap<Bytes, (usize, LockId, i64)>;

/// Checks that a leader writes its proclaimed value only under its own key.
pub(super) fn overwritten(proclaimed: &Proclaimed, events: &[WatchEvent]) -> impl Iterator<Item = String> {
    let written = events.iter().filter(|event| event.kind != DELETED).filter_map(|event| event.kv.as_ref());
    written.filter_map(|kv| {
        let (client, lock, created) = proclaimed.get(&kv.value)?;
        let other = kv.create_revision;
        let text =
            format!("client {client} {lock} leads by the key created at {created}, and wrote over that of {other}");
        (*created != other).then_some(text)
    })
}
