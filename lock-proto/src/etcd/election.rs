//! Elections: what is asked and what is told.

use bytes::Bytes;

use crate::lock::Failure;

/// One question about an election, or one observation of it. Opaque and generational, as a [`LockId`](crate::LockId).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// Its key: `name/<lease id>`.
    pub key: Bytes,
    /// What it proclaims.
    pub value: Bytes,
    /// The revision at which its key was created.
    pub create_revision: i64,
    /// The revision at which its value was proclaimed.
    pub mod_revision: i64,
}

/// What somebody who asks about an election, or observes it, is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElectionEvent {
    /// This candidate leads, with this value. Told again when the value changes.
    Leader(Leader),
    /// Nobody leads. Also while the oldest key of the election is no candidate's, such as one of the election `name/other`: nobody is elected
    /// behind it.
    NoLeader,
    /// The server cannot be heard at present: what was told last may be out of date (requirement E10).
    Disconnected,
    /// The question cannot be answered, or the observation cannot go on. Last event.
    Failed(Failure),
}
