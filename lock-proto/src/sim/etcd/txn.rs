//! Reads and transactions: how they are checked, and what they give.

use alloc::vec::Vec;
use core::cmp::Ordering;

use bytes::Bytes;

use super::refusal::Refusal;
use super::span::Span;
use super::store::{Change, Entry, Store};
use crate::etcd::message::{
    ASCEND, BY_CREATE, COMPARE_CREATE, COMPARE_MOD, Compare, CompareWith, DESCEND, DeleteRangeResponse, Op, OpResponse,
    PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};

// What `Compare.CompareTarget` and `RangeRequest.SortTarget` of rpc.proto have besides.
const COMPARE_VERSION: i32 = 0;
const COMPARE_VALUE: i32 = 3;
const COMPARE_LEASE: i32 = 4;
const BY_KEY: i32 = 0;
const BY_VERSION: i32 = 1;
const BY_MOD: i32 = 3;
const BY_VALUE: i32 = 4;

pub(super) fn check_range(range: &RangeRequest) -> Result<(), Refusal> {
    if range.key.is_empty() { Err(Refusal::EMPTY_KEY) } else { Ok(()) }
}

/// What the server looks at before it looks at anything else.
pub(super) fn check(txn: &TxnRequest, max_ops: usize) -> Result<(), Refusal> {
    if txn.compare.len().max(txn.success.len()).max(txn.failure.len()) > max_ops {
        return Err(Refusal::TOO_MANY_OPS);
    }
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Refusal::EMPTY_KEY);
    }
    for op in txn.success.iter().chain(&txn.failure) {
        let key = match &op.request {
            Some(Op::Range(range)) => &range.key,
            Some(Op::Put(put)) => &put.key,
            Some(Op::Delete(delete)) => &delete.key,
            None => return Err(Refusal::NO_OPERATION),
        };
        if key.is_empty() {
            return Err(Refusal::EMPTY_KEY);
        }
    }
    check_overlaps(&txn.success)?;
    check_overlaps(&txn.failure)
}

/// No key may be put twice, or be put and deleted. A delete without end is not looked at: so it is in etcd.
fn check_overlaps(ops: &[RequestOp]) -> Result<(), Refusal> {
    let mut deletes = Vec::new();
    for op in ops {
        if let Some(Op::Delete(delete)) = &op.request {
            deletes.push(Span::new(&delete.key, &delete.range_end));
        }
    }
    deletes.retain(|span| !matches!(span, Span::From(_)));
    let mut puts: Vec<&Bytes> = Vec::new();
    for op in ops {
        if let Some(Op::Put(put)) = &op.request {
            if puts.contains(&&put.key) || deletes.iter().any(|span| span.contains(&put.key)) {
                return Err(Refusal::DUPLICATE_KEY);
            }
            puts.push(&put.key);
        }
    }
    Ok(())
}

/// Whether it does not go through the log of the cluster.
pub(super) fn is_read_only(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| matches!(op.request, Some(Op::Range(_))))
}

/// Whether any branch writes.
pub(super) fn puts(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| matches!(op.request, Some(Op::Put(_))))
}

pub(super) fn read(store: &Store, range: &RangeRequest) -> RangeResponse {
    let span = Span::new(&range.key, &range.range_end);
    let mut found: Vec<(&Bytes, &Entry)> = store.range(&span).collect();
    let count = i64::try_from(found.len()).unwrap_or(i64::MAX);
    if range.count_only {
        found.clear();
    }
    let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    if range.sort_order == 0 && range.max_create_revision == 0 {
        // Cut off by key, with one more to see whether there is more, and sorted only then: so it is in etcd.
        found.truncate(limit.saturating_add(1));
    }
    if range.max_create_revision != 0 {
        found.retain(|(_, entry)| entry.created <= range.max_create_revision);
    }
    sort(&mut found, range);
    found.truncate(limit);
    let mut kvs: Vec<_> = found.into_iter().map(|(key, entry)| entry.to_kv(key)).collect();
    if range.keys_only {
        for kv in &mut kvs {
            kv.value = Bytes::new();
        }
    }
    RangeResponse { header: None, kvs, count }
}

