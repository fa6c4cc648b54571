//! Releases wake one live waiter, in FIFO order.

use core::time::Duration;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{env, thread};

use lock_testkit::{Redis, TIMEOUT, spawn};
use lock_tokio::redis::{Config, SIGNAL_SUFFIX};
use lock_tokio::{Backoff, Client};
use tokio::time::sleep;

use crate::kit::{LONG_TTL, assert_clean, endpoint, in_time, is_waiting, ms, named, release, take, wait_for, with};
use crate::quorum::{quorum, start_without_uptime};

/// A poll interval that never expires within a test.
const NEVER: Backoff = Backoff::fixed(Duration::from_secs(300));

fn waiter(redis: &Redis, name: &str, poll: Backoff) -> Client {
    with(named(redis, name).poll(poll))
}

/// A hand-over takes a small part of the poll interval.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_wakes_waiter() {
    let redis = Redis::start();
    let poll = Duration::from_secs(1);
    let names = ["even", "odd"];
    let clients = names.map(|name| waiter(&redis, name, Backoff::fixed(poll)));
    let mut guard = take(&clients[1], "a", LONG_TTL).await;
    let mut times = Vec::new();
    for round in 0..20 {
        let next = round % 2;
        let waiting = tokio::spawn(clients[next].lock("a").ttl(LONG_TTL).acquire());
        wait_for("it listens", || is_waiting(&redis, names[next])).await;
        let released = Instant::now();
        release(guard).await;
        guard = in_time("the lock", waiting).await.unwrap().unwrap();
        times.push(released.elapsed());
    }
    times.sort_unstable();
    assert!(times[times.len() / 2] < poll / 4, "{times:?}");
    release(guard).await;
    assert_clean(&redis).await;
}

/// Also in a quorum, where each node notifies separately.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_wakes_quorum_waiter() {
    let servers = start_without_uptime(3);
    let clients = [(); 2].map(|()| with(quorum(&servers).poll(NEVER)));
    let wait_until_blocked = |redis: &Redis| redis.cli(&["INFO", "clients"]).contains("blocked_clients:1\r");
    let mut guard = take(&clients[1], "a", LONG_TTL).await;
    for round in 0..10 {
        wait_for("no client is waiting", || !servers.iter().any(wait_until_blocked)).await;
        let waiting = tokio::spawn(clients[round % 2].lock("a").ttl(LONG_TTL).acquire());
        // On one of them.
        wait_for("it listens", || servers.iter().filter(|redis| wait_until_blocked(redis)).count() == 1).await;
        release(guard).await;
        guard = in_time("the lock", waiting).await.unwrap().unwrap();
    }
    release(guard).await;
    for redis in &servers {
        assert_clean(redis).await;
    }
}

/// FIFO order across clients. Without polling, no client can overtake.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_in_arrival_order() {
    let redis = Redis::start();
    let names = ["first", "second", "third"];
    let clients = names.map(|name| waiter(&redis, name, NEVER));
    let holder = waiter(&redis, "holder", NEVER);
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let guard = take(&holder, "a", LONG_TTL).await;
        let (served, mut order_served) = tokio::sync::mpsc::unbounded_channel();
        for at in order {
            let (lock, served) = (clients[at].lock("a").ttl(LONG_TTL), served.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                served.send(at).unwrap();
                release(guard).await;
            });
            wait_for("it listens", || is_waiting(&redis, names[at])).await;
        }
        release(guard).await;
        let mut got = Vec::new();
        for _ in order {
            got.push(in_time("a waiter", order_served.recv()).await.unwrap());
        }
        assert_eq!(got, order);
        wait_for("no client is waiting", || names.iter().all(|name| !is_waiting(&redis, name))).await;
    }
    assert_clean(&redis).await;
}

