//! Servers that are killed or paused, and connections that are cut.

use core::time::Duration;
use std::time::Instant;

use lock_testkit::{Proxy, Stopwatch};
use lock_tokio::{Backoff, Blocked, Loss};
use tokio::time::sleep;

use crate::kit::{
    TTL, alone, assert_clean, client, config, in_time, ms, release, session_of_holder, shut_down, take, through,
    wait_for, wait_until_blocked, with,
};

/// The session continues on the next connection.
// ZK6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_and_place_in_queue_survive_server_restart() {
    let mut chroot = alone();
    let (holder, waiter) = (client(&chroot), client(&chroot));
    let guard = take(&holder, "a").await;
    let mut waiting = waiter.lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    wait_for("both are in the queue", || chroot.nodes_of("a").len() == 2).await;
    let nodes = chroot.nodes_of("a");
    chroot.server_mut().restart();
    assert!(guard.is_held());
    assert_eq!(chroot.nodes_of("a"), nodes);
    // The outcome of a release is not awaited for longer than `release_within`.
    let reconnect = async {
        while holder.ping().await.is_err() {
            sleep(ms(20)).await;
        }
    };
    in_time("the holder connects again", reconnect).await;
    release(guard).await;
    let guard = in_time("the next holder", waiting).await.unwrap();
    assert_eq!(chroot.nodes_of("a").len(), 1);
    assert!(nodes.contains(&chroot.nodes_of("a")[0]), "it kept its place");
    release(guard).await;
    for client in [holder, waiter] {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_cut_connections() {
    let chroot = alone();
    let proxy = Proxy::start(chroot.server().address());
    let client = with(through(&proxy, &chroot).session_ttl(ms(6_000)));
    let guard = take(&client, "a").await;
    let session = session_of_holder(&chroot);
    // For longer than the TTL.
    let end = Instant::now() + ms(8_000);
    while Instant::now() < end {
        proxy.cut();
        sleep(ms(300)).await;
        assert!(guard.is_held());
    }
    assert!(proxy.connects() > 5);
    assert_eq!(session_of_holder(&chroot), session, "it is the same session");
    release(guard).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

/// Nothing arrives for longer than the TTL: the holder knows before the server lets another in.
// ZK1, T2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_holder_is_lost_before_next_grant() {
    let chroot = alone();
    let proxy = Proxy::start(chroot.server().address());
    let client = with(through(&proxy, &chroot).session_ttl(TTL));
    let other = with(config(&chroot).session_ttl(TTL));
    let guard = take(&client, "a").await;
    let waiting = tokio::spawn({
        let lock = other.lock("a");
        async move {
            let guard = lock.acquire().await.unwrap();
            (Instant::now(), guard)
        }
    });
    wait_for("both are in the queue", || chroot.nodes_of("a").len() == 2).await;
    proxy.pause();
    in_time("at risk", guard.observer().at_risk()).await;
    assert!(guard.is_held());
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Expired);
    let lost = Instant::now();
    let (granted, next) = in_time("the next grant", waiting).await.unwrap();
    assert!(lost < granted, "two held it for {:?}", lost - granted);
    assert!(next.fence() > guard.fence());
    proxy.resume();
    drop(guard);
    release(next).await;
    for client in [client, other] {
        shut_down(client).await;
    }
    assert_clean(&chroot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_server_expires_hold_at_end_of_validity() {
    let chroot = alone();
    let client = with(config(&chroot).session_ttl(TTL));
    let guard = take(&client, "a").await;
    chroot.server().pause();
    let paused = Stopwatch::start();
    assert_eq!(in_time("the loss", guard.lost()).await, Loss::Expired);
    paused.assert_within(TTL, "the loss");
    chroot.server().resume();
    drop(guard);
    release(take(&client, "a").await).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

/// Creates and deletes whose outcome is unknown leave nothing.
// ZK2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_cut_at_any_time_leave_nothing() {
    let chroot = alone();
    let proxy = Proxy::start(chroot.server().address());
    // As fast as after the first failure: the pauses would take most of the time.
    let client = with(through(&proxy, &chroot).reconnect(Backoff::fixed(ms(10))));
    release(take(&client, "a").await).await;
    for round in 0..60 {
        let acquiring = tokio::spawn({
            let lock = client.lock("a").wait(Duration::from_secs(15));
            async move { lock.acquire().await }
        });
        sleep(Duration::from_micros(150 * (round % 20))).await;
        proxy.cut();
        let guard = in_time("the grant", acquiring).await.unwrap().unwrap();
        assert_eq!(chroot.nodes_of("a").len(), 1, "round {round}: {:?}", chroot.nodes_of("a"));
        if round % 2 == 0 {
            proxy.cut();
        }
        let _ = in_time("release", guard.release()).await;
    }
    shut_down(client).await;
    assert_clean(&chroot).await;
}
