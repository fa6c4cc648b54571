//! Locks without async: four threads share a counter through a lock, driven by `std::net` and threads alone.
//!
//! `blocking [URL]`; the URL's default is redis://127.0.0.1:6379. See `src/blocking.rs` for the client.

use core::error::Error;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::env;
use std::process::ExitCode;
use std::thread;

use lock_examples::blocking::Client;
use lock_proto::redis::{Acquire, Config, Endpoint, Wait};

const THREADS: u32 = 4;
const ROUNDS: u32 = 25;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blocking: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let client = Client::start(Config::new([Endpoint::parse(&url)?]))?;

    // Read and written in two steps, which only the lock keeps together.
    let counter = AtomicU32::new(0);
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let work = || {
            for _ in 0..ROUNDS {
                let want = Acquire::new("blocking-example").wait(Wait::For(Duration::from_secs(5)));
                let lock = client.lock(want).map_err(|error| error.to_string())?;
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
    let unreleased = client.shutdown(Duration::from_secs(1));
    for result in results {
        result?;
    }
    let (counted, expected) = (counter.into_inner(), THREADS * ROUNDS);
    println!("{THREADS} threads counted to {counted} of {expected} under one lock; {unreleased} locks left behind");
    if counted == expected { Ok(()) } else { Err("counts were lost".into()) }
}
