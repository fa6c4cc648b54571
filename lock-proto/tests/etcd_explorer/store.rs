//! The parts of etcd that the hub uses: revisions, leases, guarded transactions, watches.

use std::collections::BTreeMap;

use bytes::Bytes;
use lock_proto::etcd::message::{Compare, CompareWith, DESCEND, KeyValue, Op, OpResponse, RangeRequest, RangeResponse};
use lock_proto::etcd::message::{
    DeleteRangeResponse, LeaseGrantResponse, LeaseRevokeResponse, PutResponse, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};
use lock_proto::etcd::{Found, Refusal, Reply, Request, Rpc, RpcReply};

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) deleted: bool,
    pub(crate) kv: KeyValue,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) revision: i64,
    pub(crate) keys: BTreeMap<Bytes, KeyValue>,
    /// Lease, TTL in ns, expiry in ns.
    pub(crate) leases: BTreeMap<i64, (u64, u64)>,
    pub(crate) changes: Vec<Change>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { revision: 1, ..Self::default() }
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { member_id: 1, revision: self.revision })
    }

    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.leases.values().map(|(_, at)| *at).min()
    }

    pub(crate) fn expire(&mut self, now: u64) {
        let over: Vec<i64> = self.leases.iter().filter(|(_, (_, at))| *at <= now).map(|(id, _)| *id).collect();
        for lease in over {
            self.revoke(lease);
        }
    }

    pub(crate) fn revoke(&mut self, lease: i64) -> bool {
        if self.leases.remove(&lease).is_none() {
            return false;
        }
        let keys: Vec<Bytes> = self.keys.values().filter(|kv| kv.lease == lease).map(|kv| kv.key.clone()).collect();
        if !keys.is_empty() {
            self.revision += 1;
        }
        for key in keys {
            self.remove(&key);
        }
        true
    }

    pub(crate) fn delete(&mut self, key: &Bytes) {
        if self.keys.contains_key(key) {
            self.revision += 1;
            self.remove(key);
        }
    }

    fn remove(&mut self, key: &Bytes) {
        self.keys.remove(key);
        let kv = KeyValue { key: key.clone(), mod_revision: self.revision, ..KeyValue::default() };
        self.changes.push(Change { revision: self.revision, deleted: true, kv });
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, lease: i64) {
        let create_revision = self.keys.get(key).map_or(self.revision, |kv| kv.create_revision);
        let kv = KeyValue {
            key: key.clone(),
            create_revision,
            mod_revision: self.revision,
            value: value.clone(),
            lease,
            ..KeyValue::default()
        };
        self.keys.insert(key.clone(), kv.clone());
        self.changes.push(Change { revision: self.revision, deleted: false, kv });
    }

    pub(crate) fn execute(&mut self, now: u64, request: &Request) -> Reply {
        self.expire(now);
        let Some(rpc) = request.rpc() else {
            let Request::KeepAlive { lease, .. } = request else { panic!("{request:?}") };
            let Some((ttl, at)) = self.leases.get_mut(&lease.get()) else {
                return Reply::Done(Found::Lease { ttl: 0 });
            };
            *at = now + *ttl;
            return Reply::Done(Found::Lease { ttl: (*ttl / 1_000_000_000) as i64 });
        };
        match rpc {
            Rpc::Range(range) => {
                let answer = RangeResponse { header: self.header(), ..self.range(&range) };
                request.read(RpcReply::Range(answer))
            }
            Rpc::Txn(txn) => match self.txn(&txn) {
                Some(answer) => request.read(RpcReply::Txn(answer)),
                None => Reply::Refused(Refusal::LeaseNotFound),
            },
            Rpc::Grant(grant) => {
                if self.leases.contains_key(&grant.id) {
                    return Reply::Refused(Refusal::LeaseExists);
                }
                // The server has a minimum TTL.
                let ttl = grant.ttl.max(2);
                let nanos = ttl as u64 * 1_000_000_000;
                self.leases.insert(grant.id, (nanos, now + nanos));
                request.read(RpcReply::Grant(LeaseGrantResponse { header: self.header(), id: grant.id, ttl }))
            }
            Rpc::Revoke(revoke) => {
                if self.revoke(revoke.id) {
                    request.read(RpcReply::Revoke(LeaseRevokeResponse { header: self.header() }))
                } else {
                    Reply::Refused(Refusal::LeaseNotFound)
                }
            }
            Rpc::Authenticate(_) | Rpc::MemberList(_) => panic!("the hub does not log in"),
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let expected = compare.with.as_ref().unwrap();
        let equal = |kv: Option<&KeyValue>| match expected {
            CompareWith::CreateRevision(revision) => kv.map_or(0, |kv| kv.create_revision) == *revision,
            CompareWith::ModRevision(revision) => kv.map_or(0, |kv| kv.mod_revision) == *revision,
            CompareWith::Version(_) | CompareWith::Value(_) | CompareWith::Lease(_) => {
                panic!("the hub compares revisions")
            }
        };
        if compare.range_end.is_empty() {
            return equal(self.keys.get(&compare.key));
        }
        let mut range = self.keys.range(compare.key.clone()..compare.range_end.clone()).peekable();
        if range.peek().is_none() { equal(None) } else { range.all(|(_, kv)| equal(Some(kv))) }
    }

    /// Executes a transaction. Returns `None` if the lease of a put does not exist.
    fn txn(&mut self, txn: &TxnRequest) -> Option<TxnResponse> {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let mut writes = false;
        for op in ops {
            match op.request.as_ref().unwrap() {
                Op::Put(put) if put.lease != 0 && !self.leases.contains_key(&put.lease) => return None,
                Op::Put(_) => writes = true,
                Op::Delete(delete) => writes |= self.keys.contains_key(&delete.key),
                Op::Range(_) => {}
                Op::Txn(_) => panic!("a request of the hub has no inner transaction"),
            }
        }
        self.revision += i64::from(writes);
        let mut responses = Vec::new();
        for op in ops {
            let response = match op.request.as_ref().unwrap() {
                Op::Put(put) => {
                    self.put(&put.key, &put.value, put.lease);
                    OpResponse::Put(PutResponse { header: None, ..PutResponse::default() })
                }
                Op::Delete(delete) => {
                    let deleted = i64::from(self.keys.contains_key(&delete.key));
                    if deleted == 1 {
                        self.remove(&delete.key);
                    }
                    OpResponse::Delete(DeleteRangeResponse { header: None, deleted, ..DeleteRangeResponse::default() })
                }
                Op::Range(range) => OpResponse::Range(self.range(range)),
                Op::Txn(_) => unreachable!("looked at above"),
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        Some(TxnResponse { header: self.header(), succeeded, responses })
    }

    fn range(&self, range: &RangeRequest) -> RangeResponse {
        let all: Vec<&KeyValue> = if range.range_end.is_empty() {
            self.keys.get(&range.key).into_iter().collect()
        } else {
            self.keys.range(range.key.clone()..range.range_end.clone()).map(|(_, kv)| kv).collect()
        };
        let count = all.len() as i64;
        let upto = range.max_create_revision;
        let mut kvs: Vec<KeyValue> =
            all.into_iter().filter(|kv| upto == 0 || kv.create_revision <= upto).cloned().collect();
        if range.sort_order != 0 {
            kvs.sort_by_key(|kv| kv.create_revision);
        }
        if range.sort_order == DESCEND {
            kvs.reverse();
        }
        if range.limit > 0 {
            kvs.truncate(range.limit as usize);
        }
        RangeResponse { header: None, kvs, count, ..RangeResponse::default() }
    }
}
