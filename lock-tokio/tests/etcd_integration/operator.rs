//! An operator with `etcdctl` removes leases, keys or history.

use lock_testkit::{Etcd, Stopwatch};
use lock_tokio::{Blocked, Loss, Release};

use crate::kit::{
    LONG_TTL, assert_clean, calls, client, config, in_time, ms, release, shut_down, take, wait_for, wait_until_blocked,
    watches, with,
};

fn other_key(etcd: &Etcd, known: &str) -> Option<String> {
    let keys: Vec<_> = etcd.keys_of("a/").into_iter().filter(|key| key != known).collect();
    let [key] = &keys[..] else { return None };
    Some(key.clone())
}

fn lease_of(key: &str) -> &str {
    key.rsplit_once('/').unwrap().1
}

/// The waiter's own session ends (case M1 of other clients): it must not wait without a key.
// E4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_revoked_lease_queues_again() {
    let etcd = Etcd::start();
    let (holder, waiter) = (with(config(&etcd).session_ttl(LONG_TTL)), with(config(&etcd).session_ttl(LONG_TTL)));
    let guard = take(&holder, "a").await;
    let held = etcd.keys_of("a/").remove(0);
    let waiting = tokio::spawn(waiter.lock("a").acquire());
    for _ in 0..3 {
        wait_for("it is in the queue", || other_key(&etcd, &held).is_some()).await;
        let key = other_key(&etcd, &held).unwrap();
        etcd.revoke(lease_of(&key));
        wait_for("it is in the queue with another session", || {
            other_key(&etcd, &held).is_some_and(|now| lease_of(&now) != lease_of(&key))
        })
        .await;
    }
    assert!(guard.is_held() && !waiting.is_finished());
    let before = guard.fence();
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    assert!(guard.fence() > before);
    release(guard).await;
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&etcd).await;
}

/// A revoked lease is a loss, long before its expiry, and the next waiter gets the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_lease_ends_hold_and_serves_next_waiter() {
    let etcd = Etcd::start();
    let (holder, waiter) = (with(config(&etcd).session_ttl(ms(6000))), client(&etcd));
    let guard = take(&holder, "a").await;
    let held = etcd.keys_of("a/").remove(0);
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let since = Stopwatch::start();
    etcd.revoke(lease_of(&held));
    let next = in_time("the lock", waiting).await.unwrap();
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Gone);
    since.assert_within(ms(4500), "noticed by the next sign of life");
    assert!(next.fence() > guard.fence());
    assert!(matches!(in_time("release", guard.release()).await, Release::Expired | Release::Taken));
    assert!(next.is_held());
    release(next).await;
    // With a new session the lock can be acquired again.
    release(take(&holder, "a").await).await;
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&etcd).await;
}

/// The lease lives, so only the key itself shows the loss.
// E9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_deleted_during_long_hold_is_noticed_by_watch() {
    let etcd = Etcd::start();
    let client = with(config(&etcd).session_ttl(ms(2000)));
    let guard = take(&client, "a").await;
    assert_eq!(watches(&etcd), 0, "a hold that may be short costs no watch");
    wait_for("a third of the TTL has passed", || watches(&etcd) == 1).await;
    let since = Stopwatch::start();
    assert!(etcd.delete(&etcd.keys_of("a/")[0]));
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Gone);
    since.assert_within(ms(1500), "noticed by the watch");
    assert_eq!(in_time("release", guard.release()).await, Release::Expired);
    wait_for("its watch is closed", || watches(&etcd) == 0).await;
    release(take(&client, "a").await).await;
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// The key was deleted before the watch was opened. The read after the opening finds that.
// E9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_deleted_before_watch_opens_is_noticed() {
    let etcd = Etcd::start();
    let client = with(config(&etcd).session_ttl(ms(3000)));
    let guard = take(&client, "a").await;
    assert!(etcd.delete(&etcd.keys_of("a/")[0]));
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Gone);
    drop(guard);
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// A short hold learns of it at its release, which reports that another client has the lock.
// U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_deleted_during_short_hold_is_reported_by_release() {
    let etcd = Etcd::start();
    let (ours, other) = (with(config(&etcd).session_ttl(LONG_TTL)), client(&etcd));
    let guard = take(&ours, "a").await;
    assert!(etcd.delete(&etcd.keys_of("a/")[0]));
    assert_eq!(in_time("release", guard.release()).await, Release::Expired);
    let guard = take(&ours, "a").await;
    assert!(etcd.delete(&etcd.keys_of("a/")[0]));
    let next = take(&other, "a").await;
    assert!(next.fence() > guard.fence());
    assert_eq!(in_time("release", guard.release()).await, Release::Taken);
    assert!(next.is_held());
    release(next).await;
    shut_down(ours).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}

/// A waiter whose key was deleted queues again at the end.
// E4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_deleted_key_queues_again_at_end() {
    let etcd = Etcd::start();
    let (holder, first, second) = (client(&etcd), client(&etcd), client(&etcd));
    let guard = take(&holder, "a").await;
    let held = etcd.keys_of("a/").remove(0);
    let first_waits = tokio::spawn(first.lock("a").acquire());
    wait_for("the first is in the queue", || other_key(&etcd, &held).is_some()).await;
    let deleted = other_key(&etcd, &held).unwrap();
    let second_waits = tokio::spawn(second.lock("a").acquire());
    wait_for("the second is in the queue", || etcd.keys_of("a/").len() == 3).await;
    assert!(etcd.delete(&deleted));
    wait_for("the first is in the queue again", || etcd.keys_of("a/").contains(&deleted)).await;
    release(guard).await;
    let guard = in_time("the second", second_waits).await.unwrap().unwrap();
    assert!(!first_waits.is_finished());
    let before = guard.fence();
    release(guard).await;
    let guard = in_time("the first", first_waits).await.unwrap().unwrap();
    assert!(guard.fence() > before);
    release(guard).await;
    for client in [holder, first, second] {
        shut_down(client).await;
    }
    assert_clean(&etcd).await;
}

/// Compacted history is no error (case M2 of other clients), even before watches are reopened.
// E4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_compaction() {
    let mut etcd = Etcd::start();
    let (holder, waiter) = (with(config(&etcd).session_ttl(LONG_TTL)), with(config(&etcd).session_ttl(LONG_TTL)));
    let guard = take(&holder, "a").await;
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("it watches", || watches(&etcd) == 2).await;
    let compact = |etcd: &Etcd| {
        for n in 0..20 {
            etcd.put("unrelated", &n.to_string());
        }
        etcd.compact();
    };
    compact(&etcd);
    // Also while the watches are closed.
    etcd.restart();
    compact(&etcd);
    wait_for("it watches again", || watches(&etcd) >= 2).await;
    compact(&etcd);
    assert_eq!(waiting.blocked(), Some(Blocked::Held));
    let transactions_before = calls(&etcd, "Txn");
    release(guard).await;
    release(in_time("the lock", waiting).await.unwrap()).await;
    assert!(calls(&etcd, "Txn") - transactions_before >= 3, "a delete, a look, a delete");
    etcd.delete("unrelated");
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&etcd).await;
}
