//! Mistakes of a host or of its user. They cause no hang and no panic, and the lock is reported
//! lost. `docs/porting.md` lists the consequences.

use core::cell::Cell;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant as StdInstant;

use lock_proto::Instant;
use lock_proto::driver::{self, AcquireErrorKind, Address, Clock, Guard, Host};
use lock_proto::redis::{Loss, Release};
use lock_testkit::{TIMEOUT, wait_until};

use crate::{Kit, Runtime, Server};

type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

fn driver<H>(host: H, server: &Server) -> (driver::Client, Driver)
where
    H: Host<Stream: Send, Resolve: Send, Connect: Send, Sleep: Send> + Send,
{
    let (client, driver) = driver::connect(host, server.settings()).unwrap();
    (client, Box::pin(driver))
}

async fn take<R: Runtime>(kit: &Kit<R>, server: &Server, client: &driver::Client, name: &str) -> Guard {
    kit.in_time("acquire", server.with_short_ttl(client.lock(name)).acquire()).await.unwrap()
}

/// The runtime ends, and the driver's task with it.
pub fn guard_outliving_runtime_is_lost<R: Runtime>(server: Server) {
    let kit = Kit::<R>::new();
    let (client, driver) = driver(kit.runtime().host(), &server);
    kit.spawn(driver);
    let (dropped, observed) = kit
        .runtime()
        .block_on(async { (take(&kit, &server, &client, "a").await, take(&kit, &server, &client, "b").await) });
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
    let work = async |kit: &Kit<R>, client: &driver::Client| {
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
        let (client, driver) = driver(kit.runtime().host(), &server);
        let waits = client.lock("a").wait(Duration::from_millis(1));
        assert!(kit.cancel_after(Duration::from_millis(50), waits.acquire()).await.is_none());
        assert!(kit.cancel_after(Duration::from_millis(50), client.lock("a").try_acquire()).await.is_none());
        let waiting = client.lock("a").acquire();
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(driver);
        });
        assert_eq!(*kit.in_time("the result", waiting).await.unwrap_err().kind(), AcquireErrorKind::ShutDown);
        thread.join().unwrap();
        assert_eq!(*kit.in_time("refused", waits.acquire()).await.unwrap_err().kind(), AcquireErrorKind::ShutDown);
        assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
        assert!(!server.has_key("a"));
    });
}

/// The clock alone ends the hold: protected work is not polled after that.
// T3
pub fn stalled_driver_ends_protected_work<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let (client, driver) = driver(kit.runtime().host(), &server);
        let closed = Arc::new(AtomicBool::new(false));
        kit.spawn(Gate { driver, closed: Arc::clone(&closed) });
        let guard = take(&kit, &server, &client, "a").await;
        let other = take(&kit, &server, &client, "b").await;
        closed.store(true, Ordering::SeqCst);
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
        assert!(kit.cancel_after(Duration::from_millis(50), other.protect(late)).await.is_none());
        kit.wait_for("they end by themselves", || !server.has_key("a") && !server.has_key("b")).await;
    });
}

/// The driver's thread hangs for longer than the TTL.
pub fn blocked_driver_loses_hold_then_recovers<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let ttl = server.ttl();
        let (client, driver) = driver(kit.runtime().host(), &server);
        let nap = Arc::new(AtomicU64::new(0));
        kit.spawn(Sleepy { driver, nap: Arc::clone(&nap) });
        let guard = take(&kit, &server, &client, "a").await;
        let since = StdInstant::now();
        let millis = u64::try_from(2 * ttl.as_millis()).unwrap();
        nap.store(millis, Ordering::SeqCst);
        let work = async {
            loop {
                kit.sleep(Duration::from_millis(20)).await;
            }
        };
        let done = kit.in_time("the loss", guard.protect(work)).await;
        assert_eq!(done.output, Err::<(), _>(Loss::Expired));
        assert!(since.elapsed() >= ttl / 2, "not before its time");
        assert_eq!(nap.load(Ordering::SeqCst), 0, "it did hang");
        // The client works normally again.
        kit.release(kit.take(&client, "a").await).await;
        drop(client);
        kit.wait_for("nothing is left", || server.is_clean()).await;
    });
}

/// The machine is suspended for an hour. Protected work stops before the loss is reported, and
/// waiters for the loss are notified although no timer has fired.
// T4
pub fn suspended_machine_loses_hold_on_resume<R: Runtime>(server: Server) {
    crate::run(|kit: Kit<R>| async move {
        let offset = Arc::new(AtomicU64::new(0));
        let host = Suspended { inner: kit.runtime().host(), offset: Arc::clone(&offset) };
        let (client, driver) = driver(host, &server);
        kit.spawn(driver);
        let long = |name| client.lock(name).ttl(Duration::from_secs(60)).acquire();
        let guard = kit.in_time("acquire", long("a")).await.unwrap();
        let waiting = kit.in_time("acquire", long("b")).await.unwrap();
        // Lets the driver go to sleep.
        kit.sleep(Duration::from_millis(50)).await;
        let mut lost = core::pin::pin!(waiting.lost());
        assert!(kit.poll_once(lost.as_mut()).await.is_none());
        assert!(guard.is_held() && waiting.is_held());
        offset.store(3600, Ordering::SeqCst);
        assert!(!guard.is_held() && guard.remaining() == Duration::ZERO);
        let done = kit.in_time("the loss", guard.protect(async { panic!("it is not held") })).await;
        assert_eq!(done.output, Err::<(), _>(Loss::Expired));
        let since = StdInstant::now();
        assert_eq!(kit.in_time("the loss", lost).await, Loss::Expired);
        assert!(since.elapsed() < Duration::from_secs(10), "long before its TTL: {:?}", since.elapsed());
    });
}

/// A driver that can be stopped.
struct Gate {
    driver: Driver,
    closed: Arc<AtomicBool>,
}

impl Future for Gate {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed.load(Ordering::SeqCst) { Poll::Pending } else { self.driver.as_mut().poll(cx) }
    }
}

/// A driver whose thread can be made to hang once.
struct Sleepy {
    driver: Driver,
    /// In milliseconds.
    nap: Arc<AtomicU64>,
}

impl Future for Sleepy {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let nap = self.nap.swap(0, Ordering::SeqCst);
        if nap > 0 {
            thread::sleep(Duration::from_millis(nap));
        }
        self.driver.as_mut().poll(cx)
    }
}

/// A host whose clock can jump ahead without firing timers, as after a suspend.
#[derive(Clone)]
struct Suspended<T> {
    inner: T,
    /// In seconds.
    offset: Arc<AtomicU64>,
}

impl<C: Clock> Clock for Suspended<C> {
    fn now(&self) -> Instant {
        self.inner.now() + Duration::from_secs(self.offset.load(Ordering::SeqCst))
    }
}

impl<H: Host> Host for Suspended<H> {
    type Clock = Suspended<H::Clock>;
    type Stream = H::Stream;
    type Resolve = H::Resolve;
    type Connect = H::Connect;
    type Sleep = H::Sleep;

    fn clock(&self) -> Self::Clock {
        Suspended { inner: self.inner.clock(), offset: Arc::clone(&self.offset) }
    }

    fn resolve(&self, host: &str, port: u16) -> H::Resolve {
        self.inner.resolve(host, port)
    }

    fn connect(&self, address: &Address) -> H::Connect {
        self.inner.connect(address)
    }

    fn sleep(&self, time: Duration) -> H::Sleep {
        self.inner.sleep(time)
    }
}
