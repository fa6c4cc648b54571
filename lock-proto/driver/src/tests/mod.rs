//! The driver and its handles against a simulated server, step by step.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod addresses;
mod cancel;
mod catalogue;
mod files;
mod hold;
mod logs;
mod panics;
#[cfg(feature = "register")]
mod register;
mod threads;
mod world;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::panic::AssertUnwindSafe;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io;
use std::sync::Mutex;

use super::backend::with_identity;
use super::ticket::locked;
use super::*;
use lock_proto::ClientId;
use lock_proto::Instant;
use lock_proto::redis;
use lock_proto::{Answer, Cause, Loss, Release};
use lock_proto::{Invalid, Misuse};
use world::DriverWorld;

const TTL: Duration = Duration::from_secs(6);

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn acquire_sets_key_and_release_deletes_it() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    assert_eq!(guard.name(), b"a");
    assert_eq!(guard.ttl(), TTL);
    assert!(guard.is_held() && guard.fence().is_some());
    assert!(guard.remaining() > TTL / 2 && guard.remaining() < TTL);
    let now = world.time();
    assert_eq!(
        world.with(|inner| inner.node.get(now, "a").map(<[u8]>::to_vec)),
        Some(alloc::format!("{}", guard.token()).into_bytes())
    );
    assert_eq!(world.wait(&mut driver, guard.release()), Release::Released);
    assert!(!world.has_key("a"));
}

#[test]
fn invalid_name_fails_at_first_poll() {
    let world = DriverWorld::new();
    let (client, _driver) = world.client();
    let error = match poll(&mut client.lock("").acquire()) {
        Poll::Ready(Err(error)) => error,
        other @ (Poll::Ready(Ok(_)) | Poll::Pending) => panic!("{other:?}"),
    };
    assert_eq!(*error.kind(), AcquireErrorKind::Misuse(Misuse::Invalid(Invalid::NameLength { len: 0, max: 512 })));
}

#[test]
fn try_acquire_reports_busy() {
    let world = DriverWorld::new();
    world.with(|inner| inner.node.insert(Instant::ZERO, "a", "somebody", Some(TTL)));
    let (client, mut driver) = world.client();
    let error = world.wait(&mut driver, client.lock("a").try_acquire()).unwrap_err();
    let AcquireErrorKind::Busy(report) = error.kind() else { panic!("{error:?}") };
    assert!(report.is_busy() && matches!(&*report.nodes, [Answer::Taken(_)]), "{report}");
}

#[test]
fn refused_connection_is_reported_and_retried() {
    let world = DriverWorld::new();
    world.with(|inner| inner.down = true);
    let (client, mut driver) = world.client();
    let error = world.wait(&mut driver, client.lock("a").wait(Duration::from_secs(1)).acquire()).unwrap_err();
    let AcquireErrorKind::TimedOut(report) = error.kind() else { panic!("{error:?}") };
    assert_eq!(&*report.nodes, [Answer::Unreachable(Cause::Fault(lock_proto::Fault::Refused))]);
    // It goes on trying: the server comes up, and the client works.
    world.with(|inner| inner.down = false);
    drop(world.wait(&mut driver, client.lock("a").acquire()).unwrap());
}

#[test]
fn partial_reads_and_writes_are_handled() {
    let world = DriverWorld::new();
    world.with(|inner| inner.max_write = 7);
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    assert_eq!(world.wait(&mut driver, guard.release()), Release::Released);
}

#[test]
fn waiters_of_one_client_are_served_in_order() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let lock = client.lock("a");
    let first = world.wait(&mut driver, lock.acquire()).unwrap();
    let (mut second, mut third) = (lock.acquire(), lock.acquire());
    assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
    assert!(second.blocked().is_some());
    let before = first.fence();
    drop(first);
    assert!(poll(&mut third).is_pending());
    let second = world.wait(&mut driver, second).unwrap();
    assert!(second.fence() > before);
    assert!(poll(&mut third).is_pending());
    drop(second);
    drop(world.wait(&mut driver, third).unwrap());
    world.settle(&mut driver);
    assert!(!world.has_key("a"));
}

