//! Simultaneous releases. The driver is a task of the same thread, so that all of them precede its
//! next poll.
// P4

use core::time::Duration;

use lock_testkit::Redis;
use lock_tokio::redis::WAITING_SUFFIX;
use lock_tokio::{Backoff, Client, Guard, Release};
use tokio::task::JoinSet;

use crate::kit::{
    LONG_TTL, assert_clean, config, exists, in_time, put_data, release, scripts_run, take, wait_for, with,
};

async fn acquire_all(client: &Client, names: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in names {
        guards.push(take(client, name.as_ref(), LONG_TTL).await);
    }
    guards
}

/// Releases all guards at once. Returns the results and the number of scripts that the server ran.
async fn release_all(redis: &Redis, guards: Vec<Guard>) -> (Vec<Release>, u64) {
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let mut tasks = JoinSet::new();
    for (index, guard) in guards.into_iter().enumerate() {
        tasks.spawn(async move { (index, guard.release().await) });
    }
    let mut ends = in_time("releases", tasks.join_all()).await;
    ends.sort_unstable_by_key(|(index, _)| *index);
    (ends.into_iter().map(|(_, end)| end).collect(), scripts_run(redis))
}

#[tokio::test]
async fn forty_releases_take_three_commands() {
    // P4
    let redis = Redis::start();
    let client = lock_tokio::connect_on_runtime(config(&redis)).unwrap();
    for flushed in [false, true] {
        let guards = acquire_all(&client, (0..40).map(|n| format!("lock {n}"))).await;
        if flushed {
            redis.cli(&["SCRIPT", "FLUSH"]);
        }
        let (ends, scripts) = release_all(&redis, guards).await;
        assert_eq!(ends, [Release::Released; 40]);
        // If the server lost the script, each lock is released by a separate call.
        assert_eq!(scripts, if flushed { 3 + 40 } else { 3 });
    }
    assert_clean(&redis).await;
}

#[tokio::test]
async fn batched_releases_report_individual_outcomes() {
    // P4
    let redis = Redis::start();
    let far = Duration::from_secs(3600);
    let [client, other] = [1, 2].map(|_| with(config(&redis).poll(Backoff::fixed(far))));
    // An error for the first lock is handled differently from one for another lock.
    let name_sets: [&[&str]; 2] =
        [&["data", "gone", "taken", "awaited", "last"], &["first", "gone", "taken", "awaited", "data", "last"]];
    for names in name_sets {
        let guards = acquire_all(&client, names).await;
        let waiting = tokio::spawn(other.lock("awaited").ttl(LONG_TTL).acquire());
        wait_for("a client waits", || exists(&redis, &format!("awaited{WAITING_SUFFIX}"))).await;
        redis.cli(&["DEL", "gone"]);
        redis.cli(&["SET", "taken", "somebody", "PX", "60000"]);
        put_data(&redis, "data");
        let (ends, scripts) = release_all(&redis, guards).await;
        let expected: Vec<_> = names
            .iter()
            .map(|name| match *name {
                "gone" => Release::Expired,
                "taken" | "data" => Release::Taken,
                _ => Release::Released,
            })
            .collect();
        assert_eq!(ends, expected, "{names:?}");
        assert!(scripts <= 2 + names.len() as u64, "{scripts} scripts for {names:?}");
        let guard = in_time("the woken waiter", waiting).await.unwrap().unwrap();
        release(guard).await;
        assert_eq!(redis.cli(&["GET", "taken"]), "somebody");
        redis.cli(&["DEL", "taken", "data"]);
        assert_clean(&redis).await;
    }
}
