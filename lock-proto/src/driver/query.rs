//! Queries about an election, and observations of it.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use std::sync::Mutex;

use super::acquire_error::AcquireErrorKind;
use super::engine::Engine;
use super::shared::{Batch, Core, Owner};
use super::ticket::{Ticket, locked};
use crate::error::Misuse;
use crate::lock::{ElectionEvent, Elections, Failure, QueryId};
use crate::time::Instant;

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

    /// Wakes the watchers of the ticket at that time.
    pub(super) fn add_alarm(&mut self, at: Instant, ticket: &Arc<Ticket>) {
        if !self.is_closed() {
            self.alarms.push((at, Arc::clone(ticket)));
        }
    }
}

/// All open queries and observations.
#[derive(Default)]
pub(super) struct Queries(BTreeMap<QueryId, Arc<Slot>>);

#[derive(Default)]
struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    /// The latest event, if it was not taken yet. Earlier ones are obsolete.
    latest: Option<ElectionEvent>,
    ended: bool,
    waker: Option<Waker>,
}

impl Queries {
    pub(super) fn notify(&self, query: QueryId, event: ElectionEvent, batch: &mut Batch) {
        if let Some(slot) = self.0.get(&query) {
            slot.notify(event, batch);
        }
    }

    /// The driver has ended.
    pub(super) fn close(&mut self, batch: &mut Batch) {
        // The handles have clones, so no user code is dropped here.
        for slot in core::mem::take(&mut self.0).into_values() {
            slot.notify(ElectionEvent::Failed(Failure::ShuttingDown), batch);
        }
    }
}

impl Slot {
    fn notify(&self, event: ElectionEvent, batch: &mut Batch) {
        let mut state = locked(&self.0);
        if state.ended {
            return;
        }
        state.ended = match event {
            ElectionEvent::Failed(_) => true,
            ElectionEvent::Leader(_) | ElectionEvent::NoLeader | ElectionEvent::Disconnected => false,
        };
        state.latest = Some(event);
        batch.wakers.extend(state.waker.take());
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Option<ElectionEvent>> {
        let mut state = locked(&self.0);
        if let Some(event) = state.latest.take() {
            return Poll::Ready(Some(event));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        // Dropping a waker may drop a task: not under the mutex.
        let old = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(old);
        Poll::Pending
    }
}

/// Observation of an election. Ends when dropped.
#[must_use = "an observation does nothing unless `next` is awaited"]
pub struct Observation {
    owner: Arc<Owner>,
    query: QueryId,
    slot: Arc<Slot>,
}

impl Observation {
    /// Registers an open query of the machine.
    pub(super) fn new(owner: &Arc<Owner>, queries: &mut Queries, query: QueryId) -> Self {
        let slot = Arc::<Slot>::default();
        queries.0.insert(query, Arc::clone(&slot));
        Self { owner: Arc::clone(owner), query, slot }
    }

    /// Returns the current state if it was not returned before, or else waits for the next change.
    /// `None` after [`ElectionEvent::Failed`]. Skips changes that are obsolete.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<ElectionEvent> {
        poll_fn(|cx| self.slot.poll(cx)).await
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let slot = self.owner.shared.verb(|core, now, _| {
            if let Some(elections) = core.engine.machine_mut().elections() {
                elections.close_query(now, self.query);
            }
            core.queries.0.remove(&self.query)
        });
        drop(slot);
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}
