//! Tests specific to tokio. The common ones are in `conformance.rs`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use lock_testkit::{Redis, TIMEOUT, wait_until};
use lock_tokio::redis::Config;
use lock_tokio::{ConnectError, Loss, Tokio};
use tokio::runtime::{Builder, Runtime};

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn gone(redis: &Redis, key: &str) -> bool {
    wait_until(TIMEOUT, || redis.cli(&["EXISTS", key]) == "0")
}

fn settings(redis: &Redis) -> Config {
    Config::parse(&redis.url()).unwrap()
}

#[test]
fn only_driver_on_runtime_needs_one() {
    let redis = Redis::start();
    let client = lock_tokio::connect(&redis.url()).unwrap();
    assert!(client.lock("a").acquire_blocking().unwrap().is_held());
    assert!(matches!(lock_tokio::connect_on_runtime(settings(&redis)), Err(ConnectError::NoRuntime)));
}

#[test]
fn runtime_without_io_or_timers_is_an_error() {
    for runtime in [Builder::new_current_thread().enable_time().build(), Builder::new_current_thread().build()] {
        let runtime = runtime.unwrap();
        let _inside = runtime.enter();
        let result = lock_tokio::connect_on_runtime(Config::parse("redis://127.0.0.1:6379").unwrap());
        assert!(matches!(result, Err(ConnectError::IncompleteRuntime)), "{result:?}");
    }
}

#[test]
fn connect_error_names_cause() {
    let runtime = single();
    let _inside = runtime.enter();
    for (urls, word) in [
        (&["mysql://127.0.0.1"][..], "mysql"),
        (&["redis://127.0.0.1:1", "redis://127.0.0.1:2"], "2 nodes"),
        (&["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:1"], "same server"),
    ] {
        let error = lock_tokio::connect_quorum(urls).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn blocked_executor_loses_lock_before_work_resumes() {
    let redis = Redis::start();
    single().block_on(async {
        let client = lock_tokio::connect_on_runtime(settings(&redis)).unwrap();
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
        let client = lock_tokio::connect(&redis.url()).unwrap();
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
        assert_eq!(client.shutdown(TIMEOUT).await.unreleased, 0);
    });
    assert!(gone(&redis, "a"));
}

#[test]
fn driver_runs_in_user_task() {
    let redis = Redis::start();
    single().block_on(async {
        let (client, driver) = lock_driver::connect(Tokio::new(), settings(&redis)).unwrap();
        let task = tokio::spawn(driver);
        drop(client.lock("a").acquire().await.unwrap());
        drop(client);
        task.await.unwrap();
    });
    assert!(gone(&redis, "a"));
}
