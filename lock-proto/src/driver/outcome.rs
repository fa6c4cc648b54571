//! What comes of an acquisition and of a shutdown.

use crate::error::Misuse;
use crate::lock::Failure;

/// Error of an acquisition. The attempt leaves nothing behind, or its remains are being cleaned up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The request is invalid, whatever the servers say.
    #[error(transparent)]
    Misuse(Misuse),
    /// The attempt failed.
    #[error(transparent)]
    Failed(Failure),
    /// The single attempt was granted, but the future was not polled for a third of the TTL, so the
    /// lock was released.
    #[error("granted, but given back because the future was not polled in time")]
    Withdrawn,
    /// The client is shutting down, or its driver is gone.
    #[error("the client was shut down")]
    ShutDown,
    /// The process was forked after the client was made. The child must make a new client, or it
    /// would act under the parent's identity.
    #[error("the client belongs to the process that forked this one: make a new client after the fork")]
    Forked,
    /// The store has no elections. Only etcd has them.
    #[error("elections need etcd, and this client is one of Redis")]
    NoElections,
}

impl From<Misuse> for AcquireError {
    fn from(misuse: Misuse) -> Self {
        match misuse {
            Misuse::ShuttingDown => Self::ShutDown,
            Misuse::Stale(_) | Misuse::NotHeld(_) | Misuse::TooMany { .. } | Misuse::Invalid(_) => Self::Misuse(misuse),
        }
    }
}

impl From<Failure> for AcquireError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::ShuttingDown => Self::ShutDown,
            Failure::TimedOut(_) | Failure::KeyInUse(_) | Failure::Refused(_) | Failure::EqualNodes(..) => {
                Self::Failed(failure)
            }
        }
    }
}

/// Result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Shutdown {
    /// Number of locks that were not released in time. Their keys expire at their TTL.
    pub unreleased: u32,
}
