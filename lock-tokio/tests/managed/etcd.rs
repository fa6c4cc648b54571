//! etcd of a service that gives its users one prefix each.
// E9

use core::time::Duration;

use lock_testkit::{Etcd, TIMEOUT};
use lock_tokio::etcd::Config;
use lock_tokio::{Blocked, Client, Release};

use crate::kit::{in_time, ms, wait_for, wait_until_blocked};

const TTL: Duration = ms(2000);

fn client(etcd: &Etcd, user: &str) -> Client {
    let config = Config::parse(&etcd.url_with(user, "secret")).unwrap().session_ttl(TTL);
    lock_tokio::connect_with(config).unwrap()
}

/// Read and write access to one prefix is all that locks need: no leases of others, no
/// maintenance, no cluster calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_of_one_prefix_locks_and_waits() {
    let etcd = Etcd::builder().user("app", "secret", Some("jobs/")).start();
    let (holder, waiter) = (client(&etcd, "app"), client(&etcd, "app"));
    let guard = in_time("acquire", holder.lock("jobs/1").acquire()).await.unwrap();
    let mut waiting = waiter.lock("jobs/1").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    let from = guard.valid_until();
    wait_for("renewals past the TTL", || guard.valid_until().duration_since(from) > TTL).await;
    assert!(guard.is_held() && !waiting.is_finished());
    assert_eq!(in_time("release", guard.release()).await, Release::Released);
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    assert_eq!(in_time("release", guard.release()).await, Release::Released);
    for client in [holder, waiter] {
        assert_eq!(in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    }
    assert_eq!((etcd.keys().len(), etcd.leases().len()), (0, 0));
}

/// A user who may only read, and one whose prefix is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_write_access_is_refused() {
    let etcd = Etcd::builder().user("reader", "secret", None).user("other", "secret", Some("else/")).start();
    etcd.etcdctl(&["role", "grant-permission", "reader", "--prefix=true", "read", "jobs/"]);
    for user in ["reader", "other"] {
        let ours = client(&etcd, user);
        let error = in_time("a refusal", ours.lock("jobs/1").acquire()).await.unwrap_err();
        assert!(error.is_refused() && error.to_string().contains("permission denied"), "{error}");
        in_time("shutdown", ours.shutdown(TIMEOUT)).await;
    }
    assert_eq!((etcd.keys().len(), etcd.leases().len()), (0, 0));
}
