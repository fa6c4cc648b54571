//! The guard of a held lock.

use alloc::sync::Arc;
use core::fmt;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;

use super::name::Name;
use super::observer::Observer;
use super::shared::Owner;
use super::ticket::{HoldState, Ticket, locked, wait_for};
use lock_proto::Instant;
use lock_proto::Misuse;
use lock_proto::{Fence, Loss, Release, Report, Token};

/// A lock that is held, or was held until it was lost.
///
/// Dropping the guard releases the lock in the background, without blocking, on any thread and
/// outside of runtimes too. Use [`release`](Self::release) to learn the outcome. A guard may move
/// between tasks and threads.
///
/// ```
/// use lock_tokio::{Guard, Loss, Release};
///
/// # async fn write(_: Option<u64>) {}
/// async fn pay(guard: Guard) -> Result<(), Loss> {
///     let fence = guard.fence().map(|fence| fence.get());
///     // The resource refuses the write if it has seen a greater fencing token.
///     let done = guard.protect(write(fence)).await;
///     if done.release != Release::Released {
///         println!("others may have to wait for the TTL: {:?}", done.release);
///     }
///     done.output // an error if the lock was lost, and the write was cancelled
/// }
///
/// async fn pay_in_steps(guard: Guard) {
///     for step in 1..=3 {
///         if !guard.is_held() {
///             return; // lost: another may hold it
///         }
///         println!("step {step}");
///     }
///     guard.release().await;
/// }
/// ```
///
/// The driver sends the release. If the program ends right after the drop, as at the end of `main`,
/// or the runtime of a driver that was spawned, the request may never leave, and the lock stays
/// until its TTL ends. Await [`release`](Self::release), or
/// [`Client::shutdown`](super::Client::shutdown), before that.
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard {
    pub(super) hold: Hold,
}

impl Guard {
    pub(super) const fn new(hold: Hold) -> Self {
        Self { hold }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.hold.ticket.name
    }

    /// Identifies this grant. On Redis it is the value of the key, and a lock that is handed over
    /// within the client keeps it. On etcd and ZooKeeper it is not stored, and each grant has its
    /// own.
    #[must_use]
    pub fn token(&self) -> Token {
        Token { client: self.hold.owner.shared.id, number: self.hold.ticket.terms().number }
    }

    /// The fencing token, for the resource to check. `None` for a quorum, or if fencing is off.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.hold.ticket.terms().fence()
    }

    /// By how much the counter of fencing tokens was ahead of the Redis server's clock at the
    /// grant. `None` unless that clock was set back by a millisecond or more.
    ///
    /// Tokens keep growing as long as the counter exists. If it is evicted, or lost in a restart,
    /// before the clock has caught up, they go back by that amount.
    #[must_use]
    pub fn fence_ahead(&self) -> Option<Duration> {
        self.hold.ticket.terms().fence_ahead()
    }

    /// The granted TTL.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.hold.ticket.terms().ttl
    }

    /// Returns true if the lock is certainly held now. Compares the clock on every call, and does
    /// not depend on the driver having run. Once false, it stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.ticket.is_held(self.hold.now())
    }

    /// How long the lock is certainly held if no further renewal succeeds. Zero after its end.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.ticket.remaining(self.hold.now())
    }

    /// When the lock ends if no further renewal succeeds: now, plus [`remaining`](Self::remaining).
    ///
    /// Each call computes it anew. `std`'s clock may stand still while the system is suspended, so
    /// ask [`is_held`](Self::is_held) rather than compare with an old value.
    #[must_use]
    pub fn valid_until(&self) -> std::time::Instant {
        std::time::Instant::now() + self.remaining()
    }

    /// An observer of this lock, which does not keep it.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer { shared: Arc::clone(&self.hold.owner.shared), ticket: Arc::clone(&self.hold.ticket) }
    }

    /// Waits until the lock is lost, and returns the reason. Never completes otherwise.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> Loss {
        wait_for(&self.hold.ticket.changed, || self.hold.loss()).await
    }

    /// Extends the lock to a full TTL from now on. Needed with
    /// [`Renew::Manual`](lock_proto::Renew::Manual) only.
    ///
    /// `Ok` means that the servers confirmed a request that was sent after this call. A renewal
    /// that was already under way does not count. Concurrent calls are answered separately.
    ///
    /// # Errors
    ///
    /// [`ExtendError::Failed`] if too few servers confirmed it. The lock is still held for the
    /// remaining time, and another call may succeed. [`ExtendError::Lost`] if the lock is lost,
    /// [`ExtendError::Misuse`] if it cannot be extended.
    ///
    /// # Cancel safety
    ///
    /// The request begins at the first poll. Dropping the future does not undo it: the lock may
    /// live longer than the guard reports.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        let Hold { owner, ticket, .. } = &self.hold;
        let result = owner.shared.verb(|core, now, _| core.extend(now, ticket));
        let extension = match result {
            Some(Ok(extension)) => extension,
            None => return Err(ExtendError::Lost(Loss::ShutDown)),
            Some(Err(misuse)) => {
                return Err(self.hold.loss().map_or(ExtendError::Misuse(misuse), ExtendError::Lost));
            }
        };
        let answer = self.hold.answer(|| locked(&extension).take()).await;
        answer.map_err(ExtendError::Lost)?.map_err(ExtendError::Failed)
    }

    /// Runs `work` while the lock is held, then releases the lock.
    ///
    /// If the lock is lost first, `work` is dropped and the output is the reason. The clock is
    /// compared before each poll of `work`, so that after a pause it does not continue with a lock
    /// that has ended. It cannot be stopped between two polls: let it await often, and let the
    /// resource check the [fencing token](Self::fence).
    ///
    /// The output follows the release, which takes up to the setting `release_within` (2 s) if no
    /// server answers. To act on a loss at once, await [`Observer::lost`] in another task.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the lock in the background.
    pub async fn protect<F: Future>(self, work: F) -> Protected<F::Output> {
        let output = self.hold.run(work, || self.hold.loss()).await;
        Protected { output, release: self.release().await }
    }

    /// Releases the lock and returns the outcome: [`Release::Unknown`] if no server confirmed it
    /// within the setting `release_within` (2 s by default). The client keeps trying after that.
    ///
    /// # Cancel safety
    ///
    /// The release begins with the call, and continues in the background if the future is dropped.
    pub fn release(self) -> Releasing {
        let mut hold = self.hold;
        hold.returned = true;
        hold.owner.shared.verb(|core, now, batch| core.release(now, &hold.ticket, batch));
        Releasing { hold }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &Name(self.name()))
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// What [`Guard::protect`] returns: the output of the work, and the outcome of the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the work may have been ended by the loss of the lock"]
pub struct Protected<T> {
    /// The output of the work, or why it was ended.
    pub output: Result<T, Loss>,
    /// The outcome of the release.
    pub release: Release,
}

