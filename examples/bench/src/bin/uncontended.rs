//! Lock and unlock without contention: this library compared with `rslock` on one real Redis
//! server. 64 tasks with one key each share one connection.
//!
//! `make bench`, or `cargo run --release --manifest-path examples/bench/Cargo.toml --bin
//! uncontended [SECONDS [ours]]`. Only the ratio counts. All parts alternate in one process, so
//! that a noisy machine disturbs all of them.
//!
//! Two more parts give bounds. A bare socket pipelines the same two commands, which shows the limit
//! of the server. Tasks that share such a socket and only wait for their replies show the limit of
//! the runtime.
//!
//! Runs on a runtime with one thread, then on one with a thread per processor. `THREADS=1` or
//! `THREADS=all` selects one of them, and `TASKS=1` sets the number of tasks.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_bench::args::Args;
use lock_bench::{Measured, measure, median};
use lock_proto::ClientId;
use lock_proto::redis::{Config, Endpoint, Form, Identity, Key, KeyLayout, Request, Retired, script};
use lock_testkit::Redis;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, oneshot};

const ROUNDS: usize = 9;
/// Pause before each measurement. Hosts often throttle a virtual machine after it was busy on all
/// processors.
const REST: Duration = Duration::from_millis(700);

fn main() {
    let mut args = Args::new("[THREADS=1|all] [TASKS=n] uncontended [SECONDS [ours]]");
    let (span, only_ours) = (args.seconds(0.7), args.choice("the part", &["ours"]).is_some());
    args.end();
    let [threads, tasks] = ["THREADS", "TASKS"].map(|name| std::env::var(name).ok());
    let one = threads.map(|threads| match threads.as_str() {
        "1" => true,
        "all" => false,
        other => args.refuse(format_args!("THREADS must be 1 or all, not {other:?}")),
    });
    let tasks = match tasks.map(|text| text.parse()) {
        None => 64,
        Some(Ok(tasks)) => tasks,
        Some(Err(_)) => args.refuse("TASKS must be a whole number"),
    };
    let run = |mut builder: tokio::runtime::Builder, threads| {
        builder.enable_all().build().expect("a runtime").block_on(contest(threads, tasks, span, only_ours));
    };
    if one != Some(false) {
        run(tokio::runtime::Builder::new_current_thread(), "one thread");
    }
    if one != Some(true) {
        run(tokio::runtime::Builder::new_multi_thread(), "a thread for each processor");
    }
}

async fn contest(threads: &str, tasks: usize, span: Duration, only_ours: bool) {
    let redis = Redis::start();
    let url = redis.url();
    if only_ours {
        // For a profiler.
        return println!("ours: {:.0}", ours(&url, span, tasks, false).await.rate);
    }
    println!("{tasks} tasks with a key each on {threads}, {ROUNDS} rounds of {span:?}; lock + unlock cycles a second,");
    println!(
        "µs of processor time for each cycle (here + in the server), and cycles for each time that the server read"
    );
    println!(
        "{:>30} {:>30} {:>30} {:>30} {:>30} {:>11}  /bare",
        "bare socket", "bare tasks", "rslock", "ours", "ours, fenced", "ours/rslock"
    );
    let (mut to_rslock, mut fenced, mut to_bare, mut bound) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut row = Vec::new();
        for contestant in 0..5 {
            tokio::time::sleep(REST).await;
            let before = usage(&redis);
            let Measured { rate, cycles } = match contestant {
                0 => bare(&redis, span, tasks),
                1 => bare_tasks(&redis, span, tasks).await,
                2 => rslock(&url, span, tasks).await,
                3 => ours(&url, span, tasks, false).await,
                _ => ours(&url, span, tasks, true).await,
            };
            let after = usage(&redis);
            let [here, there, reads] = [0, 1, 2].map(|at| after[at] - before[at]);
            let [here, there] = [here, there].map(|seconds| seconds * 1e6 / cycles as f64);
            print!("{:>31}", format!("{rate:.0} ({here:.1} + {there:.1}, {:.1})", cycles as f64 / reads));
            row.push(rate);
        }
        bound.push(row[1] / row[2]);
        to_rslock.push(row[3] / row[2]);
        fenced.push(row[4] / row[2]);
        to_bare.push(row[3] / row[0]);
        println!("{:>11.2} {:>6.2}", row[3] / row[2], row[3] / row[0]);
    }
    let [to_rslock, fenced, to_bare, bound] = [to_rslock, fenced, to_bare, bound].map(median);
    println!(
        "medians of {ROUNDS} rounds on {threads}: {to_rslock:.2} x rslock, fenced {fenced:.2} x, bare tasks {bound:.2} x; {to_bare:.2} of the bare socket\n"
    );
}

/// Processor time of this process and of the server in seconds, and the server's number of reads.
fn usage(redis: &Redis) -> [f64; 3] {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    // The fields after the name, which may contain any character. A tick is 10 ms.
    let ticks = stat.rsplit_once(')').expect("a name").1.split_whitespace().skip(11).take(2);
    let here: f64 = ticks.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0;
    let info = redis.cli(&["INFO", "everything"]);
    let number = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no {name} in INFO"))
    };
    [here, number("used_cpu_user:") + number("used_cpu_sys:"), number("total_reads_processed:")]
}

