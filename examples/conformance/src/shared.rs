//! Scenarios that all stores share.

use core::pin::pin;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use lock_driver::AcquireErrorKind;
use lock_proto::{Loss, Release};
use lock_testkit::TIMEOUT;

pub use crate::addresses::{dead_first_address_does_not_block_connect, silent_first_address_is_tried_last};
use crate::kit::{SLACK, join_all};
use crate::server::ServerSettings as _;
use crate::{Kit, Runtime, Server};

/// The whole life of a lock, dropped at every await point. Nothing is left behind, and no lock
/// stays held.
pub async fn cancellation_at_every_await_point_leaves_nothing<R: Runtime>(kit: Kit<R>, server: Server) {
    let (client, other) = (kit.with(server.settings()), kit.with(server.settings()));
    kit.cancel_at_every_await(|| async {
        let guard = client.lock("a").acquire().await.unwrap();
        guard.extend().await.unwrap();
        let observer = guard.observer();
        let mut next = pin!(other.lock("a").wait(TIMEOUT).acquire());
        kit.still_waits(Duration::from_millis(1), next.as_mut()).await;
        let done = guard.protect(kit.sleep(Duration::from_millis(1))).await;
        assert_eq!((done.output, done.release), (Ok(()), Release::Released));
        assert_eq!(observer.lost().await, None);
        assert_eq!(next.await.unwrap().release().await, Release::Released);
    })
    .await;
    // The lock is free.
    kit.release(kit.take(&client, "a").await).await;
    // A shutdown continues if its future is dropped. A driver on another thread may have finished
    // it by then.
    let guard = kit.take(&client, "a").await;
    let _ = kit.poll_once(client.shutdown(TIMEOUT)).await;
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::ShutDown);
    for client in [client, other] {
        assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    }
    kit.clean(&server).await;
}

pub async fn guards_move_between_tasks_and_threads<R: Runtime>(kit: Kit<R>, server: Server) {
    const ROUNDS: u32 = 10;
    const TASKS: u32 = 4;
    let client = kit.with(server.settings());
    let (inside, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    for _ in 0..TASKS {
        let (client, inside, ended) = (client.clone(), Arc::clone(&inside), Arc::clone(&ended));
        kit.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.lock("a").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(guard.release().await, Release::Released);
            }
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    for _ in 0..ROUNDS {
        let guard = kit.take(&client, "a").await;
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
        // To a task, back from it, and to a thread.
        let (send, receive) = mpsc::channel();
        kit.spawn(async move {
            assert!(guard.is_held());
            send.send(guard).unwrap();
        });
        let mut guard = None;
        kit.wait_for("the guard comes back", || {
            guard = guard.take().or_else(|| receive.try_recv().ok());
            guard.is_some()
        })
        .await;
        let inside = Arc::clone(&inside);
        let thread = thread::spawn(move || {
            assert!(guard.as_ref().is_some_and(|guard| guard.is_held()));
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        });
        thread.join().unwrap();
    }
    kit.wait_for("all tasks have ended", || ended.load(Ordering::SeqCst) == TASKS).await;
    drop(client);
    kit.clean(&server).await;
}

/// Drops futures, guards, observers and the client on a thread without a runtime.
pub async fn handles_dropped_outside_runtime_are_cleaned_up<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let guard = kit.take(&client, "a").await;
    let mut waiting = Box::pin(client.lock("a").acquire());
    kit.still_waits(Duration::from_millis(20), waiting.as_mut()).await;
    let released = kit.take(&client, "b").await.release();
    let observer = guard.observer();
    thread::spawn(move || {
        assert!(guard.is_held() && observer.is_held());
        drop(waiting);
        drop(guard);
        assert!(!observer.is_held());
        drop((observer, released));
    })
    .join()
    .unwrap();
    kit.wait_for("both keys are gone", || !server.has_key("a") && !server.has_key("b")).await;
    thread::spawn(move || drop(client)).join().unwrap();
    kit.clean(&server).await;
}

