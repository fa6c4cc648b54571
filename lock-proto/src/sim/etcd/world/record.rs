//! What goes into the record for pictures, beside what travels.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;

use super::World;
use super::label::lease;
use super::wire::Wire;
use crate::etcd::{ElectionEvent, Rpc};
use crate::id::LockId;
use crate::lock::Event;
use crate::sim::trace::{Lane, Point};
use crate::time::Instant;

/// What the record says of the cluster so far: only what changes is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    leader: Option<usize>,
    pub(super) quorum_lost: bool,
    leases: BTreeSet<i64>,
    /// Who asked for each lease.
    owners: BTreeMap<i64, usize>,
}

impl World {
    /// How far an acquisition is by what a machine tells. `until` is the end of validity in true time.
    pub(super) fn point_told(&mut self, client: usize, lock: LockId, event: &Event, until: Option<Instant>) {
        let valid_until = until.unwrap_or(self.now);
        match event {
            Event::Granted(grant) => {
                let fence = grant.fence.map(|fence| fence.get());
                self.point(client, lock, || Point::Granted { fence, valid_until });
            }
            Event::Renewed { .. } => self.point(client, lock, || Point::Renewed { valid_until }),
            Event::Lost(why) => self.point(client, lock, || Point::Lost(format!("{why}"))),
            Event::Withdrawn => self.point(client, lock, || Point::Ended("withdrawn".into())),
            Event::Failed(failure) => self.point(client, lock, || Point::Ended(format!("{failure}"))),
            Event::Released(release) => self.point(client, lock, || Point::Ended(format!("{release:?}"))),
            Event::Proclaimed { .. } => self.word(Some(Lane::Client(client)), || "has proclaimed".into()),
            Event::ProclaimFailed(why) => {
                self.word(Some(Lane::Client(client)), || format!("has not proclaimed: {why:?}"));
            }
            Event::Blocked(_) | Event::Extended | Event::ExtendFailed(_) | Event::AtRisk { .. } => {}
        }
    }

    /// What somebody who observes an election hears of it.
    pub(super) fn heard(&mut self, client: usize, name: &[u8], event: &ElectionEvent) {
        let name = || name.escape_ascii();
        self.word(Some(Lane::Client(client)), || match event {
            ElectionEvent::Leader(leader) => format!("hears: {} is led by {}", name(), leader.value.escape_ascii()),
            ElectionEvent::NoLeader => format!("hears: nobody leads {}", name()),
            ElectionEvent::Disconnected => format!("hears nothing of {}", name()),
            ElectionEvent::Failed(why) => format!("hears no more of {}: {why}", name()),
        });
    }

    /// Whose lease it will be that is asked for here.
    pub(super) fn remember_owner(&mut self, client: usize, wire: &Wire) {
        if let Wire::Call { request: Rpc::Grant(grant), .. } = wire
            && self.recorder.is_on()
        {
            self.told_of.owners.insert(grant.id, client);
        }
    }

    /// Who leads the cluster from now on, and which leases have begun and ended.
    pub(super) fn record_cluster(&mut self) {
        if !self.recorder.is_on() {
            return;
        }
        let leader = self.cluster.leader();
        if leader != self.told_of.leader {
            self.told_of.leader = leader;
            match leader {
                Some(member) => self.word(Some(Lane::Node(member)), || "leads".into()),
                None => self.word(None, || "the cluster has no leader".into()),
            }
        }
        let leases: BTreeSet<i64> = self.cluster.leases().iter().map(|lease| lease.id).collect();
        let before = core::mem::replace(&mut self.told_of.leases, leases);
        let began = self.told_of.leases.difference(&before).map(|id| (*id, "begins"));
        let ended = before.difference(&self.told_of.leases).map(|id| (*id, "ends"));
        let changes: alloc::vec::Vec<(i64, &str)> = began.chain(ended).collect();
        for (id, what) in changes {
            let owner = self.told_of.owners.get(&id).map(|client| Lane::Client(*client));
            self.word(owner, || format!("lease {} {what}", lease(id)));
        }
    }
}
