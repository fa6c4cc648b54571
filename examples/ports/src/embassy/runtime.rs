//! embassy's executor with sockets and timers, all on one thread.

use core::cell::{Cell, RefCell};
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Wake;

use embassy_executor::raw::TaskStorage;
use embassy_executor::{Executor, Spawner};
use lock_driver::BootClock;
use lock_proto::Instant;
use mio::event::Source;

use super::Embassy;
use crate::LocalBoxFuture;

/// An executor of embassy with sockets and timers.
pub struct Runtime {
    reactor: Rc<Reactor>,
    spawner: Cell<Option<Spawner>>,
    /// The tasks, so that they can be dropped: embassy keeps unfinished tasks for ever.
    tasks: RefCell<Vec<Weak<Task>>>,
}

type Task = RefCell<Option<LocalBoxFuture<()>>>;

impl Runtime {
    /// Creates a runtime without tasks.
    ///
    /// # Errors
    ///
    /// The system denies the resources for `mio`.
    pub fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let signal = Signal { raised: AtomicBool::new(false), waker: mio::Waker::new(poll.registry(), mio::Token(0))? };
        let reactor = Reactor {
            clock: BootClock::new(),
            poll: poll.into(),
            signal: Arc::new(signal),
            sockets: RefCell::default(),
            timers: RefCell::default(),
            last_id: Cell::default(),
            idle: RefCell::new(Waker::noop().clone()),
        };
        Ok(Self { reactor: Rc::new(reactor), spawner: Cell::new(None), tasks: RefCell::default() })
    }

    /// The host of a driver.
    #[must_use]
    pub fn host(&self) -> Embassy {
        Embassy(Rc::clone(&self.reactor))
    }

    /// Runs this future and all tasks until the future completes. To be called once, because an
    /// executor of embassy lives for ever.
    ///
    /// # Panics
    ///
    /// The system cannot poll.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let executor = Box::leak(Box::new(Executor::new()));
        let (mut future, mut output) = (pin!(future), None);
        let waker = Waker::from(Arc::clone(&self.reactor.signal));
        let start = |spawner| {
            self.spawner.set(Some(spawner));
            let reactor = Rc::clone(&self.reactor);
            self.start(poll_fn(move |cx| {
                reactor.idle.replace(cx.waker().clone());
                Poll::Pending
            }));
        };
        executor.run_until(start, || {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                output = Some(done);
                return true;
            }
            self.reactor.wait();
            false
        });
        output.expect("it runs until there is one")
    }

    /// Starts a task. Called inside [`block_on`](Self::block_on).
    ///
    /// # Panics
    ///
    /// Called elsewhere.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let task: Rc<Task> = Rc::new(RefCell::new(Some(Box::pin(task))));
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| task.strong_count() > 0);
        tasks.push(Rc::downgrade(&task));
        drop(tasks);
        let signal = Arc::clone(&self.reactor.signal);
        let mut waker = None;
        self.start(poll_fn(move |cx| {
            // One for all polls, so that the reactor recognizes it.
            let waker = &*waker.get_or_insert_with(|| {
                Waker::from(Arc::new(TaskWaker { task: cx.waker().clone(), signal: Arc::clone(&signal) }))
            });
            let poll = |task: &mut LocalBoxFuture<()>| task.as_mut().poll(&mut Context::from_waker(waker));
            task.borrow_mut().as_mut().map_or(Poll::Ready(()), poll)
        }));
    }

    fn start(&self, task: impl Future<Output = ()> + 'static) {
        let storage = Box::leak(Box::new(TaskStorage::new()));
        self.spawner.get().expect("inside `block_on`").spawn(storage.spawn(|| task).expect("a new storage"));
        Arc::clone(&self.reactor.signal).wake();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.tasks.take().iter().filter_map(Weak::upgrade).for_each(|task| drop(task.take()));
    }
}

/// Wakes the thread while it waits for sockets.
struct Signal {
    raised: AtomicBool,
    waker: mio::Waker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        if !self.raised.swap(true, Ordering::SeqCst) {
            // Fails only if the reactor is gone.
            let _ = self.waker.wake();
        }
    }
}

/// Wakes a task, and the thread: embassy alone does not know that it waits for sockets.
struct TaskWaker {
    task: Waker,
    signal: Arc<Signal>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.task.wake_by_ref();
        Arc::clone(&self.signal).wake();
    }
}

