//! Batching of writes into one transaction.
//!
//! A conditional transaction costs an etcd server about twice as much as a plain put. So pending
//! writes of a client leave as one transaction, each as an inner transaction with its own condition
//! and both branches.
//!
//! Properties of inner transactions, from etcd's source (`etcdserver/apply.go`,
//! `etcdserver/api/v3rpc/key.go`) and tried on 3.4: All conditions see the store as it was before
//! the whole transaction, but reads see its earlier writes, so queues in a batch must not overlap.
//! All writes share one revision, which only the outer header reports. A put with an unknown lease
//! fails the whole transaction. etcd checks permissions and the space alarm for the writes of the
//! outer transaction, in both branches, but not for inner writes. So every write is repeated in the
//! outer `failure` branch, which is checked but never executed.
// E11

use alloc::vec::Vec;

use crate::etcd::message::{Op, OpResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse};
use crate::etcd::request::{Queue, Request};
use crate::etcd::rpc::{Rpc, RpcReply};

/// Maximal number of requests in a batch. A server allows 128 operations by default, counting the
/// longest lists of the outer and of one inner transaction.
pub(super) const MAX_REQUESTS: usize = 32;
/// Maximal size of the values in a batch. By default a server allows 1.5 MiB per request, and each
/// value occurs twice.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// The queue that the request writes to. `None` if it is no guarded write, so cannot be batched.
pub(super) const fn queue_of_write(request: &Request) -> Option<&Queue> {
    if let Request::Create { queue, .. } | Request::Put { queue, .. } | Request::Delete { queue, .. } = request {
        Some(queue)
    } else {
        None
    }
}

/// Length of the request's value in bytes.
pub(super) const fn value_len(request: &Request) -> usize {
    if let Request::Create { value, .. } | Request::Put { value, .. } = request { value.len() } else { 0 }
}

/// Returns true if a key that one request writes may lie in the queue of the other: the names are
/// equal, or one continues the other after a slash.
pub(super) fn overlap(one: &Request, other: &Request) -> bool {
    let (Some(one), Some(other)) = (queue_of_write(one), queue_of_write(other)) else { return true };
    one.prefix().starts_with(other.prefix()) || other.prefix().starts_with(one.prefix())
}

/// Combines requests into one transaction, in order. Leaves out those that are not transactions.
pub(super) fn combine<'a>(requests: impl Iterator<Item = &'a Request>) -> Rpc {
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

/// Splits the reply to a batch of `count` requests. `None` if it is not a reply to such a batch.
pub(super) fn split(answer: RpcReply, count: usize) -> Option<Vec<RpcReply>> {
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
