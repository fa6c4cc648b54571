//! The members: leadership, partitions, crashes.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::calls::is_proposal;
use super::connection::{CallKind, Inbound, Pending};
use super::refusal::RefusalStatus;
use super::{Cluster, ClusterOutput, Condition};
use lock_proto::Instant;
use lock_proto::etcd::message::WatchEvent;

/// How long a replaced leader may answer reads before it learns of the new one, at most.
const STALE_READS: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClusterMember {
    /// The member id in headers.
    pub(super) id: u64,
    pub(super) up: bool,
    isolated: bool,
    /// It led when it was cut off.
    was_leader: bool,
    /// It is not cut off any more, but learns only then that another member leads.
    // S1
    stale_until: Option<Instant>,
    /// Since when it has had no leader.
    leaderless_since: Option<Instant>,
    /// The last revision visible to its watches and replies.
    pub(super) applied: i64,
    /// The last revision that it has applied or that waits in `backlog`.
    pub(super) seen: i64,
    /// Events that occurred while it was isolated and have been compacted since.
    pub(super) backlog: Vec<(i64, Vec<WatchEvent>)>,
    pub(super) loses_events: bool,
    pub(super) inward: Duration,
    pub(super) outward: Duration,
}

impl ClusterMember {
    pub(super) fn new(index: usize) -> Self {
        Self {
            // Must not be 0, which means a missing id.
            id: 0xe7cd_0000_0000_0001 + index as u64,
            up: true,
            isolated: false,
            was_leader: false,
            stale_until: None,
            leaderless_since: None,
            applied: 1,
            seen: 1,
            backlog: Vec::new(),
            loses_events: false,
            inward: Duration::ZERO,
            outward: Duration::ZERO,
        }
    }

    const fn is_connected(&self) -> bool {
        self.up && !self.isolated
    }
}

impl Cluster {
    /// Cuts a member off from the others, but not from its clients. A leader is replaced.
    pub fn isolate(&mut self, now: Instant, member: usize) {
        self.advance(now);
        self.members[member].isolated = true;
        self.members[member].stale_until = None;
        self.update_leadership();
    }

    /// Ends [`isolate`](Self::isolate).
    pub fn heal(&mut self, now: Instant, member: usize) {
        self.advance(now);
        if self.members[member].stale_until.is_some() {
            return;
        }
        let replaced = self.members[member].was_leader && self.members[member].isolated && self.leader.is_some();
        if replaced && self.conditions.contains(&Condition::StaleReads) {
            return self.begin_stale_reads(member);
        }
        self.members[member].isolated = false;
        self.update_leadership();
    }

    /// A replaced leader answers reads from what it had applied, until it learns of the new one.
    fn begin_stale_reads(&mut self, member: usize) {
        let until = self.now + self.rng.duration(&(Duration::from_millis(1)..STALE_READS));
        self.members[member].stale_until = Some(until);
        // To itself it still leads.
        self.members[member].leaderless_since = Some(self.now);
        for call in core::mem::take(&mut self.pending) {
            if call.member == member && self.reads_own_state(&call) {
                self.answer(&call);
            } else {
                self.pending.push_back(call);
            }
        }
    }

    pub(super) fn reads_stale(&self, member: usize) -> bool {
        self.members[member].stale_until.is_some()
    }

    pub(super) fn next_end_of_stale_reads(&self) -> Option<Instant> {
        self.members.iter().filter_map(|member| member.stale_until).min()
    }

    pub(super) fn end_stale_reads(&mut self) {
        for member in 0..self.members.len() {
            if self.members[member].stale_until.is_some_and(|until| until <= self.now) {
                self.members[member].stale_until = None;
                self.members[member].isolated = false;
                self.update_leadership();
            }
        }
    }

