//! Tests specific to smol. The common ones are in `conformance.rs`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use lock_smol::redis::Config;
use lock_smol::{Client, ConnectError, Loss, Smol};
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
    let (client, driver) = lock_driver::connect(Smol::new(), config).unwrap();
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

/// All threads of an executor compute, after a task of it has dropped a guard. Other locks stay, and
/// a wait ends in time.
// D6
fn locks_survive_busy_executor(
    connect: impl Fn(&str) -> Result<Client, ConnectError>,
    spawn: impl Fn(Box<dyn Future<Output = ()> + Send + Unpin>),
) {
    const TTL: Duration = Duration::from_secs(1);
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).unwrap(), connect(&redis.url()).unwrap());
    let take = |client: &Client, name: String| client.lock(name).ttl(TTL).acquire_blocking().unwrap();
    let (kept, _held) = (take(&client, "kept".into()), take(&other, "held".into()));
    let (over, threads) = (Arc::new(AtomicBool::new(false)), thread::available_parallelism().unwrap().get());
    for n in 0..threads {
        let (over, dropped) = (Arc::clone(&over), take(&client, format!("dropped{n}")));
        spawn(Box::new(Box::pin(async move {
            drop(dropped);
            let _ = wait_until(TIMEOUT, || over.load(Ordering::SeqCst));
        })));
    }
    let begun = Instant::now();
    let waited = client.lock("held").wait(TTL / 4).acquire_blocking();
    assert!(begun.elapsed() < TIMEOUT / 2, "only after the tasks had computed");
    assert!(waited.unwrap_err().is_timeout());
    let kept = wait_until(TIMEOUT / 2, || !kept.is_held() || begun.elapsed() > 3 * TTL) && kept.is_held();
    over.store(true, Ordering::SeqCst);
    assert!(kept, "lost");
}

#[test]
fn busy_global_executor_loses_no_lock() {
    locks_survive_busy_executor(lock_smol::connect, |task| smol::spawn(task).detach());
}

#[cfg(feature = "async-std")]
#[test]
fn busy_async_std_loses_no_lock() {
    locks_survive_busy_executor(lock_smol::async_std::connect, |task| drop(async_std::task::spawn(task)));
}

#[test]
fn driver_runs_on_executors_of_runtimes() {
    let redis = Redis::start();
    let config = || Config::parse(&redis.url()).unwrap();
    let clients = [
        lock_smol::connect_on_runtime(config()).unwrap(),
        #[cfg(feature = "async-std")]
        lock_smol::async_std::connect_on_runtime(config()).unwrap(),
    ];
    for client in clients {
        drop(smol::block_on(client.lock("a").acquire()).unwrap());
        assert_eq!(smol::block_on(client.shutdown(TIMEOUT)).unreleased, 0);
        assert!(gone(&redis, "a"));
    }
}
