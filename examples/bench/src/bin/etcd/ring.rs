//! What handing over takes at least: the calls that no lock can do without, over the bare transport.
//!
//! Each in a ring has a key, and watches it all the time. When it is deleted, its owner reads it, as a waiter does to be sure that it holds the
//! lock; then it deletes the key of the next one, which is the release, and puts its own, with which it queues again. No transaction, no
//! place to be found in a queue, no watch to be opened and closed.

use lock_proto::etcd::message::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
};
use lock_testkit::Etcd;

use lock_bench::bare::{Bare, DELETE, PUT, RANGE, Watches};

/// One of a ring.
pub struct Ring {
    peer: Bare,
    watches: Watches,
    watch: i64,
    own: Vec<u8>,
    next: Vec<u8>,
}

impl Ring {
    /// All of a ring, with their keys and watches.
    pub async fn connect(etcd: &Etcd, size: usize) -> Vec<Self> {
        let key = |n: usize| format!("ring/{}", n % size).into_bytes();
        let mut ring = Vec::new();
        for n in 0..size {
            let peer = Bare::connect(etcd).await;
            let mut watches = peer.watches();
            let watch = watches.open(key(n), 0).await;
            let one = Self { peer, watches, watch, own: key(n), next: key(n + 1) };
            one.enter().await;
            ring.push(one);
        }
        ring
    }

    /// Waits for its turn.
    pub async fn lock(&mut self) {
        self.watches.deleted(self.watch).await;
        let own = RangeRequest { key: self.own.clone().into(), ..RangeRequest::default() };
        let read: RangeResponse = self.peer.call(RANGE, own).await;
        assert!(read.kvs.is_empty(), "it was deleted");
    }

    /// Gives the turn to the next one. False if that does not wait.
    pub async fn unlock(&self) -> bool {
        let delete = DeleteRangeRequest { key: self.next.clone().into(), ..DeleteRangeRequest::default() };
        let answer: DeleteRangeResponse = self.peer.call(DELETE, delete).await;
        answer.deleted == 1
    }

    /// Queues again.
    pub async fn enter(&self) {
        let put = PutRequest { key: self.own.clone().into(), ..PutRequest::default() };
        let _: PutResponse = self.peer.call(PUT, put).await;
    }
}
