//! Disturbances by server operators.

use core::time::Duration;

use lock_testkit::Redis;
use lock_tokio::{Answer, Backoff, Blocked, ErrorClass};

use crate::kit::{
    LONG_TTL, assert_clean, client, config, connections, in_time, is_waiting, ms, named, release, take, timed_out,
    wait_for, wait_until_blocked, with,
};
use crate::workers::Workers;

/// Scripts that the server has dropped are sent again, without an effect on the holder.
// P1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_script_flush() {
    let redis = Redis::start();
    let client = client(&redis);
    let guard = take(&client, "a", ms(600)).await;
    for _ in 0..4 {
        redis.cli(&["SCRIPT", "FLUSH"]);
        let before = guard.valid_until();
        wait_for("it is renewed", || guard.valid_until() > before).await;
    }
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert!(guard.is_held());
    release(guard).await;
    assert_clean(&redis).await;
}

/// Also if the scripts are dropped repeatedly, with many requests in flight.
// P1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_script_flush_under_load() {
    let redis = Redis::start();
    let clients = [client(&redis), client(&redis)];
    let mut operator = redis.connect();
    let mut workers = Workers::spawn(&clients, 32, 8);
    let flush = || drop(operator.command(&["SCRIPT", "FLUSH"]).unwrap());
    workers.disturb_for(Duration::from_secs(2), ms(1), flush).await;
    let visits = workers.finish().await;
    assert!(visits > 100, "{visits}");
    assert_clean(&redis).await;
}

/// Connections die at any moment, with requests and replies in flight. Mutual exclusion holds,
/// every waiter is served, and nothing is left behind.
// A3, A4, M8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_client_kill_under_load() {
    let redis = Redis::start();
    let quick = || with(config(&redis).reconnect(Backoff::fixed(ms(5))));
    let clients = [quick(), quick()];
    let mut operator = redis.connect();
    let mut workers = Workers::spawn(&clients, 32, 8);
    let kill = || drop(operator.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap());
    workers.disturb_for(Duration::from_secs(4), ms(15), kill).await;
    let visits = workers.finish().await;
    assert!(visits > 100, "{visits}");
    assert_clean(&redis).await;
}

/// The same with the default reconnect backoff, and one name for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_lock_survives_client_kill() {
    let redis = Redis::start();
    let clients = [client(&redis), client(&redis), client(&redis)];
    let mut operator = redis.connect();
    let mut workers = Workers::spawn(&clients, 6, 1);
    let kill = || drop(operator.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap());
    workers.disturb_for(Duration::from_secs(2), ms(120), kill).await;
    let visits = workers.finish().await;
    assert!(visits > 20, "{visits}");
    assert_clean(&redis).await;
}

/// A full server rejects new locks with an error, keeps held locks and releases them.
// P2, A1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_rejects_new_locks_and_renews_held_ones() {
    for fencing in [true, false] {
        let redis = Redis::start();
        let client = with(config(&redis).fencing(fencing).poll(Backoff::fixed(ms(20))));
        let guard = take(&client, "held", ms(900)).await;
        redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let report = timed_out(in_time("a wait", client.lock("a").ttl(LONG_TTL).wait(ms(300)).acquire()).await);
        assert!(report.to_string().contains("OOM"), "{report}");
        assert!(
            matches!(&*report.nodes, [Answer::Rejected(error)] if error.class == ErrorClass::Transient),
            "{report}"
        );
        let before = guard.valid_until();
        wait_for("it is renewed for a TTL", || guard.valid_until().duration_since(before) > ms(900)).await;
        assert!(guard.is_held());
        release(guard).await;
        let waiting = tokio::spawn(client.lock("a").ttl(LONG_TTL).acquire());
        redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
        assert_clean(&redis).await;
    }
}

/// A client leaves a demoted server for a new connection. A holder keeps its lock if the server is
/// promoted back in time. Waiters keep waiting, including those blocked in the server.
// P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_demotion_and_promotion_of_server() {
    let redis = Redis::start();
    // No master there: the server keeps its data and tries to connect.
    let nowhere = Redis::start().port().to_string();
    let holder = with(named(&redis, "holder"));
    let waiter = with(named(&redis, "waiter").poll(Backoff::fixed(ms(50))));
    let ttl = ms(4000);
    let guard = take(&holder, "a", ttl).await;
    let mut waiting = waiter.lock("a").ttl(LONG_TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    wait_for("the waiter listens", || is_waiting(&redis, "waiter")).await;
    let old = connections(&redis, "holder");

    redis.cli(&["REPLICAOF", "127.0.0.1", &nowhere]);
    let report = timed_out(in_time("a wait", holder.lock("b").ttl(LONG_TTL).wait(ms(300)).acquire()).await);
    assert!(report.to_string().contains("READONLY"), "{report}");
    wait_for("the holder has connected anew", || connections(&redis, "holder").iter().all(|id| !old.contains(id)))
        .await;
    assert!(guard.is_held() && !waiting.is_finished());

    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    wait_for("it is renewed", || guard.remaining() > ttl / 2).await;
    assert!(guard.is_held());
    release(guard).await;
    release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    assert_clean(&redis).await;
}

/// A change of role unblocks waiters (`UNBLOCKED`), which is no rejection: they subscribe again.
// A7, P2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_resubscribes_after_role_change() {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
    let nowhere = Redis::start().port().to_string();
    let waiter = with(named(&redis, "waiter").poll(Backoff::fixed(ms(50))));
    let waiting = tokio::spawn(waiter.lock("a").ttl(LONG_TTL).acquire());
    wait_for("it listens", || is_waiting(&redis, "waiter")).await;
    redis.cli(&["REPLICAOF", "127.0.0.1", &nowhere]);
    wait_for("it was thrown out", || !is_waiting(&redis, "waiter")).await;
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    wait_for("it listens again", || is_waiting(&redis, "waiter")).await;
    redis.cli(&["DEL", "a"]);
    release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    assert_clean(&redis).await;
}

/// The same with a transient error (`NOREPLICAS`, or `LOADING` after a restart).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_subscribes_once_transient_error_clears() {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let waiter = with(named(&redis, "waiter").poll(Backoff::fixed(ms(50))));
    let mut waiting = waiter.lock("a").ttl(LONG_TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    let refused = || redis.cli(&["INFO", "errorstats"]).contains("errorstat_NOREPLICAS:");
    wait_for("it was refused", refused).await;
    assert!(!is_waiting(&redis, "waiter"));
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    wait_for("it listens", || is_waiting(&redis, "waiter")).await;
    redis.cli(&["DEL", "a"]);
    release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    assert_clean(&redis).await;
}
