//! Exit codes of failed acquisitions, which leave nothing behind.

use core::time::Duration;

use lock_testkit::Etcd;

use super::{RUNTIMES, assert_clean, on, run, runtime};
use crate::kit::Tool;

#[test]
fn busy_and_unreachable_have_distinct_exit_codes() {
    let mut etcd = Etcd::start();
    let holder = on(&etcd, &["job"]);
    holder.wait_for_out("held job");
    let runtime = runtime();
    for wait in ["0", "300ms"] {
        let ended = run(&etcd, &["--runtime", runtime, "--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 75, "{runtime} {wait}: {ended:?}");
        assert_eq!((etcd.keys().len(), etcd.leases().len()), (1, 1), "{runtime} {wait}");
    }
    assert_eq!(holder.terminate().code, 0);
    assert_clean(&etcd);
    etcd.kill();
    for wait in ["0", "300ms"] {
        let ended = run(&etcd, &["--runtime", runtime, "--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 69, "{runtime} {wait}: {ended:?}");
        assert!(ended.took < Duration::from_secs(8), "{runtime} {wait}: {ended:?}");
    }
}

#[test]
fn unlimited_wait_continues_until_server_starts() {
    let mut etcd = Etcd::start();
    etcd.kill();
    let tools = RUNTIMES.map(|runtime| {
        let tool = on(&etcd, &["--runtime", runtime, "job", "--", "true"]);
        tool.wait_for_err("too few servers answer");
        tool
    });
    etcd.restart();
    for tool in tools {
        assert_eq!(tool.end().code, 0);
    }
    assert_clean(&etcd);
}

#[test]
fn login_and_permission_errors_exit_with_77() {
    let etcd = Etcd::builder().user("worker", "secret", Some("lock/")).start();
    let url = etcd.url_with("worker", "secret");
    assert_eq!(Tool::start(&["--backend", &url, "lock/a", "--", "true"]).end().code, 0);
    assert_clean(&etcd);
    let nobody = format!("etcd://{}", etcd.address());
    let runtime = runtime();
    for (url, name) in [
        (&etcd.url_with("worker", "wrong"), "lock/a"),
        (&etcd.url_with("stranger", "secret"), "lock/a"),
        (&nobody, "lock/a"),
        (&url, "elsewhere"),
    ] {
        for wait in ["forever", "0"] {
            let line = ["--backend", url, "--runtime", runtime, "--wait", wait, name, "--", "true"];
            let ended = Tool::start(&line).end();
            assert_eq!(ended.code, 77, "{line:?}: {ended:?}");
            assert!(!ended.err.contains("secret") && !ended.err.contains("wrong@"), "a password is shown: {ended:?}");
        }
    }
    assert_clean(&etcd);
}

#[test]
fn foreign_key_in_queue_exits_with_65() {
    let etcd = Etcd::start();
    etcd.put("data/readme", "x");
    let runtime = runtime();
    for wait in ["forever", "0"] {
        let ended = run(&etcd, &["--runtime", runtime, "--wait", wait, "data", "--", "true"]);
        assert_eq!(ended.code, 65, "{runtime} {wait}: {ended:?}");
        assert!(ended.err.contains("data/readme"), "{ended:?}");
    }
    assert_eq!((etcd.keys(), etcd.leases()), (vec!["data/readme".to_owned()], vec![]));
}

#[test]
fn backend_is_read_from_environment() {
    let etcd = Etcd::start();
    let ended = Tool::start_with(&["job", "--", "true"], &[("LOCK_BACKEND", &etcd.url())]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    let two = format!("{} redis://127.0.0.1:1", etcd.url());
    let ended = Tool::start_with(&["job", "--", "true"], &[("LOCK_BACKEND", &two)]).end();
    assert!(ended.code == 64 && ended.err.contains("one URL"), "{ended:?}");
    assert_clean(&etcd);
}
