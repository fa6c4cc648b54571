//! Batching of writes into one transaction.
//!
//! A conditional transaction costs an etcd server about twice as much as a plain put, mostly per
//! transaction and not per operation. So pending writes of a client leave as one transaction. Each
//! of them becomes an inner transaction with its own condition and both branches.
//!
//! Properties of inner transactions, from etcd's source (`etcdserver/apply.go`,
//! `etcdserver/api/v3rpc/key.go`) and tried on 3.4:
//!
//! - All conditions see the store as it was before the whole transaction, while a read sees earlier
//!   writes of the same transaction. So the queues of two requests in a batch must not overlap.
//! - All writes share one revision, which only the outer header reports.
//! - A put with an unknown lease fails the whole transaction, and nothing is executed.
//! - etcd checks permissions and the space alarm for the writes of the outer transaction, in both
//!   branches, but not for inner writes. So every write is repeated in the outer `failure` branch.
//!   It is checked, but never executed, because the outer transaction has no condition that could
//!   fail.
// E11

use alloc::vec::Vec;

use crate::etcd::message::{Op, OpResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse};
use crate::etcd::request::{Queue, Request};
use crate::etcd::rpc::{Rpc, RpcReply};

/// Maximal number of requests in a batch. By default a server allows 128 operations: the longest
/// list of the outer transaction plus that of one inner transaction.
pub(super) const MAX_REQUESTS: usize = 32;
/// Maximal size of the values in a batch. By default a server allows 1.5 MiB per request, and each
/// value occurs twice.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// The queue that the request writes to. `None` if it cannot be batched: only guarded writes can.
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

/// Returns true if a key written by one request may lie in the queue of the other. That is the case
/// if the names are equal, or one is the other followed by a slash and more.
pub(super) fn overlap(one: &Request, other: &Request) -> bool {
    let (Some(one), Some(other)) = (queue_of_write(one), queue_of_write(other)) else { return true };
    one.prefix().starts_with(other.prefix()) || other.prefix().starts_with(one.prefix())
}

/// Combines requests into one transaction, in order. Requests that are not transactions are left
/// out.
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

/// Splits the reply to a batch of `count` requests into the replies they would have got alone.
/// `None` if it is not a reply to such a batch.
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
