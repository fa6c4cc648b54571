//! The lock ends before the command does.

use core::time::Duration;

use lock_testkit::{Etcd, Stopwatch, wait_until};
use rustix::process::Signal;

use super::{RUNTIMES, assert_clean, on, runtime};
use crate::kit::{LONG, Scratch, is_alive, ms};
use crate::loss::ignores_sigterm;

/// Shorter than the session needs to notice a loss.
const SOON: Duration = ms(1000);

/// A client watches its own key once it has held the lock for a third of the TTL.
// E9
#[track_caller]
fn wait_for_watch(etcd: &Etcd) {
    let is_watched = || etcd.metric("etcd_debugging_mvcc_watcher_total", "") == 1;
    assert!(wait_until(LONG, is_watched), "the key is not watched");
}

#[test]
fn pause_past_ttl_kills_command_on_resume() {
    let etcd = Etcd::start();
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let tool = on(&etcd, &["--runtime", runtime, "--ttl", "1s", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    tool.signal(Signal::STOP);
    let other = on(&etcd, &["job"]);
    other.wait_for_out("held job");
    tool.signal(Signal::CONT);
    let resumed = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    resumed.assert_within(ms(500), runtime);
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert_eq!(etcd.keys_of("job/").len(), 1, "{runtime}: the other's lock stays");
    assert_eq!(other.out().lines().count(), 1, "{runtime}: {}", other.out());
    assert_eq!(other.terminate().code, 0);
    assert_clean(&etcd);
}

#[test]
fn server_outage_terminates_at_grace_and_kills_at_expiry() {
    let runtime = runtime();
    let mut etcd = Etcd::start();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let line = ["--runtime", runtime, "--ttl", "3s", "--grace", "1s", "job", "--", "sh", "-c", &script];
    let tool = on(&etcd, &line);
    let pid = scratch.line("pid");
    etcd.kill();
    let killed = Stopwatch::start();
    scratch.line("asked");
    let sigterm_at = killed.elapsed();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    let dead = killed.elapsed();
    // The validity is 3 s minus the drift; it began up to 1.1 s before the server was killed.
    killed.assert_in(sigterm_at, ms(700)..=ms(2300), format!("{runtime}: SIGTERM"));
    killed.assert_in(dead, ms(1700)..=ms(3100), format!("{runtime}: killed by the end of validity"));
    killed.assert_in(dead.saturating_sub(sigterm_at), ms(700)..=ms(1400), format!("{runtime}: the grace"));
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
}

#[test]
fn revoked_lease_kills_command_after_grace() {
    let etcd = Etcd::start();
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let line = ["--runtime", runtime, "--ttl", "6s", "--grace", "400ms", "job", "--", "sh", "-c", &script];
    let tool = on(&etcd, &line);
    let pid = scratch.line("pid");
    wait_for_watch(&etcd);
    etcd.revoke(&etcd.leases()[0]);
    let revoked = Stopwatch::start();
    scratch.line("asked");
    revoked.assert_within(SOON, format!("{runtime}: noticed"));
    let sigterm_at = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    sigterm_at.assert_in(sigterm_at.elapsed(), ms(300)..=ms(900), format!("{runtime}: the grace"));
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert!(ended.err.contains("gone"), "{runtime}: {ended:?}");
    assert_clean(&etcd);
}

#[test]
fn revoked_lease_is_noticed_without_watch() {
    let etcd = Etcd::start();
    // Too early for a watch on the key.
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
fn deleted_own_key_is_reported_as_loss() {
    let etcd = Etcd::start();
    let runtime = runtime();
    let tool = on(&etcd, &["--runtime", runtime, "--ttl", "3s", "job"]);
    tool.wait_for_out("held job");
    wait_for_watch(&etcd);
    assert!(etcd.delete(&etcd.keys()[0]));
    let deleted = Stopwatch::start();
    tool.wait_for_out("lost job gone\n");
    deleted.assert_within(SOON, runtime);
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert_clean(&etcd);
}

#[test]
fn loss_found_only_at_release_is_reported() {
    let etcd = Etcd::start();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    // The watch would open after 20 s.
    let tool = on(&etcd, &["--ttl", "60s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    assert!(etcd.delete(&etcd.keys()[0]));
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_clean(&etcd);
}

#[test]
fn lock_survives_server_restart_within_ttl() {
    let mut etcd = Etcd::start();
    let mut tools = RUNTIMES.map(|runtime| {
        let tool = on(&etcd, &["--runtime", runtime, "--ttl", "4s", runtime]);
        tool.wait_for_out("held");
        tool
    });
    etcd.restart();
    // Longer than the TTL.
    std::thread::sleep(Duration::from_secs(5));
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
fn lock_expires_while_server_is_paused() {
    let etcd = Etcd::start();
    let tool = on(&etcd, &["--ttl", "1s", "job"]);
    tool.wait_for_out("held job");
    etcd.pause();
    let paused = Stopwatch::start();
    tool.wait_for_out("lost job expired");
    paused.assert_within(ms(1200), "notified");
    etcd.resume();
    assert_eq!(tool.end().code, 76);
    assert!(wait_until(LONG, || etcd.keys().is_empty() && etcd.leases().is_empty()), "left behind");
}
