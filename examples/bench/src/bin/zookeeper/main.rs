//! Benchmarks of locks on a real ZooKeeper: uncontended cycles compared with a bare create and
//! delete, and hand-overs, beside the crate `zookeeper-client` and kazoo.
//!
//! `make bench`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin zookeeper
//! [SECONDS [CLIENTS]]`. Only the ratios count. All parts alternate on one server, so that a noisy machine
//! disturbs all of them. `writes`, `packets` and `events` are the server's counts per lock:
//! transactions (`zxid`), requests, and deletions that it reported to a watch. `µs` and `server`
//! are processor time per lock, of this process and of the server. CLIENTS measures hand-overs
//! between so many only.

mod contended;
mod cost;
mod peers;
mod uncontended;

use std::time::Duration;

use lock_bench::args::Args;
use lock_testkit::ZooKeeper;

const ROUNDS: usize = 5;
/// That of ZooKeeper's sample `zoo.cfg`.
const TICK: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() {
    let mut args = Args::new("zookeeper [SECONDS [CLIENTS]]");
    let (span, clients) = (args.seconds(2.0), args.number("CLIENTS", 0));
    args.end();
    let server = ZooKeeper::builder().tick(TICK).optimised().start();
    if clients > 0 {
        return contended::contest(&server, clients, ROUNDS, span).await;
    }
    uncontended::warm_up(&server, span).await;
    uncontended::cost(&server).await;
    for tasks in [1, 16] {
        uncontended::contest(&server, tasks, ROUNDS, span).await;
    }
    for clients in [10, 100, 1_000] {
        contended::contest(&server, clients, ROUNDS, span).await;
    }
}