/// A call expires the wait of another acquisition and gets its slot. The other is notified.
#[test]
fn timed_out_waiter_is_woken_by_another_call() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let _held = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    let mut waiting = client.lock("a").wait(Duration::from_secs(1)).acquire();
    let woken = Arc::new(world::Wakes::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(pin!(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
    world.settle(&mut driver);
    let before = woken.count();
    // The driver does not get to run.
    world.pause(Duration::from_secs(2));
    assert!(poll(&mut client.lock("b").acquire()).is_pending());
    assert!(woken.count() > before, "nobody was woken");
    let failure = match poll(&mut waiting) {
        Poll::Ready(Err(error)) => error,
        other @ (Poll::Ready(_) | Poll::Pending) => panic!("{other:?}"),
    };
    assert!(failure.is_timeout(), "{failure}");
}

#[test]
fn many_calls_wake_the_driver_once() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    drop(world.wait(&mut driver, client.lock("warm-up").acquire()).unwrap());
    world.settle(&mut driver);
    let before = driver.wakes.count();
    let mut waiting: Vec<_> = (0..64).map(|n| client.lock(alloc::format!("{n}")).acquire()).collect();
    for acquiring in &mut waiting {
        assert!(poll(acquiring).is_pending());
    }
    assert_eq!(driver.wakes.count() - before, 1);
}

#[test]
fn shutdown_releases_holds_and_fails_waiters() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    let done = world.wait(&mut driver, client.shutdown(Duration::from_secs(1)));
    assert_eq!(done, Shutdown { unreleased: 0 });
    assert!(driver.is_done());
    assert!(!guard.is_held());
    assert_eq!(poll(&mut Box::pin(guard.lost())), Poll::Ready(Loss::ShutDown));
    assert!(
        matches!(poll(&mut waiting), Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::ShutDown))
    );
    assert!(
        matches!(poll(&mut client.lock("b").acquire()), Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::ShutDown))
    );
    assert!(!world.has_key("a"));
    // A second one finds it done.
    assert_eq!(poll(&mut Box::pin(client.shutdown(TTL))), Poll::Ready(Shutdown { unreleased: 0 }));
}

/// The shutdown has begun the release itself.
#[test]
fn release_during_shutdown_waits_for_its_outcome() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    let mut shutdown = Box::pin(client.shutdown(Duration::from_secs(1)));
    assert!(poll(&mut shutdown).is_pending());
    let mut release = Box::pin(guard.release());
    assert!(poll(&mut release).is_pending());
    assert_eq!(world.wait(&mut driver, release), Release::Released);
    assert_eq!(world.wait(&mut driver, shutdown), Shutdown { unreleased: 0 });
}

#[test]
fn shutdown_counts_unreleased_lock_if_server_is_unreachable() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let _guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    let now = world.time();
    world.with(|inner| {
        inner.down = true;
        inner.node.restart(now, true);
    });
    let done = world.wait(&mut driver, client.shutdown(Duration::from_secs(1)));
    assert_eq!(done, Shutdown { unreleased: 1 });
}

#[test]
fn driver_ends_with_last_handle() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    drop(client.clone());
    drop(client);
    world.settle(&mut driver);
    assert!(!driver.is_done() && guard.is_held(), "a guard keeps its client");
    let observer = guard.observer();
    drop(guard);
    world.run(&mut driver, Duration::from_secs(1));
    assert!(driver.is_done(), "an observer does not keep it");
    assert!(!world.has_key("a") && !observer.is_held());
}

#[test]
fn dropped_driver_ends_guards_waiters_and_releases() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
    let other = world.wait(&mut driver, client.lock("b").acquire()).unwrap();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    let observer = guard.observer();
    let mut lost = Box::pin(observer.lost());
    assert!(poll(&mut lost).is_pending());
    let mut releasing = other.release();
    assert!(poll(&mut releasing).is_pending());
    driver.kill();
    assert_eq!(poll(&mut lost), Poll::Ready(Some(Loss::ShutDown)));
    assert!(!guard.is_held());
    assert!(
        matches!(poll(&mut waiting), Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::ShutDown))
    );
    assert_eq!(poll(&mut releasing), Poll::Ready(Release::Unknown));
    assert_eq!(poll(&mut guard.release()), Poll::Ready(Release::Unknown));
    let done = poll(&mut Box::pin(client.shutdown(TTL)));
    assert_eq!(done, Poll::Ready(Shutdown { unreleased: 2 }));
    drop(client);
}

