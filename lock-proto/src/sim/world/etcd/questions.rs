//! What a test can ask a world of etcd.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Etcd, EtcdClient};
use crate::etcd::{ElectionEvent, QueryId};
use crate::sim::etcd::Cluster;
use crate::sim::world::World;

/// Questions.
impl<C: EtcdClient> World<Etcd<C>> {
    /// What a question or an observation was told so far.
    #[must_use]
    pub fn observed(&self, client: usize, query: QueryId) -> &[ElectionEvent] {
        self.clients[client].own.queries.get(&query).map_or(&[], |observed| &observed.events)
    }

    /// The questions and observations of this client that are not over.
    pub fn queries(&self, client: usize) -> impl Iterator<Item = QueryId> {
        self.clients[client].own.queries.iter().filter(|(_, observed)| !observed.over).map(|(query, _)| *query)
    }

    /// The cluster, to look at.
    #[must_use]
    pub const fn cluster_now(&self) -> &Cluster {
        &self.store.cluster
    }

    /// The names of all keys now, as text.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.store.cluster.keys().iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
    }

    /// How many calls and messages a client has sent.
    #[must_use]
    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].own.sent
    }

    /// Writes that the guarded resource has accepted and refused (see [`write`](Self::write)).
    #[must_use]
    pub const fn writes(&self) -> (u64, u64) {
        self.store.resource.counts()
    }
}
