//! Exit codes of failed acquisitions, which leave nothing behind.

use lock_testkit::Etcd;

use super::{assert_clean, run, runtime};
use crate::kit::Tool;

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

/// Regression: the release was unconfirmed without a reason.
#[test]
fn servers_words_are_shown_when_the_release_is_refused() {
    let etcd = Etcd::builder().user("worker", "secret", Some("lock/")).start();
    let tool = Tool::start(&["--backend", &etcd.url_with("worker", "secret"), "--ttl", "6s", "lock/a"]);
    tool.wait_for_out("held");
    etcd.etcdctl(&["user", "revoke-role", "worker", "worker"]);
    let ended = tool.terminate();
    assert_eq!(ended.code, 0, "{ended:?}");
    let says = |line: &str| line.contains("WARN: the release is unconfirmed") && line.contains("permission denied");
    assert!(ended.err.lines().any(says), "{ended:?}");
}

/// They are for HTTP, and a lock must not depend on one.
#[test]
fn proxies_of_the_environment_are_ignored() {
    let etcd = Etcd::start();
    let proxies = ["http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, "http://127.0.0.1:1"));
    let args = ["--backend", &etcd.url(), "--wait", "10s", "job", "--", "true"];
    let ended = Tool::start_with(&args, &proxies).end();
    assert_eq!(ended.code, 0, "{ended:?}");
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
