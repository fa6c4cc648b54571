//! Clients, timeouts and server queries for the tests.

use core::time::Duration;

use lock_testkit::{Redis, Value};
use lock_tokio::redis::{Config, Endpoint, FENCE_NAME, SIGNAL_SUFFIX, WAITING_SUFFIX};
use lock_tokio::{AcquireError, Client, Guard, Report};

pub(crate) use crate::common::{LONG_TTL, failure, in_time, ms, release, timed_out, wait_for, wait_until_blocked};

pub(crate) fn endpoint(url: &str) -> Endpoint {
    Endpoint::parse(url).unwrap()
}

pub(crate) fn config(redis: &Redis) -> Config {
    Config::new([endpoint(&redis.url())])
}

/// Returns the same settings with a name for `CLIENT LIST`.
pub(crate) fn named(redis: &Redis, name: &str) -> Config {
    let mut at = endpoint(&redis.url());
    at.client_name = Some(name.into());
    Config::new([at])
}

pub(crate) fn with(config: Config) -> Client {
    lock_tokio::connect_with(config).unwrap()
}

pub(crate) fn client(redis: &Redis) -> Client {
    with(config(redis))
}

/// Acquires a lock that is free or will be soon.
pub(crate) async fn take(client: &Client, name: &str, ttl: Duration) -> Guard {
    in_time("acquire", client.lock(name).ttl(ttl).acquire()).await.unwrap()
}

/// The report of a single attempt that found the lock held, or too few servers.
#[track_caller]
pub(crate) fn tried_in_vain(result: Result<Guard, AcquireError>) -> Report {
    let error = failure(result);
    assert!(!error.is_timeout() && (error.is_busy() || error.is_unreachable()), "{error}");
    error.report().unwrap().clone()
}

pub(crate) fn exists(redis: &Redis, key: &str) -> bool {
    redis.cli(&["EXISTS", key]) == "1"
}

/// Replaces a lock by data in one step.
pub(crate) fn put_data(redis: &Redis, key: &str) {
    redis.command(&["EVAL", "redis.call('DEL', KEYS[1]) return redis.call('RPUSH', KEYS[1], '1')", "1", key]);
}

/// The number of scripts that the server has run since `CONFIG RESETSTAT`.
pub(crate) fn scripts_run(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| -> Option<u64> {
        let (name, rest) = line.split_once(":calls=")?;
        ["cmdstat_eval", "cmdstat_evalsha"].contains(&name).then(|| rest.split(',').next()?.parse().ok())?
    };
    stats.lines().filter_map(calls).sum()
}

pub(crate) fn pttl(redis: &Redis, key: &str) -> i64 {
    let answer = redis.command(&["PTTL", key]);
    let Value::Int(left) = answer else { panic!("{answer}") };
    left
}

/// Returns whether a connection with this client name is blocked in the server.
pub(crate) fn is_waiting(redis: &Redis, name: &str) -> bool {
    let name = format!(" name={name} ");
    redis.cli(&["CLIENT", "LIST"]).lines().any(|line| line.contains(&name) && line.contains(" flags=b "))
}

pub(crate) fn connections(redis: &Redis, name: &str) -> Vec<u64> {
    let list = redis.cli(&["CLIENT", "LIST"]);
    let ours = list.lines().filter(|line| line.contains(&format!(" name={name} ")));
    ours.map(|line| line.split_once(' ').unwrap().0.strip_prefix("id=").unwrap().parse().unwrap()).collect()
}

/// Checks that no lock is left and that all side keys except the fence counter have a TTL.
pub(crate) async fn assert_clean(redis: &Redis) {
    let ends = |key: &&String| key.ends_with(SIGNAL_SUFFIX) || key.ends_with(WAITING_SUFFIX);
    wait_for("all locks are gone", || redis.keys().iter().all(|key| key.ends_with(FENCE_NAME) || ends(&key))).await;
    for key in redis.keys().iter().filter(ends) {
        // -2: the key has expired since.
        assert_ne!(pttl(redis, key), -1, "requirement A7: {key} never ends");
    }
}
