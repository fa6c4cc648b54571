//! The lock ends before the command does.

use core::time::Duration;

use lock_testkit::{Etcd, GrpcProxy, Stopwatch, wait_until};

use super::{RUNTIMES, Tool, assert_clean, on};
use crate::kit::{LONG, ms};

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

/// Renewals came later and later, until the grace had begun.
#[test]
fn command_keeps_running_behind_grpc_proxy() {
    let etcd = Etcd::start();
    let proxy = GrpcProxy::start(&etcd);
    let ended = Tool::start(&["--backend", &proxy.url(), "--ttl", "5s", "job", "--", "sleep", "15"]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_clean(&etcd);
}
