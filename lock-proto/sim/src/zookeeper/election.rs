//! Leadership: elections, followers that join, partitions, crashes.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::Ensemble;
use super::member::{Down, EnsembleMember, FollowerLink, Leading, MemberRole, Up};
use super::prep::Outstanding;
use super::session::LeaderSessions;
use super::watch::Triggered;
use crate::rng::Rng;
use lock_proto::Instant;

/// Number of the transaction, in the low half of a zxid. The high half is the epoch.
const EPOCH: u32 = 32;

impl Ensemble {
    /// Cuts a member off from the others, but not from its clients.
    pub fn isolate(&mut self, now: Instant, member: usize) {
        self.change_member(now, member, |server, _| server.isolated = true);
    }

    /// Ends [`isolate`](Self::isolate). What the members have sent to each other arrives.
    pub fn heal(&mut self, now: Instant, member: usize) {
        self.change_member(now, member, |server, now| {
            server.isolated = false;
            if let MemberRole::Looking { since } = &mut server.role {
                *since = now;
            }
        });
    }

    /// Stops the process of a member, as by `SIGSTOP`. What the others send waits in its kernel.
    pub fn freeze(&mut self, now: Instant, member: usize) {
        self.change_member(now, member, |server, _| server.frozen = true);
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn thaw(&mut self, now: Instant, member: usize) {
        // Not drawn from the stream of the other choices, which do not depend on it.
        let wake = Rng::new(self.config.seed ^ now.as_nanos()).duration(&self.config.wake);
        self.change_member(now, member, |server, now| (server.frozen, server.awake) = (false, now + wake));
    }

    fn change_member(&mut self, now: Instant, member: usize, change: impl FnOnce(&mut EnsembleMember, Instant)) {
        self.advance(now);
        change(&mut self.members[member], now);
        self.update_links();
        self.advance(now);
    }

    /// Kills a member. Its connections end, and its data survives.
    pub fn crash(&mut self, now: Instant, member: usize) {
        self.advance(now);
        if self.members[member].up {
            self.look(member);
            let server = &mut self.members[member];
            (server.up, server.frozen) = (false, false);
            self.update_links();
        }
    }

    /// Starts a dead member with its data.
    pub fn start(&mut self, now: Instant, member: usize) {
        self.advance(now);
        if !self.members[member].up {
            let server = &mut self.members[member];
            (server.up, server.role) = (true, MemberRole::Looking { since: now });
            self.update_links();
        }
    }

    /// Makes the leader step down; the members elect another if there is one that knows as much.
    pub fn change_leader(&mut self, now: Instant) {
        self.advance(now);
        if let Some(leader) = self.leader() {
            self.avoided = Some(leader);
            self.look(leader);
        }
    }

    /// Notes on each connection which side hears nothing of the other. Messages that were held back
    /// are under way again once nothing holds them back.
    pub(super) fn update_links(&mut self) {
        for link in self.links.values_mut() {
            let (leader, follower) = (&self.members[link.leader], &self.members[link.follower]);
            let cut = leader.isolated || follower.isolated;
            let now = self.now;
            let since = |deaf: Option<Instant>, is: bool| if is { deaf.or(Some(now)) } else { None };
            link.follower_deaf = since(link.follower_deaf, cut || leader.frozen);
            link.leader_deaf = since(link.leader_deaf, cut || follower.frozen);
        }
    }

    /// A member leaves its leader, or its followers, and looks for a leader. Its clients are
    /// disconnected.
    pub(super) fn look(&mut self, member: usize) {
        let ends: Vec<(u64, bool)> = self
            .links
            .iter()
            .filter(|(_, link)| link.leader == member && link.leader_open || link.follower == member)
            .map(|(id, link)| (*id, link.leader == member))
            .collect();
        for (id, leads) in ends {
            // The other side learns of it when it can be reached.
            if leads {
                self.send_down(id, Down::Closed);
            } else {
                self.send_up(id, Up::Closed);
            }
            if let Some(link) = self.links.get_mut(&id) {
                let open = if leads { &mut link.leader_open } else { &mut link.follower_open };
                *open = false;
            }
        }
        self.drop_links();
        let conns = self.connections.iter().filter(|(_, connection)| connection.member == member);
        for conn in conns.map(|(conn, _)| *conn).collect::<Vec<_>>() {
            self.close(conn);
        }
        let server = &mut self.members[member];
        server.role = MemberRole::Looking { since: self.now };
        server.waiting.clear();
        server.writes.clear();
    }

    fn drop_links(&mut self) {
        self.links.retain(|_, link| link.leader_open || link.follower_open);
    }

    pub(super) fn stop_following(&mut self, member: usize) {
        if matches!(self.members[member].role, MemberRole::Following { .. }) {
            self.look(member);
        }
    }

    /// The leader gives up a follower. If too few are left, it steps down at its next tick.
    pub(super) fn lose_follower(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id).filter(|link| link.leader_open) else { return };
        let leader = link.leader;
        self.send_down(id, Down::Closed);
        if let Some(link) = self.links.get_mut(&id) {
            link.leader_open = false;
        }
        self.drop_links();
        let (enough, next) = (self.has_majority(leader), self.tick_after(self.now, self.config.tick));
        if let Some(leading) = self.members[leader].leading_mut()
            && !enough
        {
            leading.gives_up.get_or_insert(next);
        }
    }