/// By the target that is asked for. An order or a target that does not exist leaves them as they are, by key.
fn sort(found: &mut [(&Bytes, &Entry)], range: &RangeRequest) {
    let by = |a: &(&Bytes, &Entry), b: &(&Bytes, &Entry)| -> Ordering {
        match range.sort_target {
            BY_KEY => a.0.cmp(b.0),
            BY_VERSION => a.1.version.cmp(&b.1.version),
            BY_CREATE => a.1.created.cmp(&b.1.created),
            BY_MOD => a.1.modified.cmp(&b.1.modified),
            BY_VALUE => a.1.value.cmp(&b.1.value),
            _ => Ordering::Equal,
        }
    };
    match range.sort_order {
        // Without an order, any target but the key is sorted upwards.
        0 | ASCEND => found.sort_by(by),
        // Those that are equal stay in the order of their keys.
        DESCEND => found.sort_by(|a, b| by(b, a)),
        _ => {}
    }
}

/// Executes a transaction. The header is that of the whole; the caller completes it.
pub(super) fn run(store: &mut Store, txn: &TxnRequest) -> Result<TxnResponse, Refusal> {
    let succeeded = txn.compare.iter().all(|compare| holds(store, compare));
    let ops = if succeeded { &txn.success } else { &txn.failure };
    for op in ops {
        if let Some(Op::Put(put)) = &op.request
            && put.lease != 0
            && store.leases().get(put.lease).is_none()
        {
            return Err(Refusal::LEASE_NOT_FOUND);
        }
    }
    let mut change = store.write();
    let responses = ops.iter().map(|op| ResponseOp { response: perform(&mut change, op) }).collect();
    let revision = change.end();
    Ok(TxnResponse { header: Some(ResponseHeader { member_id: 0, revision }), succeeded, responses })
}

fn perform(change: &mut Change<'_>, op: &RequestOp) -> Option<OpResponse> {
    let answer = match op.request.as_ref()? {
        Op::Range(range) => {
            let header = Some(header(change));
            OpResponse::Range(RangeResponse { header, ..read(change.store(), range) })
        }
        Op::Put(put) => {
            change.put(&put.key, &put.value, put.lease);
            OpResponse::Put(PutResponse { header: Some(header(change)) })
        }
        Op::Delete(delete) => {
            let deleted = change.delete(&Span::new(&delete.key, &delete.range_end));
            OpResponse::Delete(DeleteRangeResponse { header: Some(header(change)), deleted })
        }
    };
    Some(answer)
}

/// The header of a part: it names no member.
const fn header(change: &Change<'_>) -> ResponseHeader {
    ResponseHeader { member_id: 0, revision: change.revision() }
}

/// A condition over a range holds if it does for every key of it; over an absent key, if it does for one whose numbers are 0.
fn holds(store: &Store, compare: &Compare) -> bool {
    let span = Span::new(&compare.key, &compare.range_end);
    let mut found = store.range(&span).map(|(_, entry)| entry).peekable();
    if found.peek().is_none() {
        let absent = Entry { created: 0, modified: 0, version: 0, value: Bytes::new(), lease: 0 };
        return compare.target != COMPARE_VALUE && holds_for(compare, &absent);
    }
    found.all(|entry| holds_for(compare, entry))
}

fn holds_for(compare: &Compare, entry: &Entry) -> bool {
    // What is compared with something else than is asked for is compared with 0.
    let created = if let Some(CompareWith::CreateRevision(revision)) = compare.with { revision } else { 0 };
    let modified = if let Some(CompareWith::ModRevision(revision)) = compare.with { revision } else { 0 };
    let found = match compare.target {
        COMPARE_VERSION => entry.version.cmp(&0),
        COMPARE_CREATE => entry.created.cmp(&created),
        COMPARE_MOD => entry.modified.cmp(&modified),
        COMPARE_VALUE => entry.value.cmp(&Bytes::new()),
        COMPARE_LEASE => entry.lease.cmp(&0),
        _ => Ordering::Equal,
    };
    match compare.result {
        0 => found.is_eq(),
        1 => found.is_gt(),
        2 => found.is_lt(),
        3 => found.is_ne(),
        _ => true,
    }
}
