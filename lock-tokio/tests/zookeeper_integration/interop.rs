//! kazoo and Curator share one queue with our client. What they do without us is in the tests of
//! the test kit.
// ZK7

use lock_testkit::{Chroot, ZooKeeperPeer};
use lock_tokio::zookeeper::Dialect;
use lock_tokio::{Blocked, Client};

use crate::kit::{
    TTL, assert_clean, client, config, failure, in_time, ms, release, shut_down, take, wait_for, wait_until_blocked,
    with,
};

/// Curator's name of lock nodes.
const CURATOR: &str = "-lock-";
const KAZOO: &str = "__lock__";

/// `held NODE FENCE`.
fn fence(answer: &str) -> u64 {
    let words: Vec<&str> = answer.split(' ').collect();
    assert_eq!((words[0], words.len()), ("held", 3), "{answer}");
    words[2].parse().unwrap()
}

/// Each waits for the other, and the fences of both grow.
async fn take_turns(chroot: &Chroot, client: &Client, mut peer: ZooKeeperPeer) {
    let mut last = 0;
    let mut grows = |fence: u64| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    let path = "/a";
    for _ in 0..3 {
        // Ours is held.
        let guard = take(client, "a").await;
        grows(guard.fence().unwrap().get());
        assert_eq!(peer.ask(&format!("acquire {path} 200")), "busy");
        peer.send(&format!("acquire {path} -"));
        wait_for("it is in the queue", || chroot.nodes_of("a").len() == 2).await;
        assert!(peer.is_silent() && guard.is_held());
        release(guard).await;
        // Theirs is held.
        grows(fence(&peer.line()));
        let busy = failure(in_time("a try", client.lock("a").try_acquire()).await);
        assert!(busy.is_busy(), "{busy}");
        let mut waiting = client.lock("a").acquire();
        wait_until_blocked(&mut waiting, Blocked::Held).await;
        wait_for("ours is in the queue", || chroot.nodes_of("a").len() == 2).await;
        assert_eq!(peer.ask(&format!("release {path}")), "released");
        let guard = in_time("ours", waiting).await.unwrap();
        grows(guard.fence().unwrap().get());
        release(guard).await;
    }
    // A killed holder is succeeded once its session has ended.
    fence(&peer.ask(&format!("acquire {path} -")));
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    peer.kill();
    release(in_time("ours", waiting).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curator_shares_queue_with_client() {
    let chroot = Chroot::new();
    let client = client(&chroot);
    take_turns(&chroot, &client, ZooKeeperPeer::curator(&chroot.hosts(), TTL)).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_with_name_of_curator_shares_queue_with_client() {
    let chroot = Chroot::new();
    let client = client(&chroot);
    take_turns(&chroot, &client, ZooKeeperPeer::kazoo(&chroot.hosts(), TTL, CURATOR)).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kazoo_shares_queue_with_client_of_its_dialect() {
    let chroot = Chroot::new();
    let client = with(config(&chroot).dialect(Dialect::Kazoo));
    take_turns(&chroot, &client, ZooKeeperPeer::kazoo(&chroot.hosts(), TTL, KAZOO)).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

/// They would not exclude each other, so ours says so instead of taking the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_another_dialect_are_reported_as_foreign() {
    let chroot = Chroot::new();
    let mut kazoo = ZooKeeperPeer::kazoo(&chroot.hosts(), TTL, KAZOO);
    fence(&kazoo.ask("acquire /a -"));
    let client = client(&chroot);
    let failed = failure(in_time("the failure", client.lock("a").wait(ms(3_000)).acquire()).await);
    assert!(failed.to_string().contains(KAZOO), "{failed}");
    wait_for("only kazoo's is there", || chroot.nodes_of("a").len() == 1).await;
    assert_eq!(kazoo.ask("release /a"), "released");
    release(take(&client, "a").await).await;
    shut_down(client).await;
    drop(kazoo);
    assert_clean(&chroot).await;
}
