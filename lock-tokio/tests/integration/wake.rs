//! Releases wake one live waiter, in FIFO order.

use core::time::Duration;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{env, thread};

use lock_testkit::{Redis, TIMEOUT};
use lock_tokio::Client;
use lock_tokio::redis::{Backoff, Config};
use tokio::time::sleep;

use crate::kit::{LONG_TTL, clean, endpoint, give_back, listens, ms, named, soon, take, until, with};
use crate::quorum::{quorum, trusting};

/// A poll interval that never expires within a test.
const NEVER: Backoff = Backoff::fixed(Duration::from_secs(300));

fn waiter(redis: &Redis, name: &str, poll: Backoff) -> Client {
    with(named(redis, name).poll(poll))
}

/// A hand-over takes a small part of the poll interval.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_waiter() {
    let redis = Redis::start();
    let poll = Duration::from_secs(1);
    let names = ["even", "odd"];
    let clients = names.map(|name| waiter(&redis, name, Backoff::fixed(poll)));
    let mut guard = take(&clients[1], "a", LONG_TTL).await;
    let mut times = Vec::new();
    for round in 0..20 {
        let next = round % 2;
        let waiting = tokio::spawn(clients[next].lock("a").ttl(LONG_TTL).acquire());
        until("it listens", || listens(&redis, names[next])).await;
        let released = Instant::now();
        give_back(guard).await;
        guard = soon("the lock", waiting).await.unwrap().unwrap();
        times.push(released.elapsed());
    }
    times.sort_unstable();
    assert!(times[times.len() / 2] < poll / 4, "{times:?}");
    give_back(guard).await;
    clean(&redis).await;
}

/// Also in a quorum, where each node notifies separately.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_waiter_of_a_quorum() {
    let servers = trusting(3);
    let clients = [(); 2].map(|()| with(quorum(&servers).poll(NEVER)));
    let blocked = |redis: &Redis| redis.cli(&["INFO", "clients"]).contains("blocked_clients:1\r");
    let mut guard = take(&clients[1], "a", LONG_TTL).await;
    for round in 0..10 {
        until("nobody listens", || !servers.iter().any(blocked)).await;
        let waiting = tokio::spawn(clients[round % 2].lock("a").ttl(LONG_TTL).acquire());
        // On one of them.
        until("it listens", || servers.iter().filter(|redis| blocked(redis)).count() == 1).await;
        give_back(guard).await;
        guard = soon("the lock", waiting).await.unwrap().unwrap();
    }
    give_back(guard).await;
    for redis in &servers {
        clean(redis).await;
    }
}

/// FIFO order across clients. Without polling, no client can overtake.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_in_the_order_of_their_arrival() {
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
                give_back(guard).await;
            });
            until("it listens", || listens(&redis, names[at])).await;
        }
        give_back(guard).await;
        let mut got = Vec::new();
        for _ in order {
            got.push(soon("a waiter", order_served.recv()).await.unwrap());
        }
        assert_eq!(got, order);
        until("nobody listens", || names.iter().all(|name| !listens(&redis, name))).await;
    }
    clean(&redis).await;
}

/// A waiter that is cancelled at the moment of the release passes its signal on.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_stalls_nobody() {
    let redis = Redis::start();
    let (holder, quitter, next) =
        (waiter(&redis, "holder", NEVER), waiter(&redis, "quitter", NEVER), waiter(&redis, "next", NEVER));
    for round in 0..20 {
        let name = format!("a{round}");
        let guard = take(&holder, &name, LONG_TTL).await;
        let quitting = tokio::spawn(quitter.lock(&name).ttl(LONG_TTL).acquire());
        until("the first listens", || listens(&redis, "quitter")).await;
        let waiting = tokio::spawn(next.lock(&name).ttl(LONG_TTL).acquire());
        until("the second listens", || listens(&redis, "next")).await;
        match round % 4 {
            0 => quitting.abort(),
            1 => {
                quitting.abort();
                sleep(Duration::from_micros(200)).await;
            }
            2 => {
                quitting.abort();
                until("it is gone", || !listens(&redis, "quitter")).await;
            }
            _ => {}
        }
        let releasing = guard.release();
        quitting.abort();
        drop(releasing);
        // If it was granted the lock before its cancellation, it has released it.
        drop(quitting.await);
        give_back(soon("the second", waiting).await.unwrap().unwrap()).await;
        until("nobody listens", || !listens(&redis, "next") && !listens(&redis, "quitter")).await;
    }
    clean(&redis).await;
}

/// A waiter in a separate process, which is killed with the test.
struct Process(Child);

impl Process {
    fn start(redis: &Redis, name: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "wake::a_process_that_waits", "--ignored"]).env("LOCK_TEST_WAITER", name);
        command.env("LOCK_TEST_URL", redis.url()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
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
#[ignore = "other tests run it in a process of its own"]
async fn a_process_that_waits() {
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
async fn a_waiter_that_is_killed_stalls_nobody() {
    let redis = Redis::start();
    let holder = waiter(&redis, "holder", NEVER);
    let next = waiter(&redis, "next", NEVER);
    let guard = take(&holder, "a", LONG_TTL).await;
    let mut dead = Process::start(&redis, "dead");
    until("the first listens", || listens(&redis, "dead")).await;
    let waiting = tokio::spawn(next.lock("a").ttl(LONG_TTL).acquire());
    until("the second listens", || listens(&redis, "next")).await;
    dead.kill();
    give_back(guard).await;
    give_back(soon("the second", waiting).await.unwrap().unwrap()).await;
    clean(&redis).await;
}

/// A paused waiter swallows the signal. Polling serves the others.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_stopped_stalls_nobody_for_long() {
    let redis = Redis::start();
    let holder = waiter(&redis, "holder", NEVER);
    let next = waiter(&redis, "next", Backoff::fixed(ms(100)));
    let guard = take(&holder, "a", LONG_TTL).await;
    let stopped = Process::start(&redis, "stopped");
    until("the first listens", || listens(&redis, "stopped")).await;
    stopped.stop();
    let waiting = tokio::spawn(next.lock("a").ttl(LONG_TTL).acquire());
    until("the second listens", || listens(&redis, "next")).await;
    give_back(guard).await;
    give_back(soon("the second", waiting).await.unwrap().unwrap()).await;
    drop(stopped);
    clean(&redis).await;
}

/// All waiters of two clients, several each, are served without polling.
// A7, A8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_forgotten() {
    let redis = Redis::start();
    let clients = ["x", "y"].map(|name| waiter(&redis, name, NEVER));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let client = clients[n % 2].clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = take(&client, "a", LONG_TTL).await;
                tokio::task::yield_now().await;
                give_back(guard).await;
            }
        });
    }
    while let Some(done) = soon("everybody's turn", tasks.join_next()).await {
        done.unwrap();
    }
    clean(&redis).await;
}
