//! Queries of the world for tests.

use lock_proto::etcd::Request;
use lock_proto::etcd::message::KeyValue;
use lock_proto::{Event, Grant, Instant, LockId, OperationEvent, OperationId};

use super::{Kind, World};

impl World {
    pub(crate) fn events(&self, client: usize, lock: LockId) -> Vec<Event> {
        self.timed(client, lock).iter().map(|(_, event)| event.clone()).collect()
    }

    pub(crate) fn timed(&self, client: usize, lock: LockId) -> &[(Instant, Event)] {
        self.clients[client].events.get(&lock).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn all_events(&self, client: usize) -> &[(LockId, Event)] {
        &self.clients[client].all_events
    }

    pub(crate) fn election_events(&self, client: usize, query: OperationId) -> &[OperationEvent] {
        self.clients[client].elections.get(&query).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is_held(&self, client: usize, lock: LockId) -> bool {
        self.clients[client].hub.valid_until(lock).is_some_and(|until| until > self.clock(client))
    }

    #[track_caller]
    pub(crate) fn grant(&self, client: usize, lock: LockId) -> Grant {
        let granted = |event: &Event| if let Event::Granted(grant) = event { Some(*grant) } else { None };
        self.events(client, lock).iter().find_map(granted).unwrap()
    }

    #[track_caller]
    pub(crate) fn fence(&self, client: usize, lock: LockId) -> u64 {
        self.grant(client, lock).fence.unwrap().get()
    }

    pub(crate) fn sent(&self, client: usize, kind: Kind) -> Vec<(Instant, Request)> {
        self.clients[client].requests.iter().filter(|(_, request)| Kind::of(request) == kind).cloned().collect()
    }

    pub(crate) fn count(&self, client: usize, kind: Kind) -> usize {
        self.sent(client, kind).len()
    }

    pub(crate) fn requests(&self, client: usize) -> usize {
        self.clients[client].requests.len()
    }

    #[track_caller]
    pub(crate) fn lease(&self, client: usize) -> i64 {
        match self.sent(client, Kind::Grant).last() {
            Some((_, Request::Grant { lease, .. })) => lease.get(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn queue(&self, name: &str) -> Vec<KeyValue> {
        let prefix = format!("{name}/");
        let mut keys: Vec<KeyValue> =
            self.store.keys().values().filter(|kv| kv.key.starts_with(prefix.as_bytes())).cloned().collect();
        keys.sort_by_key(|kv| kv.create_revision);
        keys
    }
}
