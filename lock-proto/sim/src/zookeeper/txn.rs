//! Transactions, as the leader puts them into the log.

use alloc::sync::Arc;
use alloc::vec::Vec;

use lock_proto::zookeeper::codec::{Acl, ErrorCode};

/// A transaction. Failed requests are transactions too: they take a zxid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ZooKeeperTxn {
    pub(super) zxid: i64,
    /// ms since the start of the ensemble.
    pub(super) time: i64,
    /// The session that requested it.
    pub(super) session: i64,
    /// The number of the request in its session; `None` if no client requested it.
    pub(super) xid: Option<i32>,
    pub(super) kind: TxnKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TxnKind {
    Change(TreeChange),
    /// All changes, or only errors.
    Multi(Vec<TreeChange>),
    CreateSession {
        /// In ms.
        timeout: i32,
    },
    CloseSession {
        paths: Vec<Arc<str>>,
    },
}

/// A change that the leader has validated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TreeChange {
    Create { path: Arc<str>, data: Arc<[u8]>, acl: Arc<[Acl]>, owner: i64, parent_cversion: i32 },
    Delete { path: Arc<str> },
    Set { path: Arc<str>, data: Arc<[u8]>, version: i32 },
    Check,
    Error(ErrorCode),
}
