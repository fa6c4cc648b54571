//! Locks on an executor other than tokio, smol and async-std: the one in `src/host`.
//!
//! `own-executor [--backend URL]`; without a URL it starts a simulated Redis server. Four tasks
//! share one lock, on one thread.

use core::cell::Cell;
use core::error::Error;
use core::time::Duration;
use std::process::ExitCode;
use std::rc::Rc;

use clap::Parser;
use lock_driver::{AcquireError, Host as _, Settings};
use lock_examples::cli;
use lock_examples::cli::args::run_example;
use lock_examples::cli::failed::check_servers;
use lock_examples::host::Executor;
use lock_proto::Release;
use lock_sim::redis::NodeConfig;
use lock_sim::test_server::RedisServer;

const TASKS: u32 = 4;
const ROUNDS: u32 = 5;

/// Counts with four tasks under one lock, on a custom executor.
#[derive(Debug, Parser)]
#[command(name = "own-executor", version)]
struct Options {
    /// The Redis server, etcd cluster or ZooKeeper ensemble [default: a simulated Redis server]
    #[arg(long = "backend", value_name = "URL")]
    url: Option<String>,
}

fn main() -> ExitCode {
    run_example(|options: Options| run(options.url))
}

fn run(url: Option<String>) -> Result<(), Box<dyn Error>> {
    // Serves until this function returns.
    let served = if url.is_none() { Some(RedisServer::start(NodeConfig::new(1))?) } else { None };
    let url = url.or_else(|| served.as_ref().map(RedisServer::url)).unwrap_or_default();

    let executor = Executor::new()?;
    let host = executor.host();
    let (client, driver) = lock_driver::connect(host.clone(), Settings::parse([&url])?)?;
    executor.spawn(driver);
    executor.block_on(check_servers(&client)).map_err(|failed| failed.why)?;

    // Read and written in two steps, which only the lock keeps atomic.
    let (counter, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for task in 1..=TASKS {
        let (client, host) = (client.clone(), host.clone());
        let (counter, ended) = (Rc::clone(&counter), Rc::clone(&ended));
        executor.spawn(async move {
            let rounds = async {
                for _ in 0..ROUNDS {
                    let guard = client.lock("own-executor-example").acquire().await?;
                    let seen = counter.get();
                    let fence = guard.fence().map_or(0, |fence| fence.get());
                    let done = guard.protect(host.sleep(Duration::from_millis(1))).await;
                    if done.output.is_ok() && done.release == Release::Released {
                        counter.set(seen + 1);
                        println!("task {task} counts to {}, with fencing token {fence}", seen + 1);
                    }
                }
                Ok::<_, AcquireError>(())
            };
            if let Err(error) = rounds.await {
                eprintln!("task {task}: {error}");
            }
            ended.set(ended.get() + 1);
        });
    }
    let end = executor.block_on(async {
        while ended.get() < TASKS {
            host.sleep(Duration::from_millis(10)).await;
        }
        client.shutdown(Duration::from_secs(10)).await
    });
    let (counted, expected) = (counter.get(), TASKS * ROUNDS);
    println!("{TASKS} tasks on one thread counted to {counted} of {expected}; {} locks left behind", end.unreleased);
    Ok(cli::check_count(counted, expected, end.unreleased)?)
}
