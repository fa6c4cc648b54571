//! The cost of locks on the server.
// E1, E9

use core::time::Duration;
use lock_tokio::OwnerKeyExt as _;

use futures_util::{StreamExt as _, stream};
use lock_testkit::Etcd;
use lock_tokio::{Guard, Release};

use crate::kit::{
    LONG_TTL, assert_clean, calls, config, in_time, ms, poll_once, release, shut_down, take, wait_for,
    wait_until_blocked, with,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncontended_lock_cycle_costs_two_calls() {
    const CYCLES: u64 = 50;
    let etcd = Etcd::start();
    let client = with(config(&etcd).session_ttl(LONG_TTL));
    release(take(&client, "a").await).await;
    let (all, transactions) = (calls(&etcd, ""), calls(&etcd, "Txn"));
    for n in 0..CYCLES {
        release(take(&client, if n % 2 == 0 { "a" } else { "b" }).await).await;
    }
    assert_eq!(calls(&etcd, "Txn") - transactions, 2 * CYCLES);
    assert_eq!(calls(&etcd, "") - all, 2 * CYCLES, "nothing but transactions, and no stream");
    // A try is one call if another client holds the lock, and none if this client does.
    let other = with(config(&etcd).session_ttl(LONG_TTL));
    release(take(&other, "c").await).await;
    let guard = take(&client, "a").await;
    let all = calls(&etcd, "");
    assert!(in_time("a try", client.lock("a").try_acquire()).await.is_err());
    assert_eq!(calls(&etcd, "") - all, 0);
    assert!(in_time("a try", other.lock("a").try_acquire()).await.is_err());
    assert_eq!(calls(&etcd, "") - all, 1);
    release(guard).await;
    shut_down(client).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}

/// A local hand-over needs no request.
// E1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_hand_over_costs_no_call() {
    let etcd = Etcd::start();
    let client = with(config(&etcd).session_ttl(LONG_TTL).handover_window(LONG_TTL));
    let mut guard = take(&client, "a").await;
    let all = calls(&etcd, "");
    for _ in 0..100 {
        let mut next = client.lock("a").acquire();
        assert!(poll_once(&mut next).await.is_pending());
        let before = guard.fence();
        release(guard).await;
        guard = in_time("the next", next).await.unwrap();
        assert!(guard.fence() > before);
    }
    assert_eq!(calls(&etcd, "") - all, 0);
    release(guard).await;
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// Requests of many tasks for different names share few calls, and each gets its own reply.
// E11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_share_calls() {
    const TASKS: usize = 32;
    const CYCLES: u64 = 50;
    let etcd = Etcd::start();
    let (ours, other) = (with(config(&etcd).session_ttl(LONG_TTL)), with(config(&etcd).session_ttl(LONG_TTL)));
    release(take(&ours, "0").await).await;
    let held = take(&other, "0").await;
    let before = calls(&etcd, "Txn");
    let tasks = (0..TASKS).map(|n| {
        let lock = ours.lock(format!("{n}"));
        tokio::spawn(async move {
            let mut last = None;
            for _ in 0..CYCLES {
                if n == 0 {
                    // Another client holds this one throughout.
                    assert!(lock.clone().try_acquire().await.is_err());
                    continue;
                }
                let guard = lock.acquire().await.unwrap();
                assert!(guard.fence() > last && guard.is_held());
                last = guard.fence();
                release(guard).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        in_time("the cycles of a task", task).await.unwrap();
    }
    let (made, alone) = (calls(&etcd, "Txn") - before, 2 * CYCLES * TASKS as u64);
    assert!(made < alone / 3, "{made} calls where {alone} would go alone");
    assert_eq!(etcd.keys().len(), 1);
    release(held).await;
    shut_down(ours).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}

/// All locks of a session share one keep-alive every third of the TTL.
// E1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_share_one_keep_alive() {
    const LOCKS: usize = 10_000;
    const AT_ONCE: usize = 64;
    let etcd = Etcd::start();
    let ttl = ms(5000);
    let client = with(config(&etcd).session_ttl(ttl));
    let locks = (0..LOCKS).map(|n| client.lock(format!("lock{n}")));
    let taken = stream::iter(locks.map(|lock| async move { lock.acquire().await.unwrap() }));
    let guards: Vec<Guard> = taken.buffer_unordered(AT_ONCE).collect().await;

    let keep_alives = || etcd.metric("grpc_server_msg_received_total", "grpc_method=\"LeaseKeepAlive\"");
    let (before, from) = (keep_alives(), guards[0].valid_until());
    wait_for("two TTLs have passed", || {
        assert!(guards[0].is_held());
        guards[0].valid_until().duration_since(from) >= 2 * ttl
    })
    .await;
    let sent = keep_alives() - before;
    // Six thirds, each up to a tenth shorter by jitter, and the one in flight.
    assert!((5..=8).contains(&sent), "{sent} signs of life in two TTLs");
    assert_eq!(guards.iter().filter(|guard| !guard.is_held()).count(), 0);
    assert_eq!(etcd.leases().len(), 1);

    let releases = stream::iter(guards.into_iter().map(Guard::release)).buffer_unordered(AT_ONCE);
    let released: Vec<Release> = releases.collect().await;
    assert_eq!(released.iter().filter(|release| **release == Release::Released).count(), LOCKS);
    assert_eq!(etcd.keys().len(), 0);
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// A lock with a custom TTL or manual renewal has a separate lease, which ends with the lock.
// E1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn separate_lease_ends_with_its_lock() {
    use lock_tokio::Renew;

    let etcd = Etcd::start();
    let client = with(config(&etcd).session_ttl(LONG_TTL));
    let shared = [take(&client, "a").await, take(&client, "b").await];
    assert_eq!(etcd.leases().len(), 1);
    let own = in_time("acquire", client.lock("c").ttl(Duration::from_secs(30)).acquire()).await.unwrap();
    assert_eq!((etcd.leases().len(), own.ttl()), (2, Duration::from_secs(30)));
    let manual = in_time("acquire", client.lock("d").renew(Renew::Manual).acquire()).await.unwrap();
    assert_eq!((etcd.leases().len(), manual.ttl()), (3, LONG_TTL));
    let leases: Vec<_> = [&shared[0], &shared[1], &own, &manual].map(|guard| guard.owner_key().unwrap().lease).to_vec();
    assert_eq!(leases[0], leases[1]);
    assert!(leases[0] != leases[2] && leases[0] != leases[3] && leases[2] != leases[3]);
    let before = manual.valid_until();
    in_time("extend", manual.extend()).await.unwrap();
    assert!(manual.valid_until() > before);
    for guard in [own, manual] {
        let lease = guard.owner_key().unwrap().lease.to_string();
        release(guard).await;
        wait_for("its lease is revoked", || !etcd.leases().contains(&lease)).await;
    }
    assert_eq!(etcd.leases(), [leases[0].to_string()]);
    for guard in shared {
        release(guard).await;
    }
    assert_eq!(etcd.leases().len(), 1, "the session lives as long as the client");
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// When the maximum hold time ends the holder is notified. Its key stays until the guard is
/// released or a TTL has passed.
// H6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounded_hold_retains_key_until_release_or_expiry() {
    use lock_tokio::Renew;
    use lock_tokio::{Blocked, Loss};

    let etcd = Etcd::start();
    let (client, other) = (with(config(&etcd).session_ttl(LONG_TTL)), with(config(&etcd).session_ttl(LONG_TTL)));
    let bounded = || client.lock("a").renew(Renew::AtMost(ms(300)));
    let guard = in_time("acquire", bounded().acquire()).await.unwrap();
    let key = String::from_utf8(guard.owner_key().unwrap().key.to_vec()).unwrap();
    let mut waiting = other.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::MaxHold);
    let revokes = calls(&etcd, "LeaseRevoke");
    // Long enough for an incorrect delete to arrive.
    for _ in 0..20 {
        assert!(etcd.keys_of("a/").contains(&key));
        assert!(poll_once(&mut waiting).await.is_pending());
    }
    assert_eq!(calls(&etcd, "LeaseRevoke"), revokes);
    release(guard).await;
    release(in_time("the next", waiting).await.unwrap()).await;
    // The guard stays alive, so the lease expires although the client lives on.
    let guard = in_time("acquire", bounded().ttl(Duration::from_secs(2)).acquire()).await.unwrap();
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::MaxHold);
    release(in_time("the next", other.lock("a").acquire()).await.unwrap()).await;
    assert_eq!(in_time("release", guard.release()).await, Release::Expired);
    shut_down(client).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}
