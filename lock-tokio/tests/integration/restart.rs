//! Servers that are killed and restarted, with and without their data.

use core::time::Duration;

use lock_testkit::{Redis, TIMEOUT};
use lock_tokio::{Answer, Backoff, Blocked, Loss, Release};
use tokio::time::sleep;

use crate::kit::{
    LONG_TTL, assert_clean, client, config, exists, in_time, is_waiting, ms, named, release, take, tried_in_vain,
    wait_for, wait_until_blocked, with,
};
use crate::workers::Workers;

/// Confirmed locks exist after the restart and are renewed over a new connection.
// H2, P1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_locks_survive_restart_with_data() {
    let mut redis = Redis::builder().append_only().start();
    let client = client(&redis);
    let ttl = Duration::from_secs(6);
    let mut guards = Vec::new();
    for n in 0..32 {
        guards.push(take(&client, &format!("k{n}"), ttl).await);
    }
    redis.restart();
    let before: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
    wait_for("all are renewed", || guards.iter().zip(&before).all(|(guard, before)| guard.valid_until() > *before))
        .await;
    for guard in guards {
        let key = String::from_utf8(guard.name().to_vec()).unwrap();
        assert_eq!(redis.cli(&["GET", &key]), guard.token().to_string());
        release(guard).await;
    }
    assert_clean(&redis).await;
}

/// A server that is down past the end of validity costs the lock. Once the guard is released, the
/// data that the server still has blocks no client.
// T2, U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_down_past_ttl_expires_hold() {
    let mut redis = Redis::builder().append_only().start();
    let client = client(&redis);
    let guard = take(&client, "a", ms(600)).await;
    redis.kill();
    assert_eq!(in_time("loss", guard.lost()).await, Loss::Expired);
    assert!(!guard.is_held());
    let report = tried_in_vain(in_time("a try", client.lock("b").try_acquire()).await);
    assert!(matches!(&*report.nodes, [Answer::Unreachable(_)]), "{report}");
    redis.restart();
    let released = in_time("release", guard.release()).await;
    assert!(matches!(released, Release::Released | Release::Expired), "{released:?}");
    release(take(&client, "a", LONG_TTL).await).await;
    assert_clean(&redis).await;
}

/// A waiter keeps waiting on new connections, and gets the lock when it is free.
// A7, P1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_restart() {
    for with_data in [true, false] {
        let mut redis = Redis::builder().append_only().start();
        redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
        let waiter = with(named(&redis, "waiter").poll(Backoff::fixed(ms(20))));
        let mut waiting = waiter.lock("a").ttl(LONG_TTL).acquire();
        wait_until_blocked(&mut waiting, Blocked::Held).await;
        redis.kill();
        wait_until_blocked(&mut waiting, Blocked::Unreachable).await;
        if with_data {
            redis.restart();
            wait_until_blocked(&mut waiting, Blocked::Held).await;
            let waiting = tokio::spawn(waiting);
            wait_for("it listens again", || is_waiting(&redis, "waiter")).await;
            redis.cli(&["DEL", "a"]);
            release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
        } else {
            redis.restart_empty();
            release(in_time("the lock", waiting).await.unwrap()).await;
        }
        assert_clean(&redis).await;
    }
}

/// The server dies with the request in flight. The attempt continues and leaves nothing behind.
// A3, M8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_in_flight_survives_restart() {
    let mut redis = Redis::builder().append_only().start();
    let client = client(&redis);
    release(take(&client, "warm", LONG_TTL).await).await;
    for round in 0..5 {
        redis.pause();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG_TTL).acquire());
        let given_up = tokio::spawn(client.lock("b").ttl(LONG_TTL).wait(ms(20)).acquire());
        // From before the request is sent to after its connection has timed out.
        sleep(ms(round * 150)).await;
        redis.restart();
        let guard = in_time("the lock", waiting).await.unwrap().unwrap();
        assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string());
        release(guard).await;
        // A timeout or a grant, depending on how long the restart took.
        drop(in_time("the end of the wait", given_up).await.unwrap());
        assert_clean(&redis).await;
    }
}

/// The delete was in flight when the server died, and is repeated after its restart.
// A4, U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_in_flight_is_repeated_after_restart() {
    let mut redis = Redis::builder().append_only().start();
    let client = with(config(&redis).release_within(TIMEOUT));
    let (awaited, dropped) = (take(&client, "the result", LONG_TTL).await, take(&client, "dropped", LONG_TTL).await);
    redis.pause();
    let releasing = tokio::spawn(awaited.release());
    drop(dropped);
    sleep(ms(20)).await;
    redis.kill();
    sleep(ms(50)).await;
    assert!(!releasing.is_finished());
    redis.restart();
    assert_eq!(in_time("release", releasing).await.unwrap(), Release::Released);
    assert_clean(&redis).await;
}

/// Under load, restarts with data break neither mutual exclusion nor the cleanup.
// A3, A4, A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_restarts_under_load() {
    let mut redis = Redis::builder().append_only().start();
    let clients = [client(&redis), client(&redis)];
    let mut workers = Workers::spawn(&clients, 16, 4);
    for _ in 0..4 {
        workers.disturb_for(ms(150), ms(10), || ()).await;
        redis.restart();
        wait_for("locks are taken again", || {
            redis.keys().iter().any(|key| exists(&redis, key) && key.starts_with("room"))
        })
        .await;
    }
    let visits = workers.finish().await;
    assert!(visits > 50, "{visits}");
    assert_clean(&redis).await;
}
