//! Wakers, log subscribers and sources of credentials that panic.

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber};

use super::world::Wakes;
use super::*;
use lock_proto::Credentials;
use lock_sim::redis::{Node, NodeConfig};

/// A waker of a runtime that refuses to be woken.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

/// A waker that panics once.
#[derive(Default)]
struct PanicsOnce(AtomicUsize);

impl Wake for PanicsOnce {
    fn wake(self: Arc<Self>) {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "a waker");
    }
}

/// A subscriber whose output is a dead pipe.
struct DeadPipe;

impl Subscriber for DeadPipe {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {
        panic!("a log subscriber");
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn poll_with<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

fn hold(world: &DriverWorld, driver: &mut world::Task<Driver<DriverWorld>>, client: &Client, name: &str) -> Guard {
    world.wait(driver, client.lock(name).ttl(TTL).acquire()).unwrap()
}

#[test]
fn panicking_waker_leaves_no_other_task_asleep() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let mut first = client.lock("first").acquire();
    let mut others: Vec<_> = (0..20u8).map(|n| (client.lock([n]).acquire(), Arc::<Wakes>::default())).collect();
    assert!(poll_with(pin!(&mut first), &Arc::new(Panicking).into()).is_pending());
    for (acquiring, woken) in &mut others {
        assert!(poll_with(pin!(acquiring), &Arc::clone(woken).into()).is_pending());
    }
    world.settle(&mut driver);
    assert_eq!(others.iter().filter(|(_, woken)| woken.count() > 0).count(), 20);
    assert!(matches!(poll(&mut first), Poll::Ready(Ok(_))), "it was granted all the same");
}

/// Regression: no later call woke the driver.
#[test]
fn driver_is_woken_again_after_panic_of_its_waker() {
    let (client, driver) =
        with_identity(DriverWorld::new(), DriverWorld::config().into(), ClientId::from_bits(1), 7).unwrap();
    let (waker, mut driver) = (Arc::<PanicsOnce>::default(), pin!(driver));
    assert!(poll_with(driver.as_mut(), &Arc::clone(&waker).into()).is_pending());
    let mut waiting = ["a", "b", "c"].map(|name| client.lock(name).acquire());
    assert!(waiting.iter_mut().all(|waiting| poll(waiting).is_pending()));
    assert_eq!(waker.0.load(Ordering::SeqCst), 2);
}

#[test]
fn panicking_waker_of_watcher_leaves_others_notified() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = hold(&world, &mut driver, &client, "a");
    let observer = guard.observer();
    let woken = Arc::<Wakes>::default();
    {
        let (mut risk, mut lost) = (pin!(observer.at_risk()), pin!(observer.lost()));
        assert!(poll_with(risk.as_mut(), &Arc::new(Panicking).into()).is_pending());
        assert!(poll_with(lost.as_mut(), &Arc::clone(&woken).into()).is_pending());
        drop(guard);
        assert_eq!(woken.count(), 1);
        assert!(poll_with(lost, Waker::noop()).is_ready());
    }
    // The list of watchers is intact.
    let guard = hold(&world, &mut driver, &client, "b");
    let observer = guard.observer();
    let mut lost = pin!(guard.lost());
    {
        let mut first = pin!(observer.lost());
        assert!(poll_with(first.as_mut(), &Arc::new(Panicking).into()).is_pending());
        observer.ticket.changed.notify(usize::MAX);
    }
    assert!(poll_with(lost.as_mut(), &Arc::clone(&woken).into()).is_pending());
    driver.kill();
    assert_eq!(woken.count(), 2);
    assert_eq!(poll_with(lost, Waker::noop()), Poll::Ready(Loss::ShutDown));
}

#[test]
fn panicking_subscriber_hides_no_loss() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guard = hold(&world, &mut driver, &client, "a");
    let other = hold(&world, &mut driver, &client, "b");
    let woken = Arc::<Wakes>::default();
    let mut lost = pin!(guard.lost());
    assert!(poll_with(lost.as_mut(), &Arc::clone(&woken).into()).is_pending());
    let now = world.time();
    assert!(world.with(|inner| inner.node.remove(now, "a")));
    with_default(DeadPipe, || world.run(&mut driver, TTL / 2));
    assert!(woken.count() > 0, "its task sleeps on");
    assert_eq!(poll_with(lost, Waker::noop()), Poll::Ready(Loss::Gone));
    assert!(!driver.is_done() && other.is_held());
}

/// A second panic, in a destructor, would abort the process.
#[test]
fn driver_dropped_by_panic_reports_losses_to_panicking_subscriber() {
    let world = DriverWorld::new();
    let (client, mut driver) = world.client();
    let guards = ["a", "b"].map(|name| hold(&world, &mut driver, &client, name));
    let unwound = std::panic::catch_unwind(AssertUnwindSafe(|| {
        with_default(DeadPipe, || {
            let _dropped = driver;
            panic!("another future of the task");
        });
    }));
    assert!(unwound.is_err());
    for guard in &guards {
        assert_eq!(poll(&mut Box::pin(guard.lost())), Poll::Ready(Loss::ShutDown));
    }
}

/// Regression: nobody was told of the end.
#[test]
fn panic_while_connections_are_dropped_leaves_nobody_asleep() {
    struct Fails;

    impl Drop for Fails {
        fn drop(&mut self) {
            panic!("a source of credentials");
        }
    }

    let world = DriverWorld::new();
    let settings = Settings::from(DriverWorld::config()).credentials(|_| {
        let fails = Fails;
        async move {
            let _fails = fails;
            core::future::pending().await
        }
    });
    let (client, driver) = with_identity(world.clone(), settings, ClientId::from_bits(1), 7).unwrap();
    let mut driver = world::Task::new(driver);
    let mut waiting = client.lock("a").acquire();
    let woken = Arc::<Wakes>::default();
    assert!(poll_with(pin!(&mut waiting), &Arc::clone(&woken).into()).is_pending());
    world.settle(&mut driver);
    let before = woken.count();
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| driver.kill()));
    assert!(woken.count() > before, "its task sleeps on");
    let answer = poll(&mut waiting);
    assert!(
        matches!(&answer, Poll::Ready(Err(error)) if matches!(error.kind(), AcquireErrorKind::ShutDown)),
        "{answer:?}"
    );
}

/// Regression: the panic ended the client.
#[test]
fn panicking_source_of_credentials_is_asked_again() {
    // N19
    for in_future in [false, true] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let settings = Settings::from(DriverWorld::config()).credentials(move |_| {
            let panics = count.fetch_add(1, Ordering::SeqCst) == 1;
            assert!(!panics || in_future, "a source of credentials");
            async move {
                assert!(!panics, "the future of a source");
                Ok(Credentials::new("secret").valid_for(Duration::from_secs(60)))
            }
        });
        let world = DriverWorld::new();
        world.with(|inner| inner.node = Node::new(Instant::ZERO, NodeConfig::new(1).password("secret")));
        let (client, driver) = with_identity(world.clone(), settings, ClientId::from_bits(1), 7).unwrap();
        let mut driver = world::Task::new(driver);
        let guard = hold(&world, &mut driver, &client, "a");
        world.run(&mut driver, Duration::from_secs(120));
        assert!(asked.load(Ordering::SeqCst) > 2, "{} times", asked.load(Ordering::SeqCst));
        assert!(guard.is_held() && !driver.is_done());
        assert_eq!(world.with(|inner| inner.tried.len()), 1, "the connection stays");
    }
}
