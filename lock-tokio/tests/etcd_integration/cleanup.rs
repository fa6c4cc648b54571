//! Acquisitions and clients leave nothing behind, however they end.
// A4, E3, U2

use core::task::Poll;
use core::time::Duration;

use lock_testkit::Etcd;
use lock_tokio::{AcquireErrorKind, Blocked, Client, Loss};
use tokio::time::sleep;

use crate::kit::{
    LONG_TTL, assert_clean, client, config, in_time, ms, poll_once, release, shut_down, take, wait_for,
    wait_until_blocked, with,
};

struct Random(u64);

impl Random {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Drops an acquisition after some polls with pauses between them: before its session is granted,
/// before or during the creation of its key, in the queue, or when the lock is offered. The
/// sessions live on, so no key expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisition_dropped_after_any_poll_leaves_no_key() {
    let etcd = Etcd::start();
    let rival = with(config(&etcd).session_ttl(LONG_TTL));
    let mut random = Random(1);
    let (mut granted, mut dropped) = (0, 0);
    let mut clients: Vec<Client> = Vec::new();
    // Longer pauses from then on, if few were granted: the machine is busy.
    for round in 0..2_000 {
        if round >= 200 && granted >= 10 && dropped >= 50 {
            break;
        }
        // Sometimes with a new client, without connection and session.
        if round % 10 == 0 {
            clients.push(with(config(&etcd).session_ttl(LONG_TTL)));
        }
        let ours = clients.last().unwrap();
        let held = if random.below(2) == 0 { Some(take(&rival, "a").await) } else { None };
        let mut waiting = ours.lock("a").acquire();
        let mut guard = None;
        for _ in 0..=random.below(6) {
            if let Poll::Ready(result) = poll_once(&mut waiting).await {
                guard = Some(result.unwrap());
                break;
            }
            match random.below(3) {
                0 => tokio::task::yield_now().await,
                _ => sleep(Duration::from_micros(random.below(1500) * (1 + round / 200))).await,
            }
        }
        // Some of the rival's releases coincide with the drop.
        if random.below(2) == 0 {
            drop(held);
        }
        match guard {
            Some(_) => granted += 1,
            None => dropped += 1,
        }
        drop((waiting, guard));
    }
    wait_for("the keys are gone", || etcd.keys().is_empty()).await;
    assert!(granted >= 10 && dropped >= 50, "granted {granted}, dropped {dropped}");
    // Nothing appears later: a later request on the same connection follows those in flight.
    for client in &clients {
        release(take(client, "a").await).await;
    }
    assert_eq!(etcd.keys(), Vec::<String>::new());
    clients.push(rival);
    for client in clients {
        shut_down(client).await;
    }
    assert_clean(&etcd).await;
}

/// No key and no lease is left at the very end of a shutdown.
// U2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_leaves_no_key_or_lease() {
    let etcd = Etcd::start();
    let (ours, other) = (client(&etcd), client(&etcd));
    let elsewhere = take(&other, "other's").await;
    let held: Vec<_> = [take(&ours, "a").await, take(&ours, "b").await].into();
    let own = in_time("acquire", ours.lock("c").ttl(LONG_TTL).acquire()).await.unwrap();
    let leads = in_time("elected", ours.election("board").campaign("we")).await.unwrap();
    let behind_own = tokio::spawn(ours.lock("a").acquire());
    let mut behind_other = ours.lock("other's").ttl(LONG_TTL).acquire();
    wait_until_blocked(&mut behind_other, Blocked::Held).await;
    assert_eq!((etcd.keys().len(), etcd.leases().len()), (6, 4));

    shut_down(ours.clone()).await;
    assert_eq!((etcd.keys().len(), etcd.leases().len()), (1, 1));
    for guard in held.iter().chain([&own, &*leads]) {
        assert_eq!(in_time("the loss", guard.lost()).await, Loss::ShutDown);
    }
    assert!(
        matches!(in_time("the end", behind_own).await.unwrap(), Err(error) if matches!(error.kind(), AcquireErrorKind::ShutDown))
    );
    assert!(
        matches!(in_time("the end", behind_other).await, Err(error) if matches!(error.kind(), AcquireErrorKind::ShutDown))
    );
    assert!(
        matches!(in_time("the end", ours.lock("d").acquire()).await, Err(error) if matches!(error.kind(), AcquireErrorKind::ShutDown))
    );
    release(elsewhere).await;
    shut_down(other).await;
    assert_clean(&etcd).await;
}

/// The same without a shutdown: the last handle is dropped with a waiter, and with a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_client_leaves_nothing() {
    let etcd = Etcd::start();
    let rival = client(&etcd);
    let held = take(&rival, "a").await;
    let mut waiting = client(&etcd).lock("a").acquire();
    wait_until_blocked(&mut waiting, Blocked::Held).await;
    drop(waiting);
    wait_for("its key and lease are gone", || (etcd.keys().len(), etcd.leases().len()) == (1, 1)).await;
    let guard = take(&client(&etcd), "b").await;
    // A guard keeps its client alive.
    sleep(ms(50)).await;
    assert!(guard.is_held());
    drop(guard);
    wait_for("its key and lease are gone", || (etcd.keys().len(), etcd.leases().len()) == (1, 1)).await;
    release(held).await;
    shut_down(rival).await;
    assert_clean(&etcd).await;
}
