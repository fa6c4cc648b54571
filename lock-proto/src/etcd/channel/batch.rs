//! Several writes in one transaction (requirement E11).
//!
//! A transaction with a condition costs an etcd server about twice a plain put, most of it once for the transaction and not for each of its
//! operations. So writes of one client that wait at the same time leave as one transaction that has one inner transaction for each, with
//! its own condition and both its branches. Facts about inner transactions, from etcd's public source (`etcdserver/apply.go`,
//! `etcdserver/api/v3rpc/key.go`), tried on 3.4:
//!
//! - all conditions look at the store as it was before the whole, while a read sees what was written before it in the same
//!   transaction. So no two of them may be about overlapping queues;
//! - all writes have one revision. It is told in the outer header only;
//! - a put on a lease that does not exist refuses the whole, and nothing is done;
//! - what the outer transaction writes is checked against permissions and the space alarm, in both its branches. What the inner ones write is not.
//!   So every write stands in the outer `failure` as well, which is checked, and never taken: there is no condition that could fail.

use alloc::vec::Vec;

use crate::etcd::message::{Op, OpResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse};
use crate::etcd::request::{Queue, Request};
use crate::etcd::rpc::{Rpc, RpcReply};

/// How many requests one transaction takes. A server allows 128 operations unless it is told otherwise: the longest list of the outer transaction
/// and that of an inner one, taken together.
pub(super) const MOST: usize = 32;
/// How many bytes of values. A server allows 1.5 MiB for a request unless it is told otherwise, and each value is in it twice.
pub(super) const MOST_BYTES: usize = 64 << 10;

/// The queue that it writes to, if it can be one of several in a transaction: a guarded write.
pub(super) const fn written(request: &Request) -> Option<&Queue> {
    if let Request::Create { queue, .. } | Request::Put { queue, .. } | Request::Delete { queue, .. } = request {
        Some(queue)
    } else {
        None
    }
}

/// How many bytes its value has.
pub(super) const fn weight(request: &Request) -> usize {
    if let Request::Create { value, .. } | Request::Put { value, .. } = request { value.len() } else { 0 }
}

/// Whether a key that one of them writes may lie in the queue of the other: the same name, or one that begins with the other and a slash.
pub(super) fn overlap(one: &Request, other: &Request) -> bool {
    let (Some(one), Some(other)) = (written(one), written(other)) else { return true };
    one.prefix().starts_with(other.prefix()) || other.prefix().starts_with(one.prefix())
}

/// The transaction with all of them in it, in this order. Those that are no transactions are left out.
pub(super) fn together<'a>(requests: impl Iterator<Item = &'a Request>) -> Rpc {
    let mut outer = TxnRequest::default();
    for request in requests {
        let Some(Rpc::Txn(inner)) = request.rpc() else { continue };
        outer.failure.extend(inner.success.iter().filter(|op| is_write(op)).cloned());
        outer.success.push(RequestOp { request: Some(Op::Txn(inner)) });
    }
    Rpc::Txn(outer)
}

const fn is_write(op: &RequestOp) -> bool {
    matches!(op.request, Some(Op::Put(_) | Op::Delete(_)))
}

/// The answers of `count` requests that were in one transaction, each as if it had come alone; `None` if it is no answer to such a one.
pub(super) fn apart(answer: RpcReply, count: usize) -> Option<Vec<RpcReply>> {
    let RpcReply::Txn(TxnResponse { header: Some(header), succeeded: true, responses }) = answer else { return None };
    if responses.len() != count {
        return None;
    }
    responses.into_iter().map(|response| inner(header, response)).collect()
}

fn inner(header: ResponseHeader, response: ResponseOp) -> Option<RpcReply> {
    let OpResponse::Txn(inner) = response.response? else { return None };
    Some(RpcReply::Txn(TxnResponse { header: Some(header), ..inner }))
}
