//! Methods that block the calling thread, for programs without async. The driver runs elsewhere.
//!
//! Each does what the async method of the same name does, and is cancelled by nothing but the end
//! of the client: [`Client::shutdown_blocking`] on another thread ends all waits.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::thread::{self, Thread};

use bytes::Bytes;

use super::acquire_error::AcquireError;
use super::client::Client;
use super::election::{Campaigning, Election, ElectionEvent, Leadership, ProclaimError};
use super::guard::{ExtendError, Guard};
use super::lock::{Acquiring, Lock};
use super::observer::Observer;
use super::operation::Observation;
use super::outcome::Shutdown;
use super::shared::Shared;
use lock_proto::{Leader, Loss, Release};

/// The longest sleep with a limit: timers may stop while the computer is suspended.
// T4
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Polls a future on this thread, which parks meanwhile.
struct Parker {
    waker: Waker,
    unpark: Arc<Unpark>,
}

struct Unpark {
    thread: Thread,
    /// Set by a wake-up. What runs within a poll may park the thread too, and so take the wake-up
    /// that the thread itself remembers.
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Parker {
    fn new() -> Self {
        let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
        Self { waker: Arc::clone(&unpark).into(), unpark }
    }

    fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(&self.waker))
    }

    fn is_woken(&self) -> bool {
        self.unpark.woken.swap(false, Ordering::Acquire)
    }
}

/// Blocks the thread until the future is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, parker) = (pin!(future), Parker::new());
    loop {
        if let Poll::Ready(output) = parker.poll(future.as_mut()) {
            return output;
        }
        while !parker.is_woken() {
            thread::park();
        }
    }
}

/// Blocks the thread until the future is ready, at most `limit` by the client's clock.
fn block_within<F: Future>(shared: &Shared, limit: Duration, future: F) -> Option<F::Output> {
    let (mut future, parker) = (pin!(future), Parker::new());
    let end = shared.now() + limit;
    loop {
        // The future may compare the clock too. After a pause, it must do so before the limit
        // counts.
        // T2
        let left = end.since(shared.now());
        if let Poll::Ready(output) = parker.poll(future.as_mut()) {
            return Some(output);
        }
        if left.is_zero() {
            return None;
        }
        if !parker.is_woken() {
            thread::park_timeout(left.min(MAX_SLEEP));
        }
    }
}

/// # Threads without async
///
/// Methods that end in `_blocking` or `_within` block the calling thread, and are for programs
/// without async. They need a client whose driver has a thread of its own, which `connect` of the
/// adapters and [`connect_on_thread`](super::connect_on_thread) give it. Do not call them in async
/// code: a runtime whose thread is blocked runs nothing else. If the driver is a task of that
/// runtime, they may never return, and all locks of the client are lost.
///
/// # Panics
///
/// A client of `lock-tokio` panics in these methods if the calling thread runs async tasks of tokio,
/// as tokio's own blocking methods do. Await the method without the suffix, or call these in
/// `spawn_blocking` or `block_in_place`. Other runtimes cannot tell.
impl Client {
    /// [`ping`](Self::ping), blocking.
    ///
    /// # Errors
    ///
    /// As [`ping`](Self::ping).
    pub fn ping_blocking(&self) -> Result<(), AcquireError> {
        self.owner.shared.assert_may_block();
        block_on(self.ping())
    }

    /// [`shutdown`](Self::shutdown), blocking. The calls that other threads block in end with an
    /// error.
    pub fn shutdown_blocking(&self, within: Duration) -> Shutdown {
        self.owner.shared.assert_may_block();
        block_on(self.shutdown(within))
    }
}

impl Lock {
    /// [`acquire`](Self::acquire), blocking. See [`Client`] for where this may be called.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_blocking(&self) -> Result<Guard, AcquireError> {
        self.owner.shared.assert_may_block();
        block_on(self.acquire())
    }

    /// [`try_acquire`](Self::try_acquire), blocking until the attempt is answered.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_blocking(&self) -> Result<Guard, AcquireError> {
        self.owner.shared.assert_may_block();
        block_on(self.try_acquire())
    }
}

