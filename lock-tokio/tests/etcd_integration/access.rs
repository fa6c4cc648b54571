//! Users, passwords and permissions.
// E9

use futures_util::future::join_all;
use lock_testkit::Etcd;
use lock_tokio::etcd::Config;
use lock_tokio::{AcquireError, Blocked, Client};

use crate::kit::{
    assert_clean, calls, failure, in_time, ms, release, shut_down, take, wait_for, wait_until_blocked, watches, with,
};

fn settings(etcd: &Etcd, user: &str, password: &str) -> Config {
    Config::parse(&etcd.url_with(user, password)).unwrap()
}

/// A client whose user may access names that begin with `jobs/`.
fn worker(etcd: &Etcd) -> Client {
    with(settings(etcd, "worker", "secret"))
}

fn guarded() -> Etcd {
    Etcd::builder().user("worker", "secret", Some("jobs/")).user("guest", "secret", None).start()
}

#[track_caller]
fn assert_refused(failure: &AcquireError, words: &str) {
    assert!(failure.is_refused(), "{failure}");
    let text = failure.to_string();
    assert!(text.contains(words) && !text.contains("secret") && !text.contains("wrong!"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_is_refused_with_bounded_login_attempts() {
    let etcd = guarded();
    let before = calls(&etcd, "Authenticate");
    for (user, password) in [("worker", "wrong!"), ("nobody", "secret")] {
        let stranger = with(settings(&etcd, user, password));
        for name in ["jobs/1", "jobs/2"] {
            assert_refused(
                &failure(in_time("the result", stranger.lock(name).acquire()).await),
                "authentication failed",
            );
        }
        assert_refused(
            &failure(in_time("the result", stranger.lock("jobs/1").try_acquire()).await),
            "authentication failed",
        );
        shut_down(stranger).await;
    }
    let tried = calls(&etcd, "Authenticate") - before;
    assert!(tried <= 12, "{tried} logins");
    let nobody = with(Config::parse(&format!("etcd://{}", etcd.address())).unwrap());
    assert_refused(&failure(in_time("the result", nobody.lock("jobs/1").acquire()).await), "user name is empty");
    shut_down(nobody).await;
    assert_clean(&etcd).await;
}

/// etcd 3.4 does not check the permissions of nested transactions. Batches without a login are
/// rejected like single requests.
// E11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_without_login_is_refused() {
    let etcd = guarded();
    let nobody = with(Config::parse(&format!("etcd://{}", etcd.address())).unwrap());
    let locks: Vec<_> = (0..20).map(|n| nobody.lock(format!("jobs/{n}")).acquire()).collect();
    for refusal in in_time("the result", join_all(locks)).await {
        assert_refused(&failure(refusal), "user name is empty");
    }
    assert_eq!(etcd.keys().len(), 0);
    shut_down(nobody).await;
    assert_clean(&etcd).await;
}

/// The session of such a client has no key, and ends with the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_name_is_refused_and_leaves_nothing() {
    let etcd = guarded();
    let ours = worker(&etcd);
    let held = take(&ours, "jobs/1").await;
    for name in ["jobs!", "other", "a"] {
        assert_refused(&failure(in_time("the result", ours.lock(name).acquire()).await), "permission denied");
        assert_refused(&failure(in_time("the result", ours.lock(name).try_acquire()).await), "permission denied");
    }
    let election = in_time("the result", ours.election("other").leader()).await.unwrap_err();
    assert!(election.to_string().contains("permission denied"), "{election}");
    assert_eq!((etcd.keys().len(), etcd.leases().len()), (1, 1));
    let guest = with(settings(&etcd, "guest", "secret"));
    assert_refused(&failure(in_time("the result", guest.lock("jobs/1").acquire()).await), "permission denied");
    assert!(held.is_held());
    release(held).await;
    shut_down(ours).await;
    shut_down(guest).await;
    assert_clean(&etcd).await;
}

/// A waiter learns of it at the head of the queue, and blocks others until its session ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_with_revoked_permission_is_refused() {
    let etcd = guarded();
    let root = with(settings(&etcd, "root", "root-secret"));
    let ours = with(settings(&etcd, "worker", "secret").session_ttl(ms(2000)));
    let held = take(&root, "jobs/1").await;
    let mut waiting = ours.lock("jobs/1").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("it watches", || watches(&etcd) >= 2).await;
    etcd.etcdctl(&["role", "revoke-permission", "--prefix", "worker", "jobs/"]);
    release(held).await;
    assert_refused(&failure(in_time("the result", waiting).await), "permission denied");
    drop(ours);
    release(take(&root, "jobs/1").await).await;
    shut_down(root).await;
    assert_clean(&etcd).await;
}

/// An expired login is repeated, without any effect on holders and waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_login_is_renewed() {
    let etcd = Etcd::builder().user("worker", "secret", Some("jobs/")).token_ttl(1).start();
    let quick = || with(settings(&etcd, "worker", "secret").session_ttl(ms(3000)));
    let (holder, waiter) = (quick(), quick());
    let guard = take(&holder, "jobs/1").await;
    let mut waiting = waiter.lock("jobs/1").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    let logins = calls(&etcd, "Authenticate");
    let from = guard.valid_until();
    // The server checks for expired tokens once a second.
    wait_for("both logins have run out", || guard.valid_until().duration_since(from) > ms(4500)).await;
    assert!(guard.is_held() && !waiting.is_finished());
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    assert!(guard.is_held());
    let renewed = calls(&etcd, "Authenticate") - logins;
    assert!((1..=6).contains(&renewed), "{renewed} new logins");
    release(guard).await;
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&etcd).await;
}
