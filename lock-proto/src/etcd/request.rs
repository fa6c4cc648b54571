//! Typed requests and replies between the hub and an etcd client.
//!
//! To use your own etcd client, make the call that [`Request::rpc`] returns, and turn its response
//! into a [`Reply`] with [`Request::read`]. All calls are linearizable.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::iter;
use core::time::Duration;

use bytes::Bytes;

use super::message::{
    ASCEND, BY_CREATE, COMPARE_CREATE, COMPARE_MOD, Compare, CompareWith, DESCEND, DeleteRangeRequest, KeyValue,
    LeaseGrantRequest, LeaseRevokeRequest, Op, OpResponse, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, TxnResponse,
};
use super::rpc::{Rpc, RpcReply, Status};
use super::status::Meaning;
use crate::fault::{Breach, Fault};
use crate::lock::{self, Answer, Cause, ServerError};

/// The id of a lease: a positive number, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(i64);

impl LeaseId {
    /// Creates a positive lease id from random bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        let id = (bits & i64::MAX as u64) as i64;
        Self(if id == 0 { 1 } else { id })
    }

    /// Returns the id as a number.
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

/// The queue of a lock or an election: all keys `name/…`, in order of creation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queue {
    prefix: Bytes,
    end: Bytes,
}

impl Queue {
    /// Creates the queue of the lock with this full name, prefix included.
    #[must_use]
    pub fn new(prefix: &[u8], name: &[u8]) -> Self {
        let key = [prefix, name, b"/"].concat();
        let mut end = key.clone();
        if let Some(last) = end.last_mut() {
            // Incrementing the final slash gives the first key after all keys with this prefix.
            *last += 1;
        }
        Self { prefix: key.into(), end: end.into() }
    }

    /// Returns the common prefix of the keys: the name and a slash.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the name as bytes.
    pub fn name(&self) -> &[u8] {
        &self.prefix[..self.prefix.len() - 1]
    }

    pub(crate) const fn range(&self) -> (&Bytes, &Bytes) {
        (&self.prefix, &self.end)
    }

    /// Returns a contender's key: name, slash, and lease id in lower-case hexadecimal, unpadded.
    // E2
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

    /// Returns true if a key does not belong to a contender, that is, does not end in a lease id.
    // E2
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

/// Maximum number of predecessors in a reply. Up to this length, all of a queue is known at once.
pub const LISTED: usize = 12;

/// A queue with more keys is long: reading it costs the server more than one extra request does.
const LONG: i64 = 128;

/// A key in a queue, identified by its name and the revision of its creation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Older {
    /// The key.
    pub key: Bytes,
    /// Revision of its creation.
    pub created: i64,
}

/// The known predecessors of a contender. The set only shrinks: new keys are created behind it.
// E4
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ahead {
    /// The direct predecessor.
    pub next: Older,
    /// All other predecessors, newest first; `None` if unknown.
    pub rest: Option<Vec<Older>>,
}

/// One request to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Enter the queue: put the key if it is absent, and list its predecessors. Finding the newest
    /// key of a long queue costs as much as reading all, so there only the expected one is read.
    // E3
    Create {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// The value of the new key.
        value: Bytes,
        /// Put nothing unless the queue is empty.
        alone: bool,
        /// The expected predecessor.
        expects: Option<Bytes>,
        /// The queue is known to be long: read only the expected predecessor.
        long: bool,
    },
    /// Read the contender's key, and the newest keys created before `before`. With `ahead`, list
    /// others only if the direct predecessor is gone and the rest is unknown.
    ///
    /// A read of the key alone goes through etcd's log: the key counts as gone if it is not found.
    /// Other reads may be outdated on servers with etcd issue 20418.
    // E4, E14
    Look {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// Creation revision of the contender's key; `None` to read that key alone.
        before: Option<i64>,
        /// The known predecessors.
        ahead: Option<Ahead>,
    },
    /// Write the contender's key if its last change is `modified`: to adopt, hand over or proclaim.
    // E6
    Put {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// The new value.
        value: Bytes,
        /// Expected revision of its last change.
        modified: i64,
        /// Revision of its creation.
        before: i64,
    },
    /// Delete the contender's key if its last change is `modified`.
    // E6
    Delete {
        /// The queue.
        queue: Queue,
        /// The contender's lease.
        lease: LeaseId,
        /// Expected revision of its last change.
        modified: i64,
    },
    /// Read the leader: the contender whose key was created first.
    First {
        /// The queue.
        queue: Queue,
    },
    /// Grant a lease.
    Grant {
        /// Id of the new lease.
        lease: LeaseId,
        /// Requested TTL, in seconds.
        ttl: i64,
    },
    /// Revoke a lease, which deletes its keys.
    Revoke {
        /// The lease.
        lease: LeaseId,
    },
    /// Renew a lease.
    KeepAlive {
        /// The lease.
        lease: LeaseId,
        /// Its TTL. Without a reply after half of it, but with one to a later call, the stream
        /// is reopened.
        ttl: Duration,
    },
}

