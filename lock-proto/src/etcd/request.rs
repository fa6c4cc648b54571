//! Typed requests and replies: the seam between the hub and whatever speaks to etcd.
//!
//! Bring your own etcd client here: [`Request::rpc`] gives the call, [`Request::read`] turns its answer into a [`Reply`].
//! All of them are linearizable.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::iter;

use bytes::Bytes;

use super::message::{
    ASCEND, BY_CREATE, COMPARE_CREATE, COMPARE_MOD, Compare, CompareWith, DESCEND, DeleteRangeRequest, KeyValue,
    LeaseGrantRequest, LeaseRevokeRequest, Op, OpResponse, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};
use super::rpc::{Rpc, RpcReply};
use crate::fault::{Breach, Fault};
use crate::lock::{Cause, ServerError};

/// The id of a lease: positive, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(i64);

impl LeaseId {
    /// A lease id from random bits: they are made positive.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        let id = (bits & i64::MAX as u64) as i64;
        Self(if id == 0 { 1 } else { id })
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

/// The queue of a lock or an election: all keys `name/…`, in the order of their creation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue {
    prefix: Bytes,
    end: Bytes,
}

impl Queue {
    /// The queue of the lock whose full name (prefix and name) is `name`.
    #[must_use]
    pub fn new(prefix: &[u8], name: &[u8]) -> Self {
        let key = [prefix, name, b"/"].concat();
        let mut end = key.clone();
        if let Some(last) = end.last_mut() {
            // The slash is not the greatest byte, so this is the first key after all that begin with the prefix.
            *last += 1;
        }
        Self { prefix: key.into(), end: end.into() }
    }

    /// What all its keys begin with: the name and a slash.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The name, byte for byte.
    pub fn name(&self) -> &[u8] {
        &self.prefix[..self.prefix.len() - 1]
    }

    pub(crate) const fn range(&self) -> (&Bytes, &Bytes) {
        (&self.prefix, &self.end)
    }

    /// The key of a contender: the name, a slash and its lease in lower-case hexadecimal, without padding (requirement E2).
    pub fn key(&self, lease: LeaseId) -> Bytes {
        let digits = 16 - lease.get().leading_zeros() as usize / 4;
        let mut hex = [0; 16];
        let mut rest = lease.get();
        for place in hex.iter_mut().rev() {
            *place = b"0123456789abcdef"[(rest & 0xf) as usize];
            rest >>= 4;
        }
        let mut key = Vec::with_capacity(self.prefix.len() + digits);
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(&hex[16 - digits..]);
        key.into()
    }

    /// Whether a key in the queue's range is no contender's: its rest is not a bare lease id in lower-case hexadecimal (requirement E2).
    pub fn is_foreign(&self, key: &[u8]) -> bool {
        match key.strip_prefix(&*self.prefix) {
            Some(rest) => {
                rest.is_empty() || rest.len() > 16 || !rest.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            }
            None => true,
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.name().escape_ascii())
    }
}

/// How many keys before the own one an answer lists at most. In a queue that is not longer all of them are known at once.
pub(crate) const LISTED: usize = 12;

/// From how many keys on it is worth another request to read a queue while others have their turns: reading that many takes a server longer.
const LONG: i64 = 128;

/// A key of a queue. Made again, by another revision of creation, it is another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Older {
    /// The key.
    pub key: Bytes,
    /// The revision of its creation.
    pub created: i64,
}

/// What a contender knows of those before it. There will never be more of them: whoever enters is behind it (requirement E4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ahead {
    /// The one next before it.
    pub next: Older,
    /// All others, newest first; `None` if they are not known.
    pub rest: Option<Vec<Older>>,
}

