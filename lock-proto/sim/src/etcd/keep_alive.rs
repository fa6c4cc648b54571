//! Keep-alives of leases.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::connection::{CallKind, PeerStream};
use super::lease::seconds;
use super::{Cluster, ClusterOutput, Condition};
use lock_proto::Instant;
use lock_proto::etcd::StreamReceived;
use lock_proto::etcd::message::LeaseKeepAliveResponse;

/// With [`Condition::RevokedKeepAlives`], a keep-alive of a lease with less time left is delayed
/// until the lease is revoked.
const ALMOST_EXPIRED: Duration = Duration::from_secs(1);
/// The greatest delay of other keep-alives in that condition, between the check and the renewal.
const AFTER_CHECK: Duration = Duration::from_millis(50);

/// The keep-alives of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct StreamKeepAlives {
    /// Those that wait for a leader, in order: their timeouts and leases.
    waiting: VecDeque<(Instant, i64)>,
    /// Those that a leader executes later, in the order of their arrival.
    accepted: Vec<Accepted>,
    /// Leases that a proxy renews itself from their first keep-alive on.
    renewed: BTreeSet<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Accepted {
    lease: i64,
    due: Instant,
    /// The member's revision on arrival. A lease that was alive at it was not revoked earlier.
    revision: i64,
    /// The TTL of the lease, if the leader does not check again whether the lease exists.
    checked: Option<i64>,
}

impl StreamKeepAlives {
    pub(super) fn push(&mut self, until: Instant, lease: i64) {
        self.waiting.push_back((until, lease));
    }

    /// Returns true if one has waited for a leader for too long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.waiting.front().is_some_and(|(until, _)| *until <= now)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let accepted = self.accepted.iter().map(|accepted| accepted.due);
        accepted.chain(self.waiting.front().map(|(until, _)| *until)).min()
    }

    /// Removes the first that is due.
    fn pop_due(&mut self, now: Instant) -> Option<Accepted> {
        let due = self.accepted.iter().enumerate().filter(|(_, accepted)| accepted.due <= now);
        let place = due.min_by_key(|(place, accepted)| (accepted.due, *place)).map(|(place, _)| place)?;
        Some(self.accepted.remove(place))
    }
}

impl Cluster {
    /// Accepts the keep-alives of a stream, if its member has a leader, and executes those that are
    /// due.
    pub(super) fn keep_alive(&mut self, conn: u64, stream: u64) {
        let Some(member) = self.connections.get(&conn).map(|connection| connection.member) else { return };
        if !self.has_leader(member) {
            return;
        }
        let Some(keep_alives) = self.keep_alives(conn, stream) else { return };
        for (_, lease) in core::mem::take(&mut keep_alives.waiting) {
            let (mut due, checked) = self.schedule_keep_alive(lease);
            let (revision, per_lease) = (self.members[member].applied, self.config.keep_alives_per_lease);
            let late = self.proxy_delay(lease);
            let Some(keep_alives) = self.keep_alives(conn, stream) else { return };
            if per_lease && !keep_alives.renewed.insert(lease) {
                due = due + late;
            }
            // A member executes the keep-alives of a stream in order, a proxy those of a lease.
            let before = keep_alives.accepted.iter().filter(|other| !per_lease || other.lease == lease);
            let due = before.map(|other| other.due).fold(due, Instant::max);
            keep_alives.accepted.push(Accepted { lease, due, revision, checked });
        }
        self.execute_keep_alives(conn, stream);
    }

    pub(crate) const fn answers_keep_alives_per_lease(&self) -> bool {
        self.config.keep_alives_per_lease
    }

    /// Executes all keep-alives that are due.
    pub(super) fn keep_alives_due(&mut self) {
        let due = |kind: &CallKind, now| match kind {
            CallKind::KeepAlive(keep_alives) => keep_alives.next_due().is_some_and(|at| at <= now),
            CallKind::Watch(..) => false,
        };
        let mut found = Vec::new();
        for (conn, connection) in &self.connections {
            let streams = connection.streams.iter().filter(|(_, stream)| due(&stream.kind, self.now));
            found.extend(streams.map(|(stream, _)| (*conn, *stream)));
        }
        for (conn, stream) in found {
            self.execute_keep_alives(conn, stream);
        }
    }

    fn execute_keep_alives(&mut self, conn: u64, stream: u64) {
        let Some(member) = self.connections.get(&conn).map(|connection| connection.member) else { return };
        let (now, until, has_leader) = (self.now, self.now + self.config.request_timeout, self.has_leader(member));
        while let Some(keep_alives) = self.keep_alives(conn, stream) {
            let Some(accepted) = keep_alives.pop_due(now) else { return };
            if !has_leader {
                keep_alives.push(until, accepted.lease);
                continue;
            }
            let ttl = self.renew(accepted);
            let header = self.header_of(member, accepted.revision);
            let message = StreamReceived::KeepAlive(LeaseKeepAliveResponse { header, id: accepted.lease, ttl });
            self.emit(ClusterOutput::Message { conn, stream, message });
            self.publish();
        }
    }

    /// Renews a lease, and returns the TTL to report.
    fn renew(&mut self, Accepted { lease, checked, .. }: Accepted) -> i64 {
        if let Some(ttl) = checked {
            self.store.leases_mut().refresh(self.now, lease);
            return ttl;
        }
        self.store.leases_mut().renew(self.now, lease).unwrap_or_else(|| {
            // An expired lease is revoked before the reply.
            let _ = self.store.revoke(lease);
            0
        })
    }

    /// Returns when a keep-alive that arrives now is executed, and the TTL to report if the lease is
    /// not looked at again.
    fn schedule_keep_alive(&mut self, lease: i64) -> (Instant, Option<i64>) {
        let now = self.now;
        let Some((ttl, expires)) = self.store.leases().get(lease).map(|lease| (lease.ttl, lease.expires)) else {
            return (now, None);
        };
        if self.conditions.contains(&Condition::RevokedKeepAlives) && now < expires {
            let left = expires.since(now);
            let delay = if left <= ALMOST_EXPIRED {
                left + self.config.lessor_interval + Duration::from_millis(1)
            } else if self.rng.one_in(4) {
                self.rng.duration(&(Duration::ZERO..AFTER_CHECK))
            } else {
                Duration::ZERO
            };
            return (now + delay, Some(ttl));
        }
        (now, None)
    }

    /// A proxy answers the first keep-alive at once, and later ones when it renews the lease itself.
    fn proxy_delay(&mut self, lease: i64) -> Duration {
        let ttl = self.store.leases().get(lease).map_or(0, |lease| lease.ttl);
        if !self.config.keep_alives_per_lease || ttl == 0 {
            return Duration::ZERO;
        }
        self.rng.duration(&(Duration::ZERO..seconds(ttl) / 4))
    }

    fn keep_alives(&mut self, conn: u64, stream: u64) -> Option<&mut StreamKeepAlives> {
        match self.connections.get_mut(&conn)?.streams.get_mut(&stream)? {
            PeerStream { kind: CallKind::KeepAlive(keep_alives), .. } => Some(keep_alives),
            PeerStream { kind: CallKind::Watch(..), .. } => None,
        }
    }
}
