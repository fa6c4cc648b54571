//! Servers that are paused and resumed. On resume they execute requests from closed connections.
//! (The tests of `with-lock` cover paused client processes.)

use std::time::Instant;

use lock_testkit::Redis;
use lock_tokio::{Answer, Backoff, Blocked, Release};

use crate::kit::{
    LONG_TTL, assert_clean, client, config, exists, in_time, ms, release, take, timed_out, wait_for,
    wait_until_blocked, with,
};

/// A pause that ends before the validity has no effect.
// T2, H2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_short_pause() {
    let redis = Redis::start();
    let client = client(&redis);
    let guard = take(&client, "a", ms(3000)).await;
    redis.pause();
    wait_for("renewals fail", || guard.remaining() < ms(1200)).await;
    redis.resume();
    wait_for("it is renewed", || guard.remaining() > ms(2000)).await;
    assert!(guard.is_held());
    release(guard).await;
    assert_clean(&redis).await;
}

/// A waiter with a timeout fails in time. Another keeps waiting, and does not get an expired grant.
// A5, T1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_acquires_after_server_pause_past_ttl() {
    let redis = Redis::start();
    let (holder, waiter) = (client(&redis), with(config(&redis).poll(Backoff::fixed(ms(20)))));
    let ttl = ms(600);
    let guard = take(&holder, "a", ttl).await;
    let mut for_ever = waiter.lock("a").ttl(ttl).acquire();
    wait_until_blocked(&mut for_ever, Blocked::Held).await;
    redis.pause();
    in_time("loss", guard.lost()).await;
    wait_until_blocked(&mut for_ever, Blocked::Unreachable).await;
    let begun = Instant::now();
    let report = timed_out(in_time("a wait", waiter.lock("b").ttl(ttl).wait(ms(300)).acquire()).await);
    assert!(begun.elapsed() >= ms(300) && !report.is_busy(), "{report}");
    redis.resume();
    let next = in_time("the lock", for_ever).await.unwrap();
    assert!(next.is_held() && next.remaining() <= ttl);
    // The old holder's renewals were late or lost: the next holder keeps the lock.
    let _ = in_time("release", guard.release()).await;
    assert_eq!(redis.cli(&["GET", "a"]), next.token().to_string());
    release(next).await;
    assert_clean(&redis).await;
}

/// A release times out as `Unknown`, and is completed when the server resumes.
// U1, A4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_on_paused_server_is_unknown_and_completed_later() {
    let redis = Redis::start();
    let client = with(config(&redis).release_within(ms(700)));
    let (a, b) = (take(&client, "a", LONG_TTL).await, take(&client, "b", LONG_TTL).await);
    redis.pause();
    drop(b);
    let begun = Instant::now();
    assert_eq!(in_time("release", a.release()).await, Release::Unknown);
    assert!(begun.elapsed() >= ms(700), "{:?}", begun.elapsed());
    redis.resume();
    // Long before their TTL.
    assert_clean(&redis).await;
}

/// The server executes the request of a cancelled attempt when it resumes. The resulting key is
/// deleted long before its TTL, and blocks neither this client nor others.
// A3, A4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_grant_of_timed_out_attempt_is_deleted() {
    // With and without fencing: a script and a plain SET.
    for fencing in [true, false] {
        let redis = Redis::start();
        let (ours, other) = (with(config(&redis).fencing(fencing)), client(&redis));
        release(take(&ours, "warm", LONG_TTL).await).await;
        let monitor = redis.monitor();
        redis.pause();
        let waits = [ms(50), ms(700), ms(1200)];
        for (n, wait) in waits.into_iter().enumerate() {
            for name in ["deleted", "replaced"] {
                let lock = ours.lock(format!("{name}{n}")).ttl(LONG_TTL).wait(wait);
                let report = timed_out(in_time("a wait", lock.acquire()).await);
                assert!(!report.is_busy(), "{report}");
            }
        }
        redis.resume();
        for n in 0..waits.len() {
            // This client is next on the same connection, then another one, after the delete.
            let guard = take(&ours, &format!("replaced{n}"), LONG_TTL).await;
            assert_eq!(redis.cli(&["GET", &format!("replaced{n}")]), guard.token().to_string());
            release(guard).await;
            release(take(&other, &format!("deleted{n}"), LONG_TTL).await).await;
        }
        assert_clean(&redis).await;
        let seen = monitor.take();
        let set = |name: &str| seen.iter().any(|seen| seen.verb() == "SET" && seen.args[1] == name);
        assert!(set("deleted0"), "no ghost appeared, nothing was tested: {seen:#?}");
    }
}

/// The same with a dropped future, and with connections that never got a reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_grant_of_dropped_future_is_deleted() {
    let redis = Redis::start();
    redis.pause();
    let client = client(&redis);
    for name in ["a", "b"] {
        let waiting = tokio::spawn(client.lock(name).ttl(LONG_TTL).acquire());
        tokio::time::sleep(ms(100)).await;
        waiting.abort();
    }
    let report = timed_out(in_time("a wait", client.lock("c").ttl(LONG_TTL).wait(ms(800)).acquire()).await);
    assert!(matches!(&*report.nodes, [Answer::Unknown(_) | Answer::Unreachable(_)]), "{report}");
    redis.resume();
    release(take(&client, "a", LONG_TTL).await).await;
    assert_clean(&redis).await;
    assert!(!exists(&redis, "b"));
}
