//! Lower bound for a hand-over: only the calls that any lock needs, over the bare transport.
//!
//! Each member of a ring has a key and watches it permanently. When the key is deleted, its owner
//! reads it, as a waiter does to confirm that it holds the lock. To release, it deletes the key of
//! the next member. To queue again, it puts its own key. There are no transactions, no lookups in a
//! queue, and no watches to open and close.

use lock_proto::etcd::message::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
};
use lock_testkit::Etcd;

use crate::raw_etcd::{DELETE, PUT, RANGE, RawEtcd, Watches};

pub struct Ring {
    peer: RawEtcd,
    watches: Watches,
    watch: i64,
    own: Vec<u8>,
    next: Vec<u8>,
}

impl Ring {
    /// Creates all members, with their keys and watches.
    pub async fn connect(etcd: &Etcd, size: usize) -> Vec<Self> {
        let key = |n: usize| format!("ring/{}", n % size).into_bytes();
        let mut ring = Vec::new();
        for n in 0..size {
            let peer = RawEtcd::connect(etcd).await;
            let mut watches = peer.watches();
            let watch = watches.open(key(n), 0).await;
            let one = Self { peer, watches, watch, own: key(n), next: key(n + 1) };
            one.enter().await;
            ring.push(one);
        }
        ring
    }

    pub async fn lock(&mut self) {
        self.watches.deleted(self.watch).await;
        let own = RangeRequest { key: self.own.clone().into(), ..RangeRequest::default() };
        let read: RangeResponse = self.peer.call(RANGE, own).await;
        assert!(read.kvs.is_empty(), "it was deleted");
    }

    /// Hands over to the next member. Returns false if that one is not queued.
    pub async fn unlock(&self) -> bool {
        let delete = DeleteRangeRequest { key: self.next.clone().into(), ..DeleteRangeRequest::default() };
        let answer: DeleteRangeResponse = self.peer.call(DELETE, delete).await;
        answer.deleted == 1
    }

    pub async fn enter(&self) {
        let put = PutRequest { key: self.own.clone().into(), ..PutRequest::default() };
        let _: PutResponse = self.peer.call(PUT, put).await;
    }
}