/// Error of [`Guard::extend`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// Too few servers confirmed the extension. The end of validity has not changed.
    #[error("not extended: {0}")]
    Failed(Report),
    /// The lock cannot be extended.
    #[error(transparent)]
    Misuse(Misuse),
}

/// The future of [`Guard::release`]. The release continues if it is dropped.
#[must_use = "await it to learn the outcome of the release; to ignore the outcome, drop the guard"]
pub struct Releasing {
    hold: Hold,
}

impl Future for Releasing {
    type Output = Release;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Release> {
        let Hold { owner, ticket, .. } = &self.hold;
        // In a forked child there is no answer.
        let released = if owner.shared.is_forked() { Poll::Ready(Release::Unknown) } else { ticket.poll_released(cx) };
        if let Poll::Ready(outcome) = released {
            tracing::debug!(lock = %Name(&ticket.name), ?outcome, "lock released");
        }
        released
    }
}

impl fmt::Debug for Releasing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Releasing").field("name", &Name(&self.hold.ticket.name)).finish_non_exhaustive()
    }
}

/// A claimed lock. Released when dropped.
pub(super) struct Hold {
    pub(super) owner: Arc<Owner>,
    pub(super) ticket: Arc<Ticket>,
    returned: bool,
}

impl Hold {
    pub(super) const fn new(owner: Arc<Owner>, ticket: Arc<Ticket>) -> Self {
        Self { owner, ticket, returned: false }
    }

    pub(super) fn now(&self) -> Instant {
        self.owner.shared.now()
    }

    /// Returns why the lock was lost, if it was.
    pub(super) fn loss(&self) -> Option<Loss> {
        match self.owner.shared.hold_state(&self.ticket) {
            HoldState::Lost(loss) => Some(loss),
            HoldState::Held | HoldState::Returned => None,
        }
    }

    /// Runs `work` until it completes, or until `end` returns a reason to stop. Calls `end` before
    /// each poll of `work` and when the hold has changed.
    pub(super) async fn run<F: Future, E>(&self, work: F, end: impl Fn() -> Option<E>) -> Result<F::Output, E> {
        let mut work = pin!(work);
        let mut ended = pin!(wait_for(&self.ticket.changed, &end));
        poll_fn(|cx| match ended.as_mut().poll(cx) {
            Poll::Ready(end) => Poll::Ready(Err(end)),
            Poll::Pending => work.as_mut().poll(cx).map(Ok),
        })
        .await
    }

    /// Waits for the answer to an extension or a proclamation, or for the loss of the lock.
    pub(super) async fn answer<T>(&self, mut answer: impl FnMut() -> Option<T>) -> Result<T, Loss> {
        wait_for(&self.ticket.extended, || match self.loss() {
            Some(loss) => Some(Err(loss)),
            None => answer().map(Ok),
        })
        .await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.returned {
            self.owner.shared.verb_of_drop(|core, now, batch| core.abandon(now, &self.ticket, batch));
        }
    }
}