/// A waiter that is cancelled at the moment of the release passes its signal on.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waiter_does_not_stall_others() {
    let redis = Redis::start();
    let (holder, quitter, next) =
        (waiter(&redis, "holder", NEVER), waiter(&redis, "quitter", NEVER), waiter(&redis, "next", NEVER));
    for round in 0..20 {
        let name = format!("a{round}");
        let guard = take(&holder, &name, LONG_TTL).await;
        let quitting = tokio::spawn(quitter.lock(&name).ttl(LONG_TTL).acquire());
        wait_for("the first listens", || is_waiting(&redis, "quitter")).await;
        let waiting = tokio::spawn(next.lock(&name).ttl(LONG_TTL).acquire());
        wait_for("the second listens", || is_waiting(&redis, "next")).await;
        match round % 4 {
            0 => quitting.abort(),
            1 => {
                quitting.abort();
                sleep(Duration::from_micros(200)).await;
            }
            2 => {
                quitting.abort();
                wait_for("it is gone", || !is_waiting(&redis, "quitter")).await;
            }
            _ => {}
        }
        let releasing = guard.release();
        quitting.abort();
        drop(releasing);
        // If it was granted the lock before its cancellation, it has released it.
        drop(quitting.await);
        release(in_time("the second", waiting).await.unwrap().unwrap()).await;
        wait_for("no client is waiting", || !is_waiting(&redis, "next") && !is_waiting(&redis, "quitter")).await;
    }
    assert_clean(&redis).await;
}

/// A waiter in a separate process, which is killed with the test.
struct Process(Child);

impl Process {
    fn start(redis: &Redis, name: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "wake::waiter_process", "--ignored"]).env("LOCK_TEST_WAITER", name);
        command.env("LOCK_TEST_URL", redis.url()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(spawn(command).unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn stop(&self) {
        let stopped = Command::new("kill").args(["-STOP", &self.0.id().to_string()]).status().unwrap();
        assert!(stopped.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "other tests run it in a separate process"]
async fn waiter_process() {
    let (Ok(url), Ok(name)) = (env::var("LOCK_TEST_URL"), env::var("LOCK_TEST_WAITER")) else { return };
    let mut at = endpoint(&url);
    at.client_name = Some(name.into());
    // Exits by itself if the test dies.
    thread::spawn(|| {
        thread::sleep(4 * TIMEOUT);
        std::process::exit(1);
    });
    let _guard = with(Config::new([at]).poll(NEVER)).lock("a").ttl(LONG_TTL).acquire().await;
    core::future::pending::<()>().await;
}

/// A killed waiter leaves the queue at once.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiter_does_not_stall_others() {
    let redis = Redis::start();
    let holder = waiter(&redis, "holder", NEVER);
    let next = waiter(&redis, "next", NEVER);
    let guard = take(&holder, "a", LONG_TTL).await;
    let mut dead = Process::start(&redis, "dead");
    wait_for("the first listens", || is_waiting(&redis, "dead")).await;
    let waiting = tokio::spawn(next.lock("a").ttl(LONG_TTL).acquire());
    wait_for("the second listens", || is_waiting(&redis, "next")).await;
    dead.kill();
    release(guard).await;
    release(in_time("the second", waiting).await.unwrap().unwrap()).await;
    assert_clean(&redis).await;
}

/// A paused waiter swallows the signal. Polling serves the others.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_waiter_does_not_stall_polling_waiter() {
    let redis = Redis::start();
    let holder = waiter(&redis, "holder", NEVER);
    let next = waiter(&redis, "next", Backoff::fixed(ms(100)));
    let guard = take(&holder, "a", LONG_TTL).await;
    let stopped = Process::start(&redis, "stopped");
    wait_for("the first listens", || is_waiting(&redis, "stopped")).await;
    stopped.stop();
    let waiting = tokio::spawn(next.lock("a").ttl(LONG_TTL).acquire());
    wait_for("the second listens", || is_waiting(&redis, "next")).await;
    release(guard).await;
    release(in_time("the second", waiting).await.unwrap().unwrap()).await;
    drop(stopped);
    assert_clean(&redis).await;
}

/// All waiters of two clients, several each, are served without polling.
// A7, A8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_are_served_without_polling() {
    let redis = Redis::start();
    let clients = ["x", "y"].map(|name| waiter(&redis, name, NEVER));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let client = clients[n % 2].clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = take(&client, "a", LONG_TTL).await;
                tokio::task::yield_now().await;
                release(guard).await;
            }
        });
    }
    while let Some(done) = in_time("everybody's turn", tasks.join_next()).await {
        done.unwrap();
    }
    assert_clean(&redis).await;
}

