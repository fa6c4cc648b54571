//! The leader validates requests (`PrepRequestProcessor`), against the tree and the changes that
//! are proposed but not applied yet.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::acl::{CREATE, DELETE, DigestUser, READ, WRITE, check, expand};
use super::tree::{CONTAINER, Tree, split};
use super::txn::{TreeChange, TxnKind};
use lock_proto::zookeeper::codec::{ANY_VERSION, Acl, CreateMode, ErrorCode, MultiOp};

/// A node as it will be (`ChangeRecord`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ChangeRecord {
    acl: Arc<[Acl]>,
    version: i32,
    cversion: i32,
    owner: i64,
    children: usize,
}

/// Nodes changed by transactions that are not applied yet, with the last of these. `None` for a
/// deleted node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outstanding(BTreeMap<Arc<str>, (i64, Option<ChangeRecord>)>);

/// Who requests a change, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeOrigin<'a> {
    pub(super) session: i64,
    pub(super) zxid: i64,
    pub(super) identities: &'a [DigestUser],
    pub(super) may_delete: bool,
}

/// The greatest version is followed by the least one, and -1 is left out: it means any.
const fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        ANY_VERSION => 0,
        next => next,
    }
}

fn checked_version(current: i32, expected: i32) -> Result<i32, ErrorCode> {
    if expected != ANY_VERSION && expected != current {
        return Err(ErrorCode::BAD_VERSION);
    }
    Ok(next_version(current))
}

/// Checks a path as the server does (`PathUtils.validatePath`).
fn is_valid(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let bad = |c: char| c <= '\u{1f}' || ('\u{7f}'..='\u{9f}').contains(&c) || ('\u{f000}'..='\u{f8ff}').contains(&c);
    rest.is_empty() || rest.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains(bad))
}

impl Outstanding {
    /// Forgets what has been applied.
    pub(super) fn applied(&mut self, zxid: i64) {
        self.0.retain(|_, (last, _)| *last > zxid);
    }

    fn record(&self, tree: &Tree, path: &str) -> Result<ChangeRecord, ErrorCode> {
        if let Some((_, record)) = self.0.get(path) {
            return record.clone().ok_or(ErrorCode::NO_NODE);
        }
        let node = tree.get(path).ok_or(ErrorCode::NO_NODE)?;
        Ok(ChangeRecord {
            acl: node.acl.clone(),
            version: node.version,
            cversion: node.cversion,
            owner: node.owner,
            children: node.children.len(),
        })
    }

    fn set(&mut self, path: &str, zxid: i64, record: Option<ChangeRecord>) {
        self.0.insert(path.into(), (zxid, record));
    }

    /// Validates a request. A failed one becomes a transaction as well.
    pub(super) fn change(&mut self, tree: &Tree, origin: ChangeOrigin<'_>, op: &MultiOp) -> TreeChange {
        self.validate(tree, origin, op).unwrap_or_else(TreeChange::Error)
    }

    pub(super) fn multi(&mut self, tree: &Tree, origin: ChangeOrigin<'_>, ops: &[MultiOp]) -> TxnKind {
        let before = self.clone();
        let mut changes = Vec::new();
        for op in ops {
            match self.validate(tree, origin, op) {
                Ok(change) => changes.push(change),
                Err(code) => {
                    *self = before;
                    return TxnKind::Multi(Self::failed(ops.len(), changes.len(), code));
                }
            }
        }
        TxnKind::Multi(changes)
    }

    /// Returns the results of a transaction whose operation `at` failed.
    pub(super) fn failed(len: usize, at: usize, code: ErrorCode) -> Vec<TreeChange> {
        let result = |place: usize| match place.cmp(&at) {
            core::cmp::Ordering::Less => ErrorCode::OK,
            core::cmp::Ordering::Equal => code,
            core::cmp::Ordering::Greater => ErrorCode::RUNTIME_INCONSISTENCY,
        };
        (0..len).map(|place| TreeChange::Error(result(place))).collect()
    }

