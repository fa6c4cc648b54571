//! Five servers.

use core::time::Duration;

use lock_testkit::wait_until;

use crate::harness::{LONG, Quorum, Scratch, runtime};

#[test]
fn quorum_tolerates_dead_minority_and_reports_dead_majority() {
    let mut quorum = Quorum::of(5);
    for dead in [1, 3] {
        quorum.servers[dead].kill();
    }
    let runtime = runtime();
    let ended = quorum.start(&["--runtime", runtime, "--wait", "10s", "job", "--", "true"]).end();
    assert_eq!(ended.code, 0, "{runtime}: {ended:?}");
    quorum.servers[4].kill();
    let ended = quorum.start(&["--runtime", runtime, "--wait", "2s", "job", "--", "true"]).end();
    assert_eq!(ended.code, 69, "{runtime}: {ended:?}");
    assert!((2000..8000).contains(&ended.took.as_millis()), "{ended:?}");
    for alive in [0, 2] {
        let gone = || quorum.servers[alive].keys().is_empty();
        assert!(wait_until(LONG, gone), "left behind: {:?}", quorum.servers[alive].keys());
    }
}

#[test]
fn quorum_holders_exclude_each_other() {
    let quorum = Quorum::of(3);
    let holder = quorum.start(&["job"]);
    holder.wait_for_out("held job fence=- ttl=1000");
    assert_eq!(quorum.start(&["--wait", "0", "job", "--", "true"]).end().code, 75);
    let waiter = quorum.start(&["job", "--", "true"]);
    waiter.wait_for_err("held by another client");
    assert_eq!(holder.terminate().code, 0);
    let ended = waiter.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    for server in &quorum.servers {
        assert!(wait_until(LONG, || server.keys().is_empty()), "left behind: {:?}", server.keys());
    }
}

#[test]
fn held_quorum_lock_survives_dead_minority_not_majority() {
    let mut quorum = Quorum::of(5);
    let scratch = Scratch::new();
    let script = format!("echo ready > {}; exec sleep 100", scratch.path("log"));
    let mut tool = quorum.start(&["--grace", "200ms", "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    quorum.servers[0].kill();
    quorum.servers[1].kill();
    // Three TTLs, so the majority renews it.
    std::thread::sleep(Duration::from_secs(3));
    assert!(!tool.has_ended(), "{}", tool.err());
    quorum.servers[2].kill();
    let ended = tool.end();
    assert_eq!(ended.code, 76, "{ended:?}");
}
