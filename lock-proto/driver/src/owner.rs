//! The node of a hold, on stores where the application can guard its own transactions by it.

use core::any::Any;

use super::guard::{Guard, Hold};
use super::shared::Core;
use lock_proto::Loss;
use lock_proto::lock::{Client, QueueStore, Queued, Transport};

/// Finds the machine in the engine of its store.
type FindMachine<E, S> = fn(&mut E) -> &mut Client<Queued<S>>;

impl Core {
    /// The machine, if the store is that of the engine `E`.
    fn machine<E: 'static, S: QueueStore>(&mut self, of: FindMachine<E, S>) -> Option<&mut Client<Queued<S>>>
    where
        Queued<S>: Transport,
    {
        let engine: &mut dyn Any = &mut self.engine;
        engine.downcast_mut::<E>().map(of)
    }
}

impl Guard {
    /// Returns the node of this hold; `None` on another store, or if the lock is lost.
    pub(super) fn node<E: 'static, S: QueueStore>(&self, of: FindMachine<E, S>) -> Option<S::Owner>
    where
        Queued<S>: Transport,
    {
        let Hold { owner, ticket, .. } = &self.hold;
        if !self.is_held() {
            return None;
        }
        owner.shared.verb(|core, _, _| core.machine(of)?.owner(ticket.lock)).flatten()
    }

    /// Returns the node of this hold, whose version then changes before a hand-over within the
    /// client; `Ok(None)` on another store.
    // E8
    pub(super) fn guarded_node<E: 'static, S: QueueStore>(
        &self,
        of: FindMachine<E, S>,
    ) -> Result<Option<S::Owner>, Loss>
    where
        Queued<S>: Transport,
    {
        let Hold { owner, ticket, .. } = &self.hold;
        let node = owner.shared.verb(|core, now, _| {
            if core.is_closed() {
                return Err(Loss::ShutDown);
            }
            let Some(client) = core.machine(of) else { return Ok(None) };
            client.owner_guard(now, ticket.lock).map(Some).map_err(|_| Loss::ShutDown)
        });
        self.hold.loss().map_or(node.unwrap_or(Err(Loss::ShutDown)), Err)
    }
}
