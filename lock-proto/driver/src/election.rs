//! Handles of elections: campaign, lead, observe.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use bytes::Bytes;

use super::acquire_error::{AcquireError, AcquireErrorKind};
use super::client::Client;
use super::engine::Engine;
use super::guard::{Guard, Hold, Releasing};
use super::lock::{Acquiring, Lock};
use super::name::Name;
use super::operation::{Observation, Running};
use super::resign::StopRequest;
use super::shared::Core;
use lock_proto::Misuse;
use lock_proto::{Blocked, Elections, Failure, Leader, Loss, Operation, OperationEvent, Renew, Report};

impl Client {
    /// The election of this name, 1 to 512 bytes. On etcd in one queue with `etcdctl elect` and the
    /// Go concurrency package, on ZooKeeper with Curator's `LeaderLatch`.
    ///
    /// Sends nothing. On a store without elections, such as Redis, all its methods fail
    /// with [`AcquireErrorKind::NoElections`].
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election { lock: Lock::new(&self.owner, "election", name.as_ref()) }
    }
}

/// An election. Reusable. Needs etcd or ZooKeeper.
///
/// ```
/// use lock_tokio::{AcquireError, Client, ElectionEvent};
///
/// async fn follow(client: &Client) -> Result<(), AcquireError> {
///     let election = client.election("scheduler");
///     if let Some(leader) = election.leader().await? {
///         println!("now: {:?}", leader.value);
///     }
///     let mut observation = election.observe()?;
///     while let Some(event) = observation.next().await {
///         match event {
///             ElectionEvent::Leader(leader) => println!("leads: {:?}", leader.value),
///             ElectionEvent::NoLeader => println!("nobody leads"),
///             other => println!("{other:?}"),
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
#[must_use = "an election does nothing until one of its methods is awaited"]
pub struct Election {
    pub(super) lock: Lock,
}

impl Election {
    /// Sets the TTL: how long the leadership outlives its last renewal. Default: the TTL of the
    /// client's session. A candidacy with its own TTL has its own session. Ranges as for
    /// [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets how long to wait while another leads. Zero makes one attempt. Default: no limit.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// Waits without limit. This is the default.
    pub fn wait_forever(mut self) -> Self {
        self.lock = self.lock.wait_forever();
        self
    }

    /// Sets who renews the leadership. Default: [`Renew::Auto`]. With another value it has its own
    /// session.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.lock = self.lock.renew(renew);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.lock.name()
    }

    /// Stands for election, and waits until elected. Observers then see `value`, of at most
    /// 1,000,000 bytes.
    ///
    /// # Errors
    ///
    /// Resolves to an [`AcquireError`] if the candidate was not elected. What it left on the
    /// servers is removed in the background.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]: dropping the future at any point withdraws the candidacy, in the
    /// background.
    pub fn campaign(&self, value: impl Into<Bytes>) -> Campaigning {
        let mut standing = Acquiring::new(&self.lock);
        standing.value = Some(copied(value));
        Campaigning(standing)
    }

    /// Returns the current leader, if there is one.
    ///
    /// # Errors
    ///
    /// [`AcquireError::is_unreachable`] if no server answered within the setting `release_within`
    /// (2 s by default), [`AcquireError::is_refused`] if they refuse. Otherwise the request is
    /// invalid, the client is shutting down, or the store has no elections.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn leader(&self) -> Result<Option<Leader>, AcquireError> {
        let question = self.start(Operation::Leader)?;
        loop {
            match question.next().await {
                Some(OperationEvent::Leader(leader)) => return Ok(Some(leader)),
                Some(OperationEvent::NoLeader | OperationEvent::Done) => return Ok(None),
                // The machine retries.
                Some(OperationEvent::Disconnected) => {}
                Some(OperationEvent::Failed(failure)) => {
                    return Err(self.lock.error(AcquireErrorKind::from(failure).once()));
                }
                None => return Err(self.lock.error(AcquireErrorKind::Forked)),
            }
        }
    }

    /// Observes who leads, from now on.
    ///
    /// # Errors
    ///
    /// The request is invalid, the client is shutting down, or the store has no elections. The
    /// observation reports errors of the servers.
    pub fn observe(&self) -> Result<Observation, AcquireError> {
        self.start(Operation::Observe).map(Observation)
    }

    /// The [failure](ElectionEvent::Failed) of an observation, as an error that names the election
    /// and its servers.
    #[must_use]
    pub fn error(&self, failure: Failure) -> AcquireError {
        self.lock.error(failure.into())
    }

    fn start(&self, operation: fn(Bytes) -> Operation) -> Result<Running, AcquireError> {
        let name = Bytes::copy_from_slice(self.lock.name());
        Running::start(&self.lock.owner, operation(name)).map_err(|kind| self.lock.error(kind))
    }
}

/// Event of an [`Observation`] of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ElectionEvent {
    /// This candidate leads, with this value. Emitted again when the value changes.
    Leader(Leader),
    /// There is no leader. Also emitted while the oldest key of the election belongs to no
    /// candidate, such as one of the election `name/other`, because no candidate can be elected
    /// behind it.
    NoLeader,
    /// The server is currently unreachable, so the last report may be out of date. Emitted once the
    /// connection has ended. A silent connection ends after `ping_after` and `ping_timeout` (13 s)
    /// on etcd, and after two thirds of a tick and the request timeout (4 s) on ZooKeeper.
    Disconnected,
    /// The observation cannot continue. Last event.
    Failed(Failure),
}