impl Acquiring {
    /// Blocks until the lock is acquired, as [`Lock::acquire_blocking`]. For acquisitions with
    /// [`on_blocked`](Self::on_blocked).
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    pub fn acquire_blocking(self) -> Result<Guard, AcquireError> {
        self.lock.owner.shared.assert_may_block();
        block_on(self)
    }
}

impl Guard {
    /// Blocks until the lock is lost, and returns the reason. `None` if it is still held after
    /// `limit`.
    ///
    /// For work on another thread than the one that waits, see [`observer`](Self::observer).
    #[must_use]
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        self.hold.owner.shared.assert_may_block();
        block_within(&self.hold.owner.shared, limit, self.lost())
    }

    /// [`extend`](Self::extend), blocking.
    ///
    /// # Errors
    ///
    /// As [`extend`](Self::extend).
    pub fn extend_blocking(&self) -> Result<(), ExtendError> {
        self.hold.owner.shared.assert_may_block();
        block_on(self.extend())
    }

    /// [`release`](Self::release), blocking until its outcome is known, or `release_within` of the
    /// configuration has passed, which is 2 seconds by default.
    pub fn release_blocking(self) -> Release {
        self.hold.owner.shared.assert_may_block();
        block_on(self.release())
    }
}

impl Observer {
    /// [`lost`](Self::lost), blocking.
    #[must_use]
    pub fn lost_blocking(&self) -> Option<Loss> {
        self.shared.assert_may_block();
        block_on(self.lost())
    }

    /// Blocks until renewals fail and the end of validity is near, or the hold has ended, as
    /// [`at_risk`](Self::at_risk). Returns false if neither was the case within `limit`.
    #[must_use]
    pub fn at_risk_within(&self, limit: Duration) -> bool {
        self.shared.assert_may_block();
        block_within(&self.shared, limit, self.at_risk()).is_some()
    }
}

impl Election {
    /// [`campaign`](Self::campaign), blocking until elected. See [`Client`] for where this may be
    /// called.
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign).
    pub fn campaign_blocking(&self, value: impl Into<Bytes>) -> Result<Leadership, AcquireError> {
        self.lock.owner.shared.assert_may_block();
        block_on(self.campaign(value))
    }

    /// [`leader`](Self::leader), blocking.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn leader_blocking(&self) -> Result<Option<Leader>, AcquireError> {
        self.lock.owner.shared.assert_may_block();
        block_on(self.leader())
    }
}

impl Campaigning {
    /// Blocks until elected, as [`Election::campaign_blocking`]. For candidacies with
    /// [`on_blocked`](Self::on_blocked).
    ///
    /// # Errors
    ///
    /// As [`Election::campaign`].
    pub fn campaign_blocking(self) -> Result<Leadership, AcquireError> {
        self.0.lock.owner.shared.assert_may_block();
        block_on(self)
    }
}

impl Leadership {
    /// [`proclaim`](Self::proclaim), blocking.
    ///
    /// # Errors
    ///
    /// As [`proclaim`](Self::proclaim).
    pub fn proclaim_blocking(&mut self, value: impl Into<Bytes>) -> Result<i64, ProclaimError> {
        self.guard.hold.owner.shared.assert_may_block();
        block_on(self.proclaim(value))
    }

    /// [`resign`](Self::resign), blocking until its outcome is known.
    pub fn resign_blocking(self) -> Release {
        self.guard.hold.owner.shared.assert_may_block();
        block_on(self.resign())
    }
}

impl Observation {
    /// [`next`](Self::next), blocking.
    #[must_use]
    pub fn next_blocking(&mut self) -> Option<ElectionEvent> {
        self.0.owner.shared.assert_may_block();
        block_on(self.next())
    }
}