fn signal(name: &str) -> String {
    format!("{name}{SIGNAL_SUFFIX}")
}

/// Scripts that clients have called so far.
fn scripts(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(calls).unwrap_or(0)
}

/// Most names are beyond the first wait. All are polled slowly, and all are woken.
// A6, A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_thousand_names_is_cheap_and_prompt() {
    let redis = Redis::start();
    let holder = waiter(&redis, "holder", NEVER);
    let names: Vec<_> = (0..1_000).map(|n| format!("lock {n:04}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(take(&holder, name, LONG_TTL).await);
    }
    let polling = waiter(&redis, "polling", Backoff::default());
    let waiting: Vec<_> = names.iter().map(|name| tokio::spawn(polling.lock(name).ttl(LONG_TTL).acquire())).collect();
    wait_for("it listens", || is_waiting(&redis, "polling")).await;
    sleep(Duration::from_secs(2)).await;
    let before = scripts(&redis);
    sleep(Duration::from_secs(3)).await;
    let polls = scripts(&redis) - before;
    assert!(polls < 5_000, "{polls} requests in 3 s");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    wait_for("it is gone", || !is_waiting(&redis, "polling")).await;

    let listening = waiter(&redis, "listening", NEVER);
    let mut waiting: Vec<_> =
        names.iter().map(|name| tokio::spawn(listening.lock(name).ttl(LONG_TTL).acquire())).collect();
    wait_for("it listens", || is_waiting(&redis, "listening")).await;
    sleep(Duration::from_secs(1)).await;
    // Some one by one, and the rest at once.
    for place in [999, 500, 129, 0] {
        release(held.swap_remove(place)).await;
        drop(in_time("the lock", waiting.swap_remove(place)).await.unwrap().unwrap());
    }
    for guard in held {
        release(guard).await;
    }
    for waiting in waiting {
        drop(in_time("the lock", waiting).await.unwrap().unwrap());
    }
    assert_clean(&redis).await;
}

/// The server refuses a `BLPOP` as a whole if one of its keys is no list.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poisoned_signal_keys_do_not_disturb_other_names() {
    let redis = Redis::start();
    let names: Vec<_> = (0..40).map(|n| format!("lock {n:02}")).collect();
    let poisoned = |n: usize| n % 15 == 7;
    for (n, name) in names.iter().enumerate().filter(|(n, _)| poisoned(*n)) {
        redis.command(&["SET", &signal(name), &n.to_string(), "EX", "100"]);
    }
    let clients = ["holder", "waiter"].map(|name| waiter(&redis, name, NEVER));
    let mut held = Vec::new();
    for name in &names {
        held.push(take(&clients[0], name, LONG_TTL).await);
    }
    let waiting: Vec<_> =
        names.iter().map(|name| tokio::spawn(clients[1].lock(name).ttl(LONG_TTL).acquire())).collect();
    wait_for("it listens", || is_waiting(&redis, "waiter")).await;
    for (n, (guard, waiting)) in held.into_iter().zip(waiting).enumerate() {
        release(guard).await;
        if poisoned(n) {
            waiting.abort();
        } else {
            drop(in_time("the lock", waiting).await.unwrap().unwrap());
        }
    }
    assert_clean(&redis).await;
}
