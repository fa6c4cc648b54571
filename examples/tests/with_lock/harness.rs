//! Starts `with-lock` on private servers.

use std::process::Command;

use lock_proto::redis::{SIGNAL_SUFFIX, WAITING_SUFFIX};
use lock_testkit::{Redis, wait_until};

pub(crate) use crate::kit::{Ended, LONG, Scratch, Tool, WITH_SIGNALS, is_alive, ms, started_by};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_with-lock");

/// For tests of processes on different runtimes.
pub(crate) const RUNTIMES: [&str; 4] = ["tokio", "smol", "async-std", "blocking"];

/// Returns the runtime of this run: `LOCK_RUNTIME`, by default tokio. `make test` runs them all.
pub(crate) fn runtime() -> &'static str {
    let Ok(name) = std::env::var("LOCK_RUNTIME") else { return RUNTIMES[0] };
    RUNTIMES.into_iter().find(|runtime| *runtime == name).expect("LOCK_RUNTIME names a runtime")
}

/// The fence counter, the only key that locks leave behind.
pub(crate) const FENCE_KEY: &str = lock_proto::redis::FENCE_NAME;

impl Tool {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    pub(crate) fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::spawn(Self::command(args, env))
    }

    pub(crate) fn command(args: &[&str], env: &[(&str, &str)]) -> Command {
        Self::command_by(WITH_SIGNALS, args, env)
    }

    pub(crate) fn command_by(starter: &[&str], args: &[&str], env: &[(&str, &str)]) -> Command {
        let mut command = started_by(starter, PROGRAM);
        if std::env::var_os("LOCK_RUNTIME").is_some() && !args.contains(&"--runtime") {
            command.args(["--runtime", runtime()]);
        }
        command.args(args).env_remove("LOCK_BACKEND").envs(env.iter().copied());
        command
    }

    pub(crate) fn on(redis: &Redis, args: &[&str]) -> Self {
        let url = redis.url();
        Self::start(&[&["--backend", &url], args].concat())
    }
}

#[track_caller]
pub(crate) fn run(redis: &Redis, args: &[&str]) -> Ended {
    Tool::on(redis, args).end()
}

/// Asserts that only the fence counter is left, and side keys of former waiters, which expire.
#[track_caller]
pub(crate) fn assert_clean(redis: &Redis) {
    for key in redis.keys() {
        let ends = redis.cli(&["PTTL", &key]).parse::<i64>().unwrap();
        if key == FENCE_KEY {
            assert_eq!(ends, -1, "the counter must not end");
        } else {
            assert!(key.ends_with(SIGNAL_SUFFIX) || key.ends_with(WAITING_SUFFIX), "{key:?} is left");
            assert!((-2..=2_000).contains(&ends) && ends != -1, "{key:?} ends in {ends} ms");
        }
    }
}

/// A quorum of servers whose uptime is sufficient for a TTL of one second.
// Q6
pub(crate) struct Quorum {
    pub(crate) servers: Vec<Redis>,
}

impl Quorum {
    pub(crate) fn of(count: usize) -> Self {
        let servers = Redis::start_many(count);
        for server in &servers {
            let old_enough = || {
                let info = server.cli(&["INFO", "server"]);
                let uptime = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:")).unwrap();
                uptime.trim().parse::<u64>().unwrap() >= 2
            };
            assert!(wait_until(LONG, old_enough));
        }
        Self { servers }
    }

    pub(crate) fn start(&self, args: &[&str]) -> Tool {
        self.start_with(args, &[])
    }

    pub(crate) fn start_with(&self, args: &[&str], env: &[(&str, &str)]) -> Tool {
        let urls: Vec<String> = self.servers.iter().map(Redis::url).collect();
        let mut line: Vec<&str> = urls.iter().flat_map(|url| ["--backend", url]).collect();
        line.extend(["--ttl", "1s", "--quarantine", "1s"]);
        line.extend(args);
        Tool::start_with(&line, env)
    }
}
