//! The lock ends before the command does.

use core::time::Duration;
use std::time::Instant;

use lock_testkit::{Proxy, Redis, Server, Stopwatch, Tamper, wait_until};
use rustix::process::Signal;

use crate::harness::{LONG, RUNTIMES, Scratch, Tool, assert_clean, is_alive, ms, runtime};

/// A script that records SIGTERM and keeps running.
pub(crate) fn ignores_sigterm(scratch: &Scratch) -> String {
    format!(
        "trap 'echo asked >> {}' TERM; echo $$ > {}; while :; do sleep 0.02; done",
        scratch.path("asked"),
        scratch.path("pid")
    )
}

#[test]
fn pause_past_ttl_kills_command_on_resume() {
    let runtime = runtime();
    let redis = Redis::start();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "1s", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    tool.signal(Signal::STOP);
    assert!(wait_until(LONG, || redis.cli(&["EXISTS", "job"]) == "0"), "the key ends with its TTL");
    let other = Tool::on(&redis, &["job"]);
    other.wait_for_out("held job");
    tool.signal(Signal::CONT);
    let resumed = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    resumed.assert_within(ms(500), runtime);
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert!(
        other.out().lines().count() == 1 && redis.cli(&["EXISTS", "job"]) == "1",
        "{runtime}: the other's lock stays"
    );
}

/// Kills the server of a holder: its command gets SIGTERM, and is killed when the validity ends,
/// which is `earlier` than the TTL minus the drift.
#[track_caller]
pub(crate) fn assert_outage_ends_command(url: &str, kill: impl FnOnce(), earlier: Duration) {
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let line = ["--runtime", runtime, "--ttl", "3s", "--grace", "1s", "job", "--", "sh", "-c", &script];
    let tool = Tool::start(&[&["--backend", url], &line[..]].concat());
    let pid = scratch.line("pid");
    kill();
    let killed = Stopwatch::start();
    scratch.line("asked");
    let sigterm_at = killed.elapsed();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    let dead = killed.elapsed();
    // The validity is 3 s minus the drift; it began up to 1.1 s before the server was killed.
    let within = |from, to| ms(from) - earlier..=ms(to) - earlier;
    killed.assert_in(sigterm_at, within(700, 2300), format!("{runtime}: SIGTERM"));
    killed.assert_in(dead, within(1700, 3100), format!("{runtime}: killed by the end of validity"));
    killed.assert_in(dead.saturating_sub(sigterm_at), ms(700)..=ms(1400), format!("{runtime}: the grace"));
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
}

#[test]
fn server_outage_terminates_at_grace_and_kills_at_expiry() {
    let mut redis = Redis::start();
    let url = redis.url();
    assert_outage_ends_command(&url, || redis.kill(), Duration::ZERO);
}

/// An interrupted job must not look finished, whatever its exit code.
#[test]
fn terminated_command_reports_loss_despite_own_exit_code() {
    let runtime = runtime();
    for code in [0, 5] {
        let mut redis = Redis::start();
        let scratch = Scratch::new();
        let script = exits_on_sigterm(&scratch, code);
        let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "2s", "job", "--", "sh", "-c", &script]);
        scratch.line("log");
        redis.kill();
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
        assert!(ended.err.contains("sending SIGTERM to the command"), "{runtime}: {ended:?}");
    }
}

