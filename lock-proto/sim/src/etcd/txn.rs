//! Checking and executing reads and transactions.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Ordering;

use bytes::Bytes;

use super::refusal::RefusalStatus;
use super::span::KeySpan;
use super::store::{KeySpace, RevisionChange, StoredKey};
use lock_proto::etcd::message::{
    ASCEND, BY_CREATE, COMPARE_CREATE, COMPARE_LEASE, COMPARE_MOD, COMPARE_VALUE, COMPARE_VERSION, Compare,
    CompareWith, DESCEND, DeleteRangeResponse, Op, OpResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, WatchEvent,
};

// Other values of `RangeRequest.SortTarget` of rpc.proto.
const BY_KEY: i32 = 0;
const BY_VERSION: i32 = 1;
const BY_MOD: i32 = 3;
const BY_VALUE: i32 = 4;

pub(super) fn check_range(range: &RangeRequest) -> Result<(), RefusalStatus> {
    if range.key.is_empty() { Err(RefusalStatus::EMPTY_KEY) } else { Ok(()) }
}

/// Checks the syntax of a transaction, which the server does first.
pub(super) fn check(txn: &TxnRequest, max_ops: usize) -> Result<(), RefusalStatus> {
    check_shape(txn, max_ops)?;
    check_overlaps(&txn.success)?;
    check_overlaps(&txn.failure).map(drop)
}

fn check_put(put: &PutRequest) -> Result<(), RefusalStatus> {
    if put.key.is_empty() {
        return Err(RefusalStatus::EMPTY_KEY);
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(RefusalStatus::VALUE_PROVIDED);
    }
    if put.ignore_lease && put.lease != 0 { Err(RefusalStatus::LEASE_PROVIDED) } else { Ok(()) }
}

/// Checks the size. The outer transaction's longest part counts against the limit of inner ones.
fn check_shape(txn: &TxnRequest, max_ops: usize) -> Result<(), RefusalStatus> {
    let longest = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let left = max_ops.checked_sub(longest).ok_or(RefusalStatus::TOO_MANY_OPS)?;
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(RefusalStatus::EMPTY_KEY);
    }
    for op in txn.success.iter().chain(&txn.failure) {
        let key = match &op.request {
            Some(Op::Range(range)) => &range.key,
            Some(Op::Put(put)) => {
                check_put(put)?;
                &put.key
            }
            Some(Op::Delete(delete)) => &delete.key,
            Some(Op::Txn(inner)) => {
                check_shape(inner, left)?;
                continue;
            }
            None => return Err(RefusalStatus::KEY_NOT_FOUND),
        };
        if key.is_empty() {
            return Err(RefusalStatus::EMPTY_KEY);
        }
    }
    Ok(())
}

