//! Mutual exclusion.

use core::time::Duration;
use std::fs;
use std::process::Command;

use lock_testkit::{Redis, wait_until};
use rustix::process::Signal;

use crate::harness::{LONG, RUNTIMES, Scratch, Tool, assert_clean, run, runtime};

/// A critical section that logs an overlap.
pub(crate) const SECTION: &str = r#"mkdir "$D/inside" || { echo overlap >> "$D/log"; exit 9; }
echo in >> "$D/log"; sleep 0.03; rmdir "$D/inside""#;

/// Runs the section in several processes on each runtime, and checks that they never overlap.
#[track_caller]
pub(crate) fn assert_no_overlap(url: &str) {
    let scratch = Scratch::new();
    let dir = scratch.path("");
    let mut tools = Vec::new();
    for _ in 0..3 {
        for runtime in RUNTIMES {
            let line = ["--backend", url, "--runtime", runtime, "section", "--", "sh", "-c", SECTION];
            tools.push(Tool::start_with(&line, &[("D", &dir)]));
        }
    }
    for tool in tools {
        let ended = tool.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_eq!(scratch.read("log"), "in\n".repeat(12));
}

#[test]
fn processes_never_overlap_on_any_runtime() {
    let redis = Redis::start();
    assert_no_overlap(&redis.url());
    assert_clean(&redis);
}

/// Also while others are refused all the time.
#[test]
fn lock_of_dead_holder_ends_while_others_try() {
    let redis = Redis::start();
    let holder = Tool::on(&redis, &["--ttl", "1s", "job"]);
    holder.wait_for_out("held");
    holder.signal(Signal::KILL);
    let free = || match run(&redis, &["--ttl", "1s", "--wait", "0", "job", "--", "true"]).code {
        0 => true,
        75 => false,
        code => panic!("{code}"),
    };
    assert!(wait_until(LONG, free));
    assert_clean(&redis);
}

#[test]
fn sigkill_kills_command_and_lock_ends_with_ttl() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    let pid_file = scratch.path("pid");
    let script = format!("echo $$ > {pid_file}; exec sleep 100");
    let tool = Tool::on(&redis, &["--ttl", "2s", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    assert!(crate::harness::is_alive(&pid));
    let next = Tool::on(&redis, &["--ttl", "2s", "job", "--", "true"]);
    next.wait_for_err("held by another client");
    tool.signal(Signal::KILL);
    assert!(wait_until(LONG, || !crate::harness::is_alive(&pid)), "the command outlives with-lock");
    let ended = next.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_clean(&redis);
}

#[test]
fn plain_client_and_with_lock_exclude_each_other() {
    let redis = Redis::start();
    let tool = Tool::on(&redis, &["shared"]);
    tool.wait_for_out("held shared");
    assert_eq!(redis.cli(&["SET", "shared", "plain", "NX", "PX", "1000"]), "(nil)");
    assert_eq!(tool.terminate().code, 0);

    assert_eq!(redis.cli(&["SET", "shared", "plain", "NX", "PX", "700"]), "OK");
    assert_eq!(run(&redis, &["--wait", "0", "shared", "--", "true"]).code, 75);
    let ended = run(&redis, &["shared", "--", "true"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.took >= Duration::from_millis(300), "it did not wait for the plain client's lock to end: {ended:?}");
}

#[test]
fn key_without_expiry_is_reported_once_and_waited_for() {
    let redis = Redis::start();
    redis.cli(&["SET", "eternal", "somebody"]);
    let tool = Tool::on(&redis, &["eternal", "--", "true"]);
    let line = "eternal: waiting: held without expiry";
    tool.wait_for_err(line);
    redis.cli(&["DEL", "eternal"]);
    let ended = tool.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.err.matches(line).count(), 1, "reported more than once: {ended:?}");
}

#[test]
fn terminated_waiter_leaves_nothing_behind() {
    let runtime = runtime();
    let redis = Redis::start();
    let holder = Tool::on(&redis, &["job"]);
    holder.wait_for_out("held job");
    let waiter = Tool::on(&redis, &["--runtime", runtime, "job", "--", "true"]);
    waiter.wait_for_err("held by another client");
    assert_eq!(waiter.terminate().code, 128 + 15, "{runtime}");
    assert_eq!(holder.terminate().code, 0);
    assert_clean(&redis);
}

#[test]
fn release_wakes_waiter_before_next_poll() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    let mut waits = Vec::new();
    for round in 0..7 {
        let holder = Tool::on(&redis, &["job"]);
        holder.wait_for_out("held job");
        let file = scratch.path(&format!("{round}"));
        let script = format!("date +%s%N > {file}");
        let waiter = Tool::on(&redis, &["--poll", "1s", "job", "--", "sh", "-c", &script]);
        waiter.wait_for_err("held by another client");
        let before = now_nanos();
        assert_eq!(holder.terminate().code, 0);
        assert_eq!(waiter.end().code, 0);
        let began: u128 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        waits.push(began.saturating_sub(before) / 1_000_000);
    }
    waits.sort_unstable();
    assert!(waits[waits.len() / 2] < 500, "milliseconds from the signal to the next command: {waits:?}");
}

/// Reads the same clock as the command.
fn now_nanos() -> u128 {
    let out = Command::new("date").arg("+%s%N").output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().parse().unwrap()
}
