//! A system that has few threads, processes or file descriptors left.

use core::sync::atomic::{AtomicU32, Ordering};
use std::process::Command;
use std::thread;

use lock_testkit::{Redis, wait_until};

use crate::harness::{Ended, LONG, RUNTIMES, Scratch, Tool, WITH_SIGNALS};

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

fn start(redis: &Redis, starter: &[String], host: &str, runtime: &str, more: &[&str]) -> Tool {
    let starter: Vec<&str> = WITH_SIGNALS.iter().copied().chain(starter.iter().map(|word| &**word)).collect();
    let url = format!("redis://{host}:{}", redis.port());
    let args = ["--backend", &url, "--runtime", runtime, "--wait", "1s"];
    Tool::spawn(Tool::command_by(&starter, &[&args, more].concat(), &[("RUST_BACKTRACE", "0")]))
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
                        let ended =
                            start(redis, &starter(limit), host, runtime, &[&case, "--", "sh", "-c", SCRIPT]).end();
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

/// Regression: the lookup panicked in tokio, and all locks of the client were lost at once.
#[test]
fn lock_is_kept_while_lookups_have_no_thread() {
    // D8
    let redis = Redis::start();
    for runtime in RUNTIMES {
        let scratch = Scratch::new();
        let script = format!("until [ -e {} ]; do :; done", scratch.path("go"));
        let args = ["--ttl", "60s", "job", "--", "sh", "-c", &script];
        let starter = limited_threads(100);
        let tool = start(&redis, &starter, "localhost", runtime, &args);
        assert!(wait_until(LONG, || redis.cli(&["EXISTS", "job"]) == "1"), "{runtime}: {}", tool.err());
        let limit = |most: &str| {
            let pid = tool.pid().as_raw_pid().to_string();
            // As the same user, without the namespace of `unshare`.
            let user = if starter[0] == "setpriv" { &starter[..starter.len() - 2] } else { &[] };
            let limit = format!("--nproc={most}:");
            let line = user.iter().map(|word| &**word);
            let line: Vec<&str> = line.chain(["prlimit", "--pid", &pid, &limit]).collect();
            assert!(Command::new(line[0]).args(&line[1..]).status().unwrap().success(), "{runtime}");
        };
        limit("1");
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        tool.wait_for_err("no thread");
        limit("100");
        let connected = || redis.cli(&["CLIENT", "LIST"]).lines().count() > 1;
        assert!(wait_until(LONG, connected), "{runtime}: {}", tool.err());
        std::fs::write(scratch.path("go"), "").unwrap();
        let ended = tool.end();
        assert_eq!(ended.code, 0, "{runtime}: {ended:?}");
        assert_eq!(redis.cli(&["EXISTS", "job"]), "0", "{runtime}: {ended:?}");
    }
}
