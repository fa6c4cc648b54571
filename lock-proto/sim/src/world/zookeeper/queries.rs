//! Queries for tests of ZooKeeper.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Zookeeper, ZookeeperClient};
use crate::world::World;
use crate::zookeeper::Ensemble;

impl<C: ZookeeperClient> World<Zookeeper<C>> {
    /// Returns the servers.
    #[must_use]
    pub const fn ensemble(&self) -> &Ensemble {
        &self.store.ensemble
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
