//! Tasks that compute or block, on runtimes whose other tasks have locks: the driver's thread goes on.
//!
//! A task is busy until the others have got what they wait for, or [`TIMEOUT`] has passed.
// D6

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use lock_testkit::{Redis, TIMEOUT, wait_until};
use lock_tokio::{AcquireErrorKind, Client, Guard, Loss, Release};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_secs(1);

fn workers(count: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(count).enable_all().build().unwrap()
}

fn client(redis: &Redis) -> Client {
    lock_tokio::connect(&redis.url()).unwrap()
}

fn take(client: &Client, name: &str) -> Guard {
    client.lock(name).ttl(TTL).acquire_blocking().unwrap()
}

/// A task that drops a guard, which wakes the driver, and computes.
struct Busy {
    over: Arc<AtomicBool>,
    begun: Arc<AtomicBool>,
}

impl Busy {
    fn spawn(runtime: &Runtime, dropped: Guard) -> Self {
        let busy = Self { over: Arc::default(), begun: Arc::default() };
        let (over, begun) = (Arc::clone(&busy.over), Arc::clone(&busy.begun));
        runtime.spawn(async move {
            drop(dropped);
            begun.store(true, Ordering::SeqCst);
            // Not an await: the worker is occupied.
            let _ = wait_until(TIMEOUT, || over.load(Ordering::SeqCst));
        });
        assert!(wait_until(TIMEOUT, || busy.begun.load(Ordering::SeqCst)));
        busy
    }

    /// The condition is met while the task is busy.
    #[track_caller]
    fn meanwhile(self, what: &str, condition: impl FnMut() -> bool) {
        let met = wait_until(TIMEOUT / 2, condition);
        self.over.store(true, Ordering::SeqCst);
        assert!(met, "only after the task had computed: {what}");
    }
}

/// Regression: six of six runs lost the lock.
#[test]
fn other_locks_are_renewed() {
    let redis = Redis::start();
    let runtime = workers(4);
    for _ in 0..3 {
        let client = client(&redis);
        let (kept, dropped) = (take(&client, "kept"), take(&client, "dropped"));
        let busy = Busy::spawn(&runtime, dropped);
        let begun = Instant::now();
        busy.meanwhile("three TTLs", || {
            assert!(kept.is_held(), "lost");
            begun.elapsed() > 3 * TTL
        });
    }
}

/// Regression: the holder learnt of it when another client had held the lock for three seconds.
#[test]
fn loss_is_told_at_end_of_validity() {
    let redis = Redis::start();
    let runtime = workers(4);
    let client = client(&redis);
    let (held, dropped) = (take(&client, "held"), take(&client, "dropped"));
    let (observer, told) = (held.observer(), Arc::new(OnceLock::new()));
    let (tells, at_risk) = (Arc::clone(&told), Arc::new(AtomicBool::new(false)));
    let (watcher, tells_risk) = (held.observer(), Arc::clone(&at_risk));
    runtime.spawn(async move { tells.set(observer.lost().await).unwrap() });
    runtime.spawn(async move {
        watcher.at_risk().await;
        tells_risk.store(true, Ordering::SeqCst);
    });
    let busy = Busy::spawn(&runtime, dropped);
    redis.pause();
    busy.meanwhile("the loss", || told.get().is_some());
    redis.resume();
    assert_eq!(told.get(), Some(&Some(Loss::Expired)));
    assert!(at_risk.load(Ordering::SeqCst));
}

/// Regression: a wait of 500 ms took 2.6 s.
#[test]
fn wait_ends_in_time() {
    let redis = Redis::start();
    let runtime = workers(4);
    let (ours, other) = (client(&redis), client(&redis));
    let (_held, dropped) = (take(&other, "held"), take(&ours, "dropped"));
    let waiting = runtime.spawn(ours.lock("held").wait(TTL / 4).acquire());
    let busy = Busy::spawn(&runtime, dropped);
    busy.meanwhile("the end of the wait", || waiting.is_finished());
    assert!(runtime.block_on(waiting).unwrap().unwrap_err().is_timeout());
}

/// The task that drops the guard does not wake the next one, whose task would then wait for it.
#[test]
fn next_waiter_of_dropped_lock_gets_it() {
    let redis = Redis::start();
    let runtime = workers(4);
    let client = client(&redis);
    for _ in 0..3 {
        let dropped = take(&client, "dropped");
        let (waits, is_waiting) = channel();
        let waiting = client.lock("dropped").ttl(TTL).acquire().on_blocked(move |_| waits.send(()).unwrap());
        let waiting = runtime.spawn(waiting);
        is_waiting.recv_timeout(TIMEOUT).unwrap();
        let busy = Busy::spawn(&runtime, dropped);
        busy.meanwhile("the next grant", || waiting.is_finished());
        drop(runtime.block_on(waiting).unwrap().unwrap());
    }
}

