//! Operations of the machine: checks of the servers, questions about elections, observations.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::acquire_error::AcquireErrorKind;
use super::election::ElectionEvent;
use super::shared::{Batch, Owner};
use super::slot::Slot;
use lock_proto::{Failure, Operation, OperationEvent, OperationId};

/// All open operations, and who waits for each.
#[derive(Default)]
pub(super) struct Operations {
    open: BTreeMap<OperationId, Vec<Arc<Slot<OperationEvent>>>>,
    /// The check in progress, which later ones join.
    ping: Option<OperationId>,
}

impl Operations {
    pub(super) fn notify(&mut self, id: OperationId, event: OperationEvent, batch: &mut Batch) {
        self.ping = self.ping.filter(|ping| *ping != id);
        for slot in self.open.get(&id).into_iter().flatten() {
            notify(slot, event.clone(), false, batch);
        }
    }

    /// The driver has ended.
    pub(super) fn close(&mut self, forked: bool, batch: &mut Batch) {
        // The handles have clones, so no user code is dropped here.
        for slot in core::mem::take(self).open.into_values().flatten() {
            notify(&slot, OperationEvent::Failed(Failure::ShuttingDown), forked, batch);
        }
    }
}

fn notify(slot: &Slot<OperationEvent>, event: OperationEvent, forked: bool, batch: &mut Batch) {
    let is_last = match event {
        OperationEvent::Done | OperationEvent::Failed(_) => true,
        OperationEvent::Leader(_) | OperationEvent::NoLeader | OperationEvent::Disconnected => false,
    };
    slot.notify(event, is_last, forked, batch);
}

/// An operation of the machine. Cancelled when the last of those that wait for it is dropped.
pub(super) struct Running {
    pub(super) owner: Arc<Owner>,
    id: OperationId,
    slot: Arc<Slot<OperationEvent>>,
}

impl Running {
    pub(super) fn start(owner: &Arc<Owner>, operation: Operation) -> Result<Self, AcquireErrorKind> {
        let running = owner.shared.verb(|core, now, _| {
            if core.is_closed() {
                return Err(AcquireErrorKind::ShutDown);
            }
            let is_ping = operation == Operation::Ping;
            let id = match core.operations.ping.filter(|_| is_ping) {
                Some(ping) => ping,
                None => core.engine.machine_mut().start(now, operation)?,
            };
            if is_ping {
                core.operations.ping = Some(id);
            }
            let slot = Arc::<Slot<OperationEvent>>::default();
            core.operations.open.entry(id).or_default().push(Arc::clone(&slot));
            Ok(Self { owner: Arc::clone(owner), id, slot })
        });
        running.unwrap_or(Err(AcquireErrorKind::Forked))
    }

    /// Returns the next event; `None` after the last, and in a forked process.
    pub(super) async fn next(&self) -> Option<OperationEvent> {
        self.owner.shared.next(&self.slot).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let slot = self.owner.shared.verb_of_drop(|core, now, _| {
            let Operations { open, ping } = &mut core.operations;
            let waiting = open.get_mut(&self.id)?;
            let own = waiting.iter().position(|slot| Arc::ptr_eq(slot, &self.slot))?;
            let slot = waiting.swap_remove(own);
            if waiting.is_empty() {
                open.remove(&self.id);
                *ping = ping.filter(|ping| *ping != self.id);
                core.engine.machine_mut().cancel(now, self.id);
            }
            Some(slot)
        });
        drop(slot);
    }
}

/// Observation of an election. Ends when dropped.
#[must_use = "an observation does nothing unless `next` is awaited"]
pub struct Observation(pub(super) Running);

impl Observation {
    /// Returns the current state if it was not returned before, or else waits for the next change.
    /// `None` after [`ElectionEvent::Failed`], and in a forked process. Skips changes that are
    /// obsolete.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<ElectionEvent> {
        match self.0.next().await? {
            OperationEvent::Leader(leader) => Some(ElectionEvent::Leader(leader)),
            OperationEvent::NoLeader => Some(ElectionEvent::NoLeader),
            OperationEvent::Disconnected => Some(ElectionEvent::Disconnected),
            OperationEvent::Failed(failure) => Some(ElectionEvent::Failed(failure)),
            // The end of a check.
            OperationEvent::Done => None,
        }
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}
