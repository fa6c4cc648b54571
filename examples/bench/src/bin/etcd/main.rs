//! Benchmarks of locks on a real etcd: uncontended cycles compared with bare calls, and hand-overs
//! compared with the Go package.
//!
//! `make bench`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin etcd
//! [SECONDS [PART]]`. Only the ratios count. All parts alternate in one process on one server, so
//! that a noisy machine disturbs all of them. `calls`, `recv` and `sent` are the server's counts
//! per grant: unary calls, and messages on watch streams, received and sent. `µs` and `server` are
//! processor time per grant, of this process and of the server.
//!
//! A PART runs alone, for a profiler: `cycles`, `clients`, `ring`, `tasks` or `go`.

mod contended;
mod go_mutex;
mod uncontended;

use std::time::Duration;

use contended::Outcome;
use lock_bench::args::Args;
use lock_bench::median;
use lock_testkit::Etcd;

const ROUNDS: usize = 5;

#[tokio::main]
async fn main() {
    let mut args = Args::new("etcd [SECONDS [PART]], PART one of cycles, clients, ring, tasks, go");
    let (span, part) = (args.seconds(2.0), args.choice("PART", &["cycles", "clients", "ring", "tasks", "go"]));
    args.end();
    let etcd = Etcd::start();
    if let Some(part) = part {
        return one(&etcd, &part, span).await;
    }
    uncontended::cost(&etcd).await;
    // More but shorter rounds: the differences are smaller than the noise of a busy machine.
    for tasks in [1, 16] {
        uncontended::contest(&etcd, tasks, 3 * ROUNDS, span / 3).await;
    }
    contest(&etcd, span).await;
}

async fn one(etcd: &Etcd, part: &str, span: Duration) {
    let outcome = match part {
        "cycles" => return println!("{:?}", uncontended::ours(etcd, 16, span).await),
        "clients" => contended::clients(etcd, 10, span).await,
        "ring" => contended::ring(etcd, 10, span).await,
        "tasks" => contended::tasks(etcd, 100, span).await,
        _ => contended::go_mutex(etcd, 10, span).await,
    };
    Outcome::print_head();
    outcome.print(part);
}

async fn contest(etcd: &Etcd, span: Duration) {
    let (mut few, mut disturbed, mut many) = (Vec::new(), Vec::new(), Vec::new());
    let (mut factor, mut to_go, mut to_ring) = (Vec::new(), Vec::new(), Vec::new());
    Outcome::print_head();
    for _ in 0..ROUNDS {
        let go = contended::go_mutex(etcd, 10, span).await;
        go.print("Go mutex, 10 sessions");
        let ours = contended::clients(etcd, 10, span).await;
        ours.print("10 clients");
        let ring = contended::ring(etcd, 10, span).await;
        ring.print("bare calls in a ring of 10");
        let (written, writes) = contended::while_writing(etcd, contended::clients(etcd, 10, span)).await;
        written.print(&format!("10 clients, {writes:.0} other writes/s"));
        let go_100 = contended::go_mutex(etcd, 100, span).await;
        go_100.print("Go mutex, 100 sessions");
        let tasks = contended::tasks(etcd, 100, span).await;
        tasks.print("100 tasks of one client");
        println!();
        few.push(ours.sample.rate);
        disturbed.push(written.sample.rate);
        to_go.push(ours.sample.rate / go.sample.rate);
        to_ring.push(ours.sample.rate / ring.sample.rate);
        many.push(tasks.sample.rate);
        factor.push(tasks.sample.rate / go_100.sample.rate);
    }
    println!("medians of {ROUNDS} rounds");
    println!(
        "10 clients: {:.0} grants/s, {:.1} x the Go mutex   budget: 500, where that makes about 99; {:.2} of the bare calls",
        median(few),
        median(to_go),
        median(to_ring)
    );
    println!("10 clients beside other writes: {:.0} grants/s   budget: 500", median(disturbed));
    println!(
        "100 tasks of one client: {:.0} grants/s, {:.0} x the Go mutex with 100 sessions   budget: 20 x",
        median(many),
        median(factor)
    );
}
