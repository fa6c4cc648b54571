//! The client on tokio against real servers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scenarios;

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use lock_testkit::{PATIENCE, Redis, wait_until};
use lock_tokio::lock_proto::driver;
use lock_tokio::redis::{Config, Loss};
use lock_tokio::{Client, ConnectError, Tokio};
use scenarios::Kit;
use tokio::runtime::{Builder, Runtime};

fn kit() -> Kit<Tokio> {
    Kit { host: Tokio::new(), connect: |config: Config| Client::with_config(config).map(Client::into_inner) }
}

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn on_one_thread<F: Future<Output = ()>>(scenario: impl FnOnce(Kit<Tokio>) -> F) {
    single().block_on(scenario(kit()));
}

fn on_many_threads<F: Future<Output = ()>>(scenario: impl FnOnce(Kit<Tokio>) -> F) {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(scenario(kit()));
}

mod current_thread {
    crate::scenarios::all!(crate::on_one_thread);
}

mod multi_thread {
    crate::scenarios::all!(crate::on_many_threads);
}

fn gone(redis: &Redis, key: &str) -> bool {
    wait_until(PATIENCE, || redis.cli(&["EXISTS", key]) == "0")
}

#[test]
fn without_a_runtime_there_is_an_error() {
    assert!(matches!(Client::connect("redis://127.0.0.1:6379"), Err(ConnectError::NoRuntime)));
}

#[test]
fn bad_urls_are_named() {
    let runtime = single();
    let _inside = runtime.enter();
    for (urls, word) in [
        (&["http://127.0.0.1"][..], "http"),
        (&["redis://127.0.0.1:1", "redis://127.0.0.1:2"], "2 nodes"),
        (&["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:1"], "same server"),
    ] {
        let error = Client::connect_quorum(urls).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_guard_is_dropped_on_a_thread_without_a_runtime() {
    let redis = Redis::start();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, guard) = runtime.block_on(async {
        let client = Client::connect(&redis.url()).unwrap();
        let guard = client.lock("a").acquire().await.unwrap();
        (client, guard)
    });
    thread::spawn(move || {
        assert!(guard.is_held());
        drop(guard);
    })
    .join()
    .unwrap();
    assert!(gone(&redis, "a"));
    drop(client);
}

#[test]
fn a_guard_is_dropped_after_its_runtime() {
    let redis = Redis::start();
    let runtime = single();
    let (client, guard, other) = runtime.block_on(async {
        let client = Client::connect(&redis.url()).unwrap();
        let guard = client.lock("a").ttl(Duration::from_millis(500)).acquire().await.unwrap();
        let other = client.lock("b").ttl(Duration::from_millis(500)).acquire().await.unwrap();
        (client, guard, other)
    });
    drop(runtime);
    assert!(!guard.is_held(), "nobody renews it any more");
    drop(guard);
    let second = single();
    assert_eq!(second.block_on(other.lost()), Loss::ShutDown);
    assert_eq!(second.block_on(other.release()), lock_tokio::redis::Release::Unknown);
    assert!(second.block_on(client.lock("c").acquire()).is_err());
    drop(client);
    assert!(gone(&redis, "a") && gone(&redis, "b"), "at the TTL");
}

#[test]
fn a_driver_that_is_not_polled_holds_nothing_for_long() {
    let redis = Redis::start();
    let runtime = single();
    let ttl = Duration::from_millis(300);
    let guard = runtime.block_on(async {
        let client = Client::connect(&redis.url()).unwrap();
        client.lock("a").ttl(ttl).acquire().await.unwrap()
    });
    // Outside of `block_on` nothing runs on this runtime.
    assert!(guard.is_held());
    thread::sleep(guard.remaining());
    assert!(!guard.is_held());
    // When it goes on, the loss comes first.
    runtime.block_on(async {
        let work = async { panic!("the lock is lost") };
        let done = guard.protect(work).await;
        assert_eq!(done.output, Err::<(), _>(Loss::Expired));
    });
    assert!(gone(&redis, "a"));
}

#[test]
fn a_blocked_executor_loses_the_lock_first() {
    let redis = Redis::start();
    single().block_on(async {
        let client = Client::connect(&redis.url()).unwrap();
        let ttl = Duration::from_millis(300);
        let guard = client.lock("a").ttl(ttl).acquire().await.unwrap();
        let steps = AtomicU32::new(0);
        let work = async {
            steps.fetch_add(1, Ordering::SeqCst);
            thread::sleep(2 * ttl);
            tokio::task::yield_now().await;
            steps.fetch_add(1, Ordering::SeqCst);
        };
        let done = guard.protect(work).await;
        assert_eq!(done.output, Err(Loss::Expired));
        assert_eq!(steps.load(Ordering::SeqCst), 1, "the work did not run on");
    });
}

#[test]
fn guards_move_between_tasks_and_threads() {
    let redis = Redis::start();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&redis.url()).unwrap();
        let held = Arc::new(AtomicU32::new(0));
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let (client, held) = (client.clone(), Arc::clone(&held));
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let guard = client.lock("a").acquire().await.unwrap();
                        assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0);
                        let guard = tokio::spawn(async move { guard }).await.unwrap();
                        assert!(guard.is_held());
                        held.fetch_sub(1, Ordering::SeqCst);
                        tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(client.shutdown(PATIENCE).await.unreleased, 0);
    });
    assert!(gone(&redis, "a"));
}

#[test]
fn the_driver_runs_in_a_task_of_ones_own() {
    let redis = Redis::start();
    single().block_on(async {
        let config = Config::new([lock_tokio::redis::Endpoint::parse(&redis.url()).unwrap()]);
        let (client, driver) = driver::client(Tokio::new(), config).unwrap();
        let task = tokio::spawn(driver);
        drop(client.lock("a").acquire().await.unwrap());
        drop(client);
        task.await.unwrap();
    });
    assert!(gone(&redis, "a"));
}
