//! Queries about an election, and observations of it.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;

use super::acquire_error::AcquireErrorKind;
use super::engine::Engine;
use super::shared::{Batch, Core, Owner};
use super::slot::Slot;
use lock_proto::Misuse;
use lock_proto::{ElectionEvent, Elections, Failure, QueryId};

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

/// All open queries and observations.
#[derive(Default)]
pub(super) struct Queries(BTreeMap<QueryId, Arc<Slot<ElectionEvent>>>);

impl Queries {
    pub(super) fn notify(&self, query: QueryId, event: ElectionEvent, batch: &mut Batch) {
        if let Some(slot) = self.0.get(&query) {
            notify(slot, event, false, batch);
        }
    }

    /// The driver has ended.
    pub(super) fn close(&mut self, forked: bool, batch: &mut Batch) {
        // The handles have clones, so no user code is dropped here.
        for slot in core::mem::take(&mut self.0).into_values() {
            notify(&slot, ElectionEvent::Failed(Failure::ShuttingDown), forked, batch);
        }
    }
}

fn notify(slot: &Slot<ElectionEvent>, event: ElectionEvent, forked: bool, batch: &mut Batch) {
    let is_last = match event {
        ElectionEvent::Failed(_) => true,
        ElectionEvent::Leader(_) | ElectionEvent::NoLeader | ElectionEvent::Disconnected => false,
    };
    slot.notify(event, is_last, forked, batch);
}

/// Observation of an election. Ends when dropped.
#[must_use = "an observation does nothing unless `next` is awaited"]
pub struct Observation {
    pub(super) owner: Arc<Owner>,
    query: QueryId,
    slot: Arc<Slot<ElectionEvent>>,
}

impl Observation {
    /// Registers an open query of the machine.
    pub(super) fn new(owner: &Arc<Owner>, queries: &mut Queries, query: QueryId) -> Self {
        let slot = Arc::<Slot<ElectionEvent>>::default();
        queries.0.insert(query, Arc::clone(&slot));
        Self { owner: Arc::clone(owner), query, slot }
    }

    /// Returns the current state if it was not returned before, or else waits for the next change.
    /// `None` after [`ElectionEvent::Failed`], and in a forked process. Skips changes that are
    /// obsolete.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<ElectionEvent> {
        self.owner.shared.next(&self.slot).await
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let slot = self.owner.shared.verb_of_drop(|core, now, _| {
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
