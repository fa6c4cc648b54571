//! Mutual exclusion and order, in one queue with Curator.
// ZK7

use core::time::Duration;
use std::fs;

use lock_testkit::{Chroot, ZooKeeperEnsemble, ZooKeeperPeer, wait_until};
use rustix::process::Signal;

use super::{RUNTIMES, assert_clean, on, run, runtime};
use crate::kit::{LONG, Scratch, Tool};

#[test]
fn lock_without_command_is_held_until_signal() {
    let chroot = Chroot::new();
    let runtime = runtime();
    let tool = on(&chroot, &["--runtime", runtime, "--ttl", "1500ms", "deep/job"]);
    tool.wait_for_out("held deep/job fence=");
    assert!(tool.out().ends_with(" ttl=1500\n"), "the TTL that was granted: {}", tool.out());
    let nodes = chroot.nodes_of("deep/job");
    assert!(nodes.len() == 1 && nodes[0].starts_with("_c_") && nodes[0].contains("-lock-"), "{nodes:?}");
    // Renewed past its TTL.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(chroot.nodes_of("deep/job"), nodes, "{runtime}: not renewed");
    tool.signal(Signal::INT);
    let ended = tool.end();
    assert_eq!(ended.code, 0, "{runtime}: {ended:?}");
    assert_clean(&chroot);
}

/// The server grants less than `--ttl`, and the lock is valid for two ticks less than that.
#[test]
fn grace_fits_validity_of_granted_session() {
    let chroot = Chroot::new();
    let url = chroot.url().replace("tick_ms=200", "tick_ms=2000");
    // 60 s are granted, and a third of the TTL are 80 s. Of 10 s, 5.9 s are valid.
    let lowered = "requested=240s granted=60s";
    for (args, warning) in [(&["--ttl", "4m"][..], lowered), (&["--ttl", "10s", "--grace", "ttl/2"], "")] {
        let ended = Tool::start(&[&["--backend", &url], args, &["job", "--", "sleep", "2"]].concat()).end();
        assert_eq!(ended.code, 0, "{args:?}: {ended:?}");
        assert!(ended.err.is_empty() == warning.is_empty() && ended.err.contains(warning), "{args:?}: {ended:?}");
    }
    assert_clean(&chroot);
}

#[test]
fn command_finds_lock_in_environment() {
    let chroot = Chroot::new();
    let mut fences = Vec::new();
    let runtime = runtime();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("env"), scratch.path("go"));
    let script = format!(
        r#"echo "$LOCK_NAME|$LOCK_TOKEN|$LOCK_FENCE|$ETCD_LOCK_KEY" > {file}; until [ -e {go} ]; do sleep 0.01; done"#
    );
    // Options for Redis are accepted and ignored.
    let unused = ["--poll", "1s", "--wake", "poll", "--quarantine", "5s"];
    let line = ["--runtime", runtime, "job", "--", "sh", "-c", &script];
    let tool = on(&chroot, &[&unused[..], &line[..]].concat());
    let line = scratch.line("env");
    let [name, token, fence, key] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!((name, key), ("job", ""));
    assert!(!token.is_empty());
    let fence: u64 = fence.parse().unwrap();
    let node = chroot.nodes_of("job").pop().unwrap();
    let czxid = chroot.server().stat(&format!("{}/job/{node}", chroot.path())).unwrap().czxid;
    assert_eq!(fence >> 16, czxid.unsigned_abs());
    fences.push(fence);
    fs::write(go, "").unwrap();
    assert_eq!(tool.end().code, 0);
    assert_clean(&chroot);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn curator_and_with_lock_wait_for_each_other() {
    let chroot = Chroot::new();
    let mut curator = ZooKeeperPeer::curator(&chroot.hosts(), Duration::from_secs(2));
    assert!(curator.ask("acquire /job -").starts_with("held "));
    let mut waiters = Vec::new();
    for (n, runtime) in (2..).zip(RUNTIMES) {
        assert_eq!(run(&chroot, &["--runtime", runtime, "--wait", "0", "job", "--", "true"]).code, 75, "{runtime}");
        let waiter = on(&chroot, &["--runtime", runtime, "job", "--", "true"]);
        waiter.wait_for_err("held by another client");
        assert!(wait_until(LONG, || chroot.nodes_of("job").len() == n), "{:?}", chroot.nodes_of("job"));
        waiters.push(waiter);
    }
    assert_eq!(curator.ask("release /job"), "released");
    for waiter in waiters {
        let ended = waiter.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let holder = on(&chroot, &["job"]);
    holder.wait_for_out("held job");
    assert_eq!(curator.ask("acquire /job 300"), "busy");
    curator.send("acquire /job -");
    assert!(wait_until(LONG, || chroot.nodes_of("job").len() == 2));
    assert_eq!(holder.terminate().code, 0);
    assert!(curator.line().starts_with("held "));
    assert_eq!(curator.ask("release /job"), "released");
    assert!(wait_until(LONG, || chroot.ephemerals().is_empty()));
}

#[test]
fn lock_works_after_member_is_killed() {
    let mut ensemble = ZooKeeperEnsemble::start();
    let url = ensemble.url();
    let line = |args: &[&str]| Tool::start(&[&["--backend", &url, "--ttl", "20s"], args].concat());
    let holder = line(&["job"]);
    holder.wait_for_out("held job");
    let waiter = line(&["job", "--", "true"]);
    waiter.wait_for_err("held by another client");
    ensemble.member(0).kill();
    assert_eq!(line(&["--wait", "15s", "other", "--", "true"]).end().code, 0);
    let ended = holder.terminate();
    assert_eq!(ended.code, 0, "{ended:?}");
    let ended = waiter.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(wait_until(LONG, || ensemble.members()[1].children("/job").is_empty()));
}
