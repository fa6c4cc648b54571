//! Exit codes of failed acquisitions, which leave nothing behind.

use lock_testkit::Chroot;

use super::{assert_clean, run, runtime};
use crate::kit::Tool;

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
