//! The lock ends before the command does.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use lock_testkit::{Redis, wait_until};
use rustix::process::Signal;

use crate::harness::{LONG, RUNTIMES, Scratch, Tool, is_alive};

/// Says when it was asked to end, and does not.
pub(crate) fn stubborn(scratch: &Scratch) -> String {
    format!(
        "trap 'echo asked >> {}' TERM; echo $$ > {}; while :; do sleep 0.02; done",
        scratch.path("asked"),
        scratch.path("pid")
    )
}

#[test]
fn a_pause_past_the_ttl_kills_the_command_at_once() {
    for runtime in RUNTIMES {
        let redis = Redis::start();
        let scratch = Scratch::new();
        let script = stubborn(&scratch);
        let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "1s", "job", "--", "sh", "-c", &script]);
        let pid = scratch.line("pid");
        tool.signal(Signal::STOP);
        assert!(wait_until(LONG, || redis.cli(&["EXISTS", "job"]) == "0"), "the key ends with its TTL");
        let other = Tool::on(&redis, &["job"]);
        other.wait_for_out("held job");
        tool.signal(Signal::CONT);
        let resumed = Instant::now();
        assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
        assert!(resumed.elapsed() < Duration::from_millis(500), "{runtime}: {:?}", resumed.elapsed());
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
        assert!(
            other.out().lines().count() == 1 && redis.cli(&["EXISTS", "job"]) == "1",
            "{runtime}: the other's lock stays"
        );
    }
}

#[test]
fn silence_of_the_server_asks_at_the_grace_and_kills_at_the_end_of_validity() {
    for runtime in RUNTIMES {
        let mut redis = Redis::start();
        let scratch = Scratch::new();
        let script = stubborn(&scratch);
        let line = ["--runtime", runtime, "--ttl", "3s", "--grace", "1s", "job", "--", "sh", "-c", &script];
        let tool = Tool::on(&redis, &line);
        let pid = scratch.line("pid");
        redis.kill();
        let killed = Instant::now();
        scratch.line("asked");
        let asked = killed.elapsed();
        assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
        let dead = killed.elapsed();
        // Validity is 3 s less the drift, and was granted or renewed up to 1.1 s before the server was killed.
        assert!(asked >= Duration::from_millis(700), "{runtime}: asked too early: {asked:?}");
        assert!(dead <= Duration::from_millis(3100), "{runtime}: killed after the end of validity: {dead:?}");
        let between = dead.saturating_sub(asked);
        assert!((700..1400).contains(&between.as_millis()), "{runtime}: grace was {between:?}");
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    }
}

#[test]
fn a_command_that_ends_within_the_grace_has_its_own_code() {
    let mut redis = Redis::start();
    let scratch = Scratch::new();
    let script = format!("trap 'exit 5' TERM; echo ready > {}; while :; do sleep 0.02; done", scratch.path("log"));
    let tool = Tool::on(&redis, &["--ttl", "2s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    redis.kill();
    let ended = tool.end();
    assert_eq!(ended.code, 5, "it ended before the lock did: {ended:?}");
}

#[test]
fn a_server_that_comes_back_in_time_with_its_data_costs_nothing() {
    let mut redis = Redis::builder().append_only().start();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    let tool = Tool::on(&redis, &["--ttl", "4s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    redis.restart();
    let before = redis.cli(&["PTTL", "job"]).parse::<i64>().unwrap();
    assert!(before > 0);
    let renewed = || redis.cli(&["PTTL", "job"]).parse::<i64>().unwrap() > before;
    assert!(wait_until(LONG, renewed), "not renewed after the restart: {}", tool.err());
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn a_lock_taken_away_ends_the_command_after_the_grace() {
    for (value, word) in [(None, "gone"), (Some("thief"), "another client")] {
        let redis = Redis::start();
        let scratch = Scratch::new();
        let script = stubborn(&scratch);
        let tool = Tool::on(&redis, &["--ttl", "3s", "--grace", "400ms", "job", "--", "sh", "-c", &script]);
        let pid = scratch.line("pid");
        match value {
            None => redis.cli(&["DEL", "job"]),
            Some(value) => redis.cli(&["SET", "job", value, "PX", "60000"]),
        };
        scratch.line("asked");
        let asked = Instant::now();
        assert!(wait_until(LONG, || !is_alive(&pid)), "the command runs on");
        assert!((300..900).contains(&asked.elapsed().as_millis()), "grace was {:?}", asked.elapsed());
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{ended:?}");
        assert!(ended.err.contains(word), "{ended:?}");
        assert_eq!(redis.cli(&["GET", "job"]), value.unwrap_or("(nil)"), "the thief's lock stays");
    }
}

#[test]
fn a_loss_that_only_the_release_shows_counts() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    // The watchdog would look after 20 s.
    let tool = Tool::on(&redis, &["--ttl", "60s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    redis.cli(&["DEL", "job"]);
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
}

#[test]
fn without_a_command_the_loss_is_told_on_stdout() {
    for runtime in RUNTIMES {
        let redis = Redis::start();
        let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "900ms", "job"]);
        tool.wait_for_out("held job");
        redis.cli(&["DEL", "job"]);
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
        assert!(ended.out.ends_with("lost job gone\n"), "{runtime}: {ended:?}");
    }
}

#[test]
fn a_stopped_server_is_silence_too() {
    let redis = Redis::start();
    let tool = Tool::on(&redis, &["--ttl", "1s", "job"]);
    tool.wait_for_out("held job");
    redis.pause();
    let paused = Instant::now();
    tool.wait_for_out("lost job expired");
    assert!(paused.elapsed() <= Duration::from_millis(1200), "told late: {:?}", paused.elapsed());
    redis.resume();
    assert_eq!(tool.end().code, 76);
    // What was on its way when the server was stopped may give the key one more TTL, and nothing renews it.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(redis.cli(&["EXISTS", "job"]), "0");
}
