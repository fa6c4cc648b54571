//! Proposals, commits, and the messages between the leader and its followers.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::admin::OTHER;
use super::member::{Down, FollowerLink, Leading, MemberRole, Proposal, RoleWish, Submit, Up, pop_front_if};
use super::prep::{ChangeOrigin, Outstanding};
use super::session::LEADER;
use super::tree::{Applied, CONTAINER};
use super::txn::{TreeChange, TxnKind, ZooKeeperTxn};
use super::watch::Triggered;
use super::{Condition, Ensemble};
use lock_proto::Instant;

/// How long the leader keeps a container that never had children.
const NEVER_USED: Duration = Duration::from_secs(300);

impl Ensemble {
    pub(super) const fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    pub(super) fn is_reachable(&self, a: usize, b: usize) -> bool {
        !self.members[a].isolated && !self.members[b].isolated
    }

    pub(super) fn send_down(&mut self, id: u64, message: Down) {
        let hop = self.rng.duration(&self.config.hop);
        let Some(link) = self.links.get_mut(&id).filter(|link| link.leader_open) else { return };
        let due = self.now + hop + self.members[link.follower].lag;
        let due = link.to_follower.back().map_or(due, |(last, _)| due.max(*last));
        link.to_follower.push_back((due, message));
    }

    pub(super) fn send_up(&mut self, id: u64, message: Up) {
        let hop = self.rng.duration(&self.config.hop);
        let Some(link) = self.links.get_mut(&id).filter(|link| link.follower_open) else { return };
        let due = self.now + hop;
        let due = link.to_leader.back().map_or(due, |(last, _)| due.max(*last));
        link.to_leader.push_back((due, message));
    }

    /// Returns the open connections of a leader to its followers.
    pub(super) fn followers(&self, leader: usize) -> Vec<u64> {
        let of = |link: &&FollowerLink| link.leader == leader && link.leader_open;
        self.links.iter().filter(|(_, link)| of(link)).map(|(id, _)| *id).collect()
    }

    /// The leader turns a request into a transaction, and proposes it.
    pub(super) fn propose(&mut self, leader: usize, submit: Submit) {
        let time = self.millis();
        let may_delete = submit.session == OTHER || !self.conditions.contains(&Condition::NoDelete);
        let server = &mut self.members[leader];
        let (tree, MemberRole::Leading(leading)) = (&server.tree, &mut server.role) else { return };
        let Submit { session, xid, wish, identities, owner } = submit;
        leading.zxid += 1;
        let Leading { zxid, outstanding, sessions, .. } = leading;
        let zxid = *zxid;
        let origin = ChangeOrigin { session, zxid, identities: &identities, may_delete };
        let kind = match wish {
            RoleWish::Write(op) => TxnKind::Change(match sessions.check(session, owner) {
                Ok(()) => outstanding.change(tree, origin, &op),
                Err(code) => TreeChange::Error(code),
            }),
            RoleWish::Multi(ops) => match sessions.check(session, owner) {
                Ok(()) => outstanding.multi(tree, origin, &ops),
                Err(code) => TxnKind::Multi(Outstanding::failed(ops.len(), 0, code)),
            },
            RoleWish::CreateSession { timeout } => {
                sessions.track(self.now, session, timeout);
                sessions.set_owner(session, owner);
                TxnKind::CreateSession { timeout }
            }
            RoleWish::CloseSession => {
                sessions.set_closing(session);
                outstanding.close_session(tree, session, zxid)
            }
            RoleWish::DeleteContainer(path) => {
                TxnKind::Change(outstanding.delete_container(tree, &path, zxid).unwrap_or_else(TreeChange::Error))
            }
        };
        let txn = Arc::new(ZooKeeperTxn { zxid, time, session, xid, kind });
        let proposal = Proposal { txn: txn.clone(), acks: BTreeSet::from([leader]), syncs: Vec::new() };
        leading.proposals.push_back(proposal);
        server.log.push_back(txn.clone());
        for link in self.followers(leader) {
            self.send_down(link, Down::Propose(txn.clone()));
        }
        self.commit(leader);
    }

    /// Commits what a majority has logged.
    pub(super) fn commit(&mut self, leader: usize) {
        let majority = self.majority();
        loop {
            let Some(leading) = self.members[leader].leading_mut() else { return };
            let Some(proposal) = pop_front_if(&mut leading.proposals, |next| next.acks.len() >= majority) else {
                return;
            };
            for link in self.followers(leader) {
                self.send_down(link, Down::Commit(proposal.txn.zxid));
            }
            self.members[leader].log.pop_front();
            self.apply(leader, &proposal.txn);
            for (link, session, xid) in proposal.syncs {
                self.send_down(link, Down::Synced { session, xid });
            }
        }
    }

