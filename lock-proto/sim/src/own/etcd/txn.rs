//! Transactions of one key or two, in one line.

use bytes::Bytes;

use lock_proto::etcd::Rpc;
use lock_proto::etcd::message::{
    COMPARE_CREATE, COMPARE_MOD, COMPARE_VALUE, Compare, CompareWith, DeleteRangeRequest, Op, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};

/// A transaction: conditions, operations if they all hold, and reads otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "a Txn does nothing until it is sent"]
pub struct Txn(TxnRequest);

fn bytes(data: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(data.as_ref())
}

fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn read(key: impl AsRef<[u8]>) -> RequestOp {
    op(Op::Range(RangeRequest { key: bytes(key), ..RangeRequest::default() }))
}

impl Txn {
    /// Creates a transaction without conditions and operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requires that the key does not exist.
    pub fn if_absent(self, key: impl AsRef<[u8]>) -> Self {
        self.if_created(key, 0)
    }

    /// Requires that the key was created at this revision.
    pub fn if_created(self, key: impl AsRef<[u8]>, revision: i64) -> Self {
        self.compare(key, COMPARE_CREATE, CompareWith::CreateRevision(revision))
    }

    /// Requires that the last change of the key was at this revision.
    pub fn if_modified(self, key: impl AsRef<[u8]>, revision: i64) -> Self {
        self.compare(key, COMPARE_MOD, CompareWith::ModRevision(revision))
    }

    /// Requires that the key has this value.
    pub fn if_value(self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.compare(key, COMPARE_VALUE, CompareWith::Value(bytes(value)))
    }

    fn compare(mut self, key: impl AsRef<[u8]>, target: i32, with: CompareWith) -> Self {
        self.0.compare.push(Compare { target, key: bytes(key), with: Some(with), ..Compare::default() });
        self
    }

    /// Writes the key, attached to this lease; 0 for none.
    pub fn put(self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, lease: i64) -> Self {
        self.then(op(Op::Put(PutRequest { key: bytes(key), value: bytes(value), lease, ..PutRequest::default() })))
    }

    /// Deletes the key.
    pub fn delete(self, key: impl AsRef<[u8]>) -> Self {
        self.then(op(Op::Delete(DeleteRangeRequest { key: bytes(key), ..DeleteRangeRequest::default() })))
    }

    /// Reads the key.
    pub fn get(self, key: impl AsRef<[u8]>) -> Self {
        self.then(read(key))
    }

    /// Reads the key if a condition does not hold.
    pub fn or_get(mut self, key: impl AsRef<[u8]>) -> Self {
        self.0.failure.push(read(key));
        self
    }

    fn then(mut self, op: RequestOp) -> Self {
        self.0.success.push(op);
        self
    }
}

impl From<Txn> for Rpc {
    fn from(txn: Txn) -> Self {
        Self::Txn(txn.0)
    }
}
