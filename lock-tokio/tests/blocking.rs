//! The methods that block, on real servers and from threads without a runtime.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::mpsc::channel;
use std::thread;

use lock_testkit::{Etcd, Redis, TIMEOUT, wait_until};
use lock_tokio::{AcquireErrorKind, ElectionEvent, Loss, Release, Renew, blocking};

/// Runs on a thread, and fails instead of blocking forever.
#[track_caller]
fn in_time<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, result) = channel();
    thread::spawn(move || send.send(f()));
    result.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn stores() -> (Redis, Etcd) {
    (Redis::start(), Etcd::start())
}

#[test]
fn threads_count_without_loss() {
    let (redis, etcd) = stores();
    for url in [redis.url(), etcd.url()] {
        let client = blocking::connect(&url).unwrap();
        client.ping_blocking().unwrap();
        // Read and written in two steps, which only the lock keeps atomic.
        let counter = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let guard = client.lock("count").acquire_blocking().unwrap();
                        let seen = counter.load(Ordering::Relaxed);
                        thread::yield_now();
                        assert!(guard.is_held());
                        counter.store(seen + 1, Ordering::Relaxed);
                        assert_eq!(guard.release_blocking(), Release::Released);
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 100);
        assert_eq!(client.shutdown_blocking(TIMEOUT).unreleased, 0);
    }
    assert!(etcd.keys().is_empty() && etcd.leases().is_empty());
}

#[test]
fn attempt_reports_other_holder() {
    let redis = Redis::start();
    let (holder, other) = (blocking::connect(&redis.url()).unwrap(), blocking::connect(&redis.url()).unwrap());
    let guard = holder.lock("job").acquire_blocking().unwrap();
    assert!(other.lock("job").try_acquire_blocking().unwrap_err().is_busy());
    // Dropped, the guard releases in the background.
    let waiting = thread::spawn(move || other.lock("job").acquire_blocking().unwrap().release_blocking());
    drop(guard);
    assert_eq!(in_time("the next holder", || waiting.join().unwrap()), Release::Released);
}

#[test]
fn loss_is_reported_to_guard_and_observer() {
    let redis = Redis::start();
    let client = blocking::connect(&redis.url()).unwrap();
    let guard = client.lock("job").ttl(Duration::from_secs(1)).acquire_blocking().unwrap();
    assert_eq!(guard.lost_within(Duration::from_millis(1)), None);
    let observer = guard.observer();
    assert!(!observer.at_risk_within(Duration::ZERO));
    let watching = {
        let observer = observer.clone();
        thread::spawn(move || observer.lost_blocking())
    };
    redis.cli(&["DEL", "job"]);
    assert_eq!(guard.lost_within(TIMEOUT), Some(Loss::Gone));
    assert_eq!(in_time("the observer", || watching.join().unwrap()), Some(Loss::Gone));
    assert!(observer.at_risk_within(TIMEOUT) && !guard.is_held());

    let guard = client.lock("job").acquire_blocking().unwrap();
    let observer = guard.observer();
    assert_eq!(guard.release_blocking(), Release::Released);
    assert_eq!(in_time("the end", move || observer.lost_blocking()), None);
}

#[test]
fn manual_renewal_extends() {
    let redis = Redis::start();
    let client = blocking::connect(&redis.url()).unwrap();
    let lock = client.lock("job").ttl(Duration::from_secs(2)).renew(Renew::Manual);
    let guard = lock.acquire_blocking().unwrap();
    assert!(wait_until(TIMEOUT, || guard.remaining() < Duration::from_secs(1)));
    guard.extend_blocking().unwrap();
    assert!(guard.remaining() > Duration::from_secs(1));
}

/// The only way to end a call that blocks.
#[test]
fn shutdown_ends_blocked_calls() {
    let redis = Redis::start();
    let holder = blocking::connect(&redis.url()).unwrap();
    let guard = holder.lock("job").acquire_blocking().unwrap();
    let client = blocking::connect(&redis.url()).unwrap();
    let (waiter, (blocked, is_blocked)) = (client.clone(), channel());
    let waiting = thread::spawn(move || {
        // The callback parks the thread, and so takes the wake-up that the thread remembers.
        let report = move |why| {
            thread::park_timeout(Duration::from_millis(10));
            let _ = blocked.send(why);
        };
        waiter.lock("job").acquire().on_blocked(report).acquire_blocking().map(drop)
    });
    is_blocked.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(client.shutdown_blocking(TIMEOUT).unreleased, 0);
    assert!(in_time("the end of the wait", || waiting.join().unwrap()).is_err());
    assert!(client.lock("job").acquire_blocking().is_err());
    assert_eq!(guard.release_blocking(), Release::Released);
}

