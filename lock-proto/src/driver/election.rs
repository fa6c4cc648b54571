//! Elections: to stand, to lead, to watch who leads.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use bytes::Bytes;

use super::client::Client;
use super::guard::{Guard, Hold, Releasing, loss};
use super::lead::Stop;
use super::lock::{AcquireError, Acquiring, Lock};
use super::query::Observation;
use crate::error::Misuse;
use crate::lock::{Blocked, ElectionEvent, Elections, Leader, Loss, QueryId, Report};
use crate::time::Instant;

impl Client {
    /// The election of this name, 1 to 512 bytes. In one queue with `etcdctl elect` and the Go concurrency package.
    ///
    /// Nothing is sent before something is asked of it. On Redis everything it is asked for fails with
    /// [`AcquireError::NoElections`].
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election { lock: self.lock(name) }
    }
}

/// An election. Can be used again and again.
#[derive(Clone)]
#[must_use = "an election does nothing until it is asked for something"]
pub struct Election {
    lock: Lock,
}

impl Election {
    /// How long the office outlives the last sign of life of the leader. Default: that of the client's session. With one of its own, the
    /// candidacy has a lease of its own as well.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// How long to wait for the office while somebody else leads. Default: for as long as it takes.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.lock.name()
    }

    /// Stands for election, and waits until elected. `value` is what observers then see.
    ///
    /// # Errors
    ///
    /// The future gives an [`AcquireError`] if it was not elected. Nothing of the candidacy is left behind then.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`]: dropping the future at any point withdraws the candidacy, in the background.
    pub fn campaign(&self, value: impl Into<Bytes>) -> Campaigning {
        let mut standing = Acquiring::new(&self.lock);
        standing.value = Some(value.into());
        Campaigning(standing)
    }

    /// Who leads; `None` for nobody.
    ///
    /// # Errors
    ///
    /// No answer within the client's time for a request and its retries, or a refusal.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn leader(&self) -> Result<Option<Leader>, AcquireError> {
        let mut answer = self.ask(|elections, now, name| elections.leader(now, name))?;
        loop {
            match answer.next().await {
                Some(ElectionEvent::Leader(leader)) => return Ok(Some(leader)),
                Some(ElectionEvent::NoLeader) => return Ok(None),
                // It goes on trying.
                Some(ElectionEvent::Disconnected) => {}
                Some(ElectionEvent::Failed(failure)) => return Err(failure.into()),
                None => return Err(AcquireError::ShutDown),
            }
        }
    }

    /// Observes who leads, from now on.
    ///
    /// # Errors
    ///
    /// The wish cannot be carried out, whatever the servers say. What they say comes from the observation.
    pub fn observe(&self) -> Result<Observation, AcquireError> {
        self.ask(|elections, now, name| elections.observe(now, name))
    }

    fn ask(
        &self,
        ask: impl FnOnce(&mut dyn Elections, Instant, &[u8]) -> Result<QueryId, Misuse>,
    ) -> Result<Observation, AcquireError> {
        let owner = &self.lock.owner;
        owner.shared.verb(|core, now, _| {
            let query = core.ask(|elections| ask(elections, now, self.lock.name()))?;
            Ok(Observation::new(owner, &mut core.queries, query))
        })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", &self.name().escape_ascii()).finish_non_exhaustive()
    }
}

/// The future of [`Election::campaign`].
#[must_use = "futures do nothing unless polled"]
pub struct Campaigning(Acquiring);

impl Campaigning {
    /// Why it still waits, as far as is known.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.0.blocked()
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

/// An office that is held, or was until it was lost.
///
/// It is a [`Guard`], and dereferences to it: [`is_held`](Guard::is_held), [`lost`](Guard::lost), [`fence`](Guard::fence) and the rest.
/// Dropping it resigns in the background.
#[must_use = "dropping it resigns"]
pub struct Leadership {
    pub(super) guard: Guard,
    pub(super) stop: Arc<Stop>,
}

impl Leadership {
    fn new(guard: Guard) -> Self {
        Self { guard, stop: Arc::default() }
    }

    /// Changes what observers see. Gives the revision of the store since which the value stands.
    ///
    /// # Errors
    ///
    /// [`ProclaimError::Failed`] if it was not confirmed in time: the value may stand or not, and another try may succeed.
    /// [`ProclaimError::Lost`] if the office is lost.
    ///
    /// # Cancel safety
    ///
    /// The request begins at the first poll. Dropping the future does not take it back.
    pub async fn proclaim(&mut self, value: impl Into<Bytes>) -> Result<i64, ProclaimError> {
        let hold: &Hold = &self.guard.hold;
        let ticket = &hold.ticket;
        let value = value.into();
        let before = ticket.proclamations();
        let asked =
            hold.owner.shared.verb(|core, now, _| core.ask(|elections| elections.proclaim(now, ticket.lock, value)));
        if let Err(error) = asked {
            return Err(match (loss(ticket, hold.now()), error) {
                (Some(loss), _) => ProclaimError::Lost(loss),
                (None, AcquireError::Misuse(misuse)) => ProclaimError::Misuse(misuse),
                (None, _) => ProclaimError::Misuse(Misuse::NotHeld(ticket.lock)),
            });
        }
        let answer = hold.answer(|| ticket.proclamation(before)).await;
        answer.map_err(ProclaimError::Lost)?.map_err(ProclaimError::Failed)
    }

    /// Resigns, and says what became of the office. To let work end first, see [`lead`](Self::lead).
    ///
    /// # Cancel safety
    ///
    /// It begins with the call, and goes on in the background if the future is dropped.
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

/// Why a value was not proclaimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// The office is lost.
    #[error("the office is lost: {0}")]
    Lost(#[source] Loss),
    /// It was not confirmed in time. The value may stand or not.
    #[error("not confirmed: {0}")]
    Failed(Report),
    /// It cannot be proclaimed.
    #[error(transparent)]
    Misuse(Misuse),
}
