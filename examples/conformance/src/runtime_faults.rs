//! Mistakes of a host or of its user. They cause no hang and no panic, and the lock is reported
//! lost. `docs/porting.md` lists the consequences.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::mpsc;
use std::thread;
use std::time::Instant as StdInstant;

use lock_driver::{AcquireErrorKind, Guard};
use lock_proto::{Loss, Release};
use lock_testkit::{TIMEOUT, wait_until};

use crate::server::ServerSettings as _;
use crate::task::{Controls, Task, TestHost};
use crate::{Kit, Runtime, Server};

async fn take<R: Runtime>(kit: &Kit<R>, server: &Server, client: &lock_driver::Client, name: &str) -> Guard {
    kit.in_time("acquire", server.with_short_ttl(client.lock(name)).acquire()).await.unwrap()
}

/// The runtime ends, and the driver's task with it.
pub fn guard_outliving_runtime_is_lost<R: Runtime>(server: Server) {
    let kit = Kit::<R>::new();
    let (client, dropped, observed) = kit.runtime().block_on(async {
        let client = kit.with_controls(&Controls::default(), server.settings());
        let (dropped, observed) = (take(&kit, &server, &client, "a").await, take(&kit, &server, &client, "b").await);
        (client, dropped, observed)
    });
    assert!(dropped.is_held() && observed.is_held());
    drop(kit);
    assert!(!dropped.is_held() && !observed.is_held(), "nothing renews them");
    drop(dropped);
    // Handles do not depend on a particular runtime.
    crate::run(|kit: Kit<R>| async move {
        assert_eq!(kit.in_time("the loss", observed.lost()).await, Loss::ShutDown);
        assert_eq!(kit.in_time("release", observed.release()).await, Release::Unknown);
        let refused = kit.in_time("refused", client.lock("c").acquire()).await.unwrap_err();
        assert_eq!(*refused.kind(), AcquireErrorKind::ShutDown);
        assert_eq!(
            kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased,
            2,
            "both were held when it ended"
        );
    });
    assert!(wait_until(TIMEOUT, || !server.has_key("a") && !server.has_key("b")), "they end by themselves");
}

/// The driver runs on one runtime, and its handles are used on another one too.
pub fn client_works_on_two_runtimes<R: Runtime>(server: Server) {
    let (inside, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let work = async |kit: &Kit<R>, client: &lock_driver::Client| {
        for _ in 0..20 {
            let guard = kit.take(client, "a").await;
            let done = guard.protect(async {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                kit.sleep(Duration::from_micros(100)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            let done = kit.in_time("work", done).await;
            assert_eq!((done.output, done.release), (Ok(()), Release::Released));
        }
    };
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let (server, work, over) = (&server, &work, &over);
        let first = scope.spawn(move || {
            crate::run(|kit: Kit<R>| async move {
                let client = kit.with(server.settings());
                send.send(client.clone()).unwrap();
                work(&kit, &client).await;
                kit.wait_for("the other one has ended", || over.load(Ordering::SeqCst)).await;
            });
        });
        let client = receive.recv().unwrap();
        crate::run(|kit: Kit<R>| async move { work(&kit, &client).await });
        over.store(true, Ordering::SeqCst);
        first.join().unwrap();
    });
}

/// A driver that is not polled sends nothing and reports nothing. Waiters can still cancel, and
/// they are notified when the driver is dropped.
pub fn unpolled_driver_sends_nothing<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let (client, driver) = Task::client(TestHost::new(kit.runtime().host()), server.settings()).unwrap();
        let waits = client.lock("a").wait(Duration::from_millis(1));
        kit.still_waits(Duration::from_millis(50), waits.acquire()).await;
        kit.still_waits(Duration::from_millis(50), client.lock("a").try_acquire()).await;
        // Not on another thread: a driver need not be `Send`.
        let mut waiting = core::pin::pin!(client.lock("a").acquire());
        kit.still_waits(Duration::from_millis(50), waiting.as_mut()).await;
        drop(driver);
        assert_eq!(*kit.in_time("the result", waiting).await.unwrap_err().kind(), AcquireErrorKind::ShutDown);
        assert_eq!(*kit.in_time("refused", waits.acquire()).await.unwrap_err().kind(), AcquireErrorKind::ShutDown);
        assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
        assert!(!server.has_key("a"));
    });
}