/// One request to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Enters the queue: puts the key if it is absent, and lists the keys before it. Finding the newest key of a long
    /// queue costs the server as much as reading all of them, so of a long queue only the expected key is read.
    // E3
    Create {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// The value.
        value: Bytes,
        /// Put nothing if anybody is in the queue.
        alone: bool,
        /// The key that is expected to be next before the own one.
        expects: Option<Bytes>,
        /// The queue is known to be long: reads the expected key only.
        long: bool,
    },
    /// Read the own key, and the newest ones that were created before `before`. If some are known, only those are looked at: others are
    /// read only if the next one has gone and the rest is not known (requirement E4).
    Look {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// The revision of creation of the own key; `None` to read the own key alone.
        before: Option<i64>,
        /// Those that are known.
        ahead: Option<Ahead>,
    },
    /// Write the own key if its last change is `modified`: to adopt it, to pass it on, to proclaim (requirement E6).
    Put {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// The new value.
        value: Bytes,
        /// The revision of its last change.
        modified: i64,
        /// The revision of its creation.
        before: i64,
    },
    /// Delete the own key if its last change is `modified` (requirement E6).
    Delete {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// The revision of its last change.
        modified: i64,
    },
    /// Read who leads: the contender whose key was created first.
    First {
        /// The queue.
        queue: Queue,
    },
    /// Make a lease.
    Grant {
        /// Its id.
        lease: LeaseId,
        /// Life without a sign of life, in seconds.
        ttl: i64,
    },
    /// End a lease; its keys go with it.
    Revoke {
        /// The lease.
        lease: LeaseId,
    },
    /// A sign of life.
    KeepAlive {
        /// The lease.
        lease: LeaseId,
    },
}

/// A key as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The revision of its creation.
    pub created: i64,
    /// The revision of its last change.
    pub modified: i64,
}

/// What a request found or did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found {
    /// To everything about one queue.
    Queue {
        /// The store's revision.
        revision: i64,
        /// Whether the write was done. True for a read.
        done: bool,
        /// The own key, as it is after this request.
        own: Option<Seen>,
        /// The contender next before the own key (of [`Request::First`]: the first of all). Not read when a write was not done, but for
        /// `Create` with `alone`. After a `Create` that was done it may not be known, though there are `others`.
        older: Option<KeyValue>,
        /// Those before `older`, newest first. Known from a `Create` that was done, and from a `Look`.
        rest: Vec<Older>,
        /// Whether there are no others before those in `rest`.
        all: bool,
        /// Whether anybody is in the queue, the own key not counted. Known from a `Create` that was done, and from a `Delete` that was not.
        /// A `Create` with `long` does not look, and reports true.
        others: bool,
        /// Whether the queue has more than 128 keys. Set by a `Create` that was done, and by a `Look` that lists keys. A
        /// `Create` with `long` does not look, and reports true.
        long: bool,
    },
    /// To [`Request::Grant`] and [`Request::KeepAlive`].
    Lease {
        /// Life from the request on, in seconds; 0 or less if there is no such lease.
        ttl: i64,
    },
    /// To [`Request::Revoke`]: it is gone.
    Revoked,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reply {
    /// Done, and this is what was found.
    Done(Found),
    /// Certainly not executed: the server said so.
    Refused(Refusal),
    /// It may have been executed, or may yet be (requirement M8).
    Unknown(Cause),
    /// It never left.
    NotSent(Cause),
}

/// Why a server did not execute a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such lease.
    LeaseNotFound,
    /// There is such a lease already.
    LeaseExists,
    /// Anything else: see its class.
    Error(ServerError),
}

