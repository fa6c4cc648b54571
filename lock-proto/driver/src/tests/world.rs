//! One simulated server, one clock, no threads: tests take every step of the driver.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use futures_io::{AsyncRead, AsyncWrite};

use super::super::backend::with_identity;
use super::super::ticket::locked;
use super::super::{Address, Client, Clock, Driver, Host, read_file};
use lock_proto::ClientId;
use lock_proto::Instant;
use lock_proto::Target;
use lock_proto::redis::{Config, Endpoint, Protocol};
use lock_sim::redis::{Node, NodeConfig};

/// The server, the clock and the connections.
#[derive(Clone)]
pub(super) struct DriverWorld(Arc<WorldState>);

struct WorldState {
    now: AtomicU64,
    /// How long timers have stood still.
    suspended: AtomicU64,
    inner: Mutex<WorldParts>,
}

pub(super) struct WorldParts {
    pub(super) node: Node,
    pub(super) down: bool,
    /// The server accepts connections, and reads nothing.
    pub(super) silent: bool,
    /// How many bytes a socket takes at a time.
    pub(super) max_write: usize,
    /// The addresses of the server's name, and what comes of connecting to each.
    pub(super) addresses: Vec<(SocketAddr, ConnectResult)>,
    /// How long the name server takes to answer, and how often it was asked.
    pub(super) resolver_takes: Duration,
    pub(super) resolutions: usize,
    /// Files cannot be read before this. Every read that began.
    pub(super) files_hang_until: Instant,
    pub(super) files_read: Vec<std::path::PathBuf>,
    /// Every attempt to connect to one, and when.
    pub(super) tried: Vec<(Instant, Address)>,
    /// Attempts that have not been dropped.
    pub(super) opening: usize,
    /// Every sleep that the driver requested.
    pub(super) slept: Vec<Duration>,
    sleeps: Vec<(Instant, Waker)>,
    wires: BTreeMap<u64, TestSocket>,
    serial: u64,
}

/// Result of an attempt to connect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectResult {
    Accepts,
    AcceptsAfter(Duration),
    Refuses,
    /// As a host that is gone.
    Nothing,
    /// It accepts, and never replies, as a process that is stopped.
    Silence,
    /// It accepts, and closes the connection, as a proxy without a server behind it.
    HangsUp,
    /// It accepts, answers with HTTP/1, and closes the connection.
    SpeaksHttp,
    /// It accepts, says that it has too many clients, and closes the connection.
    IsFull,
}

/// The nth address of the server.
pub(super) const fn address(n: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)), 6379)
}

/// An attempt to connect.
struct Begun(DriverWorld);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.with(|inner| inner.opening -= 1);
    }
}

#[derive(Default)]
struct TestSocket {
    to_node: Vec<u8>,
    to_client: Vec<u8>,
    /// The server does not read it.
    ignored: bool,
    hung_up: bool,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl WorldParts {
    pub(super) fn open(&self) -> usize {
        self.wires.values().filter(|wire| !wire.hung_up).count()
    }
}

impl DriverWorld {
    pub(super) fn new() -> Self {
        let node = Node::new(Instant::ZERO, NodeConfig::new(1));
        let inner = WorldParts {
            node,
            down: false,
            silent: false,
            max_write: usize::MAX,
            addresses: [(address(1), ConnectResult::Accepts)].into(),
            resolver_takes: Duration::ZERO,
            resolutions: 0,
            files_hang_until: Instant::ZERO,
            files_read: Vec::new(),
            tried: Vec::new(),
            opening: 0,
            slept: Vec::new(),
            sleeps: Vec::new(),
            wires: BTreeMap::new(),
            serial: 0,
        };
        Self(Arc::new(WorldState { now: AtomicU64::new(0), suspended: AtomicU64::new(0), inner: Mutex::new(inner) }))
    }

    pub(super) fn config() -> Config {
        Config::new([Endpoint {
            target: Target::Tcp { host: "node".into(), port: 6379 },
            login: lock_proto::Login::default(),
            database: 0,
            client_name: None,
            protocol: Protocol::Resp2,
        }])
    }

    /// The same server, with TLS. Its name and the authority are all that the client knows.
    #[cfg(feature = "tls-ring")]
    pub(super) fn tls_config(authority: &lock_testkit::Authority) -> Config {
        let tls = lock_proto::Tls::default().with_ca(authority.ca().to_str().unwrap());
        let mut node = Self::config().nodes()[0].clone();
        node.target = Target::Tls { host: "node".into(), port: 6379, tls };
        Config::new([node])
    }

    pub(super) fn client(&self) -> (Client, Task<Driver<Self>>) {
        self.client_with(1, Self::config())
    }

    pub(super) fn client_with(&self, id: u128, config: Config) -> (Client, Task<Driver<Self>>) {
        let (client, driver) = with_identity(self.clone(), config.into(), ClientId::from_bits(id), 7).unwrap();
        (client, Task::new(driver))
    }

    pub(super) fn time(&self) -> Instant {
        Instant::from_nanos(self.0.now.load(Ordering::SeqCst))
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut WorldParts) -> R) -> R {
        work(&mut locked(&self.0.inner))
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        let now = self.time();
        self.with(|inner| inner.node.exists(now, key))
    }