/// A runtime of one thread runs nothing else meanwhile. The locks of its tasks stay.
#[test]
fn current_thread_runtime_keeps_its_locks() {
    let redis = Redis::start();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let client = client(&redis);
        let kept = client.lock("kept").ttl(TTL).acquire().await.unwrap();
        drop(client.lock("dropped").ttl(TTL).acquire().await.unwrap());
        let begun = Instant::now();
        while begun.elapsed() < 3 * TTL {
            assert!(kept.is_held(), "lost");
            thread::sleep(TTL / 20);
        }
    });
}

/// Regression: they blocked a thread that ran other tasks, or never returned.
#[test]
fn blocking_calls_in_async_code_panic_at_once() {
    let redis = Redis::start();
    let on_thread = client(&redis);
    let held = take(&client(&redis), "held");
    for runtime in [workers(4), Builder::new_current_thread().enable_all().build().unwrap()] {
        let settings = lock_tokio::Settings::parse([redis.url()]).unwrap();
        let on_runtime = runtime.block_on(async { lock_tokio::connect_on_runtime(settings) }).unwrap();
        for client in [&on_thread, &on_runtime] {
            let lock = client.lock("held").wait(TIMEOUT);
            let blocked = runtime.block_on(runtime.spawn(async move { lock.acquire_blocking().map(drop) }));
            let panic = blocked.unwrap_err().into_panic();
            let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
            assert!(text.contains("Cannot block the current thread from within a runtime"), "{text}");
        }
        let (lock, observer) = (on_thread.lock("held"), held.observer());
        let blocked = runtime.block_on(async move {
            let lock = AssertUnwindSafe(|| drop(lock.try_acquire_blocking()));
            let observer = AssertUnwindSafe(|| observer.at_risk_within(TTL));
            (catch_unwind(lock).is_err(), catch_unwind(observer).is_err())
        });
        assert_eq!(blocked, (true, true), "in `block_on` too");
    }
}

#[test]
fn blocking_calls_work_where_tokio_may_block() {
    let redis = Redis::start();
    let client = client(&redis);
    let _held = take(&client, "held");
    let try_it = |name: &'static str| {
        let lock = client.lock(name).wait(TTL / 4);
        move || lock.acquire_blocking().map(|guard| guard.release_blocking())
    };
    for runtime in [workers(4), Builder::new_current_thread().enable_all().build().unwrap()] {
        let (free, held) = (try_it("free"), try_it("held"));
        let (free, held) = runtime.block_on(async {
            let held = tokio::task::spawn_blocking(held).await.unwrap();
            (tokio::task::spawn_blocking(free).await.unwrap(), held)
        });
        assert_eq!(free.unwrap(), Release::Released);
        assert!(held.unwrap_err().is_timeout());
    }
    let runtime = workers(2);
    let free = try_it("free");
    let free = runtime.block_on(runtime.spawn(async { tokio::task::block_in_place(free) })).unwrap();
    assert_eq!(free.unwrap(), Release::Released);
}

/// A client in a `static`, used by the runtimes of several tests.
#[test]
fn client_outlives_runtime_in_which_it_was_made() {
    let redis = Redis::start();
    let (client, guard) = workers(1).block_on(async {
        let client = client(&redis);
        let guard = client.lock("first").acquire().await.unwrap();
        (client, guard)
    });
    assert!(guard.is_held());
    workers(1).block_on(async { drop(client.lock("second").acquire().await.unwrap()) });
    assert_eq!(client.shutdown_blocking(TIMEOUT).unreleased, 0);

    let client = workers(1)
        .block_on(async { lock_tokio::connect_on_runtime(lock_tokio::Settings::parse([redis.url()]).unwrap()) });
    let error = client.unwrap().lock("third").acquire_blocking().unwrap_err();
    assert_eq!(*error.kind(), AcquireErrorKind::ShutDown);
    assert!(error.to_string().contains("the runtime of this client's driver has ended"), "{error}");
}

/// The driver's clock is real. tokio's runs ahead as soon as its tasks wait.
#[tokio::test(start_paused = true)]
async fn paused_clock_of_tests_ends_no_lock() {
    let redis = Redis::start();
    let client = client(&redis);
    let kept = client.lock("kept").ttl(TTL).acquire().await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(100 * TTL).await;
        drop(client.lock("other").wait(TIMEOUT).acquire().await.unwrap());
        assert!(kept.is_held());
    }
}
