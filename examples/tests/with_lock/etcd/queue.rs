//! Mutual exclusion and order, in one queue with `etcdctl lock`.
// E2

use core::time::Duration;
use std::fs;

use lock_testkit::{Etcd, EtcdCluster, wait_until};
use rustix::process::Signal;

use super::{RUNTIMES, assert_clean, etcdctl, on, run, runtime};
use crate::kit::{LONG, Scratch, Tool};

#[test]
fn lock_without_command_is_held_until_signal() {
    let etcd = Etcd::start();
    let runtime = runtime();
    let tool = on(&etcd, &["--runtime", runtime, "--ttl", "1500ms", "line\nbreak"]);
    tool.wait_for_out("held line\\nbreak fence=");
    assert!(tool.out().ends_with(" ttl=2000\n"), "the TTL that was granted: {}", tool.out());
    let lease = etcd.leases().pop().unwrap();
    let key = format!("break/{}", lease.trim_start_matches('0'));
    assert_eq!(etcd.keys(), ["line", &key], "one key, on the only lease");
    // Renewed past its TTL.
    std::thread::sleep(Duration::from_millis(3200));
    assert_eq!(etcd.leases(), [lease], "{runtime}: not renewed");
    tool.signal(Signal::INT);
    let ended = tool.end();
    assert_eq!(ended.code, 0, "{runtime}: {ended:?}");
    assert_clean(&etcd);
}

#[test]
fn command_finds_lock_in_environment() {
    let etcd = Etcd::start();
    let mut seen = Vec::new();
    let runtime = runtime();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("env"), scratch.path("go"));
    let script = format!(
        r#"echo "$LOCK_NAME|$LOCK_TOKEN|$LOCK_FENCE|$ETCD_LOCK_KEY|$ETCD_LOCK_REV" > {file}; until [ -e {go} ]; do sleep 0.01; done"#
    );
    // Options for Redis are accepted and ignored.
    let unused = ["--poll", "1s", "--wake", "poll", "--quarantine", "5s"];
    let line = ["--runtime", runtime, "a job", "--", "sh", "-c", &script];
    let tool = on(&etcd, &[&unused[..], &line[..]].concat());
    let line = scratch.line("env");
    let [name, token, fence, key, revision] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!(name, "a job");
    assert!(!token.is_empty());
    assert_eq!([key], etcd.keys()[..]);
    let fields = etcd.etcdctl(&["get", key, "-w", "fields"]);
    assert!(fields.contains(&format!("\"CreateRevision\" : {revision}\n")), "alone, it owns by its creation: {fields}");
    seen.push((fence.parse::<u64>().unwrap(), revision.parse::<u64>().unwrap()));
    fs::write(go, "").unwrap();
    assert_eq!(tool.end().code, 0);
    assert_clean(&etcd);
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "fences and revisions grow: {seen:?}");
}

#[test]
fn etcdctl_lock_waits_for_with_lock() {
    let etcd = Etcd::start();
    let holder = on(&etcd, &["job"]);
    holder.wait_for_out("held job");
    let other = etcdctl(&etcd, &["lock", "job"]);
    assert!(wait_until(LONG, || etcd.keys_of("job/").len() == 2), "{}", other.err());
    assert_eq!(other.out(), "", "etcdctl has it as well");
    assert_eq!(holder.terminate().code, 0);
    assert_eq!(etcd.leases().len(), 1, "etcdctl's");
    other.wait_for_out("job/");
    other.signal(Signal::INT);
    other.end();
    assert_eq!(etcd.keys(), [""; 0]);
}

#[test]
fn with_lock_waits_for_etcdctl_lock() {
    let etcd = Etcd::start();
    let other = etcdctl(&etcd, &["lock", "job"]);
    other.wait_for_out("job/");
    let runtime = runtime();
    assert_eq!(run(&etcd, &["--runtime", runtime, "--wait", "0", "job", "--", "true"]).code, 75, "{runtime}");
    let waiters = RUNTIMES.map(|runtime| {
        let waiter = on(&etcd, &["--runtime", runtime, "job", "--", "true"]);
        waiter.wait_for_err("held by another client");
        waiter
    });
    assert_eq!(etcd.keys_of("job/").len(), 1 + RUNTIMES.len(), "all are in the queue");
    other.signal(Signal::INT);
    for waiter in waiters {
        let ended = waiter.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    other.end();
    // When interrupted, etcdctl does not revoke its lease.
    assert!(etcd.keys().is_empty() && etcd.leases().len() <= 1, "{:?} {:?}", etcd.keys(), etcd.leases());
}

#[test]
fn revision_grows_across_with_lock_and_etcdctl() {
    let etcd = Etcd::start();
    let scratch = Scratch::new();
    let script = format!("echo $ETCD_LOCK_REV >> {}", scratch.path("log"));
    // All must be queued before the first one gets the lock.
    let first = on(&etcd, &["job"]);
    first.wait_for_out("held job");
    let mut tools = Vec::new();
    for (n, ours) in [true, false, true, false].into_iter().enumerate() {
        let command = ["job", "--", "sh", "-c", &script];
        let theirs = ["lock", "--ttl=1"];
        tools.push(if ours { on(&etcd, &command) } else { etcdctl(&etcd, &[&theirs[..], &command[..]].concat()) });
        assert!(wait_until(LONG, || etcd.keys_of("job/").len() == n + 2));
    }
    assert_eq!(first.terminate().code, 0);
    for tool in tools {
        let ended = tool.end();
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let log = scratch.read("log");
    let revisions: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    // E8
    assert!(revisions.len() == 4 && revisions.is_sorted_by(|a, b| a < b), "{log}");
    // etcdctl does not revoke its lease after a command.
    assert!(wait_until(LONG, || etcd.keys().is_empty() && etcd.leases().is_empty()), "{:?}", etcd.keys());
}

#[test]
fn lock_works_after_first_cluster_member_is_killed() {
    let mut cluster = EtcdCluster::start(3);
    let url = cluster.url();
    let line = |args: &[&str]| Tool::start(&[&["--backend", &url], args].concat());
    let holder = line(&["job"]);
    holder.wait_for_out("held job");
    let waiter = line(&["job", "--", "true"]);
    waiter.wait_for_err("held by another client");
    // The client connects to the first endpoint.
    cluster.member(0).kill();
    assert_eq!(line(&["--wait", "5s", "other", "--", "true"]).end().code, 0);
    let ended = holder.terminate();
    assert_eq!(ended.code, 0, "{ended:?}");
    let ended = waiter.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!((cluster.members()[1].keys(), cluster.members()[1].leases()), (vec![], vec![]));
}
