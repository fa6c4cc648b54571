//! Locks through etcd's own gRPC proxy, which puts all keys in a namespace.

use std::time::Instant;

use lock_proto::Loss;
use lock_testkit::{Etcd, GrpcProxy};
use lock_tokio::etcd::Config;

use crate::kit::{assert_clean, in_time, ms, release, shut_down, take, wait_for, with};

// E1, E13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_through_grpc_proxy_with_namespace() {
    let etcd = Etcd::start();
    let proxy = GrpcProxy::start(&etcd);
    let config = || Config::parse(&proxy.url()).unwrap().session_ttl(ms(5_000));
    let (first, second) = (with(config()), with(config()));
    let guard = take(&first, "job").await;
    assert!(etcd.keys().iter().all(|key| key.starts_with("team/job/")), "{:?}", etcd.keys());
    let waiting = tokio::spawn(second.lock("job").acquire());
    wait_for("the other queues", || etcd.keys().len() == 2).await;
    // The lock is held for longer than its TTL. The proxy answers a renewal when it renews the lease
    // itself, up to a third of the TTL later, which is longer than the request timeout. A third of
    // the TTL is always left.
    let end = Instant::now() + ms(16_000);
    while Instant::now() < end {
        let left = guard.remaining();
        assert!(left > ms(1_700), "{left:?}");
        tokio::time::sleep(ms(100)).await;
    }
    in_time("extend", guard.extend()).await.unwrap();
    release(guard).await;
    release(in_time("the hand-over", waiting).await.unwrap().unwrap()).await;
    for _ in 0..20 {
        release(take(&first, "job").await).await;
        release(take(&second, "job").await).await;
    }
    shut_down(first).await;
    shut_down(second).await;
    assert_clean(&etcd).await;
}

/// Regression: the proxy numbers the watches of a stream by itself, so reports reached another lock.
// E5, E9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_reach_their_own_lock_through_grpc_proxy() {
    let etcd = Etcd::start();
    let proxy = GrpcProxy::start(&etcd);
    let config = || Config::parse(&proxy.url()).unwrap().session_ttl(ms(3_000));
    let (first, second) = (with(config()), with(config()));
    let held = take(&first, "held").await;
    let other = take(&second, "other").await;
    let watchers = || etcd.metric("etcd_debugging_mvcc_watcher_total", "");
    wait_for("both holders watch their keys", || watchers() == 2).await;
    let waiting = tokio::spawn(first.lock("other").acquire());
    wait_for("the waiter watches its key and the one ahead", || watchers() >= 3).await;
    release(other).await;
    let other = in_time("the hand-over", waiting).await.unwrap().unwrap();
    assert!(held.is_held() && other.is_held());
    let key = etcd.keys().into_iter().find(|key| key.starts_with("team/held/")).unwrap();
    etcd.delete(&key);
    assert_eq!(in_time("the loss", held.lost()).await, Loss::Gone);
    assert!(other.is_held());
    release(other).await;
    shut_down(first).await;
    shut_down(second).await;
}
