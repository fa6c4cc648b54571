//! The driver on a thread of its own beside the driver as a task of the runtime: cycles of acquire
//! and release on one real Redis server, with a key for each task.
//!
//! `cargo bench -p lock-tokio --bench threads [SECONDS]`. The two alternate in one process, so that
//! a noisy machine disturbs both. Only the ratio counts: above 1 the thread is faster.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use lock_testkit::{Redis, TIMEOUT};
use lock_tokio::redis::Config;
use lock_tokio::{Client, connect_on_runtime, connect_with};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const ROUNDS: usize = 7;

fn main() {
    // Cargo passes options of its own.
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(0.5);
    let (redis, span) = (Redis::start(), Duration::from_secs_f64(seconds));
    let config = Config::parse(&redis.url()).expect("a URL of the testkit");
    for fencing in [true, false] {
        for threads in [1, 2] {
            let runtime = match threads {
                1 => Builder::new_current_thread().enable_all().build(),
                _ => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
            };
            let runtime = runtime.expect("a runtime");
            for tasks in [1, 64] {
                let own = || runtime.block_on(async { connect_with(config.clone().fencing(fencing)) });
                let shared = || runtime.block_on(async { connect_on_runtime(config.clone().fencing(fencing)) });
                let clients = [own(), shared()].map(|client| client.expect("good settings"));
                let mut rates = [Vec::new(), Vec::new()];
                for _ in 0..ROUNDS {
                    for (client, rates) in clients.iter().zip(&mut rates) {
                        rates.push(runtime.block_on(rate(client, tasks, span)));
                    }
                }
                let mut ratios: Vec<_> = rates[0].iter().zip(&rates[1]).map(|(own, shared)| own / shared).collect();
                ratios.sort_by(f64::total_cmp);
                let [own, shared] = rates.map(|mut rates| {
                    rates.sort_by(f64::total_cmp);
                    rates[ROUNDS / 2]
                });
                println!(
                    "fencing {fencing}, {threads} runtime thread(s), {tasks} task(s): {own:.0} and {shared:.0} cycles/s, ratio {:.2} ({:.2} to {:.2})",
                    ratios[ROUNDS / 2],
                    ratios[0],
                    ratios[ROUNDS - 1],
                );
                end(&runtime, clients);
            }
        }
    }
}

fn end(runtime: &Runtime, clients: [Client; 2]) {
    for client in clients {
        assert_eq!(runtime.block_on(client.shutdown(TIMEOUT)).unreleased, 0);
    }
}

/// Cycles per second of all tasks together.
async fn rate(client: &Client, tasks: usize, span: Duration) -> f64 {
    let (stop, cycles) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    let begun = Instant::now();
    for task in 0..tasks {
        let (lock, stop, cycles) = (client.lock(format!("key:{task}")), Arc::clone(&stop), Arc::clone(&cycles));
        running.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await.expect("nobody else wants it");
                let _ = guard.release().await;
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    while running.join_next().await.is_some() {}
    cycles.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}
