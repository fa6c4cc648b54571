//! Names as bytes, and foreign keys.
// E2

use lock_testkit::Etcd;
use lock_tokio::OwnerKeyExt as _;
use lock_tokio::etcd::ElectionEvent;
use lock_tokio::{AcquireError, AcquireErrorKind, Blocked, Release};

use crate::kit::{
    Etcdctl, assert_clean, client, config, failure, in_time, release, shut_down, take, wait_for, wait_until_blocked,
    with,
};

fn count(etcd: &Etcd) -> u64 {
    let fields = etcd.etcdctl(&["get", "--prefix", "", "-w", "fields"]);
    fields.lines().find_map(|line| line.strip_prefix("\"Count\" : ")?.parse().ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_sent_byte_for_byte() {
    let etcd = Etcd::start();
    let (ours, other) = (client(&etcd), client(&etcd));
    let every: Vec<u8> = (0..=255).chain(0..=255).collect();
    let names: [&[u8]; 8] =
        [&every, b"a/", b"/", b"a/b/", b"\0", b"\xff\xff", "gr\u{fc}n \u{1f512}".as_bytes(), b"0123456789abcdef"];
    for name in names {
        let guard = in_time("acquire", ours.lock(name).acquire()).await.unwrap();
        let owner = guard.owner_key().unwrap();
        assert_eq!(owner.key, [name, b"/", owner.lease.to_string().as_bytes()].concat());
        assert_eq!(count(&etcd), 1);
        assert!(in_time("a try", other.lock(name).try_acquire()).await.is_err());
        let mut waiting = other.lock(name).acquire();
        wait_until_blocked(&mut waiting, Blocked::Held).await;
        release(guard).await;
        release(in_time("the lock", waiting).await.unwrap()).await;
        assert_eq!(count(&etcd), 0);
    }
    shut_down(ours).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_or_overlong_name_is_rejected_and_leaves_nothing() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    for name in [String::new(), "x".repeat(513)] {
        let error = in_time("an error", client.lock(&name).acquire()).await.unwrap_err();
        assert!(matches!(error.kind(), AcquireErrorKind::Misuse(_)), "{error}");
        assert!(error.to_string().contains("512"), "{error}");
        assert!(
            matches!(client.election(&name).observe(), Err(error) if matches!(error.kind(), AcquireErrorKind::Misuse(_)))
        );
    }
    assert!(etcd.keys().is_empty() && etcd.leases().is_empty());
    shut_down(client).await;
}

/// A foreign key in the queue would block it for good. It is reported at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_key_in_queue_is_reported() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    let in_the_way = |failure: AcquireError, key: &str| {
        assert!(matches!(failure.kind(), AcquireErrorKind::KeyInUse(_)), "{failure}");
        assert!(failure.to_string().contains(key), "{failure}");
    };
    for key in ["a/readme", "a/", "a/694D", "a/0123456789abcdef0", "a/b/694d"] {
        etcd.put(key, "data");
        in_the_way(failure(in_time("the result", client.lock("a").acquire()).await), key);
        in_the_way(failure(in_time("the result", client.lock("a").try_acquire()).await), key);
        wait_for("only that key is there", || etcd.keys() == [key]).await;
        assert_eq!(etcd.get(key), "data");
        etcd.delete(key);
    }
    // Another lock below the name.
    let below = take(&client, "a/b").await;
    in_the_way(failure(in_time("the result", client.lock("a").acquire()).await), "a/b/");
    release(below).await;
    // A prefix avoids the conflict.
    etcd.put("a/readme", "data");
    let apart = with(config(&etcd).prefix("locks/"));
    let guard = take(&apart, "a").await;
    assert_eq!(etcd.keys_of("locks/a/").len(), 1);
    release(guard).await;
    etcd.delete("a/readme");
    release(take(&client, "a").await).await;
    shut_down(client).await;
    shut_down(apart).await;
    assert_clean(&etcd).await;
}

/// Another client is already waiting behind the foreign key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_key_is_reported_once_it_is_predecessor() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    etcd.put("a/readme", "data");
    let other = Etcdctl::start(&etcd, &["lock", "--ttl=2", "a"]);
    wait_for("it is in the queue", || etcd.keys_of("a/").len() == 2).await;
    let mut waiting = client.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    assert!(other.has_no_output());
    other.interrupt();
    let failure = failure(in_time("the result", waiting).await);
    assert!(matches!(failure.kind(), AcquireErrorKind::KeyInUse(_)), "{failure}");
    assert!(failure.to_string().contains("a/readme"), "{failure}");
    wait_for("only that key is left", || etcd.keys() == ["a/readme"]).await;
    etcd.delete("a/readme");
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// A foreign key does not lead: the leader of the election `a/b` is not that of `a`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_nested_election_is_not_leader() {
    let etcd = Etcd::start();
    let client = client(&etcd);
    let nested = in_time("elected", client.election("a/b").campaign("nested")).await.unwrap();
    assert_eq!(in_time("nobody", client.election("a").leader()).await.unwrap(), None);
    assert!(in_time("somebody", client.election("a/b").leader()).await.unwrap().is_some());
    let mut observed = client.election("a").observe().unwrap();
    assert_eq!(in_time("nobody", observed.next()).await, Some(ElectionEvent::NoLeader));
    assert_eq!(in_time("resigned", nested.resign()).await, Release::Released);
    let leads = in_time("elected", client.election("a").campaign("one")).await.unwrap();
    let seen = in_time("the leader", observed.next()).await;
    assert!(matches!(&seen, Some(ElectionEvent::Leader(leader)) if leader.value == "one"), "{seen:?}");
    assert_eq!(in_time("resigned", leads.resign()).await, Release::Released);
    drop(observed);
    shut_down(client).await;
    assert_clean(&etcd).await;
}
