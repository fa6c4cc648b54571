//! Passwords that change, and sources of credentials.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lock_testkit::Redis;
use lock_tokio::{Cause, Client, ConnectError, Credentials, Fault, Settings};

use crate::kit::{assert_clean, in_time, ms, release, take, timed_out, wait_for};

/// The passwords that the server and the source agree on.
#[derive(Clone)]
struct Vault {
    password: Arc<Mutex<String>>,
    requests: Arc<AtomicUsize>,
    rejections: Arc<AtomicUsize>,
    works: Arc<AtomicBool>,
}

impl Vault {
    fn new(password: &str) -> Self {
        Self {
            password: Arc::new(Mutex::new(password.to_owned())),
            requests: Arc::default(),
            rejections: Arc::default(),
            works: Arc::new(AtomicBool::new(true)),
        }
    }

    fn change(&self, redis: &Redis, password: &str) {
        let mut current = self.password.lock().unwrap();
        assert_eq!(redis.cli(&["ACL", "SETUSER", "app", "resetpass", &format!(">{password}")]), "OK");
        password.clone_into(&mut current);
    }

    fn client(&self, redis: &Redis, valid_for: core::time::Duration) -> Client {
        let vault = self.clone();
        let url = format!("redis://{}?user=app", redis.address());
        let settings = Settings::parse([url]).unwrap().credentials(move |request| {
            let vault = vault.clone();
            async move {
                vault.requests.fetch_add(1, Ordering::SeqCst);
                vault.rejections.fetch_add(usize::from(request.rejected.is_some()), Ordering::SeqCst);
                if !vault.works.load(Ordering::SeqCst) {
                    return Err("the vault is sealed".into());
                }
                let password = vault.password.lock().unwrap().clone();
                Ok(Credentials::new(&password).valid_for(valid_for))
            }
        });
        lock_tokio::connect_with(settings).unwrap()
    }
}

fn server() -> Redis {
    Redis::builder().acl("app", "on >p0 ~* &* +@all").start()
}

fn kill_clients(redis: &Redis) {
    redis.cli(&["CLIENT", "KILL", "USER", "app"]);
}

/// The password changes again and again, and connections end, while a lock is held.
// N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_held_while_passwords_change() {
    let redis = server();
    let vault = Vault::new("p0");
    let client = vault.client(&redis, ms(400));
    let guard = take(&client, "a", ms(1_500)).await;
    let monitor = redis.monitor();
    for round in 1..=8 {
        let before = vault.requests.load(Ordering::SeqCst);
        vault.change(&redis, &format!("p{round}"));
        if round % 2 == 0 {
            kill_clients(&redis);
        }
        wait_for("new credentials", || vault.requests.load(Ordering::SeqCst) > before + 1).await;
        assert!(guard.is_held(), "round {round}");
    }
    // A MONITOR shows no passwords, but each login.
    let logins = monitor.take().iter().filter(|command| command.verb() == "AUTH").count();
    assert!(logins >= 8, "{logins} logins");
    release(guard).await;
    assert_clean(&redis).await;
}

/// The source answers from a cache that is out of date.
// N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_hears_that_credentials_were_rejected() {
    let redis = server();
    let vault = Vault::new("stale");
    let client = vault.client(&redis, ms(60_000));
    let error = in_time("a refusal", client.lock("a").acquire()).await.unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("WRONGPASS"), "{error}");
    assert!(!format!("{error:?}").contains("stale"));
    vault.change(&redis, "fresh");
    wait_for("the source hears of it", || vault.rejections.load(Ordering::SeqCst) > 0).await;
    let end = std::time::Instant::now() + lock_testkit::TIMEOUT;
    let guard = loop {
        match in_time("the lock", client.lock("a").acquire()).await {
            Ok(guard) => break guard,
            Err(error) => assert!(error.is_refused() && std::time::Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(ms(10)).await;
    };
    release(guard).await;
}

/// The source answers from its cache until it hears of a rejection.
// N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisition_does_not_notice_outdated_cache() {
    let redis = server();
    let settings = Settings::parse([format!("redis://{}?user=app", redis.address())]).unwrap();
    let settings = settings.credentials(|request| async move {
        Ok(Credentials::new(if request.rejected.is_some() { "p0" } else { "outdated" }))
    });
    let client = lock_tokio::connect_with(settings).unwrap();
    release(in_time("the lock", client.lock("a").acquire()).await.unwrap()).await;
}

/// A source that fails is a cause of its own. Held locks stay.
// N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_that_fails_ends_no_lock_and_is_reported() {
    let redis = server();
    let vault = Vault::new("p0");
    let client = vault.client(&redis, ms(200));
    let guard = take(&client, "a", ms(1_000)).await;
    vault.works.store(false, Ordering::SeqCst);
    let before = vault.requests.load(Ordering::SeqCst);
    wait_for("the source is asked in vain", || vault.requests.load(Ordering::SeqCst) > before + 1).await;
    assert!(guard.is_held(), "the open connection stays");
    let other = vault.client(&redis, ms(200));
    let report = timed_out(in_time("a timeout", other.lock("b").wait(ms(300)).acquire()).await);
    let cause = Cause::from(Fault::NoCredentials).to_string();
    assert!(report.to_string().contains(&cause), "{report}");
    let waiting = tokio::spawn(other.lock("b").acquire());
    vault.works.store(true, Ordering::SeqCst);
    release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    assert!(guard.is_held());
    release(guard).await;
    assert_clean(&redis).await;
}

/// The file is read again for each connection, on TCP and on a unix socket.
// N19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_file_is_read_for_each_connection() {
    let redis = Redis::builder().unix_socket().acl("app", "on >p0 ~* &* +@all").start();
    let vault = Vault::new("p0");
    let file = redis.socket().with_file_name("password");
    std::fs::write(&file, "p0\n").unwrap();
    let shown = file.display();
    for url in [
        format!("redis://app@{}?password_file={shown}", redis.address()),
        format!("redis+unix://{}?user=app&password_file={shown}", redis.socket().display()),
    ] {
        let client = lock_tokio::connect(&url).unwrap();
        let guard = take(&client, "a", ms(1_500)).await;
        for round in ["one", "two"] {
            vault.change(&redis, round);
            std::fs::write(&file, format!("{round}\n")).unwrap();
            kill_clients(&redis);
            wait_for("a new connection", || redis.cli(&["CLIENT", "LIST"]).contains("user=app")).await;
            in_time("a renewal", guard.extend()).await.unwrap();
        }
        release(guard).await;
    }
    std::fs::remove_file(&file).unwrap();
    let client = lock_tokio::connect(&format!("redis://app@{}?password_file={shown}", redis.address())).unwrap();
    let report = timed_out(in_time("a timeout", client.lock("a").wait(ms(200)).acquire()).await);
    assert!(report.to_string().contains("no credentials"), "{report}");
}

/// Without a source, a user needs a password.
// N19
#[tokio::test]
async fn user_without_password_is_an_error_that_names_the_remedy() {
    for url in ["redis://h?user=app", "etcd://h?user=app"] {
        let error = lock_tokio::connect(url).map(|_| ()).unwrap_err();
        assert!(matches!(error, ConnectError::Config(_)) && error.to_string().contains("password_file"), "{error}");
    }
}
