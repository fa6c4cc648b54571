//! Scenarios that only ZooKeeper has.

use core::time::Duration;
use std::net::TcpListener;

use lock_proto::zookeeper::Config;
use lock_testkit::{Chroot, Session, TIMEOUT, ZooKeeperEnsemble};

use crate::kit::{LONG, MS};
use crate::{Kit, Runtime};

/// Waits until the clients have left nothing in the store but containers, which the server deletes.
async fn clean<R: Runtime>(kit: &Kit<R>, chroot: &Chroot) {
    kit.wait_for("all nodes are gone", || chroot.ephemerals().is_empty()).await;
}

pub async fn nodes_are_named_as_by_curator_and_fence_begins_with_czxid<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let client = kit.client(&chroot.url());
    let guard = kit.take(&client, "a").await;
    let leadership = kit.in_time("elected", client.election("board").campaign("one")).await.unwrap();
    for (name, word, fence) in [("a", "-lock-", guard.fence()), ("board", "-latch-", leadership.fence())] {
        let nodes = chroot.nodes_of(name);
        let [node] = &nodes[..] else { panic!("{nodes:?}") };
        assert!(node.starts_with("_c_") && node.contains(word), "{node}");
        let czxid = chroot.server().stat(&format!("{}/{name}/{node}", chroot.path())).unwrap().czxid;
        assert_eq!(fence.unwrap().get() >> 16, czxid.unsigned_abs());
    }
    drop((guard, leadership, client));
    clean(&kit, &chroot).await;
}

pub async fn missing_permission_is_refused<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let server = chroot.server();
    let private = format!("{}/private", chroot.path());
    server.create_for(&private, "worker", "secret");
    let url = |login: &str| chroot.url().replace("zk://", &format!("zk://{login}")).replace(chroot.path(), &private);
    let client = kit.client(&url("worker:secret@"));
    kit.release(kit.take(&client, "a").await).await;
    for login in ["worker:wrong@", "stranger:secret@", ""] {
        let other = kit.client(&url(login));
        let limited = other.lock("a").wait(Duration::from_secs(3)).acquire();
        let refused = kit.in_time("refused", limited).await.unwrap_err();
        assert!(refused.is_refused(), "{login} {refused}");
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
    drop(client);
    clean(&kit, &chroot).await;
}

pub async fn missing_chroot_is_created<R: Runtime>(kit: Kit<R>) {
    let chroot = Chroot::new();
    let client = kit.client(&chroot.url().replace(chroot.path(), &format!("{}/missing", chroot.path())));
    let guard = kit.take(&client, "a").await;
    assert_eq!(chroot.nodes_of("missing/a").len(), 1);
    kit.release(guard).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    clean(&kit, &chroot).await;
}

pub async fn client_fails_over_to_another_member<R: Runtime>(kit: Kit<R>) {
    let mut ensemble = ZooKeeperEnsemble::start();
    // The first endpoint is dead.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = ensemble.url().replace("zk://", &format!("zk://{},", nobody.local_addr().unwrap()));
    drop(nobody);
    let client = kit.with(Config::parse(&url).unwrap().session_ttl(LONG).release_within(TIMEOUT));
    let guard = kit.take(&client, "a").await;
    for member in [0, 1] {
        ensemble.member(member).kill();
        kit.sleep(100 * MS).await;
        ensemble.member(member).restart_without_waiting();
        assert!(guard.is_held());
        let waited = kit.in_time("another lock", client.lock("b").acquire()).await.unwrap();
        kit.release(waited).await;
        assert!(ensemble.leader() < 3);
    }
    assert!(guard.is_held(), "a session outlives a member");
    kit.release(guard).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    let leader = &ensemble.members()[ensemble.leader()];
    leader.run(Session::sync);
    assert_eq!((leader.children("/a"), leader.children("/b")), (vec![], vec![]));
}
