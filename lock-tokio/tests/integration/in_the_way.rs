//! Keys that hold what no lock would write there.

use lock_testkit::Redis;
use lock_tokio::AcquireErrorKind;
use lock_tokio::redis::{Backoff, Blocked, Loss, Release};

use crate::kit::{
    LONG_TTL, blocked, clean, client, config, exists, give_back, ms, put_data, soon, take, timed_out, with,
};

/// Some data of somebody else.
const DATA: [&[&str]; 4] =
    [&["RPUSH", "a", "1"], &["HSET", "a", "field", "1"], &["SADD", "a", "1"], &["XADD", "a", "*", "field", "1"]];

/// Requirement A10: an error at once, with the server's words, and the data stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_another_type_is_no_lock() {
    let redis = Redis::start();
    for fencing in [true, false] {
        for data in DATA {
            redis.cli(&["FLUSHALL"]);
            redis.cli(data);
            let before = redis.command(&["DUMP", "a"]);
            let client = with(config(&redis).fencing(fencing));
            // The second attempt is a script in any case.
            for _ in 0..2 {
                let error = soon("an error", client.lock("a").acquire()).await.unwrap_err();
                // A plain `SET NX` only sees that there is something.
                assert!(matches!(error.kind(), AcquireErrorKind::KeyInUse(_)), "{data:?}, fencing {fencing}: {error}");
                assert!(error.to_string().contains("WRONGTYPE"), "{error}");
            }
            assert_eq!(redis.command(&["DUMP", "a"]), before);
        }
    }
}

/// Requirement A10: also for who waits already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_takes_the_place_of_a_lock_ends_the_wait() {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
    let client = with(config(&redis).poll(Backoff::fixed(ms(20))));
    let mut waiting = client.lock("a").acquire();
    blocked(&mut waiting, Blocked::Held).await;
    redis.cli(&["DEL", "a"]);
    redis.cli(&["RPUSH", "a", "1"]);
    // Between the two commands it may have been free.
    match soon("the end of the wait", waiting).await {
        Err(error) if matches!(error.kind(), AcquireErrorKind::KeyInUse(_)) => {}
        Err(error) => panic!("{error}"),
        Ok(guard) => assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string()),
    }
}

/// Requirements H2 and U1: data in the place of a lock that is held is a clear "not mine".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_takes_the_place_of_a_lock_that_is_held() {
    let redis = Redis::start();
    let client = client(&redis);
    let guard = take(&client, "a", ms(3000)).await;
    put_data(&redis, "a");
    assert_eq!(soon("loss", guard.lost()).await, Loss::Taken);
    assert_eq!(soon("release", guard.release()).await, Release::Taken);
    let held = take(&client, "b", LONG_TTL).await;
    put_data(&redis, "b");
    assert_eq!(soon("release", held.release()).await, Release::Taken);
    assert!(exists(&redis, "a") && exists(&redis, "b"), "the data stays");
}

/// Requirements A1 and A9: a counter that cannot be counted on is refused before anything is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_counter_that_is_none() {
    let counter = "lock-proto:fence";
    let redis = Redis::start();
    for spoiled in [
        &["RPUSH", counter, "1"][..],
        &["HSET", counter, "field", "1"],
        &["SET", counter, "many"],
        &["SET", counter, ""],
    ] {
        refuses_to_count_on(&redis, counter, spoiled).await;
    }
}

/// The same for numbers that leave no room to count, or are none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_counter_out_of_range() {
    let counter = "lock-proto:fence";
    let redis = Redis::start();
    for number in ["inf", "nan", "1e300", "9007199254740993", "9223372036854775807"] {
        refuses_to_count_on(&redis, counter, &["SET", counter, number]).await;
    }
}

async fn refuses_to_count_on(redis: &Redis, counter: &str, spoiled: &[&str]) {
    redis.cli(&["FLUSHALL"]);
    redis.cli(spoiled);
    let before = redis.command(&["DUMP", counter]);
    let client = client(redis);
    let error = soon("an error", client.lock("a").ttl(LONG_TTL).wait(ms(500)).acquire()).await.unwrap_err();
    assert!(matches!(error.kind(), AcquireErrorKind::KeyInUse(_)), "{spoiled:?}: {error}");
    assert!(!exists(redis, "a"), "{spoiled:?}");
    assert_eq!(redis.command(&["DUMP", counter]), before, "{spoiled:?}");
    // Without a fence it is in nobody's way.
    give_back(take(&with(config(redis).fencing(false)), "a", LONG_TTL).await).await;
    redis.cli(&["DEL", counter]);
    give_back(take(&client, "a", LONG_TTL).await).await;
}

/// Requirement A10: a key without expiry is reported, and waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_expiry() {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody"]);
    let client = with(config(&redis).poll(Backoff::fixed(ms(20))));
    let report = timed_out(soon("a try", client.lock("a").try_acquire()).await);
    assert!(report.is_busy() && report.to_string().contains("without expiry"), "{report}");
    let mut waiting = client.lock("a").ttl(LONG_TTL).acquire();
    blocked(&mut waiting, Blocked::HeldWithoutExpiry).await;
    // With an expiry it is a lock like any other.
    redis.cli(&["PEXPIRE", "a", "60000"]);
    blocked(&mut waiting, Blocked::Held).await;
    redis.cli(&["PERSIST", "a"]);
    blocked(&mut waiting, Blocked::HeldWithoutExpiry).await;
    assert_eq!(redis.cli(&["GET", "a"]), "somebody");
    redis.cli(&["DEL", "a"]);
    give_back(soon("the lock", waiting).await.unwrap()).await;
    clean(&redis).await;
}