/// Sockets and timers.
pub(super) struct Reactor {
    pub(super) clock: BootClock,
    poll: RefCell<mio::Poll>,
    signal: Arc<Signal>,
    /// Tasks that wait for a socket. All are woken by any of them; there are few.
    sockets: RefCell<Vec<Waker>>,
    timers: RefCell<BTreeMap<(Instant, usize), Waker>>,
    last_id: Cell<usize>,
    /// Makes the executor run once more. Without it, embassy waits for a task to be woken.
    idle: RefCell<Waker>,
}

impl Reactor {
    fn next_id(&self) -> usize {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// Waits until a task is woken.
    fn wait(&self) {
        let mut events = mio::Events::with_capacity(64);
        while !self.signal.raised.swap(false, Ordering::SeqCst) {
            let next = self.timers.borrow().first_key_value().map(|((at, _), _)| at.since(self.clock.now()));
            match self.poll.borrow_mut().poll(&mut events, next) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => panic!("cannot wait: {error}"),
                Ok(()) | Err(_) => {}
            }
            if events.iter().any(|event| event.token() != mio::Token(0)) {
                self.sockets.take().into_iter().for_each(Waker::wake);
            }
            let later = self.timers.borrow_mut().split_off(&(self.clock.now(), usize::MAX));
            self.timers.replace(later).into_values().for_each(Waker::wake);
        }
        self.idle.borrow().wake_by_ref();
    }
}

/// A socket in the reactor.
pub(super) struct Registered<S: Source> {
    socket: S,
    reactor: Rc<Reactor>,
}

impl<S: Source> Registered<S> {
    pub(super) fn new(reactor: Rc<Reactor>, mut socket: S) -> io::Result<Self> {
        let (token, interests) = (mio::Token(reactor.next_id()), mio::Interest::READABLE | mio::Interest::WRITABLE);
        reactor.poll.borrow().registry().register(&mut socket, token, interests)?;
        Ok(Self { socket, reactor })
    }

    /// Attempts an operation, again whenever a socket is ready. No event is lost in between: the
    /// same thread reads them.
    pub(super) fn attempt<T>(
        &mut self,
        cx: &Context<'_>,
        attempt: impl FnOnce(&mut S) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        match attempt(&mut self.socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut waiting = self.reactor.sockets.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
            done => Poll::Ready(done),
        }
    }
}

impl<S: Source> Drop for Registered<S> {
    fn drop(&mut self) {
        let _ = self.reactor.poll.borrow().registry().deregister(&mut self.socket);
    }
}

/// Completes at a deadline.
pub struct Sleep {
    at: Instant,
    id: usize,
    reactor: Rc<Reactor>,
}

impl Sleep {
    pub(super) fn new(reactor: Rc<Reactor>, time: Duration) -> Self {
        Self { at: reactor.clock.now() + time, id: reactor.next_id(), reactor }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.reactor.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let _old = self.reactor.timers.borrow_mut().insert((self.at, self.id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let _waker = self.reactor.timers.borrow_mut().remove(&(self.at, self.id));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::io::Read as _;

    use mio::net::UnixStream;

    use super::*;

    #[test]
    fn socket_keeps_one_waker_of_task_and_runtime_no_ended_task() {
        let runtime = Runtime::new().unwrap();
        let polls = Rc::new(Cell::new(0));
        let (socket, _peer) = UnixStream::pair().unwrap();
        let mut socket = Registered::new(Rc::clone(&runtime.reactor), socket).unwrap();
        runtime.block_on(async {
            let of_task = Rc::clone(&polls);
            runtime.spawn(poll_fn(move |cx| {
                assert!(socket.attempt(cx, |socket| socket.read(&mut [0])).is_pending());
                cx.waker().wake_by_ref();
                of_task.set(of_task.get() + 1);
                if of_task.get() < 8 { Poll::Pending } else { Poll::Ready(()) }
            }));
            poll_fn(|_| if polls.get() < 8 { Poll::Pending } else { Poll::Ready(()) }).await;
            assert_eq!(runtime.reactor.sockets.borrow().len(), 1);
            assert_eq!(Rc::strong_count(&polls), 1, "the task was dropped");
            runtime.spawn(async {});
            assert_eq!(runtime.tasks.borrow().len(), 1);
        });
    }
}
