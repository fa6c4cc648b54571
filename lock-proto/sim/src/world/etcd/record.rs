//! Recording for pictures, apart from packets.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;

use super::label::lease;
use super::wire::EtcdMessage;
use super::{EtcdClient, EtcdServers};
use crate::trace::Lane;
use crate::world::World;
use lock_proto::etcd::Rpc;

/// Last recorded state of the cluster, so that only changes are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    leader: Option<usize>,
    pub(super) quorum_lost: bool,
    leases: BTreeSet<i64>,
    /// The client that requested each lease.
    owners: BTreeMap<i64, usize>,
}

impl<C: EtcdClient> World<EtcdServers<C>> {
    pub(super) fn remember_owner(&mut self, client: usize, wire: &EtcdMessage) {
        if let EtcdMessage::Call { request: Rpc::Grant(grant), .. } = wire
            && self.recorder.is_on()
        {
            self.store.recorded_state.owners.insert(grant.id, client);
        }
    }

    pub(super) fn record_cluster(&mut self) {
        if !self.recorder.is_on() {
            return;
        }
        let leader = self.store.cluster.leader();
        if leader != self.store.recorded_state.leader {
            self.store.recorded_state.leader = leader;
            match leader {
                Some(member) => self.annotate(Some(Lane::Node(member)), || "leads".into()),
                None => self.annotate(None, || "the cluster has no leader".into()),
            }
        }
        let leases: BTreeSet<i64> = self.store.cluster.leases().iter().map(|lease| lease.id).collect();
        let before = core::mem::replace(&mut self.store.recorded_state.leases, leases);
        let began = self.store.recorded_state.leases.difference(&before).map(|id| (*id, "begins"));
        let ended = before.difference(&self.store.recorded_state.leases).map(|id| (*id, "ends"));
        let changes: Vec<(i64, &str)> = began.chain(ended).collect();
        for (id, what) in changes {
            let owner = self.store.recorded_state.owners.get(&id).map(|client| Lane::Client(*client));
            self.annotate(owner, || format!("lease {} {what}", lease(id)));
        }
    }
}