    /// A member applies a committed transaction, notifies its clients, and answers its own.
    fn apply(&mut self, member: usize, txn: &ZooKeeperTxn) {
        let mut triggered = Triggered::default();
        let result = self.members[member].tree.apply(txn, &mut triggered);
        match (&mut self.members[member].role, &txn.kind) {
            (MemberRole::Leading(leading), kind) => {
                leading.outstanding.applied(txn.zxid);
                if let TxnKind::CloseSession { .. } = kind {
                    leading.sessions.remove(txn.session);
                }
            }
            (MemberRole::Following { .. }, TxnKind::CreateSession { timeout }) => {
                self.heard(member, txn.session, *timeout)
            }
            (MemberRole::Following { touched, .. }, TxnKind::CloseSession { .. }) => {
                touched.remove(&txn.session);
            }
            (MemberRole::Following { .. }, TxnKind::Change(_) | TxnKind::Multi(_))
            | (MemberRole::Looking { .. }, _) => {}
        }
        self.record(txn);
        self.notify(member, &triggered);
        let own = txn.xid.is_some_and(|xid| self.committed(member, txn.session, xid, &result));
        if !own && matches!(txn.kind, TxnKind::CloseSession { .. }) {
            self.close_session(member, txn.session);
        }
    }

    /// A follower handles a message of the leader.
    pub(super) fn handle_down(&mut self, id: u64, message: Down) {
        let Some(link) = self.links.get(&id) else { return };
        let member = link.follower;
        match message {
            Down::Propose(txn) => {
                let zxid = txn.zxid;
                self.members[member].log.push_back(txn);
                self.send_up(id, Up::Ack(zxid));
            }
            Down::Commit(zxid) => {
                let next = pop_front_if(&mut self.members[member].log, |next| next.zxid <= zxid);
                if let Some(txn) = next {
                    self.apply(member, &txn);
                }
            }
            Down::Synced { session, xid } => {
                self.committed(member, session, xid, &Applied::Done);
            }
            Down::Validated { conn, session, valid } => {
                // The client may have reconnected elsewhere meanwhile.
                if self.connections.get(&conn).is_some_and(|found| found.session().is_some_and(|s| s.id == session)) {
                    self.session_started(conn, valid);
                }
            }
            Down::Ping => {
                if let MemberRole::Following { touched, .. } = &mut self.members[member].role {
                    let touched = mem::take(touched);
                    self.send_up(id, Up::Touched(touched));
                }
            }
            Down::Closed => self.stop_following(member),
        }
    }

    /// The leader handles a message of a follower.
    pub(super) fn handle_up(&mut self, id: u64, message: Up) {
        let Some(link) = self.links.get(&id) else { return };
        let (leader, follower) = (link.leader, link.follower);
        match message {
            Up::Ack(zxid) => {
                let Some(leading) = self.members[leader].leading_mut() else { return };
                if let Some(proposal) = leading.proposals.iter_mut().find(|proposal| proposal.txn.zxid == zxid) {
                    proposal.acks.insert(follower);
                }
                self.commit(leader);
            }
            Up::Request(submit) => self.propose(leader, submit),
            Up::Sync { session, xid } => {
                let Some(leading) = self.members[leader].leading_mut() else { return };
                match leading.proposals.back_mut() {
                    Some(last) => last.syncs.push((id, session, xid)),
                    None => self.send_down(id, Down::Synced { session, xid }),
                }
            }
            Up::Validate { conn, session, timeout } => {
                let now = self.now;
                let Some(leading) = self.members[leader].leading_mut() else { return };
                let valid = leading.sessions.touch(now, session, timeout);
                leading.sessions.set_owner(session, id);
                self.send_down(id, Down::Validated { conn, session, valid });
            }
            Up::Touched(touched) => {
                let now = self.now;
                let Some(leading) = self.members[leader].leading_mut() else { return };
                for (session, timeout) in touched {
                    leading.sessions.touch(now, session, timeout);
                }
            }
            Up::Closed => self.lose_follower(id),
        }
    }

    /// The leader ends what has expired.
    pub(super) fn expire_sessions(&mut self, leader: usize) {
        let Some(leading) = self.members[leader].leading() else { return };
        for session in leading.sessions.expired(self.now) {
            self.end_session(leader, session);
        }
    }

    pub(super) fn end_session(&mut self, leader: usize, session: i64) {
        let wish = RoleWish::CloseSession;
        self.propose(leader, Submit { session, xid: None, wish, identities: Vec::new(), owner: LEADER });
    }

    /// Returns when the leader deletes the next empty container.
    pub(super) fn next_container(&self, leader: usize) -> Option<Instant> {
        let interval = self.config.container_interval?;
        let last = self.members[leader].leading()?.containers_checked;
        self.empty_containers(leader).map(|(_, since)| self.tick_after(since.max(last), interval)).min()
    }

    /// Returns the empty containers, and since when the leader may delete them.
    fn empty_containers(&self, leader: usize) -> impl Iterator<Item = (&str, Instant)> {
        let tree = &self.members[leader].tree;
        let empty = tree.iter().filter(|(_, node)| node.owner == CONTAINER && node.children.is_empty());
        empty.map(|(path, node)| {
            let unused = self.instant(node.mtime) + NEVER_USED;
            (path, node.emptied.map_or(unused, |emptied| self.instant(emptied)))
        })
    }

    pub(super) fn delete_containers(&mut self, leader: usize) {
        if self.next_container(leader).is_none_or(|at| at > self.now) {
            return;
        }
        let due = self.empty_containers(leader).filter(|(_, since)| *since <= self.now);
        let paths: Vec<Arc<str>> = due.map(|(path, _)| path.into()).collect();
        if let Some(leading) = self.members[leader].leading_mut() {
            leading.containers_checked = self.now;
        }
        for path in paths {
            let wish = RoleWish::DeleteContainer(path);
            self.propose(leader, Submit { session: 0, xid: None, wish, identities: Vec::new(), owner: LEADER });
        }
    }
}