pub async fn handles_dropped_during_shutdown_are_cleaned_up<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let (first, second) = (kit.take(&client, "a").await, kit.take(&client, "b").await);
    let lock = client.lock("a");
    let mut waiting = Box::pin(lock.acquire());
    kit.still_waits(Duration::from_millis(5), waiting.as_mut()).await;
    let _ = kit.poll_once(client.shutdown(TIMEOUT)).await;
    drop(first);
    drop(waiting);
    thread::spawn(move || {
        assert!(!second.is_held());
        drop(second);
    })
    .join()
    .unwrap();
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    assert_eq!(*kit.in_time("refused", lock.acquire()).await.unwrap_err().kind(), AcquireErrorKind::ShutDown);
    assert!(!server.has_key("a") && !server.has_key("b"));
}

pub async fn release_reports_expired_taken_or_unknown<R: Runtime>(kit: Kit<R>, mut server: Server) {
    let (client, other) = (kit.with(server.settings()), kit.with(server.settings()));
    kit.release(kit.take(&client, "a").await).await;
    // The key is gone, and the lock is free.
    let guard = kit.take(&client, "a").await;
    server.delete_key("a");
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Expired);
    // Another client holds the lock.
    let guard = kit.take(&client, "a").await;
    server.delete_key("a");
    let next = kit.take(&other, "a").await;
    let released = kit.in_time("release", guard.release()).await;
    match server {
        Server::Redis(_) => assert_eq!(released, Release::Taken),
        // On etcd and ZooKeeper each holder has its own key.
        Server::Etcd(_) | Server::ZooKeeper(_) => {
            assert!(matches!(released, Release::Taken | Release::Expired), "{released:?}")
        }
    }
    assert!(next.is_held(), "it is not hurt by a stranger's release");
    kit.release(next).await;
    // The server is dead.
    let guard = kit.take(&client, "a").await;
    server.kill();
    let since = Instant::now();
    assert_eq!(kit.in_time("release", guard.release()).await, Release::Unknown);
    assert!(since.elapsed() < TIMEOUT);
}

pub async fn killed_server_expires_hold_and_waiter_survives_outage<R: Runtime>(kit: Kit<R>, mut server: Server) {
    let client = kit.with(server.settings());
    let lock = server.with_short_ttl(client.lock("a"));
    let guard = kit.in_time("acquire", lock.acquire()).await.unwrap();
    server.kill();
    let since = Instant::now();
    kit.in_time("risk", guard.observer().at_risk()).await;
    assert_eq!(kit.in_time("the loss", guard.lost()).await, Loss::Expired);
    assert!(!guard.is_held() && since.elapsed() <= server.ttl() + SLACK, "{:?}", since.elapsed());
    let failed =
        kit.in_time("no server", client.lock("b").wait(Duration::from_millis(200)).acquire()).await.unwrap_err();
    let AcquireErrorKind::TimedOut(report) = failed.kind() else { panic!("{failed}") };
    assert!(!report.is_busy(), "{report}");
    // A waiter survives the outage.
    let mut waiting = pin!(lock.acquire());
    kit.still_waits(Duration::from_millis(50), waiting.as_mut()).await;
    server.restart();
    let next = kit.in_time("the next holder", waiting).await.unwrap();
    assert!(next.is_held() && next.fence() > guard.fence());
    kit.release(next).await;
    drop(guard);
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
    kit.clean(&server).await;
}

/// Many locks at once, held for longer than their TTL.
pub async fn hundred_locks_are_renewed_past_ttl_and_released<R: Runtime>(kit: Kit<R>, server: Server) {
    let client = kit.with(server.settings());
    let locks: Vec<_> = (0..100).map(|n| server.with_short_ttl(client.lock(format!("lock {n}")))).collect();
    let guards = kit.in_time("all of them", join_all(locks.iter().map(lock_driver::Lock::acquire))).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    kit.sleep(2 * server.ttl()).await;
    let lost: Vec<_> = guards.iter().filter(|guard| !guard.is_held()).collect();
    if let Some(first) = lost.first() {
        panic!("{} are lost, the first by {:?}", lost.len(), kit.in_time("the loss", first.lost()).await);
    }
    let server = Arc::new(server);
    let counting = Arc::clone(&server);
    assert_eq!(kit.blocking(move || counting.held()).await, 100);
    let released = kit.in_time("released", join_all(guards.into_iter().map(|guard| guard.release()))).await;
    assert!(released.iter().all(|release| *release == Release::Released), "{released:?}");
    assert_eq!(server.held(), 0);
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
}
