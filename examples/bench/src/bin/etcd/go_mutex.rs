//! The lock algorithm of etcd's Go concurrency package over the bare transport, to compare it
//! within one run on one machine.
//!
//! Each step is one request:
//!
//! - A transaction puts the own key if it is absent, and reads the first key of the queue. If that
//!   is the own key, the lock is held.
//! - While there is an older key: read the newest of them, watch it *from the revision of that
//!   read* until it is deleted, and read again.
//! - Read the own key.
//!
//! Unlock deletes the key. The watch takes most of the time. It starts at a revision that the store
//! has already reached, and etcd processes such watches in batches every 100 ms.
// E5

use lock_proto::etcd::message::{
    ASCEND, BY_CREATE, COMPARE_CREATE, Compare, CompareWith, DESCEND, DeleteRangeRequest, DeleteRangeResponse, Op,
    OpResponse, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use lock_testkit::Etcd;

use lock_bench::raw_etcd::{DELETE, RANGE, RawEtcd, TXN, Watches};

/// A client with a session and one lock.
pub struct GoMutex {
    peer: RawEtcd,
    watches: Watches,
    prefix: Vec<u8>,
    end: Vec<u8>,
    key: Vec<u8>,
    lease: i64,
}

impl GoMutex {
    pub async fn connect(etcd: &Etcd, name: &str) -> Self {
        let peer = RawEtcd::connect(etcd).await;
        let lease = peer.grant().await;
        let key = format!("{name}/{lease:x}").into();
        // `0` follows the slash in ASCII.
        let (prefix, end) = (format!("{name}/").into(), format!("{name}0").into());
        Self { watches: peer.watches(), peer, prefix, end, key, lease }
    }

    pub async fn lock(&mut self) {
        let (own, first) = self.enter().await;
        if first == own {
            return;
        }
        loop {
            let (older, revision) = self.newest_before(own).await;
            let Some(older) = older else { break };
            self.watches.until_deleted(older, revision).await;
        }
        let own = RangeRequest { key: self.key.clone().into(), ..RangeRequest::default() };
        let read: RangeResponse = self.peer.call(RANGE, own).await;
        assert_eq!(read.kvs.len(), 1, "the session has ended");
    }

    pub async fn unlock(&self) {
        let delete = DeleteRangeRequest { key: self.key.clone().into(), ..DeleteRangeRequest::default() };
        let answer: DeleteRangeResponse = self.peer.call(DELETE, delete).await;
        assert_eq!(answer.deleted, 1, "the key was there");
    }

    /// Enters the queue. Returns the creation revisions of the own key and of the first key.
    async fn enter(&self) -> (i64, i64) {
        let put = PutRequest { key: self.key.clone().into(), lease: self.lease, ..PutRequest::default() };
        let own = RangeRequest { key: self.key.clone().into(), ..RangeRequest::default() };
        let first = Op::Range(RangeRequest { sort_order: ASCEND, ..self.one_by_age() });
        let absent = Compare {
            target: COMPARE_CREATE,
            key: self.key.clone().into(),
            with: Some(CompareWith::CreateRevision(0)),
            ..Compare::default()
        };
        let op = |op| RequestOp { request: Some(op) };
        let request = TxnRequest {
            compare: vec![absent],
            success: vec![op(Op::Put(put)), op(first.clone())],
            failure: vec![op(Op::Range(own)), op(first)],
        };
        let answer: TxnResponse = self.peer.call(TXN, request).await;
        assert!(answer.succeeded, "the key of before was deleted");
        let first = answer.responses.into_iter().nth(1).and_then(|answer| answer.response);
        let Some(OpResponse::Range(first)) = first else { panic!("no answer to the reading") };
        (answer.header.expect("a header").revision, first.kvs.first().expect("at least the own key").create_revision)
    }

    /// The newest key created before this revision, and the revision of the read.
    async fn newest_before(&self, created: i64) -> (Option<Vec<u8>>, i64) {
        let newest = RangeRequest { sort_order: DESCEND, max_create_revision: created - 1, ..self.one_by_age() };
        let read: RangeResponse = self.peer.call(RANGE, newest).await;
        let key = read.kvs.into_iter().next().map(|kv| kv.key.to_vec());
        (key, read.header.expect("a header").revision)
    }

    fn one_by_age(&self) -> RangeRequest {
        RangeRequest {
            key: self.prefix.clone().into(),
            range_end: self.end.clone().into(),
            limit: 1,
            sort_target: BY_CREATE,
            ..RangeRequest::default()
        }
    }
}