/// The revisions of a key when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeenRevisions {
    /// Revision of its creation.
    pub created: i64,
    /// Revision of its last change.
    pub modified: i64,
}

/// The result of an executed request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found {
    /// For requests about a queue.
    Queue {
        /// Revision of the store.
        revision: i64,
        /// Whether the write succeeded. True for a read.
        done: bool,
        /// The contender's key after this request.
        own: Option<SeenRevisions>,
        /// The direct predecessor; for [`Request::First`], the first key. A failed write reads it
        /// only for `Create` with `alone`. A successful `Create` may leave it unknown despite
        /// `others`.
        older: Option<KeyValue>,
        /// Predecessors of `older`, newest first. Set by a successful `Create` and by `Look`.
        rest: Vec<Older>,
        /// Whether `rest` is complete.
        all: bool,
        /// Whether the queue has keys of others. Set by a successful `Create` and by a failed
        /// `Delete`. A `Create` with `long` always reports true.
        others: bool,
        /// Whether the queue has more than 128 keys. Set by a successful `Create`, and by a `Look`
        /// that lists keys. A `Create` with `long` always reports true.
        long: bool,
    },
    /// For [`Request::Grant`] and [`Request::KeepAlive`].
    Lease {
        /// Remaining TTL from the request on, in seconds; 0 or less if the lease does not exist.
        ttl: i64,
    },
    /// For [`Request::Revoke`]: the lease no longer exists.
    Revoked,
}

/// The result of a request.
pub type Reply = lock::Reply<Found, Refusal>;

/// Why a server refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The lease does not exist.
    LeaseNotFound,
    /// The lease id is already in use.
    LeaseExists,
    /// Any other reason: see its class.
    Error(ServerError),
}

impl From<&Refusal> for Answer {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::LeaseNotFound | Refusal::LeaseExists => Self::Silent,
            Refusal::Error(error) => Self::Rejected(error.clone()),
        }
    }
}

impl Request {
    /// Reads the contender's key alone.
    pub(crate) const fn look(queue: Queue, lease: LeaseId) -> Self {
        Self::Look { queue, lease, before: None, ahead: None }
    }

