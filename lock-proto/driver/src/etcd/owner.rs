//! The key of a hold, for transactions on the same etcd.

use super::super::guard::Guard;
use super::calls::EtcdEngine;
use lock_proto::Loss;
use lock_proto::etcd::OwnerKey;

/// The key behind a lock on etcd, for a [`Guard`] or a [`Leadership`](crate::Leadership).
pub trait OwnerKeyExt {
    /// The key of this hold. `None` on other stores, or if the lock is lost. Names the current
    /// holder only: a later holder within this client may have the same key (see
    /// [`owner_key_guard`](Self::owner_key_guard)).
    #[must_use]
    fn owner_key(&self) -> Option<OwnerKey>;

    /// The key of this hold, for transactions on the same etcd. A transaction that compares its
    /// `mod_revision` succeeds only while this guard holds the lock. From now on the key changes
    /// before the lock is handed over within the client.
    ///
    /// # Errors
    ///
    /// The lock is lost, or the store is not etcd.
    fn owner_key_guard(&self) -> Result<OwnerKey, OwnerKeyError>;
}

impl OwnerKeyExt for Guard {
    fn owner_key(&self) -> Option<OwnerKey> {
        self.node(|etcd: &mut EtcdEngine| &mut etcd.client)
    }

    fn owner_key_guard(&self) -> Result<OwnerKey, OwnerKeyError> {
        self.guarded_node(|etcd: &mut EtcdEngine| &mut etcd.client)
            .map_err(OwnerKeyError::Lost)?
            .ok_or(OwnerKeyError::NoKey)
    }
}

/// Why a lock has no key to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerKeyError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// Only etcd's locks have a key whose revision can be compared.
    #[error("only locks on etcd have a key whose revision can be compared")]
    NoKey,
}