/// Tasks are woken a few at a time; a driver that is dropped in between wakes the others as well.
#[test]
fn driver_dropped_between_wakes_wakes_remaining_tasks() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut tasks: Vec<_> = (0..20u8).map(|n| (client.lock([n]).acquire(), Arc::default())).collect();
    for (acquiring, woken) in &mut tasks {
        let waker = Waker::from(Arc::<world::Wakes>::clone(woken));
        assert!(pin!(acquiring).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let woken = || tasks.iter().filter(|(_, woken)| woken.count() > 0).count();
    for _ in 0..1_000 {
        if woken() > 0 {
            break;
        }
        world.step(&mut driver);
    }
    assert!((1..20).contains(&woken()), "{} of 20 in one go", woken());
    driver.kill();
    assert_eq!(woken(), 20);
}

/// Drops its content with the last clone of the waker, as a task of a simple executor does.
struct Owning(#[expect(dead_code, reason = "owned to be dropped")] Mutex<Option<Guard>>);

impl Wake for Owning {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn waker_may_own_guard() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let owning = |name: &str| {
        let mut acquiring = client.lock(name).acquire();
        move |world: &DriverWorld, driver: &mut _| {
            let guard = world.wait(driver, &mut acquiring).unwrap();
            Waker::from(Arc::new(Owning(Mutex::new(Some(guard)))))
        }
    };
    // Replaced, dropped with its future, after an unawaited release, and with the client.
    let wakers: Vec<_> = ["a", "b", "c", "d"].map(|name| owning(name)(&world, &mut driver)).into();
    let [replaced, dropped, released, closed] = <[Waker; 4]>::try_from(wakers).unwrap();
    let busy = world.wait(&mut driver, client.lock("busy").acquire()).unwrap();

    let mut acquiring = client.lock("busy").acquire();
    assert!(pin!(&mut acquiring).poll(&mut Context::from_waker(&replaced)).is_pending());
    drop(replaced);
    assert!(pin!(&mut acquiring).poll(&mut Context::from_waker(&dropped)).is_pending());
    drop(dropped);
    drop(acquiring);
    let mut releasing = busy.release();
    assert!(pin!(&mut releasing).poll(&mut Context::from_waker(&released)).is_pending());
    drop((released, releasing));
    world.settle(&mut driver);
    for name in ["a", "b", "c"] {
        assert!(!world.has_key(name), "the guard in the waker of {name} was dropped");
    }
    let _busy = world.wait(&mut driver, client.lock("busy").acquire()).unwrap();
    let mut acquiring = client.lock("busy").acquire();
    assert!(pin!(&mut acquiring).poll(&mut Context::from_waker(&closed)).is_pending());
    drop(closed);
    driver.kill();
}

/// Regression: the list of watchers was locked while the waker was dropped, and the guard with it.
#[test]
fn replaced_waker_of_watcher_may_own_watched_guard() {
    let (done, is_done) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let world = DriverWorld::new();
        let (client, mut driver) = world.client();
        let guard = world.wait(&mut driver, client.lock("a").acquire()).unwrap();
        let observer = guard.observer();
        let mut lost = pin!(observer.lost());
        let owning = Waker::from(Arc::new(Owning(Mutex::new(Some(guard)))));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&owning)).is_pending());
        drop(owning);
        assert_eq!(lost.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(None));
        world.settle(&mut driver);
        assert!(!world.has_key("a"));
        done.send(())
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(()), "it hangs");
    thread.join().unwrap().unwrap();
}

/// A host whose clock fails once, under the driver's mutex.
#[derive(Clone)]
struct Faulty(DriverWorld, Arc<AtomicBool>);

impl Clock for Faulty {
    fn now(&self) -> Instant {
        assert!(!self.1.load(Ordering::SeqCst), "the clock is broken");
        self.0.now()
    }
}

impl Host for Faulty {
    type Clock = Self;
    type Stream = world::Socket;
    type Resolve = world::Boxed<io::Result<Vec<SocketAddr>>>;
    type Connect = world::Boxed<io::Result<Self::Stream>>;
    type Sleep = world::Boxed<()>;

    fn clock(&self) -> Self {
        self.clone()
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        self.0.resolve(host, port)
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        self.0.connect(address)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }
}

#[test]
fn panic_in_one_call_does_not_poison_client() {
    let world = DriverWorld::new();
    let broken = Arc::new(AtomicBool::new(false));
    let host = Faulty(world.clone(), Arc::clone(&broken));
    let (client, driver) = connect(host, DriverWorld::config()).unwrap();
    let mut driver = world::Task::new(driver);
    let mut acquiring = client.lock("a").acquire();
    assert!(poll(&mut acquiring).is_pending());
    broken.store(true, Ordering::SeqCst);
    let other = client.lock("b");
    assert!(std::panic::catch_unwind(AssertUnwindSafe(|| poll(&mut other.acquire()).is_ready())).is_err());
    broken.store(false, Ordering::SeqCst);
    let guard = world.wait(&mut driver, acquiring).unwrap();
    assert!(guard.is_held());
}

