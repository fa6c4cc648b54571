//! What a runtime runs for a scenario.

use core::future::{Ready, ready};
use core::net::SocketAddr;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use lock_driver::{Address, Client, Clock, ConnectError, Driver, Host, Settings, connect};
use lock_proto::Instant;

/// A task of a scenario: a driver, or work with its handles.
///
/// It is `Send` if the host, its streams and its futures are.
#[must_use = "a task does nothing unless it is spawned"]
pub struct Task<H: Host>(Kind<H>);

enum Kind<H: Host> {
    Driver { driver: Box<Driver<TestHost<H>>>, controls: Controls },
    Work(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl<H: Host> Task<H> {
    pub(crate) fn work(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Kind::Work(Box::pin(task)))
    }

    /// A client, and the task of its driver.
    pub(crate) fn client(host: TestHost<H>, settings: impl Into<Settings>) -> Result<(Client, Self), ConnectError> {
        let controls = host.controls.clone();
        let (client, driver) = connect(host, settings)?;
        Ok((client, Self(Kind::Driver { driver: Box::new(driver), controls })))
    }
}

impl<H: Host> Future for Task<H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Kind::Work(work) => work.as_mut().poll(cx),
            Kind::Driver { controls, .. } if controls.stopped.load(Ordering::SeqCst) => Poll::Pending,
            Kind::Driver { driver, controls } => {
                let nap = controls.nap.swap(0, Ordering::SeqCst);
                if nap > 0 {
                    thread::sleep(Duration::from_millis(nap));
                }
                Pin::new(driver).poll(cx)
            }
        }
    }
}

/// Faults of a driver and its clock.
#[derive(Clone, Default)]
pub(crate) struct Controls {
    /// The driver is no longer polled.
    pub(crate) stopped: Arc<AtomicBool>,
    /// How long the driver blocks its thread, once, in milliseconds.
    pub(crate) nap: Arc<AtomicU64>,
    /// How long the computer was suspended, in seconds. The clock jumps, and no timer fires.
    pub(crate) suspended: Arc<AtomicU64>,
}

/// The host under test with the faults of a scenario.
pub(crate) struct TestHost<H> {
    inner: H,
    /// What the resolver knows, as `name.test`. `None` for the host's own resolver.
    addresses: Option<Vec<SocketAddr>>,
    controls: Controls,
}

impl<H> TestHost<H> {
    pub(crate) fn new(inner: H) -> Self {
        Self { inner, addresses: None, controls: Controls::default() }
    }

    pub(crate) fn with_addresses(inner: H, addresses: Vec<SocketAddr>) -> Self {
        Self { addresses: Some(addresses), ..Self::new(inner) }
    }

    pub(crate) fn with_controls(inner: H, controls: &Controls) -> Self {
        Self { controls: controls.clone(), ..Self::new(inner) }
    }
}

impl<H: Host> Host for TestHost<H> {
    type Clock = TestClock<H::Clock>;
    type Stream = H::Stream;
    type Resolve = Resolve<H::Resolve>;
    type Connect = H::Connect;
    type Sleep = H::Sleep;

    fn clock(&self) -> Self::Clock {
        TestClock { inner: self.inner.clock(), suspended: Arc::clone(&self.controls.suspended) }
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        match &self.addresses {
            None => Resolve::Host(self.inner.resolve(host, port)),
            Some(addresses) => {
                assert_eq!(host, "name.test");
                Resolve::Known(ready(Ok(addresses.clone())))
            }
        }
    }

    fn connect(&self, address: &Address) -> H::Connect {
        self.inner.connect(address)
    }

    fn sleep(&self, time: Duration) -> H::Sleep {
        self.inner.sleep(time)
    }

    fn read_file(&self, path: &Path) -> Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>> {
        self.inner.read_file(path)
    }
}

pub(crate) enum Resolve<F> {
    Host(F),
    Known(Ready<io::Result<Vec<SocketAddr>>>),
}

impl<F: Future<Output = io::Result<Vec<SocketAddr>>> + Unpin> Future for Resolve<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut() {
            Self::Host(resolve) => Pin::new(resolve).poll(cx),
            Self::Known(resolve) => Pin::new(resolve).poll(cx),
        }
    }
}

#[derive(Clone)]
pub(crate) struct TestClock<C> {
    inner: C,
    suspended: Arc<AtomicU64>,
}

impl<C: Clock> Clock for TestClock<C> {
    fn now(&self) -> Instant {
        self.inner.now() + Duration::from_secs(self.suspended.load(Ordering::SeqCst))
    }
}