    fn validate(&mut self, tree: &Tree, origin: ChangeOrigin<'_>, op: &MultiOp) -> Result<TreeChange, ErrorCode> {
        match op {
            MultiOp::Create { path, data, acl, mode } => self.create(tree, origin, path, data[..].into(), acl, *mode),
            MultiOp::Delete { path, version } => {
                let (parent_path, _) = split(path).filter(|_| **path != *"/").ok_or(ErrorCode::BAD_ARGUMENTS)?;
                let mut parent = self.record(tree, parent_path)?;
                check(&parent.acl, DELETE, origin.identities)?;
                if !origin.may_delete {
                    return Err(ErrorCode::NO_AUTH);
                }
                let node = self.record(tree, path)?;
                checked_version(node.version, *version)?;
                if node.children > 0 {
                    return Err(ErrorCode::NOT_EMPTY);
                }
                parent.children = parent.children.saturating_sub(1);
                self.set(parent_path, origin.zxid, Some(parent));
                self.set(path, origin.zxid, None);
                Ok(TreeChange::Delete { path: path.as_ref().into() })
            }
            MultiOp::SetData { path, data, version } => {
                let mut node = self.readable(tree, path)?;
                check(&node.acl, WRITE, origin.identities)?;
                node.version = checked_version(node.version, *version)?;
                let version = node.version;
                self.set(path, origin.zxid, Some(node));
                Ok(TreeChange::Set { path: path.as_ref().into(), data: data[..].into(), version })
            }
            MultiOp::Check { path, version } => {
                let node = self.readable(tree, path)?;
                check(&node.acl, READ, origin.identities)?;
                checked_version(node.version, *version)?;
                Ok(TreeChange::Check)
            }
        }
    }

    fn readable(&self, tree: &Tree, path: &str) -> Result<ChangeRecord, ErrorCode> {
        if !is_valid(path) {
            return Err(ErrorCode::BAD_ARGUMENTS);
        }
        self.record(tree, path)
    }

    fn create(
        &mut self,
        tree: &Tree,
        origin: ChangeOrigin<'_>,
        path: &str,
        data: Arc<[u8]>,
        acl: &[Acl],
        mode: CreateMode,
    ) -> Result<TreeChange, ErrorCode> {
        let (parent_path, _) = split(path).filter(|_| !path.contains('\0')).ok_or(ErrorCode::BAD_ARGUMENTS)?;
        let acl: Arc<[Acl]> = expand(acl, origin.identities)?.into();
        let mut parent = self.record(tree, parent_path)?;
        check(&parent.acl, CREATE, origin.identities)?;
        let path: Arc<str> = match mode {
            CreateMode::PersistentSequential | CreateMode::EphemeralSequential => {
                format!("{path}{:010}", parent.cversion).into()
            }
            CreateMode::Persistent | CreateMode::Ephemeral | CreateMode::Container => path.into(),
        };
        if !is_valid(&path) {
            return Err(ErrorCode::BAD_ARGUMENTS);
        }
        if self.record(tree, &path).is_ok() {
            return Err(ErrorCode::NODE_EXISTS);
        }
        if parent.owner != 0 && parent.owner != CONTAINER {
            return Err(ErrorCode::NO_CHILDREN_FOR_EPHEMERALS);
        }
        let owner = match mode {
            CreateMode::Ephemeral | CreateMode::EphemeralSequential => origin.session,
            CreateMode::Container => CONTAINER,
            CreateMode::Persistent | CreateMode::PersistentSequential => 0,
        };
        // Wraps to negative numbers while this creation is not applied. The tree itself keeps the
        // greatest number then.
        parent.cversion = parent.cversion.wrapping_add(1);
        parent.children += 1;
        let parent_cversion = parent.cversion;
        self.set(parent_path, origin.zxid, Some(parent));
        let record = ChangeRecord { acl: acl.clone(), version: 0, cversion: 0, owner, children: 0 };
        self.set(&path, origin.zxid, Some(record));
        Ok(TreeChange::Create { path, data, acl, owner, parent_cversion })
    }

    /// Ends a session and deletes its ephemeral nodes.
    pub(super) fn close_session(&mut self, tree: &Tree, session: i64, zxid: i64) -> TxnKind {
        let mut paths: Vec<Arc<str>> = tree.ephemerals(session).cloned().collect();
        for (path, (_, record)) in &self.0 {
            match record {
                None => paths.retain(|other| other != path),
                Some(record) if record.owner == session && !paths.contains(path) => paths.push(path.clone()),
                Some(_) => {}
            }
        }
        for path in &paths {
            if let Some((parent_path, _)) = split(path)
                && let Ok(mut parent) = self.record(tree, parent_path)
            {
                parent.children = parent.children.saturating_sub(1);
                self.set(parent_path, zxid, Some(parent));
            }
            self.set(path, zxid, None);
        }
        TxnKind::CloseSession { paths }
    }

    /// Deletes an empty container.
    pub(super) fn delete_container(&mut self, tree: &Tree, path: &str, zxid: i64) -> Result<TreeChange, ErrorCode> {
        let (parent_path, _) = split(path).ok_or(ErrorCode::BAD_ARGUMENTS)?;
        let node = self.record(tree, path)?;
        if node.children > 0 {
            return Err(ErrorCode::NOT_EMPTY);
        }
        let mut parent = self.record(tree, parent_path)?;
        parent.children = parent.children.saturating_sub(1);
        self.set(parent_path, zxid, Some(parent));
        self.set(path, zxid, None);
        Ok(TreeChange::Delete { path: path.into() })
    }
}
