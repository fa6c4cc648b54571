//! Queries for tests of etcd.

use alloc::string::String;
use alloc::vec::Vec;

use super::{EtcdClient, EtcdServers};
use crate::etcd::Cluster;
use crate::world::World;

impl<C: EtcdClient> World<EtcdServers<C>> {
    /// Returns the cluster.
    #[must_use]
    pub const fn cluster_now(&self) -> &Cluster {
        &self.store.cluster
    }

    /// Returns the current keys as text.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.store.cluster.keys().iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
    }

    /// Returns the number of calls and messages that a client has sent.
    #[must_use]
    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].own.sent
    }

    /// Returns how many writes the protected resource has accepted and refused (see
    /// [`write`](Self::write)).
    #[must_use]
    pub const fn writes(&self) -> (u64, u64) {
        self.store.resource.counts()
    }
}
