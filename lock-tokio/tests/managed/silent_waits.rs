//! Servers and proxies on which a blocking wait is never answered by a release. Polling finds it.
// A7

use core::time::Duration;

use lock_testkit::{Proxy, Redis, Tamper, wait_until};
use lock_tokio::redis::{Config, SIGNAL_SUFFIX};
use lock_tokio::{Backoff, Blocked};

use crate::kit::{LONG_TTL, assert_clean, endpoint, in_time, ms, release, take, wait_until_blocked, with};

/// The position of `part` in `bytes`.
fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// The wait is for another list, to which nobody pushes: it ends by its timeout, as on a server
/// that does not see what a script pushes.
fn never_woken(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if find(&bytes, b"BLPOP").is_some()
        && let Some(at) = find(&bytes, SIGNAL_SUFFIX.as_bytes())
    {
        bytes[at + 1] = b'_';
    }
    bytes
}

/// The wait gets no answer at all.
fn swallowed(bytes: &[u8]) -> Vec<u8> {
    if find(bytes, b"BLPOP").is_some() { Vec::new() } else { bytes.to_vec() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_no_release_wakes_polls() {
    let tampers: [Tamper; 2] = [never_woken, swallowed];
    for tamper in tampers {
        let redis = Redis::start();
        let proxy = Proxy::tampering(redis.address(), tamper);
        let config = || Config::new([endpoint(&format!("redis://{}", proxy.address()))]).poll(Backoff::fixed(ms(20)));
        let (holder, waiter) = (with(config()), with(config()));
        for _ in 0..3 {
            let guard = take(&holder, "a", LONG_TTL).await;
            let before = proxy.tampered();
            let mut waiting = waiter.lock("a").ttl(LONG_TTL).acquire();
            wait_until_blocked(&mut waiting, Blocked::Held).await;
            let waiting = tokio::spawn(waiting);
            // Where the wait has no answer, it is still in flight from the round before.
            let _ = wait_until(Duration::from_millis(100), || proxy.tampered() > before);
            release(guard).await;
            release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
        }
        assert!(proxy.tampered() > 0);
        assert!(proxy.connects() <= 6, "{} connections", proxy.connects());
        assert_clean(&redis).await;
    }
}

/// A user that may not use `BLPOP`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_may_not_block_polls() {
    let redis = Redis::builder().acl("app", "on >secret ~* &* +@all -blpop").start();
    let config = || Config::new([endpoint(&redis.url_with("app", "secret"))]).poll(Backoff::fixed(ms(20)));
    let (holder, waiter) = (with(config()), with(config()));
    for _ in 0..3 {
        let guard = take(&holder, "a", LONG_TTL).await;
        let mut waiting = waiter.lock("a").ttl(LONG_TTL).acquire();
        wait_until_blocked(&mut waiting, Blocked::Held).await;
        let waiting = tokio::spawn(waiting);
        release(guard).await;
        release(in_time("the lock", waiting).await.unwrap().unwrap()).await;
    }
    // It asks once a minute.
    let tried = redis.cli(&["ACL", "LOG"]).lines().filter(|line| *line == "blpop").count();
    assert_eq!(tried, 1);
    assert_clean(&redis).await;
}