impl<E: Engine + ?Sized> Core<E> {
    /// Calls the machine, if its store has elections.
    pub(super) fn with_elections<R>(
        &mut self,
        f: impl FnOnce(&mut dyn Elections) -> Result<R, Misuse>,
    ) -> Result<R, AcquireErrorKind> {
        if self.is_closed() {
            return Err(AcquireErrorKind::ShutDown);
        }
        Ok(f(self.engine.machine_mut().elections().ok_or(AcquireErrorKind::NoElections)?)?)
    }
}

/// Copies the value. The machine must not drop a value whose owner may be a guard.
fn copied(value: impl Into<Bytes>) -> Bytes {
    Bytes::copy_from_slice(&value.into())
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &Name(self.name())).finish_non_exhaustive()
    }
}

/// The future of [`Election::campaign`]. Dropping it withdraws the candidacy.
#[must_use = "futures do nothing unless polled"]
pub struct Campaigning(pub(super) Acquiring);

impl Campaigning {
    /// Why the candidate is still waiting, if known.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.0.blocked()
    }

    /// Calls `f` whenever the reason for waiting changes, from within the poll of this future.
    pub fn on_blocked(self, f: impl FnMut(Blocked) + Send + 'static) -> Self {
        Self(self.0.on_blocked(f))
    }
}

impl Future for Campaigning {
    type Output = Result<Leadership, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_guard(cx).map_ok(Leadership::new)
    }
}

impl fmt::Debug for Campaigning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaigning").field("blocked", &self.blocked()).finish_non_exhaustive()
    }
}

/// The leadership of an election, held now or until it was lost.
///
/// Dereferences to its [`Guard`]: [`is_held`](Guard::is_held), [`lost`](Guard::lost),
/// [`fence`](Guard::fence) and the rest. Dropping it resigns in the background.
///
/// ```
/// use lock_tokio::{AcquireError, Client};
///
/// async fn schedule(client: &Client) -> Result<(), AcquireError> {
///     // Waits until elected.
///     let leadership = client.election("scheduler").campaign("host-1").await?;
///     // To stop the work from elsewhere, such as at a signal.
///     let resign = leadership.resign_handle();
///     # drop(resign);
///     let end = leadership
///         .lead(|stop| async move {
///             while !stop.is_raised() {
///                 // … one step of the work; then it resigns
///                 # break;
///             }
///         })
///         .await;
///     println!("{:?}, resigned: {:?}", end.output, end.release);
///     Ok(())
/// }
/// ```
#[must_use = "dropping it resigns"]
pub struct Leadership {
    pub(super) guard: Guard,
    pub(super) stop: Arc<StopRequest>,
}

impl Leadership {
    fn new(guard: Guard) -> Self {
        Self { guard, stop: Arc::default() }
    }

    /// Changes the value that observers see, to one of at most 1,000,000 bytes. Returns the
    /// revision of etcd at which it changed, or the transaction id (`mzxid`) of ZooKeeper.
    ///
    /// # Errors
    ///
    /// [`ProclaimError::Failed`] if no server confirmed it within the setting `release_within`
    /// (2 s by default): the value may have changed or not, and another call may succeed.
    /// [`ProclaimError::Lost`] if the leadership is lost.
    ///
    /// # Cancel safety
    ///
    /// The request begins at the first poll. Dropping the future does not undo it.
    pub async fn proclaim(&mut self, value: impl Into<Bytes>) -> Result<i64, ProclaimError> {
        let hold: &Hold = &self.guard.hold;
        let ticket = &hold.ticket;
        let value = copied(value);
        let result = hold.owner.shared.verb(|core, now, batch| {
            // An overdue answer to an earlier proclamation must not be taken for this one's.
            core.expire_timers(now, batch);
            let before = ticket.proclamations();
            core.with_elections(|elections| elections.proclaim(now, ticket.lock, value)).map(|()| before)
        });
        let before = match result {
            Some(Ok(before)) => before,
            None => return Err(ProclaimError::Lost(Loss::ShutDown)),
            Some(Err(error)) => {
                return Err(match (hold.loss(), error) {
                    (Some(loss), _) => ProclaimError::Lost(loss),
                    (None, AcquireErrorKind::Misuse(misuse)) => ProclaimError::Misuse(misuse),
                    (None, _) => ProclaimError::Misuse(Misuse::NotHeld(ticket.lock)),
                });
            }
        };
        let answer = hold.answer(|| ticket.proclamation(before)).await;
        answer.map_err(ProclaimError::Lost)?.map_err(ProclaimError::Failed)
    }

    /// Resigns, and returns the outcome, as [`Guard::release`]. To let work complete first, see
    /// [`lead`](Self::lead).
    ///
    /// # Cancel safety
    ///
    /// Resigning begins with the call, and continues in the background if the future is dropped.
    pub fn resign(self) -> Releasing {
        self.guard.release()
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// Error of [`Leadership::proclaim`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// The leadership is lost.
    #[error("the leadership is lost: {0}")]
    Lost(Loss),
    /// The request was not confirmed in time. The value may have changed or not.
    #[error("not confirmed: {0}")]
    Failed(Report),
    /// The request is invalid.
    #[error(transparent)]
    Misuse(Misuse),
}