    /// The clock of timers.
    fn awake(&self) -> Instant {
        let suspended = Duration::from_nanos(self.0.suspended.load(Ordering::SeqCst));
        Instant::ZERO + self.time().since(Instant::ZERO + suspended)
    }

    /// The clock goes on, and timers stand still.
    pub(super) fn suspend(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap();
        self.0.now.fetch_add(nanos, Ordering::SeqCst);
        self.0.suspended.fetch_add(nanos, Ordering::SeqCst);
    }

    /// Time passes, and nothing else happens: the process is stopped.
    pub(super) fn pause(&self, time: Duration) {
        let wakers: Vec<_> = {
            let mut inner = locked(&self.0.inner);
            self.0.now.store((self.time() + time).as_nanos(), Ordering::SeqCst);
            let now = self.awake();
            let (due, later) = core::mem::take(&mut inner.sleeps).into_iter().partition(|(until, _)| *until <= now);
            inner.sleeps = later;
            let due: Vec<(Instant, Waker)> = due;
            due.into_iter().map(|(_, waker)| waker).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Carries bytes one way. True if there were any.
    pub(super) fn carry(&self, to_node: bool) -> bool {
        let mut wakers = Vec::new();
        let mut moved = false;
        {
            let mut inner = locked(&self.0.inner);
            let now = self.time();
            let WorldParts { node, wires, silent, .. } = &mut *inner;
            if node.next_deadline().is_some_and(|deadline| deadline <= now) {
                node.handle_timeout(now);
            }
            for (&id, wire) in wires.iter_mut() {
                if to_node && !*silent && !wire.ignored && !wire.to_node.is_empty() {
                    moved = true;
                    node.handle_received(now, id, &core::mem::take(&mut wire.to_node));
                    wakers.extend(wire.writer.take());
                }
                if to_node && wire.hung_up && !wire.closed {
                    moved = true;
                    node.handle_disconnected(now, id);
                    wire.closed = true;
                }
                if !to_node && !node.outgoing(id).is_empty() {
                    moved = true;
                    wire.to_client.extend_from_slice(node.outgoing(id));
                    node.consume(id, usize::MAX);
                    wakers.extend(wire.reader.take());
                }
            }
            while let Some(id) = node.poll_closed() {
                moved = true;
                node.handle_disconnected(now, id);
                if let Some(wire) = wires.get_mut(&id) {
                    wire.closed = true;
                    wakers.extend(wire.reader.take());
                }
            }
            wires.retain(|_, wire| !(wire.hung_up && wire.closed));
        }
        wakers.into_iter().for_each(Waker::wake);
        moved
    }

    /// The smallest step: the driver runs, or bytes travel one way. False if all is quiet.
    pub(super) fn step(&self, driver: &mut Task<impl Future<Output = ()>>) -> bool {
        driver.poll() || self.carry(true) || self.carry(false)
    }

    /// Steps until all is quiet at this moment.
    pub(super) fn settle(&self, driver: &mut Task<impl Future<Output = ()>>) {
        for _ in 0..10_000 {
            if !self.step(driver) {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Lets time pass, from one timer to the next.
    pub(super) fn run(&self, driver: &mut Task<impl Future<Output = ()>>, time: Duration) {
        let end = self.time() + time;
        self.settle(driver);
        while self.time() < end {
            let (now, awake) = (self.time(), self.awake());
            let left = self.with(|inner| {
                let node = inner.node.next_deadline().map(|at| at.since(now));
                inner.sleeps.iter().map(|(until, _)| until.since(awake)).chain(node).min()
            });
            let step = left.unwrap_or(Duration::MAX).min(end.since(now)).max(Duration::from_nanos(1));
            self.pause(step);
            self.settle(driver);
        }
    }

    /// Settles until the future is done.
    pub(super) fn wait<F: Future>(&self, driver: &mut Task<impl Future<Output = ()>>, future: F) -> F::Output {
        let mut future = pin!(future);
        for _ in 0..1000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            if !self.step(driver) {
                self.run(driver, Duration::from_millis(20));
            }
        }
        panic!("the future does not end");
    }
}

impl Clock for DriverWorld {
    fn now(&self) -> Instant {
        self.time()
    }
}

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Host for DriverWorld {
    type Clock = Self;
    type Stream = Socket;
    type Resolve = Boxed<io::Result<Vec<SocketAddr>>>;
    type Connect = Boxed<io::Result<Socket>>;
    type Sleep = Boxed<()>;

    fn clock(&self) -> Self {
        self.clone()
    }

    fn resolve(&self, host: &str, _: u16) -> Self::Resolve {
        assert_eq!(host, "node");
        let (found, takes) = self.with(|inner| {
            inner.resolutions += 1;
            (inner.addresses.iter().map(|(address, _)| *address).collect(), inner.resolver_takes)
        });
        let answer = (!takes.is_zero()).then(|| self.sleep(takes));
        Box::pin(async move {
            if let Some(answer) = answer {
                answer.await;
            }
            Ok(found)
        })
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let (world, address) = (self.clone(), address.clone());
        let begun = Begun(self.clone());
        self.with(|inner| {
            inner.tried.push((self.time(), address.clone()));
            inner.opening += 1;
        });
        Box::pin(async move {
            let _begun = begun;
            let answers = world.with(|inner| {
                let of = |(own, _): &&(SocketAddr, ConnectResult)| Address::Tcp(*own) == address;
                inner.addresses.iter().find(of).map_or(ConnectResult::Refuses, |(_, answers)| *answers)
            });
            match answers {
                ConnectResult::Accepts
                | ConnectResult::Silence
                | ConnectResult::HangsUp
                | ConnectResult::SpeaksHttp
                | ConnectResult::IsFull => {}
                ConnectResult::AcceptsAfter(time) => world.sleep(time).await,
                ConnectResult::Refuses => return Err(io::ErrorKind::ConnectionRefused.into()),
                ConnectResult::Nothing => core::future::pending().await,
            }
            let now = world.time();
            let id = world.with(|inner| {
                if inner.down {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
                inner.serial += 1;
                inner.node.handle_connected(now, inner.serial);
                let closing = match answers {
                    ConnectResult::HangsUp => Some(""),
                    ConnectResult::SpeaksHttp => Some("HTTP/1.1 400 Bad Request\r\n\r\n"),
                    ConnectResult::IsFull => Some("-ERR max number of clients reached\r\n"),
                    ConnectResult::Accepts
                    | ConnectResult::AcceptsAfter(_)
                    | ConnectResult::Refuses
                    | ConnectResult::Nothing
                    | ConnectResult::Silence => None,
                };
                let wire = TestSocket {
                    to_client: closing.unwrap_or_default().into(),
                    ignored: closing.is_some() || answers == ConnectResult::Silence,
                    closed: closing.is_some(),
                    ..TestSocket::default()
                };
                inner.wires.insert(inner.serial, wire);
                Ok(inner.serial)
            })?;
            Ok(Socket { world, id })
        })
    }

    fn read_file(&self, path: &Path) -> Boxed<io::Result<Vec<u8>>> {
        let hang = self.with(|inner| {
            inner.files_read.push(path.into());
            inner.files_hang_until.since(self.time())
        });
        let (world, path) = (self.clone(), path.to_path_buf());
        Box::pin(async move {
            if !hang.is_zero() {
                world.sleep(hang).await;
            }
            read_file(path)
        })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        let world = self.clone();
        let until = world.awake() + time;
        world.with(|inner| inner.slept.push(time));
        Box::pin(poll_fn(move |cx| {
            if world.awake() >= until {
                return Poll::Ready(());
            }
            world.with(|inner| inner.sleeps.push((until, cx.waker().clone())));
            Poll::Pending
        }))
    }
}

pub(super) struct Socket {
    world: DriverWorld,
    id: u64,
}

impl Socket {
    fn with_wire<R>(&self, work: impl FnOnce(&mut TestSocket, usize) -> R) -> Option<R> {
        self.world.with(|inner| Some(work(inner.wires.get_mut(&self.id)?, inner.max_write)))
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.with_wire(|wire, max_write| {
            if wire.to_client.is_empty() && !wire.closed {
                wire.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let count = wire.to_client.len().min(buffer.len()).min(max_write);
            buffer[..count].copy_from_slice(&wire.to_client[..count]);
            wire.to_client.drain(..count);
            Poll::Ready(Ok(count))
        });
        read.unwrap_or(Poll::Ready(Ok(0)))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.with_wire(|wire, max_write| {
            let room = max_write.saturating_sub(wire.to_node.len()).min(bytes.len());
            if room == 0 {
                wire.writer = Some(cx.waker().clone());
                return Poll::Pending;
            }
            wire.to_node.extend_from_slice(&bytes[..room]);
            Poll::Ready(Ok(room))
        });
        written.unwrap_or_else(|| Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.with_wire(|wire, _| wire.hung_up = true);
    }
}

/// A future that is polled only after it was woken.
pub(super) struct Task<F: Future> {
    future: Option<Pin<Box<F>>>,
    pub(super) wakes: Arc<Wakes>,
    seen: usize,
}

#[derive(Default)]
pub(super) struct Wakes(AtomicUsize);

impl Wakes {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl<F: Future<Output = ()>> Task<F> {
    pub(super) fn new(future: F) -> Self {
        let wakes = Arc::new(Wakes(AtomicUsize::new(1)));
        Self { future: Some(Box::pin(future)), wakes, seen: 0 }
    }

    /// True if it was woken, and so polled.
    pub(super) fn poll(&mut self) -> bool {
        let Some(future) = &mut self.future else { return false };
        let wakes = self.wakes.count();
        if wakes == self.seen {
            return false;
        }
        self.seen = wakes;
        let waker = Waker::from(Arc::clone(&self.wakes));
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.future = None;
        }
        true
    }

    pub(super) const fn is_done(&self) -> bool {
        self.future.is_none()
    }

    /// The runtime is gone.
    pub(super) fn kill(&mut self) {
        self.future = None;
    }
}
