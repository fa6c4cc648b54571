//! The lock ends before the command does.

use core::time::Duration;

use lock_testkit::{Chroot, Stopwatch, ZooKeeper, wait_until};
use rustix::process::Signal;

use super::{assert_clean, on, runtime};
use crate::kit::{LONG, Scratch, is_alive, ms};
use crate::loss::ignores_sigterm;

/// Shorter than the session needs to notice a loss.
const SOON: Duration = ms(1000);

#[test]
fn pause_past_ttl_kills_command_on_resume() {
    let chroot = Chroot::new();
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let tool = on(&chroot, &["--runtime", runtime, "--ttl", "1200ms", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    tool.signal(Signal::STOP);
    let other = on(&chroot, &["job"]);
    other.wait_for_out("held job");
    tool.signal(Signal::CONT);
    let resumed = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    resumed.assert_within(ms(500), runtime);
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert_eq!(chroot.nodes_of("job").len(), 1, "{runtime}: the other's lock stays");
    assert_eq!(other.out().lines().count(), 1, "{runtime}: {}", other.out());
    assert_eq!(other.terminate().code, 0);
    assert_clean(&chroot);
}

#[test]
fn server_outage_terminates_at_grace_and_kills_at_expiry() {
    let mut chroot = Chroot::alone(ZooKeeper::start());
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let line = ["--runtime", runtime, "--ttl", "3s", "--grace", "1s", "job", "--", "sh", "-c", &script];
    let tool = on(&chroot, &line);
    let pid = scratch.line("pid");
    chroot.server_mut().kill();
    let killed = Stopwatch::start();
    scratch.line("asked");
    let sigterm_at = killed.elapsed();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    let dead = killed.elapsed();
    // The validity is 3 s minus two ticks and the drift; it began up to 1 s before.
    killed.assert_in(dead, ms(1300)..=ms(2700), format!("{runtime}: killed by the end of validity"));
    killed.assert_in(dead.saturating_sub(sigterm_at), ms(700)..=ms(1400), format!("{runtime}: the grace"));
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    chroot.server_mut().restart();
    assert!(wait_until(LONG, || chroot.ephemerals().is_empty()));
}

#[test]
fn ended_session_kills_command_after_grace() {
    let chroot = Chroot::new();
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = ignores_sigterm(&scratch);
    let line = ["--runtime", runtime, "--ttl", "6s", "--grace", "400ms", "job", "--", "sh", "-c", &script];
    let tool = on(&chroot, &line);
    let pid = scratch.line("pid");
    let node = chroot.ephemerals().pop().unwrap();
    let stat = chroot.server().stat(&format!("{}{node}", chroot.path())).unwrap();
    chroot.server().expire(stat.ephemeral_owner);
    let ended_at = Stopwatch::start();
    scratch.line("asked");
    ended_at.assert_within(SOON, format!("{runtime}: noticed"));
    let sigterm_at = Stopwatch::start();
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    sigterm_at.assert_in(sigterm_at.elapsed(), ms(300)..=ms(900), format!("{runtime}: the grace"));
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert!(ended.err.contains("gone"), "{runtime}: {ended:?}");
    assert_clean(&chroot);
}

#[test]
fn deleted_own_node_is_reported_as_loss() {
    let chroot = Chroot::new();
    let runtime = runtime();
    let tool = on(&chroot, &["--runtime", runtime, "--ttl", "3s", "job"]);
    tool.wait_for_out("held job");
    assert!(chroot.delete("job", &chroot.nodes_of("job")[0]));
    tool.wait_for_out("lost job gone\n");
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{runtime}: {ended:?}");
    assert_clean(&chroot);
}

#[test]
fn loss_found_only_at_release_is_reported() {
    let chroot = Chroot::new();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    // The watch would open after 20 s.
    let tool = on(&chroot, &["--ttl", "60s", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    assert!(chroot.delete("job", &chroot.nodes_of("job")[0]));
    std::fs::write(go, "").unwrap();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
    assert_clean(&chroot);
}
