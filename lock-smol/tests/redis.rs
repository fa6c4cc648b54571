//! Tests specific to smol. The common ones are in `conformance.rs`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::time::Duration;
use std::thread;

use lock_smol::redis::Config;
use lock_smol::{Loss, Smol};
use lock_testkit::{Redis, TIMEOUT, wait_until};

fn gone(redis: &Redis, key: &str) -> bool {
    wait_until(TIMEOUT, || redis.cli(&["EXISTS", key]) == "0")
}

#[test]
fn connect_error_names_cause() {
    let error = lock_smol::connect("mysql://127.0.0.1").unwrap_err().to_string();
    assert!(error.contains("mysql"), "{error}");
}

#[test]
fn hold_ends_when_executor_stalls_or_is_dropped() {
    let redis = Redis::start();
    let config = Config::parse(&redis.url()).unwrap();
    let (client, driver) = lock_proto::driver::connect(Smol::new(), config).unwrap();
    let executor = smol::Executor::new();
    executor.spawn(driver).detach();
    let ttl = Duration::from_millis(300);
    let guard = smol::block_on(executor.run(client.lock("a").ttl(ttl).acquire())).unwrap();
    assert!(guard.is_held());
    // Nothing polls the executor here: the clock alone decides.
    thread::sleep(guard.remaining());
    assert!(!guard.is_held());
    assert_eq!(smol::block_on(guard.lost()), Loss::Expired);
    let other = smol::block_on(executor.run(client.lock("b").ttl(ttl).acquire())).unwrap();
    drop(executor);
    assert!(!other.is_held());
    assert_eq!(smol::block_on(other.lost()), Loss::ShutDown);
    drop((guard, other, client));
    assert!(gone(&redis, "a") && gone(&redis, "b"), "at the TTL");
}
