//! The ZooKeeper servers behave as documented.

use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use lock_testkit::{Chroot, Mode, Session, TIMEOUT, ZkError, ZooKeeper, wait_until};

const NO_AUTH: i32 = -102;

#[test]
fn nodes_survive_restart_and_ephemeral_ones_end_with_their_session() {
    let mut server = ZooKeeper::start();
    assert_eq!((server.nodes_below("/"), server.sessions()), (vec![], vec![]));
    server.create("/a", "1");
    let mut session = server.connect();
    assert_eq!(session.create("/a/e-", b"x", Mode::EphemeralSequential).unwrap(), "/a/e-0000000000");
    let stat = server.stat("/a/e-0000000000").expect("it exists");
    assert_eq!((stat.ephemeral_owner, server.sessions()), (session.id(), vec![session.id()]));
    server.kill();
    assert!(server.ask("ruok").is_err());
    server.restart();
    assert_eq!((server.nodes_below("/"), server.get("/a")), (vec!["/a".into(), "/a/e-0000000000".into()], "1".into()));
    server.expire(session.id());
    assert_eq!((server.nodes_below("/"), server.sessions()), (vec!["/a".to_owned()], vec![]));
    let before = server.zxid();
    assert!(server.delete("/a") && !server.delete("/a"));
    // The refused one counts, too.
    assert_eq!(server.zxid(), before + 2);
    assert!(server.metric("zk_znode_count") > 0.0);
}

#[test]
fn client_of_expired_session_is_disconnected_and_told() {
    let chroot = Chroot::new();
    let mut session = chroot.server().connect();
    session.create(&format!("{}/e", chroot.path()), b"", Mode::Ephemeral).unwrap();
    assert_eq!(chroot.nodes(), ["/e"]);
    chroot.server().expire(session.id());
    assert_eq!(chroot.nodes(), Vec::<String>::new());
    assert!(matches!(session.sync(), Err(ZkError::Io(_))));
    let again = Session::take_over(chroot.server().address(), session.id(), TIMEOUT);
    assert!(matches!(again, Err(ZkError::Expired)), "{again:?}");
}

#[test]
fn private_nodes_are_closed_to_others() {
    let chroot = Chroot::new();
    let path = format!("{}/private", chroot.path());
    chroot.server().create_for(&path, "worker", "secret");
    let child = format!("{path}/x");
    for (password, expected) in [("secret", None), ("wrong", Some(NO_AUTH))] {
        let mut session = Session::open(chroot.server().address(), TIMEOUT).unwrap();
        session.log_in("worker", password).unwrap();
        let code = match session.create(&child, b"", Mode::Ephemeral) {
            Ok(_) => None,
            Err(ZkError::Code(code)) => Some(code),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(code, expected);
        session.close().unwrap();
    }
}

#[test]
fn ensemble_elects_new_leader_after_kill_and_isolated_follower_stops_serving() {
    let mut ensemble = ZooKeeper::builder().links().start_ensemble(3);
    let first = ensemble.leader();
    ensemble.members()[0].create("/a", "1");
    ensemble.member(first).kill();
    assert!(wait_until(TIMEOUT, || ensemble.leader() != first));
    ensemble.member(first).restart();
    ensemble.members()[first].run(Session::sync);
    assert_eq!(ensemble.members()[first].get("/a"), "1");

    let follower = ensemble.follower();
    let mut there = ensemble.members()[follower].connect();
    ensemble.isolate(follower);
    // Reads are answered for a while, without a word about the others.
    assert_eq!(there.get("/a").unwrap(), b"1");
    assert!(wait_until(TIMEOUT, || ensemble.members()[follower].mode().is_none()));
    let error = there.get("/a").expect_err("an isolated server answered");
    assert!(matches!(error, ZkError::Io(ref e) if e.kind() != ErrorKind::WouldBlock), "{error:?}");
    ensemble.heal(follower);
    assert!(wait_until(TIMEOUT, || ensemble.members()[follower].mode().as_deref() == Some("follower")));
}

#[test]
fn paused_server_replies_only_after_resume() {
    let server = ZooKeeper::start();
    let mut session = Session::open(server.address(), Duration::from_millis(200)).unwrap();
    server.pause();
    assert!(matches!(session.get("/"), Err(ZkError::Io(e)) if e.kind() == ErrorKind::WouldBlock));
    server.resume();
    assert!(wait_until(TIMEOUT, || server.mode().is_some()));
}

#[test]
fn sequence_goes_on_where_it_was_set_and_repeats_last_number() {
    let mut server = ZooKeeper::start();
    server.create("/line", "");
    server.restart_with_sequence("/line", i32::MAX - 1);
    let enter =
        |name: &str| server.run(|session| session.create(&format!("/line/{name}-"), b"", Mode::EphemeralSequential));
    assert_eq!(["a", "b", "c"].map(enter), ["/line/a-2147483646", "/line/b-2147483647", "/line/c-2147483647"]);
}

#[test]
fn drop_stops_process() {
    let server = ZooKeeper::start();
    let pid = server.pid().to_string();
    let alive = || Command::new("kill").args(["-0", &pid]).status().is_ok_and(|status| status.success());
    assert!(alive());
    drop(server);
    assert!(!alive(), "the server outlives its owner");
}