    /// Kills a member. Its connections are dropped, and pending calls get no reply. Accepted ones
    /// may be applied (see [`ProposalOutcome`](super::ProposalOutcome)). Its data survives.
    pub fn crash(&mut self, now: Instant, member: usize) {
        self.advance(now);
        let conns = self.conns(member);
        self.outputs.retain(|output| !conns.contains(&output.conn()));
        for conn in &conns {
            let inbox = self.connections.remove(conn).map(|connection| connection.inbox).unwrap_or_default();
            for (_, inbound) in inbox {
                if let Inbound::Call { token, request, .. } = inbound {
                    self.call_orphaned(member, token, request);
                }
            }
        }
        self.drop_pending(|call| call.member == member);
        self.go_down(member, &conns);
    }

    /// Shuts a member down. If it has a leader, it processes its input and flushes its output
    /// first. Then it closes its connections.
    pub fn stop(&mut self, now: Instant, member: usize) {
        self.advance(now);
        let conns = self.conns(member);
        for conn in &conns {
            while let Some((_, inbound)) = self.connections.get_mut(conn).and_then(|c| c.inbox.pop_front()) {
                self.take(*conn, inbound);
            }
            let Some(connection) = self.connections.remove(conn) else { continue };
            self.outputs.extend(connection.outbox.into_iter().map(|(_, output)| output));
        }
        self.drop_pending(|call| call.member == member);
        self.go_down(member, &conns);
    }

    /// Starts a member that is down, with its data. Tokens are lost.
    pub fn start(&mut self, now: Instant, member: usize) {
        self.advance(now);
        if self.members[member].up {
            return;
        }
        for login in self.logins.values_mut() {
            login.expires.remove(&member);
        }
        // It starts without a leader, and is aware of that.
        let noticed = self.now.back(self.config.election_timeout);
        let fresh = ClusterMember::new(member);
        let old = &mut self.members[member];
        *old = ClusterMember {
            isolated: old.isolated,
            leaderless_since: Some(noticed),
            applied: old.applied,
            seen: old.seen,
            backlog: core::mem::take(&mut old.backlog),
            ..fresh
        };
        self.update_leadership();
    }

    /// Makes the cluster lose its quorum, as if all links between members were cut.
    pub fn lose_quorum(&mut self, now: Instant) {
        self.advance(now);
        self.quorum_lost = true;
        self.update_leadership();
    }

    /// Ends [`lose_quorum`](Self::lose_quorum): a leader is elected.
    pub fn restore_quorum(&mut self, now: Instant) {
        self.advance(now);
        self.quorum_lost = false;
        self.update_leadership();
    }

    /// Moves the leadership to another member without a gap. Every lease is renewed for its full
    /// TTL plus an election timeout. Returns false if there is no leader or no other candidate.
    pub fn change_leader(&mut self, now: Instant) -> bool {
        self.advance(now);
        let others: Vec<usize> = self.connected().filter(|member| Some(*member) != self.leader).collect();
        let next = self.rng.pick(&others).copied();
        if self.leader.is_none() || next.is_none() {
            return false;
        }
        self.lead(next);
        true
    }

    /// Slows a member down: delays its input by `inward` and its output by `outward`.
    pub fn slow(&mut self, now: Instant, member: usize, inward: Duration, outward: Duration) {
        self.advance(now);
        self.members[member].inward = inward;
        self.members[member].outward = outward;
    }

    /// Enters or leaves a condition.
    pub fn set(&mut self, now: Instant, condition: Condition, on: bool) {
        self.advance(now);
        if on {
            self.conditions.insert(condition);
        } else {
            self.conditions.remove(&condition);
        }
    }

    /// Returns the leader.
    #[must_use]
    pub const fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// Returns true if a member is up.
    #[must_use]
    pub fn is_up(&self, member: usize) -> bool {
        self.members[member].up
    }

    pub(super) fn has_leader(&self, member: usize) -> bool {
        self.leader.is_some() && self.members[member].is_connected()
    }

    pub(super) fn has_noticed(&self, member: usize) -> bool {
        self.members[member].leaderless_since.is_some_and(|since| since + self.config.election_timeout <= self.now)
    }

