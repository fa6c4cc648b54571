//! Passwords that change, tokens that expire, and permissions that change, while a lock is held.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use lock_testkit::{Etcd, TIMEOUT};
use lock_tokio::etcd::Config;
use lock_tokio::{Blocked, Client, Credentials, Settings};
use tokio::time::Instant;

use crate::kit::{assert_clean, calls, in_time, ms, release, shut_down, take, wait_for, wait_until_blocked, with};

fn guarded() -> Etcd {
    Etcd::builder().user("worker", "p0", Some("jobs/")).start()
}

/// Logs in with the current password, which is valid for 500 ms.
fn client(etcd: &Etcd, password: &Arc<Mutex<String>>, requests: &Arc<AtomicUsize>) -> Client {
    client_with(etcd, password, requests, Some(ms(500)))
}

fn client_with(
    etcd: &Etcd,
    password: &Arc<Mutex<String>>,
    requests: &Arc<AtomicUsize>,
    valid_for: Option<Duration>,
) -> Client {
    let (password, requests) = (Arc::clone(password), Arc::clone(requests));
    let url = format!("etcd://{}?user=worker", etcd.address());
    let mut settings = Settings::parse([url]).unwrap().credentials(move |_| {
        requests.fetch_add(1, Ordering::SeqCst);
        let password = password.lock().unwrap().clone();
        let credentials = Credentials::new(&password);
        async move { Ok(valid_for.into_iter().fold(credentials, Credentials::valid_for)) }
    });
    if let lock_tokio::StoreSettings::Etcd(config) = &mut settings.store {
        *config = config.clone().session_ttl(ms(2_000));
    }
    lock_tokio::connect_with(settings).unwrap()
}

/// `etcdctl` reads the new password from its input.
fn set_password(etcd: &Etcd, password: &str) {
    let mut command = etcd.etcdctl_command(&["user", "passwd", "worker", "--interactive=false"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    assert!(child.wait().unwrap().success());
}

// N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_held_while_password_changes() {
    let etcd = guarded();
    let (password, requests) = (Arc::new(Mutex::new("p0".to_owned())), Arc::<AtomicUsize>::default());
    let client = client(&etcd, &password, &requests);
    let guard = take(&client, "jobs/1").await;
    for round in 1..=4 {
        let new = format!("p{round}");
        set_password(&etcd, &new);
        new.clone_into(&mut password.lock().unwrap());
        let before = requests.load(Ordering::SeqCst);
        wait_for("new credentials", || requests.load(Ordering::SeqCst) > before + 1).await;
        in_time("a renewal", guard.extend()).await.unwrap();
        release(take(&client, "jobs/2").await).await;
    }
    release(guard).await;
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// Each change of a user or a role makes etcd answer `auth store is old` to tokens from before.
// E9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_held_while_users_and_roles_change() {
    let etcd = guarded();
    let client = with(Config::parse(&etcd.url_with("worker", "p0")).unwrap().session_ttl(ms(2_000)));
    let guard = take(&client, "jobs/1").await;
    for round in 0..4 {
        etcd.etcdctl(&["role", "add", &format!("role{round}")]);
        etcd.etcdctl(&["user", "add", &format!("user{round}:secret")]);
        for _ in 0..2 {
            in_time("a renewal", guard.extend()).await.unwrap();
        }
        release(take(&client, "jobs/2").await).await;
        assert!(guard.is_held());
    }
    release(guard).await;
    shut_down(client).await;
    assert_clean(&etcd).await;
}

/// Signed tokens expire whether used or not. The lease and the open watches do not depend on them;
/// the next call of each client finds out, and logs in again.
// E9, N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_held_and_handed_over_while_signed_tokens_expire() {
    // A password without end, one that is replaced before its token expires, and one after that.
    join_all([None, Some(ms(800)), Some(ms(1_500))].map(hold_while_signed_tokens_expire)).await;
}

async fn hold_while_signed_tokens_expire(valid_for: Option<Duration>) {
    const TOKEN_TTL: u32 = 1;
    let etcd = Etcd::builder().user("worker", "p0", Some("jobs/")).jwt(TOKEN_TTL).start();
    let password = Arc::new(Mutex::new("p0".to_owned()));
    let requests: [Arc<AtomicUsize>; 2] = Default::default();
    let [holder, waiter] = requests.each_ref().map(|requests| client_with(&etcd, &password, requests, valid_for));
    let asked = || requests.each_ref().map(|requests| requests.load(Ordering::SeqCst));
    let guard = take(&holder, "jobs/1").await;
    let mut waiting = waiter.lock("jobs/1").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    let (logins, begun) = (calls(&etcd, "Authenticate"), Instant::now());
    let has_expired_thrice = || {
        begun.elapsed() > 3 * Duration::from_secs(TOKEN_TTL.into())
            && calls(&etcd, "Authenticate") >= logins + 3
            && (valid_for.is_none() || asked().iter().all(|count| *count >= 3))
    };
    while !has_expired_thrice() {
        assert!(begun.elapsed() < TIMEOUT, "not in time: logins, {:?}", asked());
        release(take(&holder, "jobs/2").await).await;
        in_time("a renewal", guard.extend()).await.unwrap();
        assert!(guard.is_held() && !waiting.is_finished(), "{valid_for:?}");
    }
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    release(take(&waiter, "jobs/2").await).await;
    in_time("a renewal", guard.extend()).await.unwrap();
    if valid_for.is_none() {
        assert_eq!(asked(), [1, 1], "once for each connection");
    }
    release(guard).await;
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&etcd).await;
}

/// A signed token carries the revision of the users and roles, and is refused after each change.
// E9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_held_and_handed_over_while_users_change_and_tokens_are_signed() {
    let etcd = Etcd::builder().user("worker", "p0", Some("jobs/")).jwt(60).start();
    let logins = calls(&etcd, "Authenticate");
    etcd.etcdctl(&["user", "add", "user:secret"]);
    let by_operator = calls(&etcd, "Authenticate") - logins;
    let quick = || with(Config::parse(&etcd.url_with("worker", "p0")).unwrap().session_ttl(ms(2_000)));
    let (holder, waiter) = (quick(), quick());
    let guard = take(&holder, "jobs/1").await;
    let mut waiting = waiter.lock("jobs/1").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    for round in 0..4 {
        let logins = calls(&etcd, "Authenticate");
        // The holder may log in again before this returns.
        etcd.etcdctl(&["user", "add", &format!("user{round}:secret")]);
        in_time("a renewal", guard.extend()).await.unwrap();
        release(take(&holder, "jobs/2").await).await;
        assert_eq!(calls(&etcd, "Authenticate") - logins - by_operator, 1, "one login after a change");
        assert!(guard.is_held() && !waiting.is_finished());
    }
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    assert!(guard.is_held());
    release(guard).await;
    shut_down(holder).await;
    shut_down(waiter).await;
    assert_clean(&etcd).await;
}
