//! Exit codes of failed acquisitions, which leave nothing behind.

use core::time::Duration;

use lock_testkit::{Chroot, ZooKeeper};

use super::{RUNTIMES, assert_clean, on, run, runtime};
use crate::kit::Tool;

#[test]
fn busy_and_unreachable_have_distinct_exit_codes() {
    let mut chroot = Chroot::alone(ZooKeeper::start());
    let holder = on(&chroot, &["job"]);
    holder.wait_for_out("held job");
    let runtime = runtime();
    for wait in ["0", "300ms"] {
        let ended = run(&chroot, &["--runtime", runtime, "--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 75, "{runtime} {wait}: {ended:?}");
        assert_eq!(chroot.nodes_of("job").len(), 1, "{runtime} {wait}");
    }
    assert_eq!(holder.terminate().code, 0);
    assert_clean(&chroot);
    assert_eq!(chroot.server().sessions(), Vec::<i64>::new(), "every session was closed");
    chroot.server_mut().kill();
    for wait in ["0", "300ms"] {
        let ended = run(&chroot, &["--runtime", runtime, "--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 69, "{runtime} {wait}: {ended:?}");
        assert!(ended.took < Duration::from_secs(8), "{runtime} {wait}: {ended:?}");
    }
}

#[test]
fn unlimited_wait_continues_until_server_starts() {
    let mut chroot = Chroot::alone(ZooKeeper::start());
    chroot.server_mut().kill();
    let tools = RUNTIMES.map(|runtime| {
        let tool = on(&chroot, &["--runtime", runtime, "job", "--", "true"]);
        tool.wait_for_err("too few servers answer");
        tool
    });
    chroot.server_mut().restart();
    for tool in tools {
        assert_eq!(tool.end().code, 0);
    }
    assert_clean(&chroot);
}

#[test]
fn missing_permission_exits_with_77() {
    let chroot = Chroot::new();
    let private = format!("{}/private", chroot.path());
    chroot.server().create_for(&private, "worker", "secret");
    let url = |login: &str| chroot.url().replace("zk://", &format!("zk://{login}")).replace(chroot.path(), &private);
    assert_eq!(Tool::start(&["--backend", &url("worker:secret@"), "a", "--", "true"]).end().code, 0);
    assert_clean(&chroot);
    let runtime = runtime();
    for login in ["worker:wrong@", "stranger:secret@", ""] {
        for wait in ["forever", "0"] {
            let url = url(login);
            let line = ["--backend", &url, "--runtime", runtime, "--wait", wait, "a", "--", "true"];
            let ended = Tool::start(&line).end();
            assert_eq!(ended.code, 77, "{line:?}: {ended:?}");
            assert!(!ended.err.contains("secret") && !ended.err.contains("wrong"), "a password is shown: {ended:?}");
        }
    }
    assert_clean(&chroot);
}

#[test]
fn foreign_node_in_queue_exits_with_65() {
    let chroot = Chroot::new();
    for path in ["data", "data/readme"] {
        chroot.server().create(&format!("{}/{path}", chroot.path()), "x");
    }
    let runtime = runtime();
    for wait in ["forever", "0"] {
        let ended = run(&chroot, &["--runtime", runtime, "--wait", wait, "data", "--", "true"]);
        assert_eq!(ended.code, 65, "{runtime} {wait}: {ended:?}");
        assert!(ended.err.contains("readme"), "{ended:?}");
    }
    assert_eq!(chroot.nodes(), ["/data", "/data/readme"]);
}

#[test]
fn backend_and_password_are_read_from_environment() {
    let chroot = Chroot::new();
    let private = format!("{}/private", chroot.path());
    chroot.server().create_for(&private, "worker", "s3cret");
    let url = chroot.url().replace(chroot.path(), &private) + "&user=worker";
    for (password, code) in [("s3cret", 0), ("wrong!", 77)] {
        let env = [("LOCK_BACKEND", &*url), ("LOCK_PASSWORD", password)];
        let ended = Tool::start_with(&["job", "--", "true"], &env).end();
        assert!(ended.code == code && !ended.err.contains(password), "{ended:?}");
    }
    let two = format!("{url} redis://127.0.0.1:1");
    let ended = Tool::start_with(&["job", "--", "true"], &[("LOCK_BACKEND", &two)]).end();
    assert!(ended.code == 64 && ended.err.contains("one URL"), "{ended:?}");
}
