//! Lock and unlock, 64 tasks with a key each, one connection: this library and `rslock` in turn on one real server.
//!
//! `make bench`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin uncontended [SECONDS [ours]]`. What counts is the ratio: both
//! run in the same process, in turns, so that a noisy machine disturbs both. A third contestant, a bare socket with the same two commands
//! pipelined, shows what the server itself allows.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_proto::redis::{Config, Endpoint};
use lock_testkit::Redis;

const TASKS: usize = 64;
const ROUNDS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(200);

fn main() {
    // THREADS=1 for a runtime on one thread.
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
    let redis = Redis::start();
    let url = redis.url();
    if std::env::args().nth(2).is_some_and(|only| only == "ours") {
        // For a profiler.
        return println!("ours: {:.0}", ours(&url, span, false).await);
    }
    println!("{TASKS} tasks with a key each, {ROUNDS} rounds of {span:?}; lock + unlock cycles a second,");
    println!("and µs of processor time for each cycle: here + in the server");
    println!("{:>24} {:>24} {:>24} {:>24} {:>11}", "bare socket", "rslock", "ours", "ours, fenced", "ours/rslock");
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let mut row = Vec::new();
        for contestant in 0..4 {
            let before = spent(&redis);
            let rate = match contestant {
                0 => bare(&redis, span),
                1 => rslock(&url, span).await,
                2 => ours(&url, span, false).await,
                _ => ours(&url, span, true).await,
            };
            let after = spent(&redis);
            // The span is not all of the time that was spent, but of all contestants the same part.
            let cycles = rate * (span + WARM_UP).as_secs_f64();
            let [here, there] = [0, 1].map(|at| (after[at] - before[at]) * 1e6 / cycles);
            print!("{:>24}", format!("{rate:.0} ({here:.1} + {there:.1})"));
            row.push(rate);
        }
        ratios.push(row[2] / row[1]);
        println!("{:>11.2}", row[2] / row[1]);
    }
    ratios.sort_by(f64::total_cmp);
    println!("ours/rslock, median of {ROUNDS} rounds: {:.2}", ratios[ROUNDS / 2]);
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

/// Runs `TASKS` tasks made by `task` for `span`, and gives the cycles a second that they counted.
async fn measure<F>(span: Duration, mut task: impl FnMut(usize, Arc<AtomicBool>, Arc<AtomicU64>) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..TASKS).map(|n| tokio::spawn(task(n, stop.clone(), count.clone()))).collect();
    // The first cycles open connections.
    tokio::time::sleep(WARM_UP).await;
    let (before, start) = (count.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(span).await;
    let rate = (count.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task panicked");
    }
    rate
}

async fn ours(url: &str, span: Duration, fencing: bool) -> f64 {
    let endpoint = Endpoint::parse(url).expect("a URL of the testkit");
    let client = lock_tokio::Client::with_config(Config::new([endpoint]).fencing(fencing)).expect("good settings");
    let rate = measure(span, |n, stop, count| {
        let client = client.clone();
        async move {
            let name = format!("ours:{n}");
            while !stop.load(Ordering::Relaxed) {
                let guard = client.lock(&name).acquire().await.expect("granted");
                guard.release().await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await;
    client.shutdown(Duration::from_secs(5)).await;
    rate
}

async fn rslock(url: &str, span: Duration) -> f64 {
    let manager = rslock::LockManager::new(vec![url.to_owned()]);
    measure(span, |n, stop, count| {
        let manager = manager.clone();
        async move {
            let name = format!("rslock:{n}");
            while !stop.load(Ordering::Relaxed) {
                let lock = manager.lock(name.as_bytes(), Duration::from_secs(10)).await.expect("granted");
                manager.unlock(&lock).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    })
    .await
}

/// `TASKS` keys at once: all SETs in one write, all deletes in the next.
fn bare(redis: &Redis, span: Duration) -> f64 {
    const DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    let mut socket = TcpStream::connect(redis.address()).expect("connect");
    socket.set_nodelay(true).expect("nodelay");
    let sha = redis.cli(&["SCRIPT", "LOAD", DELETE]);
    let sha = sha.trim();
    let mut takes = Vec::new();
    let mut deletes = Vec::new();
    for n in 0..TASKS {
        let key = format!("bare:{n}");
        command(&mut takes, &["SET", &key, "0123456789abcdef0123456789abcdef:1", "NX", "PX", "10000"]);
        command(&mut deletes, &["EVALSHA", sha, "1", &key, "0123456789abcdef0123456789abcdef:1"]);
    }
    let (start, mut cycles) = (Instant::now(), 0);
    while start.elapsed() < span {
        exchange(&mut socket, &takes, TASKS * 5);
        exchange(&mut socket, &deletes, TASKS * 4);
        cycles += TASKS;
    }
    cycles as f64 / start.elapsed().as_secs_f64()
}

fn exchange(socket: &mut TcpStream, bytes: &[u8], answer: usize) {
    socket.write_all(bytes).expect("write");
    let mut buffer = vec![0; answer];
    socket.read_exact(&mut buffer).expect("read");
}

fn command(out: &mut Vec<u8>, args: &[&str]) {
    write!(out, "*{}\r\n", args.len()).expect("to memory");
    for arg in args {
        write!(out, "${}\r\n{arg}\r\n", arg.len()).expect("to memory");
    }
}
