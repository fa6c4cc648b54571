//! A system that has few threads, processes or file descriptors left.

use core::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use lock_testkit::Redis;

use crate::harness::{Ended, RUNTIMES, Tool, WITH_SIGNALS};

/// Writes two lines, without another process or thread.
const SCRIPT: &str = "echo started; i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; echo finished";

/// Starts the rest of a line as a user that has no other process. The kernel does not limit those of
/// root, so a user of its own is needed; without root, one of a namespace.
fn limited_threads(limit: u32) -> Vec<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let user =
        (1_000_000_000 + std::process::id() % 1_000_000 * 100 + NEXT.fetch_add(1, Ordering::Relaxed)).to_string();
    let user = if rustix::process::geteuid().is_root() {
        vec!["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]
    } else {
        vec!["unshare", "--user", "--map-current-user"]
    };
    let limit = format!("--nproc={limit}");
    user.into_iter().chain(["prlimit", &limit]).map(str::to_owned).collect()
}

fn limited_files(limit: u32) -> Vec<String> {
    vec!["prlimit".to_owned(), format!("--nofile={limit}")]
}

fn run(redis: &Redis, starter: &[String], host: &str, runtime: &str, more: &[&str]) -> Ended {
    let starter: Vec<&str> = WITH_SIGNALS.iter().copied().chain(starter.iter().map(|word| &**word)).collect();
    let url = format!("redis://{host}:{}", redis.port());
    let args = ["--backend", &url, "--runtime", runtime, "--ttl", "20s", "--wait", "1s"];
    Tool::spawn(Tool::command_by(&starter, &[&args, more].concat(), &[("RUST_BACKTRACE", "0")])).end()
}

/// A command runs to its end under the lock, or is not started, and a message says why.
fn assert_whole_or_nothing(redis: &Redis, case: &str, ended: &Ended) -> bool {
    let keys: Vec<String> = redis.keys().into_iter().filter(|key| key == case).collect();
    assert!(keys.is_empty(), "{case}: the lock is left: {ended:?}");
    match ended.code {
        0 => assert_eq!(ended.out, "started\nfinished\n", "{case}: {ended:?}"),
        // 69: it had no thread for the lookups.
        69 | 126 => {
            assert_eq!(ended.out, "", "{case}: the command was started: {ended:?}");
            assert!(ended.err.lines().any(|line| line.starts_with("with-lock: ")), "{case}: {ended:?}");
        }
        _ => panic!("{case}: {ended:?}"),
    }
    ended.code == 0
}

/// Runs every case; returns the smallest limit with which each runtime works.
fn run_all(limits: core::ops::RangeInclusive<u32>, starter: fn(u32) -> Vec<String>) {
    let redis = Redis::start();
    thread::scope(|scope| {
        for runtime in RUNTIMES {
            let (redis, limits) = (&redis, limits.clone());
            scope.spawn(move || {
                let mut worked = false;
                for limit in limits.clone() {
                    for host in ["127.0.0.1", "localhost"] {
                        let case = format!("{runtime} {host} {limit}");
                        let ended = run(redis, &starter(limit), host, runtime, &[&case, "--", "sh", "-c", SCRIPT]);
                        worked = assert_whole_or_nothing(redis, &case, &ended);
                    }
                }
                assert!(worked, "{runtime}: not even {} are enough", limits.end());
            });
        }
    });
}

/// Regression: the command was started and killed, or the tool hung or ended without a word.
#[test]
fn command_runs_whole_or_not_at_all_with_few_threads() {
    // D8
    run_all(1..=16, limited_threads);
}

#[test]
fn command_runs_whole_or_not_at_all_with_few_descriptors() {
    // D8
    run_all(4..=24, limited_files);
}