    /// Returns the call, or `None` for [`Request::KeepAlive`], which uses its stream.
    pub fn rpc(&self) -> Option<Rpc> {
        Some(match self {
            Self::Create { queue, lease, value, alone, expects, long } => {
                let key = queue.key(*lease);
                let (prefix, end) = queue.range();
                let (first, until) = if *alone { (prefix.clone(), end.clone()) } else { (key.clone(), Bytes::new()) };
                // Unsorted, the limit lets the server count the other keys without reading them.
                let some = |limit| op_range(RangeRequest { limit, keys_only: true, ..range_of(queue) });
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
            Self::Look { queue, lease, before: None, .. } => {
                let key = queue.key(*lease);
                let read = op_range(one(key.clone()));
                // The delete is executed if there is no key, and finds none. It makes etcd send the read
                // through its log.
                // E14
                Rpc::Txn(TxnRequest {
                    compare: vec![unchanged(key.clone(), 0)],
                    success: vec![read.clone(), op_delete(key)],
                    failure: vec![read],
                })
            }
            Self::Look { queue, lease, before: Some(before), ahead } => {
                let own = op_range(one(queue.key(*lease)));
                let search = op_range(newest(queue, before - 1, LISTED as i64));
                let Some(Ahead { next, rest }) = ahead else {
                    return Some(Rpc::Txn(TxnRequest { success: vec![own, search], ..TxnRequest::default() }));
                };
                let known = rest.iter().flatten().map(|older| op_range(one(older.key.clone())));
                let there = [own.clone(), op_range(one(next.key.clone()))];
                let gone = rest.is_none().then_some(search);
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
                let count = RangeRequest { count_only: true, ..range_of(queue) };
                Rpc::Txn(TxnRequest {
                    compare: vec![unchanged(key.clone(), *modified)],
                    success: vec![op_delete(key.clone())],
                    failure: vec![op_range(one(key)), op_range(count)],
                })
            }
            Self::First { queue } => {
                Rpc::Range(RangeRequest { limit: 1, sort_order: ASCEND, sort_target: BY_CREATE, ..range_of(queue) })
            }
            Self::Grant { lease, ttl } => Rpc::Grant(LeaseGrantRequest { ttl: *ttl, id: lease.get() }),
            Self::Revoke { lease } => Rpc::Revoke(LeaseRevokeRequest { id: lease.get() }),
            Self::KeepAlive { .. } => return None,
        })
    }

    /// Converts the response. One of the wrong shape is a protocol error, and its outcome unknown.
    pub fn read(&self, answer: RpcReply) -> Reply {
        self.found(answer).map_or(Reply::Unknown(Cause::Fault(Fault::Protocol(Breach::WrongReply))), Reply::Done)
    }

    /// Converts the error of the server. Pass [`Code::Unavailable`](super::Code::Unavailable) for
    /// an error of the connection or of the client, which proves nothing.
    pub fn read_error(&self, status: &Status) -> Reply {
        match Meaning::of(status) {
            Meaning::Unknown { error, .. } => Reply::Unknown(error.into()),
            Meaning::Refused(refusal) => Reply::Refused(refusal),
            meaning @ (Meaning::LogIn(_) | Meaning::LoginNotNeeded) => {
                Reply::Refused(Refusal::Error(meaning.error(status)))
            }
        }
    }

    /// Converts the reply to [`Request::KeepAlive`]: the remaining TTL in seconds, 0 if the lease
    /// does not exist.
    pub const fn read_keep_alive(&self, ttl: i64) -> Reply {
        Reply::Done(Found::Lease { ttl })
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
                // A granted TTL must be positive.
                (grant.id == lease.get() && grant.ttl > 0).then_some(Found::Lease { ttl: grant.ttl })
            }
            (Self::Revoke { .. }, RpcReply::Revoke(_)) => Some(Found::Revoked),
            (_, RpcReply::Txn(txn)) => self.found_by_txn(txn),
            (_, _) => None,
        }
    }

    /// The responses are in the order of the operations in [`rpc`](Self::rpc).
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
                own = Some(SeenRevisions { created: revision, modified: revision });
                let RangeResponse { mut kvs, count, .. } = listed;
                kvs.retain(|kv| kv.key != key);
                others = *known || count > 1 || !kvs.is_empty();
                all = !known && count <= LISTED as i64 + 1;
                long = *known || count > LONG;
                if !all {
                    kvs = expected;
                }
                // The transaction created this key, so all other keys are older.
                kvs.iter().all(|kv| kv.create_revision > 0 && kv.create_revision < revision).then_some(())?;
                kvs.sort_by_key(|kv| Reverse(kv.create_revision));
                (older, rest) = newest_first(kvs);
            }
            Self::Create { queue, lease, alone, .. } => {
                own = seen(&mut answers, revision)?;
                let key = queue.key(*lease);
                older = answers.range()?.kvs.into_iter().find(|kv| *alone && kv.key != key);
            }
            Self::Look { before: None, .. } => {
                own = seen(&mut answers, revision)?;
                return Some(Found::Queue { revision, done: true, own, older, rest, all, others, long });
            }
            Self::Look { before: Some(before), ahead, .. } => {
                own = seen(&mut answers, revision)?;
                let keys = match ahead {
                    None if !done => return None,
                    Some(Ahead { next, rest: None }) if done => still_there(&mut answers, iter::once(next))?,
                    None | Some(Ahead { rest: None, .. }) => {
                        let (found, count) = before_own(&mut answers, *before)?;
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
            Self::Put { before, .. } if done => {
                skip_write(&mut answers)?;
                own = Some(SeenRevisions { created: *before, modified: revision });
                older = before_own(&mut answers, *before)?.0.into_iter().next();
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

struct TxnAnswers(vec::IntoIter<super::message::ResponseOp>);

impl TxnAnswers {
    fn next(&mut self) -> Option<OpResponse> {
        self.0.next()?.response
    }

    fn range(&mut self) -> Option<RangeResponse> {
        if let OpResponse::Range(range) = self.next()? { Some(range) } else { None }
    }
}

fn skip_write(answers: &mut TxnAnswers) -> Option<()> {
    matches!(answers.next()?, OpResponse::Put(_)).then_some(())
}

/// Splits a transaction's response into revision, success and operation responses.
fn opened(txn: TxnResponse) -> Option<(i64, bool, TxnAnswers)> {
    let revision = txn.header?.revision;
    (revision > 0).then(|| (revision, txn.succeeded, TxnAnswers(txn.responses.into_iter())))
}

/// Reads the contender's key. The outer `None` means that the response is invalid.
#[expect(clippy::option_option, reason = "absent, and impossible")]
fn seen(answers: &mut TxnAnswers, revision: i64) -> Option<Option<SeenRevisions>> {
    let Some(kv) = answers.range()?.kvs.into_iter().next() else { return Some(None) };
    let possible = kv.create_revision > 0 && kv.mod_revision >= kv.create_revision && kv.mod_revision <= revision;
    possible.then_some(Some(SeenRevisions { created: kv.create_revision, modified: kv.mod_revision }))
}

/// Reads the newest keys created before `before`, newest first, and the length of the queue.
/// Foreign keys may share a revision: one transaction can create several.
fn before_own(answers: &mut TxnAnswers, before: i64) -> Option<(Vec<KeyValue>, i64)> {
    let RangeResponse { kvs: keys, count, .. } = answers.range()?;
    let mut bound = before - 1;
    for kv in &keys {
        (0 < kv.create_revision && kv.create_revision <= bound).then_some(())?;
        bound = kv.create_revision;
    }
    Some((keys, count))
}

fn newest_first(keys: Vec<KeyValue>) -> (Option<KeyValue>, Vec<Older>) {
    let mut keys = keys.into_iter();
    let first = keys.next();
    (first, keys.map(|kv| Older { key: kv.key, created: kv.create_revision }).collect())
}

/// Returns the known keys that still exist. Each was read by its own operation.
fn still_there<'a>(answers: &mut TxnAnswers, known: impl Iterator<Item = &'a Older>) -> Option<Vec<KeyValue>> {
    let mut there = Vec::new();
    for older in known {
        let kv = answers.range()?.kvs.into_iter().next();
        there.extend(kv.filter(|kv| kv.key == older.key && kv.create_revision == older.created));
    }
    Some(there)
}

fn unchanged(key: Bytes, modified: i64) -> Compare {
    Compare { target: COMPARE_MOD, key, with: Some(CompareWith::ModRevision(modified)), ..Compare::default() }
}

fn op_put(key: Bytes, value: &Bytes, lease: LeaseId) -> RequestOp {
    let put = PutRequest { key, value: value.clone(), lease: lease.get(), ..PutRequest::default() };
    RequestOp { request: Some(Op::Put(put)) }
}

fn op_delete(key: Bytes) -> RequestOp {
    RequestOp { request: Some(Op::Delete(DeleteRangeRequest { key, ..DeleteRangeRequest::default() })) }
}

const fn op_range(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Op::Range(range)) }
}

fn range_of(queue: &Queue) -> RangeRequest {
    let (key, range_end) = (queue.prefix.clone(), queue.end.clone());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

fn one(key: Bytes) -> RangeRequest {
    RangeRequest { key, keys_only: true, ..RangeRequest::default() }
}

/// The newest keys of the queue that were created at or before `upto`; 0 for no bound.
fn newest(queue: &Queue, upto: i64, limit: i64) -> RangeRequest {
    RangeRequest {
        limit,
        sort_order: DESCEND,
        sort_target: BY_CREATE,
        keys_only: true,
        max_create_revision: upto,
        ..range_of(queue)
    }
}
