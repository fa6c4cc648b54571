//! Passwords that change, tokens that expire, and permissions that change, while a lock is held.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::io::Write as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use lock_testkit::Etcd;
use lock_tokio::etcd::Config;
use lock_tokio::{Client, Credentials, Settings};

use crate::kit::{assert_clean, in_time, ms, release, shut_down, take, wait_for, with};

fn guarded() -> Etcd {
    Etcd::builder().user("worker", "p0", Some("jobs/")).start()
}

/// Logs in with the current password, which is valid for 500 ms.
fn client(etcd: &Etcd, password: &Arc<Mutex<String>>, requests: &Arc<AtomicUsize>) -> Client {
    let (password, requests) = (Arc::clone(password), Arc::clone(requests));
    let url = format!("etcd://{}?user=worker", etcd.address());
    let mut settings = Settings::parse([url]).unwrap().credentials(move |_| {
        requests.fetch_add(1, Ordering::SeqCst);
        let password = password.lock().unwrap().clone();
        async move { Ok(Credentials::new(&password).valid_for(ms(500))) }
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
