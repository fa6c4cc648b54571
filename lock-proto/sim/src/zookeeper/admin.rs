//! What happens by hand, and queries.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::member::{RoleWish, Submit};
use super::session::LEADER;
use super::txn::{TreeChange, TxnKind, ZooKeeperTxn};
use super::{Condition, Ensemble};
use lock_proto::Instant;
use lock_proto::zookeeper::codec::{ANY_VERSION, Acl, CreateMode, MultiOp, Stat};

/// The session of other programs, which may do anything.
pub(super) const OTHER: i64 = 1;

/// A committed change: a node was created or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeChange {
    /// The transaction.
    pub zxid: i64,
    /// The node.
    pub path: Arc<str>,
    /// The session of a new ephemeral node, 0 for another new node, `None` for a deleted one.
    pub created: Option<i64>,
}

/// An open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenSession {
    /// Its id.
    pub id: i64,
    /// Its timeout.
    pub timeout: Duration,
    /// When the leader ends it unless the client is heard; `None` if there is no leader.
    pub expires: Option<Instant>,
}

impl Ensemble {
    /// Sets how much later a follower handles what comes from the leader. Reads on it are older.
    pub fn set_lag(&mut self, now: Instant, member: usize, lag: Duration) {
        self.advance(now);
        self.members[member].lag = lag;
    }

    /// Begins or ends a condition.
    pub fn set(&mut self, now: Instant, condition: Condition, on: bool) {
        self.advance(now);
        if on {
            self.conditions.insert(condition);
        } else {
            self.conditions.remove(&condition);
        }
    }

    /// Creates a persistent node, and those above it. Does nothing without a leader.
    pub fn create(&mut self, now: Instant, path: &str, data: &[u8]) {
        self.advance(now);
        let ends = path.match_indices('/').map(|(end, _)| end).skip(1).chain([path.len()]);
        for path in ends.map(|end| &path[..end]) {
            let (data, acl) = (bytes::Bytes::copy_from_slice(data), Acl::open());
            self.by_hand(MultiOp::Create { path: path.into(), data, acl, mode: CreateMode::Persistent });
        }
    }

    /// Deletes a node. Does nothing without a leader.
    pub fn delete(&mut self, now: Instant, path: &str) {
        self.advance(now);
        self.by_hand(MultiOp::Delete { path: path.into(), version: ANY_VERSION });
    }

    /// Another program changes something, on a session of its own that the leader always knows.
    fn by_hand(&mut self, op: MultiOp) {
        let Some(leader) = self.leader() else { return };
        let Some(leading) = self.members[leader].leading_mut() else { return };
        leading.sessions.track(self.now, OTHER, 0);
        let (wish, identities) = (RoleWish::Write(op), Vec::new());
        self.propose(leader, Submit { session: OTHER, xid: None, wish, identities, owner: LEADER });
        if let Some(leading) = self.members[leader].leading_mut() {
            leading.sessions.remove(OTHER);
        }
    }

    /// Ends a session, as if its client had been silent. Does nothing without a leader.
    pub fn expire_session(&mut self, now: Instant, session: i64) {
        self.advance(now);
        if let Some(leader) = self.leader() {
            self.end_session(leader, session);
        }
    }

    /// Sets the number of the next sequential child of a node, on every member: as many children
    /// have been created before.
    pub fn set_sequence(&mut self, path: &str, next: i32) {
        for server in &mut self.members {
            if let Some(node) = server.tree.get_mut(path) {
                node.cversion = next;
            }
        }
    }

