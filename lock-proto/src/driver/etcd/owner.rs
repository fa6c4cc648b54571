//! The key that stands for a hold, for transactions on the same etcd.

use core::any::Any;

use super::super::guard::{Guard, Hold, loss};
use super::super::shared::Core;
use super::calls::Etcd;
use crate::etcd::{self, OwnerKey};
use crate::lock::Loss;

impl Core {
    /// The machine, if it is etcd's.
    fn etcd(&mut self) -> Option<&mut etcd::Client> {
        let engine: &mut dyn Any = &mut self.engine;
        engine.downcast_mut::<Etcd>().map(|etcd| &mut etcd.client)
    }
}

impl Guard {
    /// The key that stands for this hold; `None` on Redis, or if the lock is lost. For who holds it now: a later turn of this client may
    /// have the same key (see [`owner_guard`](Self::owner_guard)).
    #[must_use]
    pub fn owner(&self) -> Option<OwnerKey> {
        let Hold { owner, ticket, .. } = &self.hold;
        if !self.is_held() {
            return None;
        }
        owner.shared.verb(|core, _, _| core.etcd().and_then(|etcd| etcd.owner(ticket.lock)))
    }

    /// The key that stands for this hold, for transactions on the same etcd: one that compares its `mod_revision` is carried out only
    /// while this guard holds the lock (requirement E8). From now on the key is changed before the lock is passed on inside the client.
    ///
    /// # Errors
    ///
    /// The lock is lost, or it is one of Redis.
    pub fn owner_guard(&self) -> Result<OwnerKey, OwnerError> {
        let Hold { owner, ticket, .. } = &self.hold;
        let asked = owner.shared.verb(|core, now, _| {
            if core.is_closed() {
                return Err(OwnerError::Lost(Loss::ShutDown));
            }
            let etcd = core.etcd().ok_or(OwnerError::NoKey)?;
            etcd.owner_guard(now, ticket.lock).map_err(|_| OwnerError::Lost(Loss::ShutDown))
        });
        loss(ticket, owner.shared.now()).map_or(asked, |loss| Err(OwnerError::Lost(loss)))
    }
}

/// Why a lock has no key to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(#[source] Loss),
    /// Only etcd's locks have a key whose revision can be compared.
    #[error("only locks on etcd have a key whose revision can be compared")]
    NoKey,
}