    pub(super) fn has_majority(&self, leader: usize) -> bool {
        self.followers(leader).len() + 1 >= self.majority()
    }

    /// Returns the leader that a majority follows, and that the other connected members could
    /// follow. A leader that knows less than a member that looks for one is deposed.
    fn active_leader(&self) -> Option<usize> {
        let newest = self.voters().map(|(member, _)| self.members[member].tree.zxid).max().unwrap_or_default();
        let active = |member: &usize| {
            let server = &self.members[*member];
            let follows = |link: &&FollowerLink| link.leader == *member && link.leader_open && link.follower_open;
            server.is_connected()
                && !server.frozen
                && self.links.values().filter(follows).count() + 1 >= self.majority()
                && server.leading().is_some_and(|leading| leading.gives_up.is_none() && leading.zxid >= newest)
        };
        (0..self.members.len()).filter(active).max_by_key(|member| self.members[*member].leading().map(|l| l.zxid))
    }

    fn voters(&self) -> impl Iterator<Item = (usize, Instant)> {
        self.members.iter().enumerate().filter_map(|(member, server)| match server.role {
            MemberRole::Looking { since } if server.is_connected() && !server.frozen => Some((member, since)),
            MemberRole::Looking { .. } | MemberRole::Following { .. } | MemberRole::Leading(_) => None,
        })
    }

    /// Returns when a member that looks for a leader finds one, or the members elect one.
    pub(super) fn election_due(&self) -> Option<Instant> {
        let first = self.voters().map(|(_, since)| since).min()?;
        if self.active_leader().is_some() {
            return Some(first + self.config.election);
        }
        let last = self.voters().map(|(_, since)| since).max()?;
        (self.voters().count() >= self.majority()).then(|| last + self.config.election)
    }

    pub(super) fn elect(&mut self) {
        if let Some(leader) = self.active_leader() {
            let due = self.voters().filter(|(_, since)| *since + self.config.election <= self.now);
            for (member, _) in due.collect::<Vec<_>>() {
                self.join(member, leader);
            }
            return;
        }
        let voters: Vec<usize> = self.voters().map(|(member, _)| member).collect();
        let avoided = self.avoided.take();
        let rank = |member: &&usize| (self.members[**member].logged(), Some(**member) != avoided, **member);
        let Some(leader) = voters.iter().max_by_key(rank).copied() else { return };
        self.lead(leader);
        for member in voters.into_iter().filter(|member| *member != leader) {
            self.join(member, leader);
        }
    }

    /// A member becomes the leader. Everything that it has logged is committed.
    pub(super) fn lead(&mut self, leader: usize) {
        for txn in core::mem::take(&mut self.members[leader].log) {
            // It has no clients yet.
            self.members[leader].tree.apply(&txn, &mut Triggered::default());
            self.record(&txn);
        }
        // No two leaders have the same epoch.
        let last = self.members.iter().map(|server| server.logged() >> EPOCH).max().unwrap_or_default();
        let server = &mut self.members[leader];
        let zxid = (last + 1) << EPOCH;
        server.tree.zxid = zxid;
        server.role = MemberRole::Leading(Leading {
            zxid,
            outstanding: Outstanding::default(),
            proposals: VecDeque::new(),
            sessions: LeaderSessions::new(self.now, self.config.tick, &server.tree.sessions),
            gives_up: None,
            containers_checked: self.now,
        });
    }

    /// A member follows the leader, and takes over what the leader knows.
    pub(super) fn join(&mut self, member: usize, leader: usize) {
        let (tree, log) = (self.members[leader].tree.clone(), self.members[leader].log.clone());
        self.next_link += 1;
        let id = self.next_link;
        let link = FollowerLink {
            leader,
            follower: member,
            to_follower: VecDeque::new(),
            to_leader: VecDeque::new(),
            leader_open: true,
            follower_open: true,
            leader_deaf: None,
            follower_deaf: None,
            asks_after: self.now,
        };
        self.links.insert(id, link);
        for txn in &log {
            self.send_up(id, Up::Ack(txn.zxid));
        }
        let server = &mut self.members[member];
        (server.tree, server.log) = (tree, log);
        server.role = MemberRole::Following { link: id, touched: BTreeMap::new() };
    }
}
