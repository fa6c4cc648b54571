//! `etcdctl lock` and `etcdctl elect` share one queue with our client.
// E2, E8, E10

use lock_testkit::Etcd;
use lock_tokio::Blocked;
use lock_tokio::OwnerKeyExt as _;
use lock_tokio::etcd::ElectionEvent;

use crate::kit::{Etcdctl, assert_clean, client, in_time, release, shut_down, take, wait_for, wait_until_blocked};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_lock_shares_queue_with_client() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    let first = Etcdctl::start(&etcd, &["lock", "--ttl=2", "a"]);
    assert!(first.line().starts_with("a/"));
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("ours is in the queue", || etcd.keys_of("a/").len() == 2).await;
    let last = Etcdctl::start(&etcd, &["lock", "--ttl=2", "a"]);
    wait_for("all are in the queue", || etcd.keys_of("a/").len() == 3).await;
    first.interrupt();
    let guard = in_time("the lock", waiting).await.unwrap();
    assert_eq!(etcd.keys_of("a/").len(), 2);
    assert!(guard.is_held() && last.has_no_output());
    release(guard).await;
    assert!(last.line().starts_with("a/"));
    last.interrupt();
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// A dead holder is succeeded when its lease expires, and not before.
// E2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_etcdctl_is_succeeded_after_lease_expires() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    let mut other = Etcdctl::start(&etcd, &["lock", "--ttl=2", "a"]);
    let key = other.line();
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    other.kill();
    assert!(etcd.keys_of("a/").contains(&key));
    let guard = in_time("the lock", waiting).await.unwrap();
    assert!(!etcd.keys_of("a/").contains(&key));
    release(guard).await;
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// The fencing revisions of `etcdctl` and ours are comparable, and grow across all holders.
// E8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revisions_grow_across_clients() {
    let etcd = Etcd::start();
    let clients = [client(&etcd), client(&etcd)];
    let mut last = 0;
    let mut grows = |revision: i64| {
        assert!(revision > last, "{revision} after {last}");
        last = revision;
    };
    for round in 0..4 {
        let guard = take(&clients[round % 2], "a").await;
        let (owner, fence) = (guard.owner_key().unwrap(), guard.fence().unwrap().get());
        assert_eq!(fence >> 16, owner.revision.unsigned_abs());
        grows(owner.revision);
        // It waits for our lock.
        let other = Etcdctl::start(&etcd, &["lock", "--ttl=2", "--", "a", "sh", "-c", "echo $ETCD_LOCK_REV"]);
        wait_for("it is in the queue", || etcd.keys_of("a/").len() == 2).await;
        release(guard).await;
        grows(other.line().parse().unwrap());
        wait_for("it has gone", || etcd.keys_of("a/").is_empty()).await;
    }
    for client in clients {
        shut_down(client).await;
    }
    assert_clean(&etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_elect_shares_queue_with_client() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    let election = client.election("board");
    let mut observation = election.observe().unwrap();
    assert_eq!(in_time("nobody", observation.next()).await, Some(ElectionEvent::NoLeader));
    let listener = Etcdctl::start(&etcd, &["elect", "--listen", "board"]);
    let mut observed = async |value: &str| {
        loop {
            match in_time("a leader", observation.next()).await {
                Some(ElectionEvent::Leader(leader)) => {
                    assert_eq!(leader.value, value);
                    // It prints key and value. It may miss a value that was replaced soon.
                    while listener.line() != value {}
                    return leader.key;
                }
                // Between two leaders.
                Some(ElectionEvent::NoLeader) => {}
                other => panic!("{other:?}"),
            }
        }
    };

    let first = Etcdctl::start(&etcd, &["elect", "board", "one"]);
    let key = first.line();
    assert_eq!((first.line().as_str(), observed("one").await), ("one", key.into()));
    let standing = tokio::spawn(election.campaign("two"));
    wait_for("ours is in the queue", || etcd.keys_of("board/").len() == 2).await;
    let last = Etcdctl::start(&etcd, &["elect", "board", "three"]);
    wait_for("all are in the queue", || etcd.keys_of("board/").len() == 3).await;
    assert!(!standing.is_finished());

    first.interrupt();
    let mut leadership = in_time("elected", standing).await.unwrap().unwrap();
    assert_eq!(observed("two").await, leadership.owner_key().unwrap().key);
    in_time("proclaim", leadership.proclaim("zwei")).await.unwrap();
    assert_eq!(observed("zwei").await, leadership.owner_key().unwrap().key);
    assert!(last.has_no_output());

    let _ = in_time("resign", leadership.resign()).await;
    let key = last.line();
    assert_eq!((last.line().as_str(), observed("three").await), ("three", key.into()));
    last.interrupt();
    wait_for("nobody leads", || etcd.keys_of("board/").is_empty()).await;
    assert_eq!(in_time("nobody", election.leader()).await.unwrap(), None);
    drop(observation);
    // `etcdctl` leaves its sessions, which expire in a minute.
    let all = etcd.leases().len();
    shut_down(client).await;
    assert_eq!((etcd.keys().len(), etcd.leases().len()), (0, all - 1));
}
