//! The key of a hold, for transactions on the same etcd.

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

/// The key behind a lock on etcd, for a [`Guard`] or a [`Leadership`](super::Leadership).
pub trait OwnerKeyExt {
    /// The key of this hold. `None` on Redis, or if the lock is lost. Names the current holder
    /// only: a later holder within this client may have the same key (see
    /// [`owner_guard`](Self::owner_guard)).
    #[must_use]
    fn owner(&self) -> Option<OwnerKey>;

    /// The key of this hold, for transactions on the same etcd. A transaction that compares its
    /// `mod_revision` succeeds only while this guard holds the lock. From now on the key changes
    /// before the lock is handed over within the client.
    ///
    /// # Errors
    ///
    /// The lock is lost, or the store is not etcd.
    fn owner_guard(&self) -> Result<OwnerKey, OwnerError>;
}

impl OwnerKeyExt for Guard {
    fn owner(&self) -> Option<OwnerKey> {
        let Hold { owner, ticket, .. } = &self.hold;
        if !self.is_held() {
            return None;
        }
        owner.shared.verb(|core, _, _| core.etcd().and_then(|etcd| etcd.owner(ticket.lock)))
    }

    // E8
    fn owner_guard(&self) -> Result<OwnerKey, OwnerError> {
        let Hold { owner, ticket, .. } = &self.hold;
        let key = owner.shared.verb(|core, now, _| {
            if core.is_closed() {
                return Err(OwnerError::Lost(Loss::ShutDown));
            }
            let etcd = core.etcd().ok_or(OwnerError::NoKey)?;
            etcd.owner_guard(now, ticket.lock).map_err(|_| OwnerError::Lost(Loss::ShutDown))
        });
        loss(ticket, owner.shared.now()).map_or(key, |loss| Err(OwnerError::Lost(loss)))
    }
}

/// Why a lock has no key to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// Only etcd's locks have a key whose revision can be compared.
    #[error("only locks on etcd have a key whose revision can be compared")]
    NoKey,
}
