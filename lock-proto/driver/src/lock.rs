//! The builder of a lock, and the future that waits for it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use super::acquire_error::{AcquireError, AcquireErrorKind};
use super::guard::{Guard, Hold};
use super::name::Name;
use super::shared::Owner;
use super::ticket::{Progress, Ticket};
use lock_proto::Instant;
use lock_proto::{Acquire, Blocked, Fence, Renew, Wait};

/// Builder for acquisitions of one lock. Reusable.
///
/// ```
/// # use std::time::Duration;
/// use lock_tokio::{AcquireError, Client, Guard, Renew};
///
/// async fn invoice(client: &Client, number: u32) -> Result<Guard, AcquireError> {
///     let lock = client
///         .lock(format!("invoice:{number}"))
///         .ttl(Duration::from_secs(5)) // how long others wait after a crash of the holder
///         .wait(Duration::from_secs(2)) // how long to wait for another holder
///         .renew(Renew::AtMost(Duration::from_secs(60))); // ends the lock of work that hangs
///     lock.acquire().await
/// }
/// ```
#[derive(Clone)]
#[must_use = "a lock is taken by `acquire().await`"]
pub struct Lock {
    pub(super) owner: Arc<Owner>,
    /// "lock" or "election", for error messages.
    what: &'static str,
    name: Arc<[u8]>,
    ttl: Option<Duration>,
    wait: Wait,
    renew: Renew,
}

impl Lock {
    pub(super) fn new(owner: &Arc<Owner>, what: &'static str, name: &[u8]) -> Self {
        Self { owner: Arc::clone(owner), what, name: name.into(), ttl: None, wait: Wait::Forever, renew: Renew::Auto }
    }

    /// Sets the TTL: how long the lock outlives its last renewal. From 50 ms to 30 days; Redis
    /// rounds it up to milliseconds, etcd to seconds, at least 2 s with its default settings.
    /// ZooKeeper needs at least five ticks.
    ///
    /// Default: 10 s on Redis; on etcd and ZooKeeper the TTL of the client's session (10 s, 15 s),
    /// which all locks without their own TTL share. There, a lock with another TTL has a lease of
    /// its own (etcd), or a session and a connection of its own (ZooKeeper), and no local
    /// hand-over. The setting `session_ttl` changes the TTL of all locks. Does not change who
    /// renews.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long to wait while another holds the lock, or no server answers. Independent of the
    /// TTL. Zero makes one attempt. Default: no limit.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Wait::For(wait).or_try();
        self
    }

    /// Waits without limit. This is the default.
    pub const fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// Sets who renews the lock. Default: [`Renew::Auto`].
    pub const fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Acquires the lock. A lock is not reentrant: a second acquisition of the same name waits,
    /// even in the same task.
    ///
    /// # Errors
    ///
    /// Resolves to an [`AcquireError`] if the lock was not acquired. What it left on the servers is
    /// removed in the background.
    ///
    /// # Cancel safety
    ///
    /// Nothing happens before the first poll. Dropping the future at any point cancels the
    /// acquisition: requests that were sent are undone in the background, even if their replies
    /// come later. If a granted lock's future is not polled, the grant is withdrawn after a third
    /// of the TTL (on ZooKeeper, of the validity), so a future parked in a `select!` blocks nobody.
    /// If it is polled again, it queues again, for the rest of its wait.
    pub fn acquire(&self) -> Acquiring {
        Acquiring::new(self)
    }

    /// Makes exactly one attempt, or none if the lock is held or waited for in this client. It ends
    /// the pause after a failed connection, and connects. Only within some milliseconds after that
    /// failure (`reconnect.every` in the settings) it fails with the same reason.
    ///
    /// # Errors
    ///
    /// An error whose [`is_busy`](AcquireError::is_busy) is true if another holder or waiter has
    /// the lock; otherwise as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire). A grant that is withdrawn because the future was not polled
    /// is an error.
    pub fn try_acquire(&self) -> Acquiring {
        let mut once = Acquiring::new(self);
        once.lock.wait = Wait::Try;
        once
    }

    pub(super) fn error(&self, kind: AcquireErrorKind) -> AcquireError {
        self.owner.shared.error(kind, self.what, &self.name)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &Name(&self.name))
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("renew", &self.renew)
            .finish_non_exhaustive()
    }
}

/// The future of [`Lock::acquire`] and [`Lock::try_acquire`]. Dropping it cancels the acquisition.
///
/// Once it has completed it stays pending, as a fused future does: `select!` in a loop may go on
/// polling it, and acquires nothing more.
#[must_use = "futures do nothing unless polled"]
pub struct Acquiring {
    pub(super) lock: Lock,
    /// The value that a candidate proclaims.
    pub(super) value: Option<bytes::Bytes>,
    /// The first poll, from which the wait counts.
    since: Option<Instant>,
    ticket: Option<Arc<Ticket>>,
    on_blocked: Option<Box<dyn FnMut(Blocked) + Send>>,
    /// The reason for waiting that `on_blocked` knows.
    reported: Option<Blocked>,
    completed: bool,
}

