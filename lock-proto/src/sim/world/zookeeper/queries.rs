//! Queries for tests of ZooKeeper.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Zookeeper, ZookeeperClient};
use crate::lock::{ElectionEvent, QueryId};
use crate::sim::world::World;
use crate::sim::zookeeper::Ensemble;

impl<C: ZookeeperClient> World<Zookeeper<C>> {
    /// Returns the servers.
    #[must_use]
    pub const fn ensemble(&self) -> &Ensemble {
        &self.store.ensemble
    }

    /// Returns the events of an election query so far.
    #[must_use]
    pub fn observed(&self, client: usize, query: QueryId) -> &[ElectionEvent] {
        self.clients[client].own.queries.get(&query).map_or(&[], |observed| &observed.events)
    }

    /// Returns the open election queries of this client.
    pub fn queries(&self, client: usize) -> impl Iterator<Item = QueryId> {
        self.clients[client].own.queries.iter().filter(|(_, observed)| !observed.over).map(|(query, _)| *query)
    }

    /// Returns the paths of all nodes that end with a session.
    #[must_use]
    pub fn ephemerals(&self) -> Vec<String> {
        let nodes = self.store.ensemble.nodes().into_iter();
        nodes.filter(|(_, stat)| stat.ephemeral_owner != 0).map(|(path, _)| path).collect()
    }

    /// Returns the number of requests that a client has sent, with its pings.
    #[must_use]
    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].own.sent
    }
}
