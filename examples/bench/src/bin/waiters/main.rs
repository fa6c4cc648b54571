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

use lock_bench::args::Args;
use lock_bench::median;
use results::{Outcome, Setup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Default contests: clients, hold, seconds, rounds.
const DEFAULT: [&str; 4] = ["100:0:10:3", "100:1:10:3", "300:1:30:1", "1000:1:30:1"];

fn main() {
    let mut args = Args::new("waiters [CLIENTS:HOLD[:SECONDS[:ROUNDS]] …], HOLD in milliseconds");
    let mut specs: Vec<String> = args.rest().collect();
    if specs.is_empty() {
        specs = DEFAULT.map(str::to_owned).to_vec();
    }
    let contest_of = |spec: &String| {
        let refuse = || args.refuse(format_args!("expected CLIENTS:HOLD[:SECONDS[:ROUNDS]], not {spec:?}"));
        parse(spec).unwrap_or_else(refuse)
    };
    let setups: Vec<(Setup, usize)> = specs.iter().map(contest_of).collect();
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
fn parse(text: &str) -> Option<(Setup, usize)> {
    let parts: Vec<f64> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (&[clients, hold], rest) = parts.split_first_chunk()?;
    let (span, rounds) = match rest {
        [] => (30.0, 1.0),
        [span] => (*span, 1.0),
        [span, rounds] => (*span, *rounds),
        _ => return None,
    };
    let seconds = |seconds| Duration::try_from_secs_f64(seconds).ok();
    let setup = Setup { clients: clients as usize, hold: seconds(hold / 1e3)?, span: seconds(span)? };
    (setup.clients > 0 && rounds >= 1.0).then_some((setup, rounds as usize))
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