/// Checks that no key is put twice, or put and deleted. Returns the puts and the deletes. The
/// branches of an inner transaction are alternatives. As in etcd, an open-ended delete is ignored,
/// and so is a delete in a later inner transaction than the put.
fn check_overlaps(ops: &[RequestOp]) -> Result<(BTreeSet<Bytes>, Vec<KeySpan>), RefusalStatus> {
    let mut deletes = Vec::new();
    for op in ops {
        if let Some(Op::Delete(delete)) = &op.request {
            deletes.push(KeySpan::new(&delete.key, &delete.range_end));
        }
    }
    deletes.retain(|span| !matches!(span, KeySpan::From(_)));
    let mut puts = BTreeSet::new();
    let is_deleted = |deletes: &[KeySpan], key: &Bytes| deletes.iter().any(|span| span.contains(key));
    for op in ops {
        let Some(Op::Txn(inner)) = &op.request else { continue };
        let (then, then_deletes) = check_overlaps(&inner.success)?;
        let (other, other_deletes) = check_overlaps(&inner.failure)?;
        if then.iter().chain(&other).any(|key| puts.contains(key) || is_deleted(&deletes, key)) {
            return Err(RefusalStatus::DUPLICATE_KEY);
        }
        puts.extend(then.into_iter().chain(other));
        deletes.extend(then_deletes.into_iter().chain(other_deletes));
    }
    for op in ops {
        if let Some(Op::Put(put)) = &op.request
            && (is_deleted(&deletes, &put.key) || !puts.insert(put.key.clone()))
        {
            return Err(RefusalStatus::DUPLICATE_KEY);
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

/// Reads keys, at a revision that can be read. `pending` are the events of a change in progress.
pub(super) fn read(store: &KeySpace, range: &RangeRequest, pending: &[WatchEvent]) -> RangeResponse {
    let span = KeySpan::new(&range.key, &range.range_end);
    let earlier;
    let mut found: Vec<(&Bytes, &StoredKey)> = if range.revision > 0 {
        earlier = store.range_at(&span, range.revision, pending);
        earlier.iter().collect()
    } else {
        store.range(&span).collect()
    };
    let count = i64::try_from(found.len()).unwrap_or(i64::MAX);
    if range.count_only {
        found.clear();
    }
    let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let RangeRequest { min_mod_revision, max_mod_revision, min_create_revision, max_create_revision, .. } = *range;
    let bounds = [min_mod_revision, max_mod_revision, min_create_revision, max_create_revision];
    if range.sort_order == 0 && bounds == [0; 4] {
        // As in etcd, truncated by key before sorting, with one more to see whether there is more.
        found.truncate(limit.saturating_add(1));
    }
    let within = |revision: i64, min: i64, max: i64| (min == 0 || revision >= min) && (max == 0 || revision <= max);
    found.retain(|(_, entry)| {
        within(entry.modified, min_mod_revision, max_mod_revision)
            && within(entry.created, min_create_revision, max_create_revision)
    });
    sort(&mut found, range);
    let more = found.len() > limit;
    found.truncate(limit);
    let mut kvs: Vec<_> = found.into_iter().map(|(key, entry)| entry.to_kv(key)).collect();
    if range.keys_only {
        for kv in &mut kvs {
            kv.value = Bytes::new();
        }
    }
    RangeResponse { header: None, kvs, more, count }
}

/// Sorts by the requested target. An unknown order or target keeps the order by key.
fn sort(found: &mut [(&Bytes, &StoredKey)], range: &RangeRequest) {
    let by = |a: &(&Bytes, &StoredKey), b: &(&Bytes, &StoredKey)| -> Ordering {
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
pub(super) fn run(store: &mut KeySpace, txn: &TxnRequest) -> Result<TxnResponse, RefusalStatus> {
    let mut path = Vec::new();
    decide(store, txn, &mut path);
    check_puts(store, txn, &mut path.iter().copied())?;
    check_reads(store, txn, &mut path.iter().copied())?;
    let mut change = store.write();
    let (succeeded, responses) = perform_all(&mut change, txn, &mut path.into_iter());
    let revision = change.end();
    Ok(TxnResponse { header: Some(ResponseHeader { member_id: 0, revision }), succeeded, responses })
}

/// Decides the branches of all transactions that are reached, by the initial state of the store.
fn decide(store: &KeySpace, txn: &TxnRequest, path: &mut Vec<bool>) {
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

/// Rejects the transaction if any put keeps a part of a key that does not exist, or names a lease
/// that does not exist.
fn check_puts(store: &KeySpace, txn: &TxnRequest, path: &mut impl Iterator<Item = bool>) -> Result<(), RefusalStatus> {
    for op in branch(txn, path.next() == Some(true)) {
        match &op.request {
            Some(Op::Put(put)) if (put.ignore_value || put.ignore_lease) && store.get(&put.key).is_none() => {
                return Err(RefusalStatus::KEY_NOT_FOUND);
            }
            Some(Op::Put(put)) if put.lease != 0 && store.leases().get(put.lease).is_none() => {
                return Err(RefusalStatus::LEASE_NOT_FOUND);
            }
            Some(Op::Txn(inner)) => check_puts(store, inner, path)?,
            Some(Op::Put(_) | Op::Range(_) | Op::Delete(_)) | None => {}
        }
    }
    Ok(())
}

/// Rejects the transaction if any read names a revision that cannot be read.
fn check_reads(store: &KeySpace, txn: &TxnRequest, path: &mut impl Iterator<Item = bool>) -> Result<(), RefusalStatus> {
    for op in branch(txn, path.next() == Some(true)) {
        match &op.request {
            // As in etcd, a negative revision is the latest for a read alone, and compacted here.
            Some(Op::Range(range)) if range.revision < store.compacted() && range.revision != 0 => {
                return Err(RefusalStatus::COMPACTED);
            }
            Some(Op::Range(range)) => store.check_revision(range.revision)?,
            Some(Op::Txn(inner)) => check_reads(store, inner, path)?,
            Some(Op::Put(_) | Op::Delete(_)) | None => {}
        }
    }
    Ok(())
}

fn perform_all(
    change: &mut RevisionChange<'_>,
    txn: &TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> (bool, Vec<ResponseOp>) {
    let succeeded = path.next() == Some(true);
    let ops = branch(txn, succeeded).iter();
    (succeeded, ops.map(|op| ResponseOp { response: perform(change, op, path) }).collect())
}

fn perform(
    change: &mut RevisionChange<'_>,
    op: &RequestOp,
    path: &mut impl Iterator<Item = bool>,
) -> Option<OpResponse> {
    let answer = match op.request.as_ref()? {
        Op::Range(range) => {
            let header = Some(header(change));
            OpResponse::Range(RangeResponse { header, ..change.read(range) })
        }
        Op::Put(put) => {
            let old = change.store().get(&put.key).filter(|_| put.ignore_value || put.ignore_lease).cloned();
            let value = old.as_ref().filter(|_| put.ignore_value).map_or(&put.value, |old| &old.value);
            let lease = old.as_ref().filter(|_| put.ignore_lease).map_or(put.lease, |old| old.lease);
            let prev_kv = change.put(&put.key, value, lease).filter(|_| put.prev_kv);
            OpResponse::Put(PutResponse { header: Some(header(change)), prev_kv })
        }
        Op::Delete(delete) => {
            let keys = change.delete(&KeySpan::new(&delete.key, &delete.range_end));
            let deleted = i64::try_from(keys.len()).unwrap_or(i64::MAX);
            let prev_kvs = if delete.prev_kv { keys } else { Vec::new() };
            OpResponse::Delete(DeleteRangeResponse { header: Some(header(change)), deleted, prev_kvs })
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
const fn header(change: &RevisionChange<'_>) -> ResponseHeader {
    ResponseHeader { member_id: 0, revision: change.revision() }
}

/// Evaluates a condition for all keys of a range. The numbers of an absent key are 0.
fn holds(store: &KeySpace, compare: &Compare) -> bool {
    let span = KeySpan::new(&compare.key, &compare.range_end);
    let mut found = store.range(&span).map(|(_, entry)| entry).peekable();
    if found.peek().is_none() {
        let absent = StoredKey { created: 0, modified: 0, version: 0, value: Bytes::new(), lease: 0 };
        return compare.target != COMPARE_VALUE && holds_for(compare, &absent);
    }
    found.all(|entry| holds_for(compare, entry))
}

fn holds_for(compare: &Compare, entry: &StoredKey) -> bool {
    // If the value does not match the target, etcd compares with 0.
    let version = if let Some(CompareWith::Version(version)) = compare.with { version } else { 0 };
    let lease = if let Some(CompareWith::Lease(lease)) = compare.with { lease } else { 0 };
    let value: &[u8] = if let Some(CompareWith::Value(value)) = &compare.with { value } else { &[] };
    let created = if let Some(CompareWith::CreateRevision(revision)) = compare.with { revision } else { 0 };
    let modified = if let Some(CompareWith::ModRevision(revision)) = compare.with { revision } else { 0 };
    let found = match compare.target {
        COMPARE_VERSION => entry.version.cmp(&version),
        COMPARE_CREATE => entry.created.cmp(&created),
        COMPARE_MOD => entry.modified.cmp(&modified),
        COMPARE_VALUE => (*entry.value).cmp(value),
        COMPARE_LEASE => entry.lease.cmp(&lease),
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
