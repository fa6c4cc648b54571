//! One client holds and renews 100 000 locks: resident memory per lock, and number of lost locks.
//!
//! `cargo run --release --manifest-path examples/bench/Cargo.toml --bin many [LOCKS] [SECONDS]`.

use std::time::{Duration, Instant};

use lock_bench::args::Args;
use lock_proto::redis::{Config, Endpoint};
use lock_testkit::Redis;

const TTL: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() {
    let mut args = Args::new("many [LOCKS] [SECONDS]");
    let (locks, span) = (args.number("LOCKS", 100_000_usize), args.seconds(30.0));
    args.end();
    let redis = Redis::start();
    let endpoint = Endpoint::parse(&redis.url()).expect("a URL of the testkit");
    let client = lock_tokio::connect_on_runtime(Config::new([endpoint]).fencing(false)).expect("good settings");
    drop(client.lock("warm-up").acquire().await.expect("granted"));
    let before = resident();
    let start = Instant::now();
    let mut guards = Vec::with_capacity(locks);
    // A thousand at a time, like a busy service.
    while guards.len() < locks {
        let tasks: Vec<_> = (guards.len()..locks.min(guards.len() + 1_000))
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move { client.lock(format!("lock:{n:06}")).ttl(TTL).acquire().await })
            })
            .collect();
        for task in tasks {
            guards.push(task.await.expect("no panic").expect("granted"));
        }
    }
    println!("{locks} locks taken in {:.1?}", start.elapsed());
    // Long enough for several renewals. Then the clock and the server must agree that all locks are
    // held.
    tokio::time::sleep(span).await;
    let each = (resident() - before) / locks;
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    let keys: usize =
        redis.cli(&["DBSIZE"]).trim().trim_start_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
    println!("after {span:?}: {held} held, {keys} keys on the server, {} lost", locks - held);
    println!("{each} bytes of resident memory for each lock");
    drop(guards);
    let left = client.shutdown(Duration::from_secs(20)).await;
    println!("{} not released", left.unreleased);
    assert!(held == locks && each < 1024 && left.unreleased == 0, "the budget is 1 KiB for each lock, none lost");
}

/// Resident memory of this process, in bytes (Linux).
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line VmRSS");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number of KiB") * 1024
}