impl Request {
    /// The call; `None` for [`Request::KeepAlive`], which goes over its stream.
    pub fn rpc(&self) -> Option<Rpc> {
        Some(match self {
            Self::Create { queue, lease, value, alone, expects, long } => {
                let key = queue.key(*lease);
                let (prefix, end) = queue.range();
                let (first, until) = if *alone { (prefix.clone(), end.clone()) } else { (key.clone(), Bytes::new()) };
                // Without an order, a limit spares the server the reading of the others; all of them are counted.
                let some = |limit| op_range(RangeRequest { limit, keys_only: true, ..whole(queue) });
                let listed = (!long).then(|| some(LISTED as i64 + 1));
                let expected = expects.iter().map(|expected| op_range(one(expected.clone())));
                let success = iter::once(op_put(key.clone(), value, *lease)).chain(listed).chain(expected).collect();
                Rpc::Txn(TxnRequest {
                    compare: vec![Compare {
                        target: COMPARE_CREATE,
                        key: first,
                        range_end: until,
                        with: Some(CompareWith::CreateRevision(0)),
                        ..Compare::default()
                    }],
                    success,
                    failure: vec![op_range(one(key)), some(2)],
                })
            }
            Self::Look { queue, lease, before, ahead } => {
                let own = op_range(one(queue.key(*lease)));
                let search = before.map(|before| op_range(newest(queue, before - 1, LISTED as i64)));
                let Some(Ahead { next, rest }) = ahead else {
                    let success = iter::once(own).chain(search).collect();
                    return Some(Rpc::Txn(TxnRequest { success, ..TxnRequest::default() }));
                };
                let known = rest.iter().flatten().map(|older| op_range(one(older.key.clone())));
                let there = [own.clone(), op_range(one(next.key.clone()))];
                let gone = search.filter(|_| rest.is_none());
                Rpc::Txn(TxnRequest {
                    compare: vec![Compare {
                        target: COMPARE_CREATE,
                        key: next.key.clone(),
                        with: Some(CompareWith::CreateRevision(next.created)),
                        ..Compare::default()
                    }],
                    success: there.into_iter().chain(known.clone()).collect(),
                    failure: iter::once(own).chain(known).chain(gone).collect(),
                })
            }
            Self::Put { queue, lease, value, modified, before } => {
                let key = queue.key(*lease);
                Rpc::Txn(TxnRequest {
                    compare: vec![unchanged(key.clone(), *modified)],
                    success: vec![op_put(key.clone(), value, *lease), op_range(newest(queue, before - 1, 1))],
                    failure: vec![op_range(one(key))],
                })
            }
            Self::Delete { queue, lease, modified } => {
                let key = queue.key(*lease);
                let count = RangeRequest { count_only: true, ..whole(queue) };
                let delete = DeleteRangeRequest { key: key.clone(), range_end: Bytes::new() };
                Rpc::Txn(TxnRequest {
                    compare: vec![unchanged(key.clone(), *modified)],
                    success: vec![RequestOp { request: Some(Op::Delete(delete)) }],
                    failure: vec![op_range(one(key)), op_range(count)],
                })
            }
            Self::First { queue } => {
                Rpc::Range(RangeRequest { limit: 1, sort_order: ASCEND, sort_target: BY_CREATE, ..whole(queue) })
            }
            Self::Grant { lease, ttl } => Rpc::Grant(LeaseGrantRequest { ttl: *ttl, id: lease.get() }),
            Self::Revoke { lease } => Rpc::Revoke(LeaseRevokeRequest { id: lease.get() }),
            Self::KeepAlive { .. } => return None,
        })
    }

    /// What an answer to this request means. An answer that such a request cannot have is a broken protocol, and what became of the
    /// request is then unknown.
    pub fn read(&self, answer: RpcReply) -> Reply {
        self.found(answer).map_or(Reply::Unknown(Cause::Fault(Fault::Protocol(Breach::WrongReply))), Reply::Done)
    }