    /// Returns the leader that a majority follows.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        let leads = |member: &usize| self.members[*member].leading().is_some() && self.has_majority(*member);
        (0..self.members.len()).filter(leads).max_by_key(|member| self.members[*member].tree.zxid)
    }

    /// Returns whether a member serves clients: it leads or follows.
    #[must_use]
    pub fn is_serving(&self, member: usize) -> bool {
        self.members[member].up && !self.members[member].is_looking()
    }

    /// Returns the member that has applied most.
    fn newest(&self) -> Option<&super::member::EnsembleMember> {
        self.members.iter().max_by_key(|server| server.tree.zxid)
    }

    /// Returns the paths and states of all nodes but the root, as the newest member has them.
    #[must_use]
    pub fn nodes(&self) -> Vec<(String, Stat)> {
        let nodes = self.newest().into_iter().flat_map(|server| server.tree.iter());
        nodes.map(|(path, node)| (path.into(), node.stat())).collect()
    }

    /// Returns the state of a node on a member.
    #[must_use]
    pub fn stat(&self, member: usize, path: &str) -> Option<Stat> {
        self.members[member].tree.get(path).map(super::tree::TreeNode::stat)
    }

    /// Returns the sessions that the newest member knows.
    #[must_use]
    pub fn sessions(&self) -> Vec<OpenSession> {
        let leading = self.leader().and_then(|leader| self.members[leader].leading());
        let expires = |id| leading.and_then(|leading| leading.sessions.expires(id));
        let all = self.newest().into_iter().flat_map(|server| &server.tree.sessions);
        let timeout = |ms: i32| Duration::from_millis(ms.unsigned_abs().into());
        all.map(|(id, ms)| OpenSession { id: *id, timeout: timeout(*ms), expires: expires(*id) }).collect()
    }

    /// Returns when the leader ends a session unless its client is heard; `Some(None)` if it has
    /// ended, and `None` without a leader.
    pub(crate) fn session_expires(&self, id: i64) -> Option<Option<Instant>> {
        let leading = self.leader().and_then(|leader| self.members[leader].leading())?;
        Some(leading.sessions.expires(id))
    }

    /// Returns true if the leader was stopped, and has run for less than three quarters of a tick
    /// since. In that time it asks its followers of which sessions they have heard.
    pub(crate) fn is_catching_up(&self, now: Instant) -> bool {
        self.leader().is_some_and(|leader| {
            let awake = self.members[leader].awake;
            awake > Instant::ZERO && now < awake + self.config.tick * 3 / 4
        })
    }

    /// Returns the last transaction that a member has applied.
    #[must_use]
    pub fn zxid(&self, member: usize) -> i64 {
        self.members[member].tree.zxid
    }

    /// Returns the number of open connections of clients.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of watches on all members.
    #[must_use]
    pub fn watch_count(&self) -> usize {
        self.members.iter().map(|server| server.watches.count()).sum()
    }

    /// Returns the nodes that are watched on any member. They need not exist.
    pub fn watched(&self) -> impl Iterator<Item = &str> {
        self.members.iter().flat_map(|server| server.watches.paths()).map(|path| &**path)
    }

    /// Returns the session of a connection, once it has one.
    #[must_use]
    pub fn session_of(&self, conn: u64) -> Option<i64> {
        self.connections.get(&conn)?.session().map(|session| session.id)
    }

    /// Returns the next committed change, in the order of the transactions. Recorded only with
    /// [`monitor`](super::EnsembleConfig::monitor).
    pub fn poll_change(&mut self) -> Option<NodeChange> {
        self.changes.pop_front()
    }

    /// Records a transaction when the first member applies it.
    pub(super) fn record(&mut self, txn: &ZooKeeperTxn) {
        if txn.zxid <= self.recorded || !self.config.monitor {
            return;
        }
        self.recorded = txn.zxid;
        let mut push = |path: &Arc<str>, created| {
            self.changes.push_back(NodeChange { zxid: txn.zxid, path: path.clone(), created });
        };
        let mut change = |change: &TreeChange| match change {
            TreeChange::Create { path, owner, .. } => push(path, Some(*owner)),
            TreeChange::Delete { path } => push(path, None),
            TreeChange::Set { .. } | TreeChange::Check | TreeChange::Error(_) => {}
        };
        match &txn.kind {
            TxnKind::Change(one) => change(one),
            TxnKind::Multi(all) => all.iter().for_each(change),
            TxnKind::CloseSession { paths } => paths.iter().for_each(|path| push(path, None)),
            TxnKind::CreateSession { .. } => {}
        }
    }
}