async fn ours(url: &str, span: Duration, tasks: usize, fencing: bool) -> Measured {
    let endpoint = Endpoint::parse(url).expect("a URL of the testkit");
    let client = lock_tokio::connect_on_runtime(Config::new([endpoint]).fencing(fencing)).expect("good settings");
    let measured = measure(tasks, span, |n, meter| {
        let client = client.clone();
        async move {
            let name = format!("ours:{n}");
            while meter.is_running() {
                let guard = client.lock(&name).acquire().await.expect("granted");
                let _ = guard.release().await;
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
            while meter.is_running() {
                let lock = manager.lock(name.as_bytes(), Duration::from_secs(10)).await.expect("granted");
                manager.unlock(&lock).await;
                meter.count();
            }
        }
    })
    .await
}

/// The same commands on a bare socket: one write takes all locks, the next releases them.
fn bare(redis: &Redis, span: Duration, tasks: usize) -> Measured {
    let mut socket = TcpStream::connect(redis.address()).expect("connect");
    socket.set_nodelay(true).expect("nodelay");
    redis.cli(&["SCRIPT", "LOAD", script::RELEASE.source]);
    let (mut takes, mut releasing) = (Vec::new(), Vec::new());
    for [take, release] in (0..tasks).map(commands) {
        takes.extend(take);
        releasing.extend(release);
    }
    let (start, mut cycles) = (Instant::now(), 0_u64);
    while start.elapsed() < span {
        exchange(&mut socket, &takes, TAKEN, tasks);
        exchange(&mut socket, &releasing, RELEASED, tasks);
        cycles += tasks as u64;
    }
    Measured { rate: cycles as f64 / start.elapsed().as_secs_f64(), cycles }
}

/// The two commands of a cycle, without fencing.
fn commands(task: usize) -> [Vec<u8>; 2] {
    let identity = Identity::new(ClientId::from_bits(1), KeyLayout::default(), b"");
    let (key, number, retired) = (Key::new(b"", format!("bare:{task}").as_bytes()), 1, Retired::all_to(0));
    let take =
        Request::Take { key: key.clone(), number, retired, ttl_ms: 10_000, fence_block: 0, clean: true, waiting_ms: 0 };
    let release = Request::Release { key, number, retired: None, announce: true };
    [take, release].map(|request| {
        let mut bytes = Vec::new();
        request.with_args(&identity, Form::Sha1, |args| command(&mut bytes, args));
        bytes
    })
}

/// The replies. They are equally long, so that their number follows from the number of bytes.
const TAKEN: &str = "+OK\r\n";
const RELEASED: &str = ":-2\r\n";

/// Number of tasks of [`bare_tasks`] woken at once. The fastest of 4, 8, 16, 32 and 64.
const WOKEN_AT_ONCE: usize = 8;

/// Shared between the tasks of [`bare_tasks`] and the task with the socket.
#[derive(Default)]
struct Pipeline {
    queue: Mutex<(Vec<u8>, VecDeque<oneshot::Sender<()>>)>,
    called: Notify,
}

impl Pipeline {
    async fn call(&self, command: &[u8]) {
        let (sender, answer) = oneshot::channel();
        {
            let mut queue = self.queue.lock().expect("no task panics");
            queue.0.extend_from_slice(command);
            queue.1.push_back(sender);
        }
        self.called.notify_one();
        answer.await.expect("the socket's task is there");
    }

    /// Wakes a few tasks and writes their next commands. Reads only when no task is left to wake,
    /// so that the server works meanwhile.
    async fn run(&self, socket: tokio::net::TcpStream) {
        let (read, mut write) = socket.into_split();
        let (mut buffer, mut bytes, mut unread) = (vec![0; 16 * 1024], Vec::new(), 0);
        loop {
            let answered = (unread / TAKEN.len()).min(WOKEN_AT_ONCE);
            unread -= answered * TAKEN.len();
            let woken: Vec<_> = self.queue.lock().expect("no task panics").1.drain(..answered).collect();
            let writes = if woken.is_empty() {
                tokio::select! {
                    () = self.called.notified() => true,
                    ready = read.readable() => {
                        ready.expect("readable");
                        match read.try_read(&mut buffer) {
                            Ok(0) => panic!("the server has gone"),
                            Ok(count) => unread += count,
                            Err(_) => {}
                        }
                        false
                    }
                }
            } else {
                woken.into_iter().for_each(|sender| sender.send(()).expect("it waits"));
                true
            };
            if writes {
                // Let the woken tasks queue their commands first.
                tokio::task::yield_now().await;
                std::mem::swap(&mut bytes, &mut self.queue.lock().expect("no task panics").0);
                write.write_all(&bytes).await.expect("write");
                bytes.clear();
            }
        }
    }
}

/// The same commands by tasks that share a socket and only wait for their replies. Shows the limit
/// of the runtime.
async fn bare_tasks(redis: &Redis, span: Duration, tasks: usize) -> Measured {
    redis.cli(&["SCRIPT", "LOAD", script::RELEASE.source]);
    let socket = tokio::net::TcpStream::connect(redis.address()).await.expect("connect");
    socket.set_nodelay(true).expect("nodelay");
    let pipeline = Arc::new(Pipeline::default());
    let carrier = tokio::spawn({
        let pipeline = pipeline.clone();
        async move { pipeline.run(socket).await }
    });
    let measured = measure(tasks, span, |n, meter| {
        let pipeline = pipeline.clone();
        async move {
            let [take, release] = commands(n);
            while meter.is_running() {
                pipeline.call(&take).await;
                pipeline.call(&release).await;
                meter.count();
            }
        }
    })
    .await;
    carrier.abort();
    measured
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