    fn found(&self, answer: RpcReply) -> Option<Found> {
        match (self, answer) {
            (Self::First { .. }, RpcReply::Range(range)) => {
                let revision = range.header.map(|header| header.revision).filter(|revision| *revision > 0)?;
                let older = range.kvs.into_iter().next();
                let possible = |kv: &KeyValue| kv.create_revision > 0 && kv.mod_revision >= kv.create_revision;
                let possible_all = older.iter().all(possible);
                let (rest, all) = (Vec::new(), false);
                let found =
                    Found::Queue { revision, done: true, own: None, older, rest, all, others: false, long: false };
                possible_all.then_some(found)
            }
            (Self::Grant { lease, .. }, RpcReply::Grant(grant)) => {
                // A lease that lives no time would be no lease.
                (grant.id == lease.get() && grant.ttl > 0).then_some(Found::Lease { ttl: grant.ttl })
            }
            (Self::Revoke { .. }, RpcReply::Revoke(_)) => Some(Found::Revoked),
            (_, RpcReply::Txn(txn)) => self.found_by_txn(txn),
            (_, _) => None,
        }
    }

    /// The answers stand in the order of the operations of [`rpc`](Self::rpc).
    fn found_by_txn(&self, txn: TxnResponse) -> Option<Found> {
        let (revision, done, mut answers) = opened(txn)?;
        let (mut own, mut older, mut others) = (None, None, false);
        let (mut rest, mut all, mut long) = (Vec::new(), false, false);
        match self {
            Self::Create { queue, lease, expects, long: known, .. } if done => {
                skip_write(&mut answers)?;
                let key = queue.key(*lease);
                let listed = if *known { RangeResponse::default() } else { answers.range()? };
                let expected = if expects.is_some() { answers.range()?.kvs } else { Vec::new() };
                own = Some(Seen { created: revision, modified: revision });
                let RangeResponse { mut kvs, count, .. } = listed;
                kvs.retain(|kv| kv.key != key);
                others = *known || count > 1 || !kvs.is_empty();
                all = !known && count <= LISTED as i64 + 1;
                long = *known || count > LONG;
                if !all {
                    kvs = expected;
                }
                // Whoever else is there has been there before.
                kvs.iter().all(|kv| kv.create_revision > 0 && kv.create_revision < revision).then_some(())?;
                kvs.sort_by_key(|kv| Reverse(kv.create_revision));
                (older, rest) = newest_first(kvs);
            }
            Self::Create { queue, lease, alone, .. } => {
                own = seen(&mut answers, revision)?;
                let key = queue.key(*lease);
                older = answers.range()?.kvs.into_iter().find(|kv| *alone && kv.key != key);
            }
            Self::Look { before: None, .. } if done => own = seen(&mut answers, revision)?,
            Self::Look { before: Some(before), ahead, .. } => {
                own = seen(&mut answers, revision)?;
                let keys = match ahead {
                    None if !done => return None,
                    Some(Ahead { next, rest: None }) if done => still_there(&mut answers, iter::once(next))?,
                    None | Some(Ahead { rest: None, .. }) => {
                        let (found, count) = before_own_all(&mut answers, *before)?;
                        long = count > LONG;
                        all = found.len() < LISTED;
                        found
                    }
                    Some(Ahead { next, rest: Some(rest) }) => {
                        all = true;
                        still_there(&mut answers, iter::once(next).filter(|_| done).chain(rest))?
                    }
                };
                (older, rest) = newest_first(keys);
                return Some(Found::Queue { revision, done: true, own, older, rest, all, others, long });
            }
            Self::Look { .. } => return None,
            Self::Put { before, .. } if done => {
                skip_write(&mut answers)?;
                own = Some(Seen { created: *before, modified: revision });
                older = before_own(&mut answers, *before)?;
            }
            Self::Delete { .. } if done => {}
            Self::Put { .. } => own = seen(&mut answers, revision)?,
            Self::Delete { .. } => {
                own = seen(&mut answers, revision)?;
                others = answers.range()?.count > i64::from(own.is_some());
            }
            Self::First { .. } | Self::Grant { .. } | Self::Revoke { .. } | Self::KeepAlive { .. } => {
                return None;
            }
        }
        Some(Found::Queue { revision, done, own, older, rest, all, others, long })
    }
}

/// The answers of a transaction's operations, one after the other.
struct Answers(vec::IntoIter<super::message::ResponseOp>);

