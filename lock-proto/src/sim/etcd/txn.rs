//! Checking and executing reads and transactions.

use alloc::collections::BTreeSet;
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

// Other values of `Compare.CompareTarget` and `RangeRequest.SortTarget` of rpc.proto.
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

/// Checks the syntax of a transaction, which the server does first.
pub(super) fn check(txn: &TxnRequest, max_ops: usize) -> Result<(), Refusal> {
    check_shape(txn, max_ops)?;
    check_overlaps(&txn.success)?;
    check_overlaps(&txn.failure).map(drop)
}

/// Checks the size. The outer transaction's longest part counts against the limit of inner ones.
fn check_shape(txn: &TxnRequest, max_ops: usize) -> Result<(), Refusal> {
    let longest = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let left = max_ops.checked_sub(longest).ok_or(Refusal::TOO_MANY_OPS)?;
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Refusal::EMPTY_KEY);
    }
    for op in txn.success.iter().chain(&txn.failure) {
        let key = match &op.request {
            Some(Op::Range(range)) => &range.key,
            Some(Op::Put(put)) => &put.key,
            Some(Op::Delete(delete)) => &delete.key,
            Some(Op::Txn(inner)) => {
                check_shape(inner, left)?;
                continue;
            }
            None => return Err(Refusal::NO_OPERATION),
        };
        if key.is_empty() {
            return Err(Refusal::EMPTY_KEY);
        }
    }
    Ok(())
}

/// Checks that no key is put twice, or put and deleted. Returns the puts and the deletes. The
/// branches of an inner transaction are alternatives. As in etcd, an open-ended delete is ignored,
/// and so is a delete in a later inner transaction than the put.
fn check_overlaps(ops: &[RequestOp]) -> Result<(BTreeSet<Bytes>, Vec<Span>), Refusal> {
    let mut deletes = Vec::new();
    for op in ops {
        if let Some(Op::Delete(delete)) = &op.request {
            deletes.push(Span::new(&delete.key, &delete.range_end));
        }
    }
    deletes.retain(|span| !matches!(span, Span::From(_)));
    let mut puts = BTreeSet::new();
    let is_deleted = |deletes: &[Span], key: &Bytes| deletes.iter().any(|span| span.contains(key));
    for op in ops {
        let Some(Op::Txn(inner)) = &op.request else { continue };
        let (then, then_deletes) = check_overlaps(&inner.success)?;
        let (other, other_deletes) = check_overlaps(&inner.failure)?;
        if then.iter().chain(&other).any(|key| puts.contains(key) || is_deleted(&deletes, key)) {
            return Err(Refusal::DUPLICATE_KEY);
        }
        puts.extend(then.into_iter().chain(other));
        deletes.extend(then_deletes.into_iter().chain(other_deletes));
    }
    for op in ops {
        if let Some(Op::Put(put)) = &op.request
            && (is_deleted(&deletes, &put.key) || !puts.insert(put.key.clone()))
        {
            return Err(Refusal::DUPLICATE_KEY);
        }
    }
    Ok((puts, deletes))
}

/// Whether the transaction bypasses the log. Any inner transaction prevents that.
pub(super) fn is_read_only(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| matches!(op.request, Some(Op::Range(_))))
}

/// Returns true if a branch puts. Like etcd, ignores inner transactions.
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
        // As in etcd, truncated by key before sorting, with one more to see whether there is more.
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

/// Sorts by the requested target. An unknown order or target keeps the order by key.
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
        // Without an order, any target but the key is sorted ascending.
        0 | ASCEND => found.sort_by(by),
        // Ties stay ordered by key.
        DESCEND => found.sort_by(|a, b| by(b, a)),
        _ => {}
    }
}

/// Executes a transaction. The caller completes the header.
pub(super) fn run(store: &mut Store, txn: &TxnRequest) -> Result<TxnResponse, Refusal> {
    let mut path = Vec::new();
    decide(store, txn, &mut path);
    check_leases(store, txn, &mut path.iter().copied())?;
    let mut change = store.write();
    let (succeeded, responses) = perform_all(&mut change, txn, &mut path.into_iter());
    let revision = change.end();
    Ok(TxnResponse { header: Some(ResponseHeader { member_id: 0, revision }), succeeded, responses })
}

/// Decides the branches of all transactions that are reached, by the initial state of the store.
fn decide(store: &Store, txn: &TxnRequest, path: &mut Vec<bool>) {
    let succeeds = txn.compare.iter().all(|compare| holds(store, compare));
    path.push(succeeds);
    for op in branch(txn, succeeds) {
        if let Some(Op::Txn(inner)) = &op.request {
            decide(store, inner, path);
        }
    }
}

fn branch(txn: &TxnRequest, succeeds: bool) -> &[RequestOp] {
    if succeeds { &txn.success } else { &txn.failure }
}

/// Rejects the transaction if any put names a lease that does not exist.
fn check_leases(store: &Store, txn: &TxnRequest, path: &mut impl Iterator<Item = bool>) -> Result<(), Refusal> {
    for op in branch(txn, path.next() == Some(true)) {
        match &op.request {
            Some(Op::Put(put)) if put.lease != 0 && store.leases().get(put.lease).is_none() => {
                return Err(Refusal::LEASE_NOT_FOUND);
            }
            Some(Op::Txn(inner)) => check_leases(store, inner, path)?,
            Some(Op::Put(_) | Op::Range(_) | Op::Delete(_)) | None => {}
        }
    }
    Ok(())
}

fn perform_all(
    change: &mut Change<'_>,
    txn: &TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> (bool, Vec<ResponseOp>) {
    let succeeded = path.next() == Some(true);
    let ops = branch(txn, succeeded).iter();
    (succeeded, ops.map(|op| ResponseOp { response: perform(change, op, path) }).collect())
}

fn perform(change: &mut Change<'_>, op: &RequestOp, path: &mut impl Iterator<Item = bool>) -> Option<OpResponse> {
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
        Op::Txn(inner) => {
            let (succeeded, responses) = perform_all(change, inner, path);
            // etcd sends an empty header here.
            OpResponse::Txn(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
        }
    };
    Some(answer)
}

/// The header of a partial response, which names no member.
const fn header(change: &Change<'_>) -> ResponseHeader {
    ResponseHeader { member_id: 0, revision: change.revision() }
}

/// Evaluates a condition for all keys of a range. The numbers of an absent key are 0.
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
    // If the value does not match the target, etcd compares with 0.
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