/// The same if the lock is known to be lost, and if it recovers after the SIGTERM.
#[test]
fn terminated_command_reports_loss_even_if_lock_recovers() {
    let runtime = runtime();
    let redis = Redis::start();
    let scratch = Scratch::new();
    let script = exits_on_sigterm(&scratch, 0);
    let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "1500ms", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    redis.cli(&["DEL", "job"]);
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");

    let scratch = Scratch::new();
    let script = format!(
        "trap 'touch {marker}; until [ -e {go} ]; do sleep 0.01; done; exit 0' TERM; echo ready > {log}; \
         while :; do sleep 0.02; done",
        marker = scratch.path("asked"),
        go = scratch.path("go"),
        log = scratch.path("log"),
    );
    let line = ["--runtime", runtime, "--ttl", "6s", "--grace", "3s", "job", "--", "sh", "-c", &script];
    let tool = Tool::on(&redis, &line);
    scratch.line("log");
    redis.pause();
    assert!(wait_until(LONG, || std::fs::exists(scratch.path("asked")).unwrap()), "{runtime}: no SIGTERM");
    redis.resume();
    let renewed = || redis.cli(&["PTTL", "job"]).parse::<i64>().unwrap() > 4_500;
    assert!(wait_until(LONG, renewed), "{runtime}: {}", tool.err());
    std::fs::write(scratch.path("go"), "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert_eq!(redis.cli(&["EXISTS", "job"]), "0", "{runtime}: released");
}

/// A script that exits with this code on SIGTERM.
fn exits_on_sigterm(scratch: &Scratch, code: u8) -> String {
    format!("trap 'exit {code}' TERM; echo ready > {}; while :; do sleep 0.02; done", scratch.path("log"))
}

#[test]
fn lock_survives_server_restart_with_data() {
    let mut redis = Redis::builder().append_only().start();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    let tool = Tool::on(&redis, &["--ttl", "4s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    redis.restart();
    // Compare the time of expiry, which only a renewal changes.
    let start = Instant::now();
    let end = || redis.cli(&["PTTL", "job"]).parse::<u128>().unwrap() + start.elapsed().as_millis();
    let before = end();
    let renewed = || end() > before + 500;
    assert!(wait_until(LONG, renewed), "not renewed after the restart: {}", tool.err());
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn deleted_or_stolen_lock_kills_command_after_grace() {
    for (value, word) in [(None, "gone"), (Some("thief"), "another client")] {
        let redis = Redis::start();
        let scratch = Scratch::new();
        let script = ignores_sigterm(&scratch);
        let tool = Tool::on(&redis, &["--ttl", "3s", "--grace", "400ms", "job", "--", "sh", "-c", &script]);
        let pid = scratch.line("pid");
        match value {
            None => redis.cli(&["DEL", "job"]),
            Some(value) => redis.cli(&["SET", "job", value, "PX", "60000"]),
        };
        scratch.line("asked");
        let sigterm_at = Stopwatch::start();
        assert!(wait_until(LONG, || !is_alive(&pid)), "the command runs on");
        sigterm_at.assert_in(sigterm_at.elapsed(), ms(300)..=ms(900), "the grace");
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{ended:?}");
        assert!(ended.err.contains(word), "{ended:?}");
        assert_eq!(redis.cli(&["GET", "job"]), value.unwrap_or("(nil)"), "the thief's lock stays");
    }
}

#[test]
fn loss_found_only_at_release_is_reported() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    // The watchdog would notice after 20 s.
    let tool = Tool::on(&redis, &["--ttl", "60s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    redis.cli(&["DEL", "job"]);
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
}

#[test]
fn loss_without_command_is_reported_on_stdout() {
    let runtime = runtime();
    let redis = Redis::start();
    let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "900ms", "job"]);
    tool.wait_for_out("held job");
    redis.cli(&["DEL", "job"]);
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert!(ended.out.ends_with("lost job gone\n"), "{runtime}: {ended:?}");
}

#[test]
fn lock_expires_while_server_is_paused() {
    let redis = Redis::start();
    let tool = Tool::on(&redis, &["--ttl", "1s", "job"]);
    tool.wait_for_out("held job");
    redis.pause();
    let paused = Stopwatch::start();
    tool.wait_for_out("lost job expired");
    paused.assert_within(ms(1200), "notified");
    redis.resume();
    assert_eq!(tool.end().code, 76);
    // A request in flight may extend the key once, by one TTL.
    assert!(wait_until(LONG, || redis.cli(&["EXISTS", "job"]) == "0"), "left behind");
}

#[test]
fn loss_found_by_release_after_signal_is_reported_once_and_at_once() {
    let runtime = runtime();
    let redis = Redis::start();
    // The watchdog would notice after 20 s.
    let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "60s", "job"]);
    tool.wait_for_out("held job");
    redis.cli(&["DEL", "job"]);
    tool.signal(Signal::INT);
    tool.wait_for_out("lost job gone\n");
    let reported = Stopwatch::start();
    let ended = tool.end();
    reported.assert_within(ms(5_000), format!("{runtime}: nothing is left to wait for"));
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert_eq!(ended.err.matches("lost: ").count(), 1, "{runtime}: {ended:?}");
}

/// etcd and ZooKeeper were silent.
#[test]
fn unconfirmed_release_after_loss_is_reported() {
    for server in [Server::redis(), Server::etcd(), Server::zookeeper()].map(Server::for_killing) {
        let (url, ttl) = (server.url(), format!("{}ms", server.ttl().as_millis()));
        let line = ["--backend", &url, "--runtime", runtime(), "--ttl", &ttl, "job"];
        let tool = Tool::start_with(&line, &[("LOCK_LOG", "off")]);
        tool.wait_for_out("held job");
        server.pause();
        let ended = tool.end();
        assert!(ended.code == 76 && ended.out.ends_with("lost job expired\n"), "{url}: {ended:?}");
        let lines: Vec<&str> = ended.err.lines().collect();
        let [lost, "with-lock: job: the release is unconfirmed; the lock ends with its TTL"] = lines[..] else {
            panic!("{url}: {ended:?}")
        };
        assert!(lost.starts_with("with-lock: job: lost: "), "{url}: {ended:?}");
    }
}

#[test]
fn unconfirmed_release_is_reported() {
    let mut redis = Redis::start();
    let scratch = Scratch::new();
    let go = scratch.path("go");
    let tools = RUNTIMES.map(|runtime| {
        let script = format!("echo ready > {}; until [ -e {go} ]; do sleep 0.01; done; exit 5", scratch.path(runtime));
        let line = ["--runtime", runtime, "--ttl", "60s", runtime, "--", "sh", "-c", &script];
        let with_command = Tool::on(&redis, &line);
        scratch.line(runtime);
        let name = format!("{runtime}-alone");
        let alone = Tool::on(&redis, &["--runtime", runtime, "--ttl", "60s", &name]);
        alone.wait_for_out("held");
        (runtime, with_command, alone)
    });
    redis.kill();
    std::fs::write(go, "").unwrap();
    for (_, _, alone) in &tools {
        alone.signal(Signal::TERM);
    }
    for (runtime, with_command, alone) in tools {
        for (name, tool, code) in [(runtime.to_owned(), with_command, 5), (format!("{runtime}-alone"), alone, 0)] {
            let ended = tool.end();
            assert_eq!(ended.code, code, "{ended:?}");
            let line = format!("with-lock: {name}: the release is unconfirmed; the lock ends with its TTL\n");
            assert!(ended.err.ends_with(&line), "{ended:?}");
        }
    }
}

/// What a proxy does that closes a connection at a command: Redis does so at one of HTTP.
fn closing_at(command: &[u8], bytes: &[u8]) -> Vec<u8> {
    let found = bytes.windows(command.len()).any(|part| part == command);
    if found { b"POST /\r\n".to_vec() } else { bytes.to_vec() }
}

/// Regression: each connection asked for it first and was closed, until the lock was lost.
#[test]
fn lock_is_kept_behind_proxy_that_closes_at_commands_that_are_not_needed() {
    // P8
    let redis = Redis::start();
    let cases: [(Tamper, _); 2] = [
        (|bytes| closing_at(b"$4\r\nINFO\r\n", bytes), ""),
        (|bytes| closing_at(b"$6\r\nCLIENT\r\n", bytes), "?client_name=app"),
    ];
    for (tamper, query) in cases {
        let proxy = Proxy::tampering(redis.address(), tamper);
        let url = format!("redis://{}{query}", proxy.address());
        let ended = Tool::start(&["--backend", &url, "--ttl", "3s", "job", "--", "sleep", "5"]).end();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(proxy.tampered(), 2, "{ended:?}");
        assert_clean(&redis);
    }
}