impl Acquiring {
    pub(super) fn new(lock: &Lock) -> Self {
        let lock = lock.clone();
        Self { lock, value: None, since: None, ticket: None, on_blocked: None, reported: None, completed: false }
    }

    /// Why the acquisition is still waiting, if known.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.ticket.as_ref()?.blocked(self.lock.owner.shared.is_forked())
    }

    /// Calls `f` whenever the reason for waiting changes, from within the poll of this future.
    ///
    /// ```
    /// # use lock_driver::{AcquireError, Client};
    /// # async fn example(client: Client) -> Result<(), AcquireError> {
    /// let acquiring = client.lock("job").acquire();
    /// let guard = acquiring.on_blocked(|why| println!("waiting: {why}")).await?;
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn on_blocked(mut self, f: impl FnMut(Blocked) + Send + 'static) -> Self {
        self.on_blocked = Some(Box::new(f));
        self
    }

    fn report_blocked(&mut self) {
        let Some(f) = &mut self.on_blocked else { return };
        let why = self.ticket.as_ref().and_then(|ticket| ticket.blocked(false));
        if why != self.reported {
            self.reported = why;
            why.map(f);
        }
    }

    fn start(&mut self) -> Result<Arc<Ticket>, AcquireErrorKind> {
        let Lock { owner, name, ttl, wait, renew, .. } = &self.lock;
        let request = Acquire { name: Arc::clone(name), ttl: *ttl, wait: Wait::Forever, renew: *renew };
        let value = self.value.clone();
        let since = &mut self.since;
        let ticket = owner.shared.verb(|core, now, batch| {
            let since = *since.get_or_insert(now);
            let wait = match *wait {
                Wait::For(limit) => Wait::For((since + limit).since(now)),
                Wait::Try => Wait::Try,
                Wait::Forever => Wait::Forever,
            };
            let request = request.wait(wait);
            core.begin(now, name, batch, |core| match value {
                None => Ok(core.engine.machine_mut().acquire(now, &request)?),
                Some(value) => core.with_elections(|elections| elections.campaign(now, &request, value)),
            })
        });
        ticket.unwrap_or(Err(AcquireErrorKind::Forked))
    }

    fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.lock.owner.shared.verb_of_drop(|core, now, batch| core.abandon(now, &ticket, batch));
        }
    }
}

impl Future for Acquiring {
    type Output = Result<Guard, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_guard(cx)
    }
}

impl Acquiring {
    pub(super) fn poll_guard(&mut self, cx: &Context<'_>) -> Poll<Result<Guard, AcquireError>> {
        if self.completed {
            return Poll::Pending;
        }
        let result = self.poll_acquisition(cx);
        self.completed = result.is_ready();
        result
    }

    fn poll_acquisition(&mut self, cx: &Context<'_>) -> Poll<Result<Guard, AcquireError>> {
        let this = self;
        if this.lock.owner.shared.is_forked() {
            return Poll::Ready(Err(this.lock.error(AcquireErrorKind::Forked)));
        }
        loop {
            let Some(ticket) = &this.ticket else {
                this.ticket = Some(this.start().map_err(|kind| this.lock.error(kind))?);
                continue;
            };
            match ticket.poll_progress(cx) {
                Progress::Waiting => {
                    this.report_blocked();
                    return Poll::Pending;
                }
                Progress::Offered => {
                    let Lock { owner, ttl, .. } = &this.lock;
                    let claimed = owner
                        .shared
                        .verb(|core, now, _| core.claim(now, ticket).then(|| core.first_other_ttl(ticket, *ttl)));
                    let claimed = claimed.ok_or_else(|| this.lock.error(AcquireErrorKind::Forked))?;
                    if let Some(other_ttl) = claimed {
                        if let Some(requested) = other_ttl {
                            tracing::warn!(
                                lock = %Name(&ticket.name),
                                ?requested,
                                granted = ?ticket.terms().ttl,
                                "the store granted another TTL; this is not logged again"
                            );
                        }
                        tracing::debug!(
                            lock = %Name(&ticket.name),
                            fence = ticket.terms().fence().map(Fence::get),
                            "lock granted"
                        );
                        let hold = Hold::new(Arc::clone(owner), Arc::clone(ticket));
                        this.ticket = None;
                        return Poll::Ready(Ok(Guard::new(hold)));
                    }
                }
                Progress::Withdrawn => {}
                Progress::Failed(mut failure) => {
                    if let (Some(report), Some(since)) = (failure.report_mut(), this.since) {
                        // The machine counts anew after a withdrawn offer.
                        report.waited = this.lock.owner.shared.now().since(since);
                    }
                    this.ticket = None;
                    let kind = AcquireErrorKind::from(failure);
                    let kind = if this.lock.wait == Wait::Try { kind.once() } else { kind };
                    return Poll::Ready(Err(this.lock.error(kind)));
                }
            }
            // The offer was withdrawn: this future was not polled in time.
            this.cancel();
            match this.lock.wait {
                Wait::Try => return Poll::Ready(Err(this.lock.error(AcquireErrorKind::Withdrawn))),
                Wait::For(_) | Wait::Forever => {}
            }
        }
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").field("lock", &self.lock).field("blocked", &self.blocked()).finish_non_exhaustive()
    }
}