    /// A member without a leader checks three times, an election timeout apart.
    pub(super) fn streams_end(&self, member: usize) -> Option<Instant> {
        let since = self.members[member].leaderless_since?;
        let any = self.connections.values().any(|c| c.member == member && !c.streams.is_empty());
        any.then(|| since + self.config.election_timeout * 4)
    }

    pub(super) fn elect(&mut self) {
        self.election = None;
        let candidates: Vec<usize> = self.connected().collect();
        let leader = self.rng.pick(&candidates).copied();
        self.lead(leader);
        if self.leader.is_some() {
            for call in core::mem::take(&mut self.orphans) {
                self.execute_orphaned(&call);
            }
        }
        self.update_leadership();
    }

    /// Drops pending calls. Those that may be in a log can still be applied.
    pub(super) fn drop_pending(&mut self, gone: impl Fn(&Pending) -> bool) {
        for call in self.take_pending(gone) {
            if call.forwarded {
                self.call_orphaned(call.member, call.token, call.request);
            }
        }
    }

    fn take_pending(&mut self, which: impl Fn(&Pending) -> bool) -> VecDeque<Pending> {
        let (taken, rest) = self.pending.drain(..).partition(which);
        self.pending = rest;
        taken
    }

    fn connected(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(|(_, member)| member.is_connected()).map(|(index, _)| index)
    }

    fn conns(&self, member: usize) -> BTreeSet<u64> {
        self.connections.iter().filter(|(_, c)| c.member == member).map(|(conn, _)| *conn).collect()
    }

    fn lead(&mut self, leader: Option<usize>) {
        self.leader = leader;
        if leader.is_some() {
            let (now, extra) = (self.now, self.config.election_timeout);
            self.store.leases_mut().renew_all(now, extra);
        }
    }

    fn go_down(&mut self, member: usize, conns: &BTreeSet<u64>) {
        self.members[member].up = false;
        self.members[member].was_leader = false;
        if self.members[member].stale_until.take().is_some() {
            self.members[member].isolated = false;
        }
        self.outputs.extend(conns.iter().map(|conn| ClusterOutput::Dropped { conn: *conn }));
        self.update_leadership();
    }

    /// Updates the leadership and each member's view of it after a change.
    fn update_leadership(&mut self) {
        let quorum = !self.quorum_lost && self.connected().count() > self.members.len() / 2;
        if let Some(leader) = self.leader
            && (!quorum || !self.members[leader].is_connected())
        {
            self.members[leader].was_leader = self.members[leader].isolated;
            self.leader = None;
        }
        self.election = match (self.leader, quorum) {
            (None, true) => Some(self.election.unwrap_or(self.now + self.config.election_timeout)),
            (None, false) | (Some(_), _) => None,
        };
        for member in 0..self.members.len() {
            if self.has_leader(member) {
                self.rejoin(member);
            } else if self.members[member].up {
                self.members[member].leaderless_since.get_or_insert(self.now);
            }
        }
    }

    /// A member has a leader again: it catches up and processes pending calls and keep-alives.
    fn rejoin(&mut self, member: usize) {
        let noticed = self.has_noticed(member);
        self.members[member].was_leader = false;
        if self.members[member].leaderless_since.take().is_none() {
            return;
        }
        self.catch_up(member);
        for call in self.take_pending(|call| call.member == member) {
            if noticed && !is_proposal(&call.request) {
                let reply = Err(RefusalStatus::LEADER_CHANGED.status());
                self.emit(ClusterOutput::Reply { conn: call.conn, rpc: call.rpc, reply });
            } else {
                self.answer(&call);
            }
        }
        let mut streams = Vec::new();
        for (conn, connection) in self.connections.iter().filter(|(_, c)| c.member == member) {
            let keep_alive = connection.streams.iter().filter(|(_, s)| matches!(s.kind, CallKind::KeepAlive(_)));
            streams.extend(keep_alive.map(|(stream, _)| (*conn, *stream)));
        }
        for (conn, stream) in streams {
            self.keep_alive(conn, stream);
        }
    }
}
