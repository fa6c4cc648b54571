//! Fencing tokens grow even if the server loses its data.

use std::sync::{Arc, Mutex};

use lock_testkit::{Redis, Value};
use lock_tokio::Client;
use lock_tokio::redis::{FENCE_NAME, MAX_FENCE_BLOCK};
use tokio::task::JoinSet;

use crate::kit::{LONG_TTL, client, config, in_time, ms, release, scripts_run, take, wait_for, with};

async fn fence(client: &Client, name: &str) -> u64 {
    let guard = take(client, name, LONG_TTL).await;
    let fence = guard.fence().unwrap().get();
    release(guard).await;
    fence
}

fn counter(redis: &Redis) -> u64 {
    redis.cli(&["GET", FENCE_NAME]).parse().unwrap_or(0)
}

/// Over all names of a namespace, all clients, and the loss of all data.
// A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_grows_after_data_loss() {
    let mut redis = Redis::start();
    let clients = [client(&redis), client(&redis)];
    let mut last = 0;
    for round in 0..3 {
        for client in &clients {
            for name in ["a", "b", "a"] {
                let next = fence(client, name).await;
                assert!(next > last, "{next} after {last}");
                last = next;
            }
        }
        match round {
            0 => drop(redis.cli(&["FLUSHALL"])),
            1 => redis.restart_empty(),
            _ => drop(redis.cli(&["DEL", FENCE_NAME])),
        }
        assert_eq!(counter(&redis), 0);
    }
    assert!(fence(&clients[0], "a").await > last);
}

/// A holder whose lock was flushed, and its successor.
// A9, H2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_grows_after_flush_while_held() {
    let redis = Redis::start();
    let (first, second) = (client(&redis), client(&redis));
    let guard = take(&first, "a", ms(900)).await;
    redis.cli(&["FLUSHALL"]);
    let next = take(&second, "a", LONG_TTL).await;
    assert!(next.fence() > guard.fence());
    in_time("loss", guard.lost()).await;
    drop(guard);
    // A later release by the loser does no harm.
    release(take(&first, "b", LONG_TTL).await).await;
    assert_eq!(redis.cli(&["GET", "a"]), next.token().to_string());
}

/// A counter ahead of the clock is incremented.
// A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_grows_if_counter_is_ahead_of_clock() {
    let redis = Redis::start();
    let client = client(&redis);
    let before = fence(&client, "a").await;
    let ahead = before + 3_600_000_000;
    redis.cli(&["SET", FENCE_NAME, &ahead.to_string()]);
    let mut last = ahead;
    for _ in 0..3 {
        let next = fence(&client, "a").await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    let guard = take(&client, "a", LONG_TTL).await;
    let ahead = guard.fence_ahead().unwrap();
    assert!(ahead <= ms(3_600_001) && ahead > ms(3_000_000), "{ahead:?}");
    redis.cli(&["DEL", FENCE_NAME]);
    assert_eq!(take(&client, "b", LONG_TTL).await.fence_ahead(), None);
}

async fn burst(client: Client, name: String) -> u64 {
    let mut last = 0;
    for _ in 0..50 {
        last = fence(&client, &name).await;
    }
    last
}

/// The counter is lost after a burst of grants, each of which minted as many tokens as allowed.
// A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_grows_after_counter_loss_following_burst() {
    let redis = Redis::start();
    let client = with(config(&redis).fence_block(MAX_FENCE_BLOCK));
    for _ in 0..3 {
        let tasks: Vec<_> = (0..8).map(|n| tokio::spawn(burst(client.clone(), format!("lock:{n}")))).collect();
        let mut last = 0;
        for task in tasks {
            last = last.max(task.await.unwrap());
        }
        redis.cli(&["DEL", FENCE_NAME]);
        let next = fence(&client, "lock:0").await;
        assert!(next > last, "{next} after {last}");
    }
}

async fn work(client: Client, seen: Arc<Mutex<Vec<u64>>>) {
    for _ in 0..20 {
        let guard = take(&client, "a", LONG_TTL).await;
        seen.lock().unwrap().push(guard.fence().unwrap().get());
        release(guard).await;
    }
}

/// Waiters of one client hand the lock over, and every second one must mint tokens.
// A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_grows_when_local_hand_overs_exhaust_tokens() {
    let redis = Redis::start();
    let client = with(config(&redis).fence_block(2).handover_window(LONG_TTL));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(work(client.clone(), Arc::clone(&seen)))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 160 && seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

/// A replica without the last grants is promoted.
// A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_grows_after_promotion_of_stale_replica() {
    let mut master = Redis::start();
    let replica = Redis::builder().replica_of(&master).start();
    let linked = || replica.cli(&["INFO", "replication"]).contains("master_link_status:up");
    wait_for("the replica follows", linked).await;
    let old = client(&master);
    let mut last = fence(&old, "a").await;
    wait_for("the replica has received it", || counter(&replica) == counter(&master)).await;
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let stale = counter(&replica);
    for _ in 0..50 {
        let next = fence(&old, "a").await;
        assert!(next > last);
        last = next;
    }
    master.kill();
    assert!(counter(&replica) == stale && stale < last, "the replica is not stale: {stale}, {last}");
    let next = fence(&client(&replica), "a").await;
    assert!(next > last, "{next} after {last}");
}

/// The counter is back at an old value. The lock that was granted last is the first of sixteen that
/// one command takes, as soon as the clock is a block past that grant.
// A9
#[tokio::test]
async fn fence_grows_in_batch_after_counter_was_set_back() {
    let redis = Redis::start();
    // On this thread the driver runs when all tasks have made their requests.
    let client = lock_tokio::connect_on_runtime(config(&redis)).unwrap();
    for _ in 0..5 {
        let last = fence(&client, "lock 0").await;
        redis.cli(&["SET", FENCE_NAME, "5"]);
        let soon = last + u64::from(MAX_FENCE_BLOCK);
        // The first token of a grant is up to a block older than the grant.
        wait_for("the clock is past the last grant", || micros(&redis) > soon + u64::from(MAX_FENCE_BLOCK)).await;
        redis.cli(&["CONFIG", "RESETSTAT"]);
        let mut tasks = JoinSet::new();
        for n in 0..16 {
            let acquiring = client.lock(format!("lock {n}")).ttl(LONG_TTL).acquire();
            tasks.spawn(async move { (n, acquiring.await.unwrap()) });
        }
        let guards = in_time("sixteen locks", tasks.join_all()).await;
        assert_eq!(scripts_run(&redis), 1, "one command took all of them");
        for (n, guard) in guards {
            let next = guard.fence().unwrap().get();
            assert!(n > 0 || next > last, "{next} after {last}");
            release(guard).await;
        }
    }
}

/// The server's clock in µs.
fn micros(redis: &Redis) -> u64 {
    let Value::Array(parts) = redis.command(&["TIME"]) else { panic!("no time") };
    let part = |place: usize| parts[place].to_string().parse::<u64>().unwrap();
    part(0) * 1_000_000 + part(1)
}
