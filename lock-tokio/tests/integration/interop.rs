//! Locks of other libraries on the same keys exclude ours, and vice versa.

use std::sync::Arc;
use std::thread;

use lock_testkit::{Redis, TIMEOUT, Value, wait_until};
use lock_tokio::{Answer, Backoff, Blocked, Expiry, Loss, Release};
use tokio::time::sleep;

use crate::kit::{
    LONG_TTL, assert_clean, client, config, in_time, ms, release, take, tried_in_vain, wait_until_blocked, with,
};
use crate::plain::{Plain, Redlock};
use crate::quorum::{quorum, start_without_uptime};
use crate::workers::Section;

// A1, A10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_client_and_ours_exclude_each_other() {
    let redis = Redis::start();
    let client = with(config(&redis).poll(Backoff::fixed(ms(20))));
    let mut plain = Plain::new(&redis, "7c9e6679-7425-40de-944b");
    let guard = take(&client, "a", LONG_TTL).await;
    assert!(!plain.try_take("a", 60_000));
    assert!(!plain.release("a"), "the value is not the plain client's");
    release(guard).await;

    assert!(plain.try_take("a", 60_000));
    let report = tried_in_vain(in_time("a try", client.lock("a").try_acquire()).await);
    assert!(matches!(&*report.nodes, [Answer::Taken(Expiry::In(left))] if *left > ms(30_000)), "{report}");
    let mut waiting = client.lock("a").ttl(LONG_TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    assert!(plain.release("a"));
    // It does not notify at its release, so polling finds the free lock.
    let guard = in_time("the lock", waiting).await.unwrap();
    release(guard).await;
    assert!(plain.try_take("a", 60_000) && plain.release("a"));
    assert_clean(&redis).await;
}

/// A client that steals the lock is detected, and its lock is left alone.
// H2, U1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_stolen_by_plain_client_is_reported_as_taken() {
    let redis = Redis::start();
    let client = client(&redis);
    let guard = take(&client, "a", ms(900)).await;
    redis.cli(&["DEL", "a"]);
    let mut plain = Plain::new(&redis, "burglar");
    assert!(plain.try_take("a", 60_000));
    assert_eq!(in_time("loss", guard.lost()).await, Loss::Taken);
    assert_eq!(in_time("release", guard.release()).await, Release::Taken);
    assert!(plain.release("a"), "its lock was left alone");
    assert_clean(&redis).await;
}

/// The key is the name, byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_sent_byte_for_byte() {
    let redis = Redis::start();
    let client = client(&redis);
    let every: Vec<u8> = (0..=255).chain(0..=255).collect();
    for name in [&every[..], b"\r\n$-1\r\n", b"\0", b"{a}b", "gr\u{fc}n \u{1f512}".as_bytes()] {
        let guard = in_time("acquire", client.lock(name).ttl(LONG_TTL).acquire()).await.unwrap();
        assert_eq!(redis.command(&[b"GET", name]).to_string(), guard.token().to_string());
        release(guard).await;
        assert_eq!(redis.command(&[b"EXISTS", name]), Value::Int(0));
    }
    assert_clean(&redis).await;
}

/// Two of our clients and two others alternate many times.
// A1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_clients_and_ours_never_overlap() {
    let redis = Arc::new(Redis::start());
    let section = Arc::new(Section::default());
    const VISITS: u32 = 25;
    let threads: Vec<_> = ["x", "y"]
        .into_iter()
        .map(|value| {
            let (redis, section) = (Arc::clone(&redis), Arc::clone(&section));
            thread::spawn(move || {
                let mut plain = Plain::new(&redis, value);
                for _ in 0..VISITS {
                    assert!(wait_until(TIMEOUT, || plain.try_take("a", 60_000)), "the plain client gets no turn");
                    let inside = section.enter();
                    thread::sleep(ms(1));
                    drop(inside);
                    assert!(plain.release("a"));
                }
            })
        })
        .collect();
    let mut tasks = tokio::task::JoinSet::new();
    for client in [client(&redis), client(&redis)] {
        let section = Arc::clone(&section);
        tasks.spawn(async move {
            for _ in 0..VISITS {
                let guard = take(&client, "a", LONG_TTL).await;
                let inside = section.enter_with(&guard);
                sleep(ms(1)).await;
                drop(inside);
                release(guard).await;
            }
        });
    }
    while let Some(done) = in_time("our turns", tasks.join_next()).await {
        done.unwrap();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(section.visits(), 4 * VISITS);
    assert_clean(&redis).await;
}

/// Another RedLock implementation on the same five servers.
// Q1, Q2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_quorum_client_and_ours_exclude_each_other() {
    let servers = Arc::new(start_without_uptime(5));
    let client = with(quorum(&servers).poll(Backoff::fixed(ms(20))));
    let mut other = Redlock::new(&servers, "other");

    let guard = take(&client, "a", LONG_TTL).await;
    assert!(!other.try_take("a", 60_000));
    release(guard).await;
    assert!(other.try_take("a", 60_000));
    let mut waiting = client.lock("a").ttl(LONG_TTL).acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    // All five, except for nodes where our waiter had a minority of grants.
    assert!(other.release("a") >= 3, "the waiter has taken nothing of it");
    release(in_time("the lock", waiting).await.unwrap()).await;

    // Both alternate, and often find a part of the nodes taken.
    let section = Arc::new(Section::default());
    const VISITS: u32 = 15;
    let theirs = thread::spawn({
        let section = Arc::clone(&section);
        move || {
            for visit in 0..VISITS {
                let mut tries = 0;
                while !other.try_take("b", 60_000) {
                    tries += 1;
                    assert!(tries < 2000, "the other client gets no turn");
                    thread::sleep(ms(3 + u64::from(visit * 7 + tries * 13) % 11));
                }
                let inside = section.enter();
                thread::sleep(ms(1));
                drop(inside);
                assert!(other.release("b") >= 3);
            }
        }
    });
    for _ in 0..VISITS {
        let guard = take(&client, "b", LONG_TTL).await;
        let inside = section.enter_with(&guard);
        sleep(ms(1)).await;
        drop(inside);
        release(guard).await;
    }
    tokio::task::spawn_blocking(|| theirs.join().unwrap()).await.unwrap();
    assert_eq!(section.visits(), 2 * VISITS);
    for redis in &*servers {
        assert_clean(redis).await;
    }
}
