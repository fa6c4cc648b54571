//! One member of etcd for tests of the hub: the store of the simulated cluster (`lock-sim`), driven by typed
//! requests. Included by path, because this crate does not depend on `lock-sim`.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../sim/src/etcd/lease.rs"]
mod lease;
#[path = "../../sim/src/etcd/refusal.rs"]
mod refusal;
#[path = "../../sim/src/etcd/span.rs"]
mod span;
#[path = "../../sim/src/etcd/store.rs"]
#[allow(clippy::module_inception, reason = "it is the store's name there")]
mod store;
#[path = "../../sim/src/etcd/txn.rs"]
mod txn;

use std::collections::BTreeMap;

use bytes::Bytes;
use lock_proto::Instant;
use lock_proto::etcd::message::{
    DELETED, KeyValue, LeaseGrantResponse, LeaseRevokeResponse, RangeResponse, ResponseHeader, TxnResponse,
};
use lock_proto::etcd::{Reply, Request, Rpc, RpcReply};
use refusal::RefusalStatus;
use span::KeySpan;

/// The server's shortest TTL, in seconds.
const MIN_TTL: i64 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) deleted: bool,
    pub(crate) kv: KeyValue,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    store: store::KeySpace,
    /// All changes so far, for watches.
    pub(crate) changes: Vec<Change>,
    /// The revision of the last of them.
    last: i64,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::starting_at(1)
    }

    pub(crate) fn starting_at(revision: i64) -> Self {
        Self { store: store::KeySpace::new().at(revision), changes: Vec::new(), last: revision }
    }

    pub(crate) const fn revision(&self) -> i64 {
        self.store.revision()
    }

    pub(crate) fn keys(&self) -> BTreeMap<Bytes, KeyValue> {
        let all = KeySpan::From(Bytes::new());
        self.store.range(&all).map(|(key, entry)| (key.clone(), entry.to_kv(key))).collect()
    }

    /// The leases, and when they expire.
    pub(crate) fn leases(&self) -> BTreeMap<i64, Instant> {
        self.store.leases().iter().map(|(id, lease)| (id, lease.expires)).collect()
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.store.leases().next_expiry()
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        for lease in self.store.leases().expired(now) {
            self.revoke(lease);
        }
    }

    pub(crate) fn revoke(&mut self, lease: i64) -> bool {
        let revoked = self.store.revoke(lease).is_ok();
        self.note_changes();
        revoked
    }

    /// The lease lives for its TTL again.
    pub(crate) fn renew(&mut self, now: Instant, lease: i64) -> Option<i64> {
        self.store.leases_mut().renew(now, lease)
    }

    pub(crate) fn delete(&mut self, key: &Bytes) {
        let mut change = self.store.write();
        change.delete(&KeySpan::One(key.clone()));
        change.end();
        self.note_changes();
    }

    pub(crate) fn put(&mut self, key: &Bytes, value: &Bytes, lease: i64) {
        let mut change = self.store.write();
        change.put(key, value, lease);
        change.end();
        self.note_changes();
    }

    /// Another program writes a key and deletes it, so many times.
    pub(crate) fn write_elsewhere(&mut self, times: usize) {
        for _ in 0..times {
            self.put(&"elsewhere".into(), &Bytes::new(), 0);
            self.delete(&"elsewhere".into());
        }
    }

    /// The state is that of an earlier snapshot, and no watch reports it.
    pub(crate) fn restore(&mut self, earlier: &Self) {
        self.store = earlier.store.clone();
        self.last = self.store.revision();
    }

    fn note_changes(&mut self) {
        for (revision, events) in self.store.history(self.last + 1, self.store.revision()) {
            self.changes.extend(events.iter().map(|event| {
                let kv = event.kv.clone().unwrap();
                Change { revision, deleted: event.kind == DELETED, kv }
            }));
        }
        self.last = self.store.revision();
    }

    pub(crate) fn execute(&mut self, now: Instant, request: &Request) -> Reply {
        self.expire(now);
        let Some(rpc) = request.rpc() else {
            let Request::KeepAlive { lease, .. } = request else { panic!("{request:?}") };
            return request.read_keep_alive(self.renew(now, lease.get()).unwrap_or(0));
        };
        let reply = self.call(now, &rpc);
        self.note_changes();
        match reply {
            Ok(reply) => request.read(reply),
            Err(refusal) => request.read_error(&refusal.status()),
        }
    }

    fn call(&mut self, now: Instant, rpc: &Rpc) -> Result<RpcReply, RefusalStatus> {
        let store = &mut self.store;
        let header = |store: &store::KeySpace| Some(ResponseHeader { member_id: 1, revision: store.revision() });
        Ok(match rpc {
            Rpc::Range(range) => {
                txn::check_range(range)?;
                RpcReply::Range(RangeResponse { header: header(store), ..txn::read(store, range, &[]) })
            }
            Rpc::Txn(request) => {
                txn::check(request, usize::MAX)?;
                let response = txn::run(store, request)?;
                RpcReply::Txn(TxnResponse { header: header(store), ..response })
            }
            Rpc::Grant(grant) => {
                let ttl = store.leases_mut().grant(now, grant.id, grant.ttl, MIN_TTL)?;
                RpcReply::Grant(LeaseGrantResponse { header: header(store), id: grant.id, ttl })
            }
            Rpc::Revoke(revoke) => {
                store.revoke(revoke.id)?;
                RpcReply::Revoke(LeaseRevokeResponse { header: header(store) })
            }
            Rpc::Authenticate(_) | Rpc::MemberList(_) => panic!("the hub does not log in"),
        })
    }
}
