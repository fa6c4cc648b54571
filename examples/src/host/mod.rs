//! A [`Host`] on a custom executor: one thread, `mio` for readiness, `std::net` for connections, a
//! map of timers.
//!
//! The example of `docs/porting.md`: it shows a complete port of the driver (TCP, unix sockets,
//! Redis, etcd and ZooKeeper). It passes the same conformance suite as the adapters.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn core::error::Error>> {
//! # use lock_sim::test_server::RedisServer;
//! use lock_examples::host::Executor;
//! use lock_driver::{Settings};
//!
//! # let server = RedisServer::start(lock_sim::redis::NodeConfig::new(1))?;
//! # let url = server.url();
//! let executor = Executor::new()?;
//! let (client, driver) = lock_driver::connect(executor.host(), Settings::parse([url])?)?;
//! executor.spawn(driver);
//! executor.block_on(async {
//!     let guard = client.lock("invoice:42").acquire().await?;
//!     println!("held for at least {:?}", guard.remaining());
//!     guard.release().await;
//!     Ok(())
//! })
//! # }
//! ```

mod stream;

use core::cell::RefCell;
use core::net::SocketAddr;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use lock_driver::{Address, BootClock, Host, call_on_thread};
use lock_proto::Instant;

pub use stream::Stream;

/// ID of the future passed to `block_on`. IDs of tasks, timers and sockets start at 1.
const MAIN: usize = 0;
/// Token of the [`mio::Waker`]. Sockets use their IDs as tokens.
const WAKER: mio::Token = mio::Token(usize::MAX);

type Sockets = BTreeMap<usize, [Option<Waker>; 2]>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A single-threaded executor. Its tasks run only during [`block_on`](Self::block_on), and are
/// dropped with it.
pub struct Executor {
    reactor: Arc<Reactor>,
    poll: RefCell<mio::Poll>,
    tasks: RefCell<BTreeMap<usize, Task>>,
}

impl Executor {
    /// Creates an executor without tasks.
    ///
    /// # Errors
    ///
    /// Fails if the operating system denies the resources for `mio`.
    pub fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let reactor = Arc::new(Reactor {
            clock: BootClock::new(),
            registry: poll.registry().try_clone()?,
            waker: mio::Waker::new(poll.registry(), WAKER)?,
            state: Mutex::default(),
        });
        Ok(Self { reactor, poll: RefCell::new(poll), tasks: RefCell::default() })
    }

    /// Returns the host for the driver.
    #[must_use]
    pub fn host(&self) -> OwnHost {
        OwnHost(Arc::clone(&self.reactor))
    }

    /// Spawns a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let id = self.reactor.next_id();
        self.tasks.borrow_mut().insert(id, Box::pin(task));
        self.reactor.wake(id);
    }

    /// Runs this future and all tasks until the future completes.
    ///
    /// # Panics
    ///
    /// Panics if called from within itself, or if the operating system cannot poll.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut poll = self.poll.try_borrow_mut().expect("no `block_on` inside `block_on`");
        let mut events = mio::Events::with_capacity(64);
        let mut main = pin!(future);
        self.reactor.wake(MAIN);
        loop {
            let ready = core::mem::take(&mut self.reactor.state().ready);
            // Poll `MAIN` last: its completion ends the loop.
            for id in ready.into_iter().rev() {
                let waker = Waker::from(Arc::new(TaskWaker { id, reactor: Arc::clone(&self.reactor) }));
                let mut cx = Context::from_waker(&waker);
                if id == MAIN {
                    if let Poll::Ready(output) = main.as_mut().poll(&mut cx) {
                        return output;
                    }
                    continue;
                }
                // Take the task out of the map while it runs, because it may spawn others.
                let task = self.tasks.borrow_mut().remove(&id);
                if let Some(mut task) = task
                    && task.as_mut().poll(&mut cx).is_pending()
                {
                    self.tasks.borrow_mut().insert(id, task);
                }
            }
            let limit = self.reactor.sleep_limit();
            match poll.poll(&mut events, limit) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => panic!("cannot wait: {error}"),
                Ok(()) | Err(_) => self.reactor.wake_ready(&events),
            }
        }
    }
}

/// State shared by the futures and the executor.
struct Reactor {
    clock: BootClock,
    registry: mio::Registry,
    waker: mio::Waker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ready: BTreeSet<usize>,
    /// The thread sleeps or is about to, so `wake` must interrupt it.
    asleep: bool,
    /// Timers by deadline; the ID distinguishes equal deadlines.
    timers: BTreeMap<(Instant, usize), Waker>,
    /// Wakers of each socket: reader, writer.
    sockets: Sockets,
    last_id: usize,
}

impl Reactor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_id(&self) -> usize {
        let mut state = self.state();
        state.last_id += 1;
        state.last_id
    }

    fn wake(&self, id: usize) {
        let mut state = self.state();
        state.ready.insert(id);
        if core::mem::take(&mut state.asleep) {
            // Fails only if the executor is gone.
            let _ = self.waker.wake();
        }
    }

    /// Returns how long the thread may sleep; `None` until it is woken.
    fn sleep_limit(&self) -> Option<Duration> {
        let mut state = self.state();
        if !state.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        state.asleep = true;
        let next = state.timers.first_key_value().map(|((at, _), _)| *at);
        next.map(|at| at.since(self.clock.now()))
    }

    /// Wakes the futures whose socket is ready or whose deadline has passed.
    fn wake_ready(&self, events: &mio::Events) {
        let mut woken = Vec::new();
        let mut state = self.state();
        state.asleep = false;
        for event in events {
            // A spurious wake-up does no harm.
            let wakers = state.sockets.get_mut(&event.token().0);
            woken.extend(wakers.into_iter().flatten().filter_map(Option::take));
        }
        let later = state.timers.split_off(&(self.clock.now(), usize::MAX));
        woken.extend(core::mem::replace(&mut state.timers, later).into_values());
        // A waker may run arbitrary code, so release the mutex first.
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

struct TaskWaker {
    id: usize,
    reactor: Arc<Reactor>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.reactor.wake(self.id);
    }
}

/// [`Host`] for an [`Executor`].
#[derive(Clone)]
pub struct OwnHost(Arc<Reactor>);

impl Host for OwnHost {
    type Clock = BootClock;
    type Stream = Stream;
    type Resolve = BoxFuture<Vec<SocketAddr>>;
    type Connect = BoxFuture<Stream>;
    type Sleep = Sleep;

    fn clock(&self) -> BootClock {
        self.0.clock
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        let host = host.to_owned();
        call_on_thread(move || Ok((host, port).to_socket_addrs()?.collect()))
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        Box::pin(Stream::connect(Arc::clone(&self.0), address.clone()))
    }

    fn sleep(&self, time: Duration) -> Sleep {
        Sleep { at: self.0.clock.now() + time, id: self.0.next_id(), reactor: Arc::clone(&self.0) }
    }
}

/// Completes at a deadline.
pub struct Sleep {
    at: Instant,
    id: usize,
    reactor: Arc<Reactor>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.reactor.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let _old = self.reactor.state().timers.insert((self.at, self.id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let _waker = self.reactor.state().timers.remove(&(self.at, self.id));
    }
}