/// The clock alone ends the hold: protected work is not polled after that.
// T3
pub fn stalled_driver_ends_protected_work<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let controls = Controls::default();
        let client = kit.with_controls(&controls, server.settings());
        let guard = take(&kit, &server, &client, "a").await;
        let other = take(&kit, &server, &client, "b").await;
        controls.stopped.store(true, Ordering::SeqCst);
        let mut waiting = core::pin::pin!(kit.sleep(Duration::from_millis(1)));
        assert!(guard.is_held());
        kit.in_time("time passes", waiting.as_mut()).await;
        let polls = Cell::new(0);
        let work = async {
            loop {
                polls.set(polls.get() + 1);
                kit.sleep(Duration::from_millis(20)).await;
            }
        };
        let done = kit.cancel_after(2 * server.ttl(), guard.protect(work)).await;
        assert!(done.is_none(), "without a driver, a release is not answered");
        let count = polls.get();
        assert!(count > 0 && !other.is_held());
        assert_eq!(kit.in_time("the loss", other.lost()).await, Loss::Expired);
        let late = async { panic!("the lock is lost") };
        kit.still_waits(Duration::from_millis(50), other.protect(late)).await;
        kit.wait_for("they end by themselves", || !server.has_key("a") && !server.has_key("b")).await;
    });
}

/// The driver's thread hangs for longer than the TTL.
pub fn blocked_driver_loses_hold_then_recovers<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let ttl = server.ttl();
        let controls = Controls::default();
        let client = kit.with_controls(&controls, server.settings());
        let guard = take(&kit, &server, &client, "a").await;
        let since = StdInstant::now();
        let millis = u64::try_from(2 * ttl.as_millis()).unwrap();
        controls.nap.store(millis, Ordering::SeqCst);
        let work = async {
            loop {
                kit.sleep(Duration::from_millis(20)).await;
            }
        };
        let done = kit.in_time("the loss", guard.protect(work)).await;
        assert_eq!(done.output, Err::<(), _>(Loss::Expired));
        assert!(since.elapsed() >= ttl / 2, "not before its time");
        assert_eq!(controls.nap.load(Ordering::SeqCst), 0, "it did hang");
        // The client works normally again.
        kit.release(kit.take(&client, "a").await).await;
        drop(client);
        kit.wait_for("nothing is left", || server.is_clean()).await;
    });
}

/// The computer is suspended for an hour. Protected work stops before the loss is reported, and
/// waiters for the loss are notified although no timer has fired.
// T4
pub fn suspended_machine_loses_hold_on_resume<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let controls = Controls::default();
        let client = kit.with_controls(&controls, server.settings());
        let long = |name| client.lock(name).ttl(Duration::from_secs(60)).acquire();
        let guard = kit.in_time("acquire", long("a")).await.unwrap();
        let waiting = kit.in_time("acquire", long("b")).await.unwrap();
        // Lets the driver go to sleep.
        kit.sleep(Duration::from_millis(50)).await;
        let mut lost = core::pin::pin!(waiting.lost());
        assert!(kit.poll_once(lost.as_mut()).await.is_none());
        assert!(guard.is_held() && waiting.is_held());
        controls.suspended.store(3600, Ordering::SeqCst);
        assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
        let done = kit.in_time("the loss", guard.protect(async { panic!("it is not held") })).await;
        assert_eq!(done.output, Err::<(), _>(Loss::Expired));
        let since = StdInstant::now();
        assert_eq!(kit.in_time("the loss", lost).await, Loss::Expired);
        assert!(since.elapsed() < Duration::from_secs(10), "long before its TTL: {:?}", since.elapsed());
    });
}
