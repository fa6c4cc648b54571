//! haproxy in TCP mode in front of Redis. It terminates TLS, and closes connections that are idle
//! for two seconds.

use core::time::Duration;

use lock_testkit::{Authority, Haproxy, Redis, TIMEOUT};
use lock_tokio::redis::Config;
use lock_tokio::{Backoff, Blocked, Client};

use crate::kit::{
    assert_clean, connections, endpoint, exists, in_time, is_waiting, ms, release, take, wait_for, wait_until_blocked,
    with,
};

/// Renewed every ten seconds, so that its connection is cut several times in between.
const TTL: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(2);
/// A poll interval that never expires within a test: then only a signal grants the lock.
const NEVER: Backoff = Backoff::fixed(Duration::from_secs(300));

struct Rig {
    redis: Redis,
    proxy: Haproxy,
    authority: Authority,
}

impl Rig {
    fn start() -> Self {
        let (redis, authority) = (Redis::start(), Authority::new());
        let proxy = Haproxy::start(&authority.server(), redis.address(), IDLE);
        Self { redis, proxy, authority }
    }

    fn client(&self, name: &str) -> Client {
        let mut at = endpoint(&format!("rediss://{}?{}", self.proxy.address(), self.authority.query()));
        at.client_name = Some(name.into());
        with(Config::new([at]).poll(NEVER))
    }

    /// Waits until all present connections of a client were replaced. Returns the new ones.
    async fn replaced(&self, name: &str, old: &[u64]) -> Vec<u64> {
        let mut new = Vec::new();
        wait_for("a cut connection is opened again", || {
            new = connections(&self.redis, name);
            !new.is_empty() && new.iter().all(|id| !old.contains(id))
        })
        .await;
        new
    }
}

/// A lock is held while its only connection is cut again and again, and is renewed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_survives_cuts_of_idle_connections() {
    let rig = Rig::start();
    let holder = rig.client("holder");
    let guard = take(&holder, "a", TTL).await;
    let from = guard.valid_until();
    let mut old = connections(&rig.redis, "holder");
    for _ in 0..4 {
        old = rig.replaced("holder", &old).await;
        assert!(guard.is_held() && exists(&rig.redis, "a"));
    }
    // The first new connection verified the lock. A regular renewal follows ten seconds later.
    wait_for("a renewal", || guard.valid_until().duration_since(from) > 4 * IDLE).await;
    assert!(guard.is_held());
    assert_eq!(rig.redis.cli(&["GET", "a"]), guard.token().to_string());
    release(guard).await;
    assert_eq!(in_time("shutdown", holder.shutdown(TIMEOUT)).await.unreleased, 0);
    assert_clean(&rig.redis).await;
}

/// A blocked wait is cut, comes back, and is woken by the release.
// A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_wait_comes_back_and_is_woken() {
    let rig = Rig::start();
    // A holder without the proxy, so that only the waiter is cut.
    let holder = with(Config::new([endpoint(&rig.redis.url())]));
    let waiter = rig.client("waiter");
    let guard = take(&holder, "a", TTL).await;
    let mut waiting = waiter.lock("a").ttl(TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    let waiting = tokio::spawn(waiting);
    wait_for("it listens", || is_waiting(&rig.redis, "waiter")).await;
    let mut old = connections(&rig.redis, "waiter");
    assert_eq!(old.len(), 2, "commands, and the wait");
    for _ in 0..2 {
        old = rig.replaced("waiter", &old).await;
        wait_for("it listens again", || is_waiting(&rig.redis, "waiter")).await;
        assert!(!waiting.is_finished());
    }
    release(guard).await;
    let guard = in_time("the lock", waiting).await.unwrap().unwrap();
    // The next one waits through the proxy as well.
    let waiting = tokio::spawn(rig.client("next").lock("a").ttl(TTL).acquire());
    wait_for("it listens", || is_waiting(&rig.redis, "next")).await;
    tokio::time::sleep(ms(1)).await;
    release(guard).await;
    release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    assert_clean(&rig.redis).await;
}
