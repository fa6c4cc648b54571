//! The tree of nodes that a member has applied (`DataTree` and `DataNode` in the server's source).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::txn::{TreeChange, TxnKind, ZooKeeperTxn};
use super::watch::{Trigger, Triggered};
use lock_proto::zookeeper::codec::{Acl, ErrorCode, Stat};

/// `ephemeralOwner` of a container.
pub(super) const CONTAINER: i64 = i64::MIN;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TreeNode {
    pub(super) data: Arc<[u8]>,
    pub(super) acl: Arc<[Acl]>,
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    pub(super) pzxid: i64,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    pub(super) version: i32,
    /// Counts creations only. Clients see twice this number, less the number of children.
    pub(super) cversion: i32,
    pub(super) aversion: i32,
    /// The session of an ephemeral node, [`CONTAINER`], or 0.
    pub(super) owner: i64,
    pub(super) children: BTreeSet<Arc<str>>,
    /// When the last child was deleted.
    pub(super) emptied: Option<i64>,
}

impl TreeNode {
    pub(super) fn stat(&self) -> Stat {
        let count = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: self.cversion.wrapping_mul(2).wrapping_sub(count),
            aversion: self.aversion,
            // The type of a container is not shown to clients.
            ephemeral_owner: if self.owner == CONTAINER { 0 } else { self.owner },
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            num_children: count,
            pzxid: self.pzxid,
        }
    }

    pub(super) const fn is_ephemeral(&self) -> bool {
        self.owner != 0 && self.owner != CONTAINER
    }
}

/// What a committed transaction returns to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Created { path: String, stat: Stat, container: bool },
    Deleted,
    Done,
    Set(Stat),
    Failed(ErrorCode),
    Multi(Vec<Self>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tree {
    nodes: BTreeMap<Arc<str>, TreeNode>,
    /// Timeouts of the sessions, in ms.
    pub(super) sessions: BTreeMap<i64, i32>,
    /// The last transaction.
    pub(super) zxid: i64,
}

/// Splits a path into the path of the parent and the name. The parent of `/a` is the empty path.
pub(super) fn split(path: &str) -> Option<(&str, &str)> {
    path.rsplit_once('/')
}

/// Returns the key of a node: the root has two names.
fn key(path: &str) -> &str {
    if path == "/" { "" } else { path }
}

impl Tree {
    pub(super) fn new(zxid: i64) -> Self {
        let root = TreeNode {
            data: Arc::from([]),
            acl: Acl::open().into(),
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            owner: 0,
            children: BTreeSet::new(),
            emptied: None,
        };
        Self { nodes: BTreeMap::from([("".into(), root)]), sessions: BTreeMap::new(), zxid }
    }

    pub(super) fn get(&self, path: &str) -> Option<&TreeNode> {
        self.nodes.get(key(path))
    }

    pub(super) fn get_mut(&mut self, path: &str) -> Option<&mut TreeNode> {
        self.nodes.get_mut(key(path))
    }

    /// Returns all nodes but the root.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &TreeNode)> {
        self.nodes.iter().filter(|(path, _)| !path.is_empty()).map(|(path, node)| (&**path, node))
    }

    /// Returns the paths of the ephemeral nodes of a session.
    pub(super) fn ephemerals(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.iter().filter(move |(_, node)| node.is_ephemeral() && node.owner == session).map(|(path, _)| path)
    }

    /// Applies a committed transaction. Returns the result for its client.
    pub(super) fn apply(&mut self, txn: &ZooKeeperTxn, out: &mut Triggered) -> Applied {
        self.zxid = txn.zxid;
        match &txn.kind {
            TxnKind::Change(change) => self.change(change, txn, out),
            TxnKind::Multi(changes) => {
                Applied::Multi(changes.iter().map(|change| self.change(change, txn, out)).collect())
            }
            TxnKind::CreateSession { timeout } => {
                self.sessions.insert(txn.session, *timeout);
                Applied::Done
            }
            TxnKind::CloseSession { paths } => {
                self.sessions.remove(&txn.session);
                for path in paths {
                    self.delete(path, txn, out);
                }
                Applied::Done
            }
        }
    }

    fn change(&mut self, change: &TreeChange, txn: &ZooKeeperTxn, out: &mut Triggered) -> Applied {
        match change {
            TreeChange::Create { path, data, acl, owner, parent_cversion } => {
                let node = TreeNode {
                    data: data.clone(),
                    acl: acl.clone(),
                    czxid: txn.zxid,
                    mzxid: txn.zxid,
                    pzxid: txn.zxid,
                    ctime: txn.time,
                    mtime: txn.time,
                    version: 0,
                    cversion: 0,
                    aversion: 0,
                    owner: *owner,
                    children: BTreeSet::new(),
                    emptied: None,
                };
                let stat = node.stat();
                self.create(path, node, *parent_cversion, out);
                Applied::Created { path: path.as_ref().into(), stat, container: *owner == CONTAINER }
            }
            TreeChange::Delete { path } => {
                self.delete(path, txn, out);
                Applied::Deleted
            }
            TreeChange::Set { path, data, version } => {
                let Some(node) = self.nodes.get_mut(path) else { return Applied::Failed(ErrorCode::NO_NODE) };
                node.data = data.clone();
                (node.mtime, node.mzxid, node.version) = (txn.time, txn.zxid, *version);
                out.push(Trigger::Changed, path, &node.acl);
                Applied::Set(node.stat())
            }
            TreeChange::Check => Applied::Done,
            TreeChange::Error(code) => Applied::Failed(*code),
        }
    }

    fn create(&mut self, path: &Arc<str>, node: TreeNode, parent_cversion: i32, out: &mut Triggered) {
        let Some((parent_path, name)) = split(path) else { return };
        let Some(parent) = self.nodes.get_mut(parent_path) else { return };
        // After the greatest number the counter stays there, unless another creation is under way:
        // see `Outstanding`.
        if parent_cversion > parent.cversion {
            (parent.cversion, parent.pzxid) = (parent_cversion, node.czxid);
        }
        parent.children.insert(name.into());
        out.push(Trigger::Created, path, &node.acl);
        out.push(Trigger::Children, parent_path, &parent.acl);
        self.nodes.insert(path.clone(), node);
    }

    fn delete(&mut self, path: &Arc<str>, txn: &ZooKeeperTxn, out: &mut Triggered) {
        let Some((parent_path, name)) = split(path) else { return };
        let Some(node) = self.nodes.remove(path) else { return };
        out.push(Trigger::Deleted, path, &node.acl);
        if let Some(parent) = self.nodes.get_mut(parent_path) {
            parent.children.remove(name);
            parent.pzxid = parent.pzxid.max(txn.zxid);
            parent.emptied = Some(txn.time);
            out.push(Trigger::Children, parent_path, &parent.acl);
        }
    }
}
