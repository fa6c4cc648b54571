//! Checks of the servers.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use std::sync::Mutex;

use super::acquire_error::{AcquireError, AcquireErrorKind};
use super::client::Client;
use super::engine::Engine;
use super::shared::{Batch, Core};
use super::ticket::locked;
use crate::lock::Failure;
use crate::time::Instant;

/// Everyone who waits for the check in progress.
#[derive(Default)]
pub(super) struct Pings(Vec<Arc<Slot>>);

#[derive(Default)]
struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    result: Option<Result<(), Failure>>,
    waker: Option<Waker>,
}

impl Pings {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn notify(&mut self, result: &Result<(), Failure>, batch: &mut Batch) {
        // The futures have clones of the slots, or were dropped and left no waker.
        for slot in self.0.drain(..) {
            let mut state = locked(&slot.0);
            state.result = Some(result.clone());
            batch.wakers.extend(state.waker.take());
        }
    }
}

impl Slot {
    fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), Failure>> {
        let mut state = locked(&self.0);
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        // Dropping a waker may drop a task: not under the mutex.
        let old = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl<E: Engine + ?Sized> Core<E> {
    fn ping(&mut self, now: Instant) -> Result<Arc<Slot>, AcquireErrorKind> {
        if self.is_closed() {
            return Err(AcquireErrorKind::ShutDown);
        }
        self.engine.machine_mut().ping(now)?;
        let slot = Arc::<Slot>::default();
        self.pings.0.push(Arc::clone(&slot));
        Ok(slot)
    }
}

impl Client {
    /// Checks the servers: connects, logs in, and waits for a reply. Takes no lock and writes
    /// nothing. Not required before other calls, which connect by themselves.
    ///
    /// A quorum needs a majority of its nodes, etcd a member that reaches a majority. Each server
    /// has the request timeout to accept the connection. The check does not cover access to the
    /// keys of locks, nor whether a node of a quorum was restarted recently.
    ///
    /// # Errors
    ///
    /// [`AcquireError::is_refused`] if a retry will not help: a wrong password, a certificate that
    /// is not trusted, scripts forbidden. [`AcquireError::is_unreachable`] otherwise. The message
    /// names each server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ping(&self) -> Result<(), AcquireError> {
        let shared = &self.owner.shared;
        let error = |kind| AcquireError::new(kind, "ping", &Arc::default(), &shared.servers);
        if shared.is_forked() {
            return Err(error(AcquireErrorKind::Forked));
        }
        let slot = shared.verb(|core, now, _| core.ping(now)).map_err(error)?;
        poll_fn(|cx| slot.poll(cx)).await.map_err(|failure| error(failure.into()))
    }
}
