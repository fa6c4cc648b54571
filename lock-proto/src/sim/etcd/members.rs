//! The members: who leads, who is cut off, who is down.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::calls::is_proposal;
use super::connection::{Inbound, Kind, Pending};
use super::refusal::Refusal;
use super::{Cluster, ClusterOutput, Condition};
use crate::etcd::message::WatchEvent;
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Member {
    /// As it calls itself in headers.
    pub(super) id: u64,
    pub(super) up: bool,
    isolated: bool,
    /// Since when it has not heard of a leader.
    lost: Option<Instant>,
    /// The last revision that its watches and its own answers know.
    pub(super) applied: i64,
    /// The last revision that it has applied, or that waits in `backlog`.
    pub(super) seen: i64,
    /// What happened while it was cut off and has been compacted since.
    pub(super) backlog: Vec<(i64, Vec<WatchEvent>)>,
    /// Its watches are not told what happens.
    pub(super) loses_events: bool,
    /// How long what comes in is not looked at.
    pub(super) inward: Duration,
    /// How long what goes out is held back.
    pub(super) outward: Duration,
}

impl Member {
    pub(super) fn new(index: usize) -> Self {
        Self {
            // Far from 0, which would be a missing one.
            id: 0xe7cd_0000_0000_0001 + index as u64,
            up: true,
            isolated: false,
            lost: None,
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
    // ---- what happens to members ----

    /// Cuts a member off from the others, not from its clients. If it led, the others elect another.
    pub fn isolate(&mut self, now: Instant, member: usize) {
        self.advance(now);
        self.members[member].isolated = true;
        self.settle();
    }

    /// Ends [`isolate`](Self::isolate).
    pub fn heal(&mut self, now: Instant, member: usize) {
        self.advance(now);
        self.members[member].isolated = false;
        self.settle();
    }

    /// Kills a member: its connections are dropped, calls under way are never answered, and what it had taken of them may be applied
    /// or not (see [`Fate`](super::Fate)). Its data stays.
    pub fn crash(&mut self, now: Instant, member: usize) {
        self.advance(now);
        let conns = self.conns(member);
        self.outputs.retain(|output| !conns.contains(&output.conn()));
        for conn in &conns {
            let inbox = self.connections.remove(conn).map(|connection| connection.inbox).unwrap_or_default();
            for (_, inbound) in inbox {
                if let Inbound::Call { token, request, .. } = inbound {
                    self.call_unheard(member, token, request);
                }
            }
        }
        self.forget_pending(|call| call.member == member);
        self.go_down(member, &conns);
    }

    /// Stops a member in an orderly way: what it has taken is done and what it has to say is said, if it has a leader; then its
    /// connections are closed.
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
        self.forget_pending(|call| call.member == member);
        self.go_down(member, &conns);
    }

    /// Starts a member that is down, with the data that it had. Tokens are not among them.
    pub fn start(&mut self, now: Instant, member: usize) {
        self.advance(now);
        if self.members[member].up {
            return;
        }
        for login in self.logins.values_mut() {
            login.known.remove(&member);
        }
        // It starts without a leader, and knows it.
        let noticed = self.now.back(self.config.election_timeout);
        let fresh = Member::new(member);
        let old = &mut self.members[member];
        *old = Member {
            isolated: old.isolated,
            lost: Some(noticed),
            applied: old.applied,
            seen: old.seen,
            backlog: core::mem::take(&mut old.backlog),
            ..fresh
        };
        self.settle();
    }

    /// Nobody can lead, although every member may be up: as if the network between all of them were cut.
    pub fn lose_quorum(&mut self, now: Instant) {
        self.advance(now);
        self.quorum_lost = true;
        self.settle();
    }

    /// Ends [`lose_quorum`](Self::lose_quorum): a leader is elected.
    pub fn restore_quorum(&mut self, now: Instant) {
        self.advance(now);
        self.quorum_lost = false;
        self.settle();
    }

    /// The leader hands over to another member, without a gap. Every lease has its whole TTL again, and an election timeout more. False
    /// if there is nobody to hand over from or to.
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

    /// Makes a member slow: what comes in is looked at only after `inward`, what goes out is held back for `outward`.
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

    /// Who leads.
    #[must_use]
    pub const fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// Whether a member is up.
    #[must_use]
    pub fn is_up(&self, member: usize) -> bool {
        self.members[member].up
    }

    // ---- inside ----

    /// Whether a member can answer: it is connected to a leader.
    pub(super) fn gets_on(&self, member: usize) -> bool {
        self.leader.is_some() && self.members[member].is_connected()
    }

    /// Whether a member knows that it has no leader.
    pub(super) fn has_noticed(&self, member: usize) -> bool {
        self.members[member].lost.is_some_and(|since| since + self.config.election_timeout <= self.now)
    }

    /// When a member without a leader ends its streams: it looks three times in all, an election timeout apart.
    pub(super) fn streams_end(&self, member: usize) -> Option<Instant> {
        let since = self.members[member].lost?;
        let any = self.connections.values().any(|c| c.member == member && !c.streams.is_empty());
        any.then(|| since + self.config.election_timeout * 4)
    }

    /// The election is over.
    pub(super) fn elect(&mut self) {
        self.election = None;
        let candidates: Vec<usize> = self.connected().collect();
        let leader = self.rng.pick(&candidates).copied();
        self.lead(leader);
        if self.leader.is_some() {
            for call in core::mem::take(&mut self.ghosts) {
                self.execute_unheard(&call);
            }
        }
        self.settle();
    }

    /// Ends the waiting of calls: those that may be in a log are left to their fate.
    pub(super) fn forget_pending(&mut self, gone: impl Fn(&Pending) -> bool) {
        for call in self.take_pending(gone) {
            if call.handed_on {
                self.call_unheard(call.member, call.token, call.request);
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
        self.outputs.extend(conns.iter().map(|conn| ClusterOutput::Dropped { conn: *conn }));
        self.settle();
    }

    /// After any change: who can lead, and who has lost or found the leader.
    fn settle(&mut self) {
        let quorum = !self.quorum_lost && self.connected().count() > self.members.len() / 2;
        if self.leader.is_some_and(|leader| !quorum || !self.members[leader].is_connected()) {
            self.leader = None;
        }
        self.election = match (self.leader, quorum) {
            (None, true) => Some(self.election.unwrap_or(self.now + self.config.election_timeout)),
            (None, false) | (Some(_), _) => None,
        };
        for member in 0..self.members.len() {
            if self.gets_on(member) {
                self.rejoin(member);
            } else if self.members[member].up {
                self.members[member].lost.get_or_insert(self.now);
            }
        }
    }

    /// A member has a leader again: it catches up, and does what had to wait.
    fn rejoin(&mut self, member: usize) {
        let noticed = self.has_noticed(member);
        if self.members[member].lost.take().is_none() {
            return;
        }
        self.catch_up(member);
        for call in self.take_pending(|call| call.member == member) {
            if noticed && !is_proposal(&call.request) {
                let reply = Err(Refusal::LEADER_CHANGED.status());
                self.emit(ClusterOutput::Reply { conn: call.conn, rpc: call.rpc, reply });
            } else {
                self.answer(&call);
            }
        }
        let mut streams = Vec::new();
        for (conn, connection) in self.connections.iter().filter(|(_, c)| c.member == member) {
            let keep_alive = connection.streams.iter().filter(|(_, s)| matches!(s.kind, Kind::KeepAlive(_)));
            streams.extend(keep_alive.map(|(stream, _)| (*conn, *stream)));
        }
        for (conn, stream) in streams {
            self.keep_alive(conn, stream);
        }
    }
}