/// A check goes on in the machine only while somebody waits for it.
#[test]
fn dropped_ping_is_cancelled() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client_with(1, DriverWorld::config().max_locks(1));
    world.with(|inner| inner.silent = true);
    // The second joins the check of the first.
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(client.ping()));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(first);
    let mut third = Box::pin(client.ping());
    assert!(poll(&mut third).is_pending());
    drop((second, third));
    // Another would be one too many.
    world.with(|inner| inner.silent = false);
    world.wait(&mut driver, client.ping()).unwrap();
}

/// The copy of a client in a forked process does nothing under the parent's identity.
#[test]
fn forked_child_acquires_nothing_and_sends_nothing() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    world.settle(&mut driver);
    let connections = world.with(|inner| inner.open());
    assert!(connections > 0);
    world.with(|inner| inner.silent = true);
    let mut ping = Box::pin(client.ping());
    assert!(poll(&mut ping).is_pending());
    client.owner.shared.forked.store(true, Ordering::SeqCst);
    assert!(matches!(poll(&mut ping), Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::Forked)));
    let refused = poll(&mut client.lock("b").acquire());
    assert!(
        matches!(refused, Poll::Ready(Err(ref error)) if matches!(error.kind(), AcquireErrorKind::Forked)),
        "{refused:?}"
    );
    world.run(&mut driver, TTL / 2);
    assert!(driver.is_done());
    assert!(!guard.is_held(), "the parent holds it");
    assert!(matches!(poll(&mut waiting), Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::Forked)));
    drop(guard);
    world.settle(&mut driver);
    assert!(world.has_key("a") && !world.has_key("b"), "the parent's lock stays");
    assert_eq!(world.with(|inner| inner.open()), connections, "the parent's connections stay open");
}

/// Another thread was inside the client at the fork, so the child's copy of the mutex stays locked.
#[test]
fn forked_child_does_not_wait_for_mutex() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let released = world.wait(&mut driver, client.lock("b").ttl(TTL).acquire()).unwrap();
    let mut waiting = client.lock("a").acquire();
    assert!(poll(&mut waiting).is_pending());
    client.owner.shared.forked.store(true, Ordering::SeqCst);
    let shared = Arc::clone(&client.owner.shared);
    let of_parent = locked(&shared.core);
    let (done, is_done) = std::sync::mpsc::channel();
    let child = std::thread::spawn(move || {
        let extended = poll(&mut Box::pin(guard.extend()));
        assert_eq!(extended, Poll::Ready(Err(ExtendError::Lost(Loss::ShutDown))));
        assert_eq!(poll(&mut released.release()), Poll::Ready(Release::Unknown));
        let election = client.election("a");
        assert!(matches!(election.observe(), Err(error) if matches!(error.kind(), AcquireErrorKind::Forked)));
        assert_eq!(poll(&mut Box::pin(client.shutdown(TTL))), Poll::Ready(Shutdown { unreleased: 0 }));
        drop((guard, waiting, driver, client));
        done.send(())
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(()));
    drop(of_parent);
    child.join().unwrap().unwrap();
}

/// A value whose owner drops a guard would lock the client's mutex while the machine drops it.
#[test]
fn value_of_candidate_is_copied() {
    let owner: Arc<[u8]> = b"value"[..].into();
    let (client, _driver) = DriverWorld::new().client();
    let _campaign = client.election("e").campaign(::bytes::Bytes::from_owner(Arc::clone(&owner)));
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn shutdown_that_began_before_fork_ends_in_child() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let _guard = world.wait(&mut driver, client.lock("a").ttl(TTL).acquire()).unwrap();
    let shared = Arc::clone(&client.owner.shared);
    let mut shutdown = Box::pin(async move { client.shutdown(TTL).await });
    assert!(poll(&mut shutdown).is_pending());
    shared.forked.store(true, Ordering::SeqCst);
    let of_parent = locked(&shared.core);
    let (done, is_done) = std::sync::mpsc::channel();
    let child = std::thread::spawn(move || done.send(poll(&mut shutdown)));
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(Poll::Ready(Shutdown { unreleased: 0 })));
    drop(of_parent);
    child.join().unwrap().unwrap();
}

#[test]
fn debug_output_hides_secrets() {
    let world = DriverWorld::new();
    let mut config = DriverWorld::config();
    let mut node = config.nodes()[0].clone();
    node.login.password = Some(lock_proto::Secret::new("hunter2"));
    config = redis::Config::new([node]);
    let (client, driver) = with_identity(world, config.into(), ClientId::from_bits(9), 1).unwrap();
    let lock = client.lock("a");
    let shown = alloc::format!("{client:?} {driver:?} {lock:?} {:?}", lock.acquire());
    assert!(!shown.contains("hunter2") && shown.contains("node"), "{shown}");
}
