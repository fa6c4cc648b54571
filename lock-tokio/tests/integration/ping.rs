//! The check of the servers.

use lock_testkit::{Redis, TIMEOUT};
use lock_tokio::AcquireErrorKind;
use lock_tokio::redis::{Config, Endpoint};

use crate::kit::{client, config, endpoint, in_time, take, with};

async fn ping(config: Config) -> Result<(), lock_tokio::AcquireError> {
    in_time("ping", with(config).ping()).await
}

fn user(rules: &str) -> (Redis, Config) {
    let redis = Redis::builder().acl("app", &format!("on >secret {rules}")).start();
    let config = Config::new([endpoint(&redis.url_with("app", "secret"))]);
    (redis, config)
}

/// How many scripts the server ran, and with which arguments it was asked for others.
fn scripts(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    calls("eval") + calls("evalsha")
}

// Q1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_connects_and_changes_nothing() {
    let redis = Redis::start();
    let client = client(&redis);
    in_time("ping", client.ping()).await.unwrap();
    assert_eq!(redis.keys(), [""; 0]);
    assert_eq!(scripts(&redis), 1);
    // The fence counter that it read is not a lock.
    let guard = take(&client, "a", TIMEOUT).await;
    let before = redis.keys();
    in_time("ping", client.ping()).await.unwrap();
    assert_eq!(redis.keys(), before);
    drop(guard);
    in_time("shutdown", client.shutdown(TIMEOUT)).await;
    let error = client.ping().await.unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), (&AcquireErrorKind::ShutDown, "ping: the client was shut down"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_pings_share_one_check() {
    let redis = Redis::start();
    let client = client(&redis);
    let pings: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.ping().await })
        })
        .collect();
    for ping in pings {
        in_time("ping", ping).await.unwrap().unwrap();
    }
    // Some begin after the first check is complete.
    assert!(scripts(&redis) < 20, "{}", scripts(&redis));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_reported_at_once() {
    let (redis, _) = user("~* &* +@all");
    let error = ping(Config::new([endpoint(&redis.url_with("app", "wrong"))])).await.unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("WRONGPASS"), "{error}");
    let (_redis, config) = user("~* &* +@all -@scripting");
    let error = ping(config).await.unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("allow EVAL and EVALSHA"), "{error}");
}

/// The name of the lock may be all that the user has access to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ping_needs_no_access_to_keys() {
    let (_redis, config) = user("~job:* &* +@all");
    ping(config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_server_is_named() {
    let mut redis = Redis::start();
    let config = config(&redis);
    redis.kill();
    let error = ping(config).await.unwrap_err();
    let address = redis.address().to_string();
    assert!(error.is_unreachable() && !error.is_refused() && error.to_string().contains(&address), "{error}");
}

/// It was said to have refused the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_socket_is_named() {
    let error = ping(Config::parse("redis+unix:///no/such.sock").unwrap()).await.unwrap_err();
    assert!(error.is_unreachable() && !error.is_refused(), "{error}");
    assert!(error.to_string().contains("/no/such.sock is unreachable: there is no such socket"), "{error}");
}

// Q1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_needs_majority() {
    let mut servers = Redis::start_many(3);
    let endpoints: Vec<Endpoint> = servers.iter().map(|redis| endpoint(&redis.url())).collect();
    let config = || Config::new(endpoints.clone());
    ping(config()).await.unwrap();
    servers[0].kill();
    ping(config()).await.unwrap();
    servers[2].kill();
    let error = ping(config()).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("ping: ") && text.contains("answered"), "{text}");
    for dead in [0, 2] {
        assert!(text.contains(&servers[dead].address().to_string()), "{text}");
    }
}
