//! What a test can ask a world.

use alloc::string::String;
use alloc::vec::Vec;

use super::World;
use crate::etcd::{ElectionEvent, QueryId};
use crate::id::LockId;
use crate::sim::check::Stage;
use crate::sim::etcd::Cluster;

impl World {
    /// What a question or an observation was told so far.
    #[must_use]
    pub fn observed(&self, client: usize, query: QueryId) -> &[ElectionEvent] {
        self.clients[client].queries.get(&query).map_or(&[], |observed| &observed.events)
    }

    /// Whether it was offered and is not claimed yet.
    #[must_use]
    pub fn is_offered(&self, client: usize, lock: LockId) -> bool {
        self.stage(client, lock) == Some(Stage::Offered)
    }

    /// Whether a guard is out: claimed, and not given back, though it may be lost.
    #[must_use]
    pub fn has_guard(&self, client: usize, lock: LockId) -> bool {
        matches!(self.stage(client, lock), Some(Stage::Held | Stage::Lost))
    }

    /// The questions and observations of this client that are not over.
    pub fn queries(&self, client: usize) -> impl Iterator<Item = QueryId> {
        self.clients[client].queries.iter().filter(|(_, observed)| !observed.over).map(|(query, _)| *query)
    }

    /// The cluster, to look at.
    #[must_use]
    pub const fn cluster_now(&self) -> &Cluster {
        &self.cluster
    }

    /// The names of all keys now, as text.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.cluster.keys().iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
    }

    /// How many calls and messages a client has sent.
    #[must_use]
    pub fn sent(&self, client: usize) -> u64 {
        self.clients[client].sent
    }

    /// Writes that the guarded resource has accepted and refused (see [`write`](Self::write)).
    #[must_use]
    pub const fn writes(&self) -> (u64, u64) {
        self.resource.counts()
    }
}