impl Answers {
    fn next(&mut self) -> Option<OpResponse> {
        self.0.next()?.response
    }

    fn range(&mut self) -> Option<RangeResponse> {
        if let OpResponse::Range(range) = self.next()? { Some(range) } else { None }
    }
}

fn skip_write(answers: &mut Answers) -> Option<()> {
    matches!(answers.next()?, OpResponse::Put(_)).then_some(())
}

/// The parts of a transaction's answer, if it has them.
fn opened(txn: TxnResponse) -> Option<(i64, bool, Answers)> {
    let revision = txn.header?.revision;
    (revision > 0).then(|| (revision, txn.succeeded, Answers(txn.responses.into_iter())))
}

/// A key of the own name. The outer `None` is a key that cannot be.
#[expect(clippy::option_option, reason = "absent, and impossible")]
fn seen(answers: &mut Answers, revision: i64) -> Option<Option<Seen>> {
    let Some(kv) = answers.range()?.kvs.into_iter().next() else { return Some(None) };
    let possible = kv.create_revision > 0 && kv.mod_revision >= kv.create_revision && kv.mod_revision <= revision;
    possible.then_some(Some(Seen { created: kv.create_revision, modified: kv.mod_revision }))
}

/// The newest keys that were created before `before`, newest first, and how many keys there are in all.
fn before_own_all(answers: &mut Answers, before: i64) -> Option<(Vec<KeyValue>, i64)> {
    let RangeResponse { kvs: keys, count, .. } = answers.range()?;
    let mut bound = before;
    for kv in &keys {
        (0 < kv.create_revision && kv.create_revision < bound).then_some(())?;
        bound = kv.create_revision;
    }
    Some((keys, count))
}

/// The first, and the others.
fn newest_first(keys: Vec<KeyValue>) -> (Option<KeyValue>, Vec<Older>) {
    let mut keys = keys.into_iter();
    let first = keys.next();
    (first, keys.map(|kv| Older { key: kv.key, created: kv.create_revision }).collect())
}

/// Those that are as they were created: each was read alone.
fn still_there<'a>(answers: &mut Answers, known: impl Iterator<Item = &'a Older>) -> Option<Vec<KeyValue>> {
    let mut there = Vec::new();
    for older in known {
        let kv = answers.range()?.kvs.into_iter().next();
        there.extend(kv.filter(|kv| kv.key == older.key && kv.create_revision == older.created));
    }
    Some(there)
}

/// The newest key that was created before `before`.
#[expect(clippy::option_option, reason = "absent, and impossible")]
fn before_own(answers: &mut Answers, before: i64) -> Option<Option<KeyValue>> {
    let Some(kv) = answers.range()?.kvs.into_iter().next() else { return Some(None) };
    (kv.create_revision > 0 && kv.create_revision < before).then_some(Some(kv))
}

fn unchanged(key: Bytes, modified: i64) -> Compare {
    Compare { target: COMPARE_MOD, key, with: Some(CompareWith::ModRevision(modified)), ..Compare::default() }
}

fn op_put(key: Bytes, value: &Bytes, lease: LeaseId) -> RequestOp {
    RequestOp { request: Some(Op::Put(PutRequest { key, value: value.clone(), lease: lease.get() })) }
}

const fn op_range(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Op::Range(range)) }
}

/// All keys of the queue.
fn whole(queue: &Queue) -> RangeRequest {
    let (key, range_end) = (queue.prefix.clone(), queue.end.clone());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

fn one(key: Bytes) -> RangeRequest {
    RangeRequest { key, keys_only: true, ..RangeRequest::default() }
}

/// The newest keys of the queue, of those created at `upto` or before; 0 for all.
fn newest(queue: &Queue, upto: i64, limit: i64) -> RangeRequest {
    RangeRequest {
        limit,
        sort_order: DESCEND,
        sort_target: BY_CREATE,
        keys_only: true,
        max_create_revision: upto,
        ..whole(queue)
    }
}
