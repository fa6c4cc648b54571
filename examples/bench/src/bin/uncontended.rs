//! Lock and unlock, 64 tasks with a key each, one connection: this library and `rslock` in turn on one real server.
//!
//! `make bench`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin uncontended [SECONDS [ours]]`. What counts is the ratio: both
//! run in the same process, in turns, so that a noisy machine disturbs both. A third contestant, a bare socket with the same two commands
//! pipelined, shows what the server itself allows. `TASKS=1` for another number of tasks, `THREADS=1` for a runtime on one thread.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lock_bench::{Measured, measure, median};
use lock_proto::ClientId;
use lock_proto::redis::{Config, Endpoint, Form, Identity, Key, Request, Spent, script};
use lock_testkit::Redis;

const ROUNDS: usize = 5;

fn main() {
    let one = std::env::var("THREADS").is_ok_and(|threads| threads == "1");
    let runtime = if one {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    } else {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()
    };
    runtime.expect("a runtime").block_on(contest());
}

async fn contest() {
    let seconds: f64 = std::env::args().nth(1).map_or(2.0, |text| text.parse().expect("SECONDS is a number"));
    let span = Duration::from_secs_f64(seconds);
    let tasks = std::env::var("TASKS").map_or(64, |text| text.parse().expect("TASKS is a number"));
    let redis = Redis::start();
    let url = redis.url();
    if std::env::args().nth(2).is_some_and(|only| only == "ours") {
        // For a profiler.
        return println!("ours: {:.0}", ours(&url, span, tasks, false).await.rate);
    }
    println!("{tasks} tasks with a key each, {ROUNDS} rounds of {span:?}; lock + unlock cycles a second,");
    println!("and µs of processor time for each cycle: here + in the server");
    println!(
        "{:>24} {:>24} {:>24} {:>24} {:>11}  /bare",
        "bare socket", "rslock", "ours", "ours, fenced", "ours/rslock"
    );
    let (mut to_rslock, mut to_bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut row = Vec::new();
        for contestant in 0..4 {
            let before = spent(&redis);
            let Measured { rate, cycles } = match contestant {
                0 => bare(&redis, span, tasks),
                1 => rslock(&url, span, tasks).await,
                2 => ours(&url, span, tasks, false).await,
                _ => ours(&url, span, tasks, true).await,
            };
            let after = spent(&redis);
            let [here, there] = [0, 1].map(|at| (after[at] - before[at]) * 1e6 / cycles as f64);
            print!("{:>24}", format!("{rate:.0} ({here:.1} + {there:.1})"));
            row.push(rate);
        }
        to_rslock.push(row[2] / row[1]);
        to_bare.push(row[2] / row[0]);
        println!("{:>11.2} {:>6.2}", row[2] / row[1], row[2] / row[0]);
    }
    println!("median of {ROUNDS} rounds: {:.2} x rslock, {:.2} of the bare socket", median(to_rslock), median(to_bare));
}

/// Seconds of processor time that this process and the server have used.
fn spent(redis: &Redis) -> [f64; 2] {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    // The fields after the name, which may contain anything; ticks of 10 ms.
    let ticks = stat.rsplit_once(')').expect("a name").1.split_whitespace().skip(11).take(2);
    let here: f64 = ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0;
    let info = redis.cli(&["INFO", "cpu"]);
    let seconds = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let there = seconds("used_cpu_user:").expect("user") + seconds("used_cpu_sys:").expect("sys");
    [here, there]
}

async fn ours(url: &str, span: Duration, tasks: usize, fencing: bool) -> Measured {
    let endpoint = Endpoint::parse(url).expect("a URL of the testkit");
    let client = lock_tokio::Client::with_config(Config::new([endpoint]).fencing(fencing)).expect("good settings");
    let measured = measure(tasks, span, |n, meter| {
        let client = client.clone();
        async move {
            let name = format!("ours:{n}");
            while meter.goes_on() {
                let guard = client.lock(&name).acquire().await.expect("granted");
                guard.release().await;
                meter.count();
            }
        }
    })
    .await;
    client.shutdown(Duration::from_secs(5)).await;
    measured
}

async fn rslock(url: &str, span: Duration, tasks: usize) -> Measured {
    let manager = rslock::LockManager::new(vec![url.to_owned()]);
    measure(tasks, span, |n, meter| {
        let manager = manager.clone();
        async move {
            let name = format!("rslock:{n}");
            while meter.goes_on() {
                let lock = manager.lock(name.as_bytes(), Duration::from_secs(10)).await.expect("granted");
                manager.unlock(&lock).await;
                meter.count();
            }
        }
    })
    .await
}

/// The same commands on a bare socket: those that take all locks in one write, those that release them in the next.
fn bare(redis: &Redis, span: Duration, tasks: usize) -> Measured {
    let mut socket = TcpStream::connect(redis.address()).expect("connect");
    socket.set_nodelay(true).expect("nodelay");
    redis.cli(&["SCRIPT", "LOAD", script::RELEASE.source]);
    let identity = Identity::new(ClientId::from_bits(1), b"");
    let (mut takes, mut releases) = (Vec::new(), Vec::new());
    for n in 0..tasks {
        let (key, number, spent) = (Key::new(b"", format!("bare:{n}").as_bytes()), 1, Spent::all_to(0));
        let take = Request::Take {
            key: key.clone(),
            number,
            spent,
            ttl_ms: 10_000,
            fence_block: 0,
            clean: true,
            waiting_ms: 0,
        };
        let release = Request::Release { key, number, spent: None, announce: true };
        take.with_args(&identity, Form::Sha1, |args| command(&mut takes, args));
        release.with_args(&identity, Form::Sha1, |args| command(&mut releases, args));
    }
    let (start, mut cycles) = (Instant::now(), 0_u64);
    while start.elapsed() < span {
        exchange(&mut socket, &takes, "+OK\r\n", tasks);
        exchange(&mut socket, &releases, ":-2\r\n", tasks);
        cycles += tasks as u64;
    }
    Measured { rate: cycles as f64 / start.elapsed().as_secs_f64(), cycles }
}

fn exchange(socket: &mut TcpStream, bytes: &[u8], answer: &str, times: usize) {
    socket.write_all(bytes).expect("write");
    let mut buffer = vec![0; answer.len() * times];
    socket.read_exact(&mut buffer).expect("read");
    assert!(buffer.starts_with(answer.as_bytes()), "{}", buffer.escape_ascii());
}

fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    write!(out, "*{}\r\n", args.len()).expect("to memory");
    for arg in args {
        write!(out, "${}\r\n", arg.len()).expect("to memory");
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}