#[test]
fn errors_name_their_cause() {
    let redis = Redis::builder().password("secret").start();
    let bare = format!("redis://{}", redis.address());
    let refused = blocking::connect(&bare).unwrap().lock("job").acquire_blocking().unwrap_err();
    assert!(refused.is_refused(), "{refused}");
    assert!(blocking::connect(&bare).unwrap().ping_blocking().unwrap_err().is_refused());
    assert!(blocking::connect("no url").is_err());
    let client = blocking::connect("redis://127.0.0.1:1").unwrap();
    let unreachable = client.lock("job").wait(Duration::from_millis(100)).acquire_blocking().unwrap_err();
    assert!(unreachable.is_unreachable(), "{unreachable}");
}

#[test]
fn election_has_one_leader_at_a_time() {
    let etcd = Etcd::start();
    let [first, second] = [(); 2].map(|()| blocking::connect(&etcd.url()).unwrap());
    let mut observation = second.election("board").observe().unwrap();
    assert_eq!(first.election("board").leader_blocking().unwrap(), None);
    let mut leadership = first.election("board").campaign_blocking("a").unwrap();
    leadership.proclaim_blocking("b").unwrap();
    in_time("the second value", move || {
        loop {
            if let ElectionEvent::Leader(leader) = observation.next_blocking().unwrap()
                && leader.value == "b"
            {
                return;
            }
        }
    });
    let waiting =
        thread::spawn(move || second.election("board").campaign("c").campaign_blocking().unwrap().resign_blocking());
    assert!(wait_until(TIMEOUT, || etcd.keys_of("board/").len() == 2));
    assert_eq!(leadership.resign_blocking(), Release::Released);
    assert_eq!(in_time("the second leader", || waiting.join().unwrap()), Release::Released);
}

/// The thread of the driver ends with the last handle, and leaves no lock behind.
#[test]
fn driver_thread_ends_with_its_client() {
    let redis = Redis::start();
    let client = blocking::connect(&redis.url()).unwrap();
    let guard = client.lock("job").acquire_blocking().unwrap();
    assert!(wait_until(TIMEOUT, || connections(&redis) == 1));
    drop(client);
    assert!(guard.is_held());
    drop(guard);
    assert!(wait_until(TIMEOUT, || connections(&redis) == 0), "the driver is left");
    assert_eq!(redis.cli(&["EXISTS", "job"]), "0");
}

/// Besides the one that asks.
fn connections(redis: &Redis) -> usize {
    redis.cli(&["CLIENT", "LIST"]).lines().filter(|line| line.contains("id=")).count() - 1
}

/// The child has a copy of the client and of its connection, but no driver.
#[cfg(unix)]
#[test]
fn forked_child_is_refused_and_parent_keeps_its_lock() {
    use fork::Fork;

    let redis = Redis::start();
    let client = blocking::connect(&redis.url()).unwrap();
    let guard = client.lock("parent").acquire_blocking().unwrap();
    let child = match fork::fork().unwrap() {
        Fork::Child => {
            let acquired = client.lock("child").try_acquire_blocking();
            let refused = acquired.is_err_and(|error| matches!(error.kind(), AcquireErrorKind::Forked));
            // Without the destructors of the parent's test.
            std::process::exit(if refused { 42 } else { 1 });
        }
        Fork::Parent(child) => child,
    };
    let mut status = None;
    let ended = wait_until(TIMEOUT, || {
        status = fork::waitpid_nohang(child).unwrap();
        status.is_some()
    });
    if !ended {
        // It would outlive the test.
        std::process::Command::new("kill").args(["-KILL", &child.to_string()]).status().unwrap();
    }
    assert_eq!(status, Some(42 << 8));
    assert!(guard.is_held());
    assert_eq!(redis.keys().iter().filter(|key| ["parent", "child"].contains(&key.as_str())).count(), 1);
    assert_eq!(guard.release_blocking(), Release::Released);
    client.shutdown_blocking(TIMEOUT);
}
