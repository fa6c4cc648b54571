//! The lock ends before the command does.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use lock_testkit::{Etcd, wait_until};
use rustix::process::Signal;

use super::{RUNTIMES, assert_clean, on};
use crate::kit::{LONG, Scratch, is_alive};
use crate::loss::stubborn;

/// Soon: before the session would have noticed by itself.
const SOON: Duration = Duration::from_millis(1000);

#[test]
fn a_pause_past_the_ttl_kills_the_command_at_once() {
    let etcd = Etcd::start();
    for runtime in RUNTIMES {
        let scratch = Scratch::new();
        let script = stubborn(&scratch);
        let tool = on(&etcd, &["--runtime", runtime, "--ttl", "1s", "job", "--", "sh", "-c", &script]);
        let pid = scratch.line("pid");
        tool.signal(Signal::STOP);
        let other = on(&etcd, &["job"]);
        other.wait_for_out("held job");
        tool.signal(Signal::CONT);
        let resumed = Instant::now();
        assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
        assert!(resumed.elapsed() < Duration::from_millis(500), "{runtime}: {:?}", resumed.elapsed());
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
        assert_eq!(etcd.keys_of("job/").len(), 1, "{runtime}: the other's lock stays");
        assert_eq!(other.out().lines().count(), 1, "{runtime}: {}", other.out());
        assert_eq!(other.terminate().code, 0);
        assert_clean(&etcd);
    }
}

#[test]
fn silence_of_the_server_asks_at_the_grace_and_kills_at_the_end_of_validity() {
    for runtime in RUNTIMES {
        let mut etcd = Etcd::start();
        let scratch = Scratch::new();
        let script = stubborn(&scratch);
        let line = ["--runtime", runtime, "--ttl", "3s", "--grace", "1s", "job", "--", "sh", "-c", &script];
        let tool = on(&etcd, &line);
        let pid = scratch.line("pid");
        etcd.kill();
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
fn a_revoked_lease_ends_the_command_after_the_grace() {
    let etcd = Etcd::start();
    for runtime in RUNTIMES {
        let scratch = Scratch::new();
        let script = stubborn(&scratch);
        let line = ["--runtime", runtime, "--ttl", "6s", "--grace", "400ms", "job", "--", "sh", "-c", &script];
        let tool = on(&etcd, &line);
        let pid = scratch.line("pid");
        // Held for more than a third of the TTL, the own key is watched (requirement E9).
        thread::sleep(Duration::from_millis(2300));
        etcd.revoke(&etcd.leases()[0]);
        let revoked = Instant::now();
        scratch.line("asked");
        let asked = Instant::now();
        assert!(asked - revoked < SOON, "{runtime}: noticed after {:?}", asked - revoked);
        assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
        assert!((300..900).contains(&asked.elapsed().as_millis()), "{runtime}: grace was {:?}", asked.elapsed());
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
        assert!(ended.err.contains("gone"), "{runtime}: {ended:?}");
        assert_clean(&etcd);
    }
}

#[test]
fn a_revoked_lease_is_noticed_by_the_session_as_well() {
    let etcd = Etcd::start();
    // Held for too short a time to be watched.
    let tools = RUNTIMES.map(|runtime| {
        let tool = on(&etcd, &["--runtime", runtime, "--ttl", "2s", runtime]);
        tool.wait_for_out("held");
        tool
    });
    for lease in etcd.leases() {
        etcd.revoke(&lease);
    }
    for tool in tools {
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{ended:?}");
        assert!(ended.took < Duration::from_secs(10), "{ended:?}");
    }
    assert_clean(&etcd);
}

#[test]
fn an_own_key_that_is_deleted_is_a_loss() {
    let etcd = Etcd::start();
    for runtime in RUNTIMES {
        let tool = on(&etcd, &["--runtime", runtime, "--ttl", "3s", "job"]);
        tool.wait_for_out("held job");
        thread::sleep(Duration::from_millis(1300));
        assert!(etcd.delete(&etcd.keys()[0]));
        let deleted = Instant::now();
        tool.wait_for_out("lost job gone\n");
        assert!(deleted.elapsed() < SOON, "{runtime}: {:?}", deleted.elapsed());
        let ended = tool.end();
        assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
        assert_clean(&etcd);
    }
}

#[test]
fn a_loss_that_only_the_release_shows_counts() {
    let etcd = Etcd::start();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    // It would look after 20 s.
    let tool = on(&etcd, &["--ttl", "60s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    assert!(etcd.delete(&etcd.keys()[0]));
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_clean(&etcd);
}

#[test]
fn a_server_that_comes_back_in_time_costs_nothing() {
    let mut etcd = Etcd::start();
    let mut tools = RUNTIMES.map(|runtime| {
        let tool = on(&etcd, &["--runtime", runtime, "--ttl", "4s", runtime]);
        tool.wait_for_out("held");
        tool
    });
    etcd.restart();
    // Longer than without a renewal.
    thread::sleep(Duration::from_secs(5));
    for tool in &mut tools {
        assert!(!tool.has_ended(), "{}", tool.err());
    }
    for tool in tools {
        let ended = tool.terminate();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_clean(&etcd);
}

#[test]
fn a_stopped_server_is_silence_too() {
    let etcd = Etcd::start();
    let tool = on(&etcd, &["--ttl", "1s", "job"]);
    tool.wait_for_out("held job");
    etcd.pause();
    let paused = Instant::now();
    tool.wait_for_out("lost job expired");
    assert!(paused.elapsed() <= Duration::from_millis(1200), "told late: {:?}", paused.elapsed());
    etcd.resume();
    assert_eq!(tool.end().code, 76);
    assert!(wait_until(LONG, || etcd.keys().is_empty() && etcd.leases().is_empty()), "left behind");
}
