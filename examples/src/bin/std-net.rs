//! Locks without async: four threads share a counter under a lock, with `std::net` and threads
//! only.
//!
//! `std-net [URL]`; the default is redis://127.0.0.1:6379, and rediss:// is TLS. The client is in
//! `src/std_net.rs`.

use core::error::Error;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use lock_examples::cli;
use lock_examples::cli::args::run_example;
use lock_examples::std_net::Client;
use lock_proto::redis::Config;
use lock_proto::{Acquire, Wait};

const THREADS: u32 = 4;
const ROUNDS: u32 = 25;

/// Counts with four threads under one lock.
#[derive(Debug, Parser)]
#[command(name = "std-net", version)]
struct Options {
    /// The Redis server.
    #[arg(default_value = "redis://127.0.0.1:6379")]
    url: String,
}

fn main() -> ExitCode {
    run_example(|options: Options| run(&options.url))
}

fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let config = Config::parse(url)?;
    // Without the password.
    let server = config.nodes().first().map(ToString::to_string).unwrap_or_default();
    let client = Client::start(config)?;

    // Read and written in two steps, which only the lock keeps atomic.
    let counter = AtomicU32::new(0);
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let work = || {
            for _ in 0..ROUNDS {
                let request = Acquire::new("std-net-example").wait(Wait::For(Duration::from_secs(5)));
                let lock = client.lock(request).map_err(|error| format!("{server}: {error}"))?;
                let seen = counter.load(Ordering::Relaxed);
                thread::yield_now();
                if lock.is_held() {
                    counter.store(seen + 1, Ordering::Relaxed);
                }
                let _ = lock.release();
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
            .collect()
    });
    let unreleased = client.shutdown(Duration::from_secs(10));
    for result in results {
        result?;
    }
    let (counted, expected) = (counter.into_inner(), THREADS * ROUNDS);
    println!("{THREADS} threads counted to {counted} of {expected} under one lock; {unreleased} locks left behind");
    Ok(cli::check_count(counted, expected, unreleased)?)
}
