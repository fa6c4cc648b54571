//! Locks without async: four threads share a counter under a lock.
//!
//! `blocking [URL...]`; the default is redis://127.0.0.1:6379. Several Redis servers are a quorum;
//! etcd://, zk:// and TLS work as well.

use core::error::Error;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use lock_examples::cli;
use lock_examples::cli::args::run_example;
use lock_tokio::{AcquireError, Release, blocking};

const THREADS: u32 = 4;
const ROUNDS: u32 = 25;

/// Counts with four threads under one lock.
#[derive(Debug, Parser)]
#[command(name = "blocking", version)]
struct Options {
    /// The servers: one, or an odd number of Redis servers.
    #[arg(default_value = "redis://127.0.0.1:6379")]
    urls: Vec<String>,
}

fn main() -> ExitCode {
    run_example(|options: Options| run(&options.urls))
}

fn run(urls: &[String]) -> Result<(), Box<dyn Error>> {
    let client = blocking::connect_quorum(urls)?;
    let lock = client.lock("blocking-example").wait(Duration::from_secs(5));
    // Read and written in two steps, which only the lock keeps atomic.
    let counter = AtomicU32::new(0);
    let work = || {
        for _ in 0..ROUNDS {
            let guard = lock.acquire_blocking()?;
            let seen = counter.load(Ordering::Relaxed);
            thread::yield_now();
            if guard.is_held() {
                counter.store(seen + 1, Ordering::Relaxed);
            }
            if guard.release_blocking() != Release::Released {
                eprintln!("blocking: a release is unconfirmed");
            }
        }
        Ok::<(), AcquireError>(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")).collect::<Vec<_>>()
    })
    .into_iter()
    .try_for_each(|result| -> Result<(), Box<dyn Error>> { Ok(result??) })?;
    let end = client.shutdown_blocking(Duration::from_secs(10));
    let (counted, expected) = (counter.into_inner(), THREADS * ROUNDS);
    println!("{THREADS} threads counted to {counted} of {expected} under one lock");
    Ok(cli::check_count(counted, expected, end.unreleased)?)
}
