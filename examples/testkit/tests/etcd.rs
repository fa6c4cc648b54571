//! The etcd servers behave as documented.

use std::process::Command;
use std::time::Duration;

use lock_testkit::{Etcd, EtcdCluster, TIMEOUT, program_of, wait_until};

#[test]
fn keys_and_leases_survive_restart() {
    let mut etcd = Etcd::start();
    assert_eq!((etcd.keys(), etcd.leases()), (vec![], vec![]));
    let granted = etcd.etcdctl(&["lease", "grant", "60"]);
    let lease = etcd.leases().pop().expect("a lease");
    assert!(granted.contains(&lease), "{granted}");
    etcd.etcdctl(&["put", "a", "1", "--lease", &lease]);
    etcd.put("b", "2");
    let revision = etcd.revision();
    etcd.kill();
    assert!(etcd.try_etcdctl(&["get", "a", "--dial-timeout=200ms", "--command-timeout=300ms"]).is_err());
    etcd.restart();
    assert_eq!(
        (etcd.keys(), etcd.get("b"), etcd.revision()),
        (vec!["a".to_owned(), "b".to_owned()], "2".to_owned(), revision)
    );
    etcd.revoke(&lease);
    assert_eq!((etcd.keys(), etcd.leases()), (vec!["b".to_owned()], vec![]));
    etcd.compact();
    assert!(etcd.try_etcdctl(&["get", "b", "--rev=1"]).is_err_and(|error| error.contains("compacted")));
    assert!(etcd.delete("b") && !etcd.delete("b"));
}

#[test]
fn users_are_limited_to_their_permissions() {
    let etcd = Etcd::builder().user("worker", "secret", Some("jobs/")).start();
    etcd.put("other", "1");
    let as_worker = |args: &[&str]| {
        let mut command = Command::new(program_of("ETCDCTL", "etcdctl"));
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", etcd.address())).args(args);
        let output = command.output().expect("etcdctl runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(as_worker(&["--user=worker:secret", "put", "jobs/1", "x"]).0);
    assert!(as_worker(&["--user=worker:secret", "put", "other", "x"]).1.contains("permission denied"));
    assert!(as_worker(&["--user=worker:wrong", "put", "jobs/1", "x"]).1.contains("authentication failed"));
    assert!(!as_worker(&["put", "jobs/1", "x"]).0, "nobody is asked who they are");
}

#[test]
fn cluster_elects_new_leader_after_kill() {
    let mut cluster = EtcdCluster::start(3);
    cluster.etcdctl(&["put", "a", "1"]);
    let first = cluster.leader();
    cluster.member(first).kill();
    assert!(wait_until(TIMEOUT, || cluster.leader() != first));
    cluster.member(first).restart();
    assert_eq!(cluster.members()[first].get("a"), "1");
}

#[test]
fn paused_server_replies_only_after_resume() {
    let etcd = Etcd::start();
    etcd.put("a", "1");
    etcd.pause();
    etcd.try_etcdctl(&["get", "a", "--command-timeout=200ms"]).expect_err("a stopped server answered");
    etcd.resume();
    assert!(wait_until(TIMEOUT, || etcd.get("a") == "1"));
}

#[test]
fn minimum_ttl_is_one_second() {
    let etcd = Etcd::start();
    assert!(etcd.etcdctl(&["lease", "grant", "1"]).ends_with("TTL(1s)"));
    assert!(wait_until(Duration::from_secs(5), || etcd.leases().is_empty()), "it does not end");
}

#[test]
fn drop_stops_process() {
    let etcd = Etcd::start();
    let pid = etcd.pid().to_string();
    let alive = || Command::new("kill").args(["-0", &pid]).status().is_ok_and(|status| status.success());
    assert!(alive());
    drop(etcd);
    assert!(!alive(), "the server outlives its owner");
}
