//! Keys with data that no lock writes.

use lock_testkit::Redis;
use lock_tokio::{AcquireErrorKind, Backoff, Blocked, Loss, Release};

use crate::kit::{
    LONG_TTL, assert_clean, client, config, exists, in_time, ms, put_data, release, take, tried_in_vain,
    wait_until_blocked, with,
};

const DATA: [&[&str]; 4] =
    [&["RPUSH", "a", "1"], &["HSET", "a", "field", "1"], &["SADD", "a", "1"], &["XADD", "a", "*", "field", "1"]];

/// An error at once with the server's message. The data stays unchanged.
// A10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_of_other_type_is_reported_as_key_in_use() {
    let redis = Redis::start();
    for fencing in [true, false] {
        for data in DATA {
            redis.cli(&["FLUSHALL"]);
            redis.cli(data);
            let before = redis.command(&["DUMP", "a"]);
            let client = with(config(&redis).fencing(fencing));
            // The second attempt is always a script.
            for _ in 0..2 {
                let error = in_time("an error", client.lock("a").acquire()).await.unwrap_err();
                // A plain `SET NX` only sees that there is something.
                assert!(matches!(error.kind(), AcquireErrorKind::KeyInUse(_)), "{data:?}, fencing {fencing}: {error}");
                assert!(error.to_string().contains("WRONGTYPE"), "{error}");
            }
            assert_eq!(redis.command(&["DUMP", "a"]), before);
        }
    }
}

/// Also during a wait.
// A10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_replacing_awaited_lock_ends_wait() {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody", "PX", "60000"]);
    let client = with(config(&redis).poll(Backoff::fixed(ms(20))));
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    redis.cli(&["DEL", "a"]);
    redis.cli(&["RPUSH", "a", "1"]);
    // The key may have been free between the two commands.
    match in_time("the end of the wait", waiting).await {
        Err(error) if matches!(error.kind(), AcquireErrorKind::KeyInUse(_)) => {}
        Err(error) => panic!("{error}"),
        Ok(guard) => assert_eq!(redis.cli(&["GET", "a"]), guard.token().to_string()),
    }
}

/// Data in place of a held lock is a definite "not mine".
// H2, U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_replacing_held_lock_is_reported_as_taken() {
    let redis = Redis::start();
    let client = client(&redis);
    let guard = take(&client, "a", ms(3000)).await;
    put_data(&redis, "a");
    assert_eq!(in_time("loss", guard.lost()).await, Loss::Taken);
    assert_eq!(in_time("release", guard.release()).await, Release::Taken);
    let held = take(&client, "b", LONG_TTL).await;
    put_data(&redis, "b");
    assert_eq!(in_time("release", held.release()).await, Release::Taken);
    assert!(exists(&redis, "a") && exists(&redis, "b"), "the data stays");
}

/// An invalid counter is an error before anything is written.
// A1, A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_fence_counter_is_reported_as_key_in_use() {
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

/// The same for numbers without room to increment, and for other values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_range_fence_counter_is_reported_as_key_in_use() {
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
    let error = in_time("an error", client.lock("a").ttl(LONG_TTL).wait(ms(500)).acquire()).await.unwrap_err();
    assert!(matches!(error.kind(), AcquireErrorKind::KeyInUse(_)), "{spoiled:?}: {error}");
    let names_counter = error.to_string().contains(counter);
    assert!(names_counter || spoiled[0] != "SET", "{spoiled:?}: {error}");
    assert!(!exists(redis, "a"), "{spoiled:?}");
    assert_eq!(redis.command(&["DUMP", counter]), before, "{spoiled:?}");
    // Without fencing the counter is not used.
    release(take(&with(config(redis).fencing(false)), "a", LONG_TTL).await).await;
    redis.cli(&["DEL", counter]);
    release(take(&client, "a", LONG_TTL).await).await;
}

/// A key without a TTL is reported, and the client keeps waiting.
// A10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_without_expiry_is_reported_and_waited_for() {
    let redis = Redis::start();
    redis.cli(&["SET", "a", "somebody"]);
    let client = with(config(&redis).poll(Backoff::fixed(ms(20))));
    let report = tried_in_vain(in_time("a try", client.lock("a").try_acquire()).await);
    assert!(report.is_busy() && report.to_string().contains("without expiry"), "{report}");
    let mut waiting = client.lock("a").ttl(LONG_TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::HeldWithoutExpiry).await;
    // With a TTL it is a lock like any other.
    redis.cli(&["PEXPIRE", "a", "60000"]);
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    redis.cli(&["PERSIST", "a"]);
    wait_until_blocked(&mut waiting, Blocked::HeldWithoutExpiry).await;
    assert_eq!(redis.cli(&["GET", "a"]), "somebody");
    redis.cli(&["DEL", "a"]);
    release(in_time("the lock", waiting).await.unwrap()).await;
    assert_clean(&redis).await;
}
