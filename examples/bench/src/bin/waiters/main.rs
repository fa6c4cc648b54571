//! Many contenders for one lock: this library compared with the mutex of etcd's Go package. The two
//! alternate, each on its own server.
//!
//! `make bench-waiters`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin
//! waiters [CLIENTS:HOLD[:SECONDS[:ROUNDS]] …]`, with HOLD in milliseconds. Needs Go and Debian's
//! golang-etcd-server-dev.
//!
//! `bare calls` is a bound: members of a ring make only the calls that any lock needs, without
//! leases, transactions and lookups. It has no queue to enter.
//!
//! Each contender has its own client, with a connection and a session: a task here, a goroutine
//! there. The first holder keeps the lock until all keys are in the queue. `enter` is the time
//! until then. The measurement starts when it releases.
//!
//! `gap` is the time between two holds: 1 / rate, less the measured mean hold. `calls` is the
//! server's count per grant, and `streams` its total, including the streams opened while entering.
//! `µs` and `server` are processor time per grant, of the contenders and of the server.

mod bare;
mod go;
mod ours;
mod results;

use std::time::Duration;

use lock_bench::median;
use results::{Outcome, Setup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Default contests: clients, hold, seconds, rounds.
const DEFAULT: [&str; 4] = ["100:0:10:3", "100:1:10:3", "300:1:30:1", "1000:1:30:1"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let specs: Vec<&str> = if args.is_empty() { DEFAULT.to_vec() } else { args.iter().map(String::as_str).collect() };
    let setups: Vec<(Setup, usize)> = specs.into_iter().map(parse).collect();
    raise_file_limit(setups.iter().map(|(setup, _)| setup.clients).max().unwrap_or(0));
    let peer = go::build();
    for (setup, rounds) in setups {
        contest(&peer, setup, rounds);
    }
}

fn contest(peer: &go::Peer, setup: Setup, rounds: usize) {
    let Setup { clients, hold, span } = setup;
    println!("{clients} clients, hold {hold:?}, {} s", span.as_secs_f64());
    Outcome::print_head();
    let [mut rate, mut gap, mut enter, mut bound] = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let go = peer.measure(setup);
        go.print("Go");
        let ours = ours::measure(setup);
        ours.print("this library");
        let bare = bare::measure(setup);
        bare.print("bare calls");
        bound.push(bare.rate() / go.rate());
        rate.push(ours.rate() / go.rate());
        gap.push(ours.gap().as_secs_f64() / go.gap().as_secs_f64());
        enter.push(ours.enter.as_secs_f64() / go.enter.as_secs_f64());
    }
    let [rate, gap, enter, bound] = [rate, gap, enter, bound].map(median);
    println!(
        "{:<14} rate {rate:.2} x, gap {gap:.2} x, time to enter {enter:.2} x Go's; bare calls {bound:.2} x its rate \
         (medians of {rounds})\n",
        ""
    );
}

/// `CLIENTS:HOLD[:SECONDS[:ROUNDS]]`.
fn parse(text: &str) -> (Setup, usize) {
    let parts: Vec<f64> = text.split(':').filter_map(|part| part.parse().ok()).collect();
    let [clients, hold, rest @ ..] = &parts[..] else {
        panic!("expected CLIENTS:HOLD[:SECONDS[:ROUNDS]], not {text:?}");
    };
    let span = Duration::from_secs_f64(rest.first().copied().unwrap_or(30.0));
    let setup = Setup { clients: *clients as usize, hold: Duration::from_secs_f64(hold / 1e3), span };
    (setup, rest.get(1).map_or(1, |rounds| *rounds as usize))
}

/// A connection takes one file here, and one in the server, which inherits the limit.
fn raise_file_limit(clients: usize) {
    let limit = getrlimit(Resource::Nofile);
    let needed = 2 * clients as u64 + 200;
    if limit.current.is_some_and(|current| current < needed) {
        let raised = Rlimit { current: Some(limit.maximum.map_or(needed, |most| most.min(needed))), ..limit };
        setrlimit(Resource::Nofile, raised).expect("a limit may be raised up to its maximum");
        if limit.maximum.is_some_and(|most| most < needed) {
            eprintln!(
                "warning: {needed} open files are needed, and no more than {:?} allowed (ulimit -Hn)",
                limit.maximum
            );
        }
    }
}
