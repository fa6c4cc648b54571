//! Elections: the capability of a machine, and the events of questions and observations.

use bytes::Bytes;

use super::event::Failure;
use super::request::Acquire;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::Instant;

/// Elections, for a machine whose store has them: see
/// [`Machine::elections`](super::Machine::elections).
///
/// A candidate is an acquisition: it is claimed, released and abandoned like a lock.
pub trait Elections {
    /// Stands for election with this value. Progress is reported as events for the returned id;
    /// [`Event::Granted`](crate::Event::Granted) means elected.
    ///
    /// # Errors
    ///
    /// As [`Machine::acquire`](super::Machine::acquire).
    fn campaign(&mut self, now: Instant, want: &Acquire, value: Bytes) -> Result<LockId, Misuse>;

    /// Changes the value of a candidate that leads. Answered by
    /// [`Event::Proclaimed`](crate::Event::Proclaimed) or
    /// [`Event::ProclaimFailed`](crate::Event::ProclaimFailed).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it does not lead.
    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse>;

    /// Asks who leads. Answered by one event.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: the name is too long or empty, or the client is shutting down.
    fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse>;

    /// Observes who leads, until the query is closed. The last event says why it could not go on.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse>;

    /// Ends a question or an observation: none of its events follows.
    fn close_query(&mut self, now: Instant, query: QueryId);
}

/// One question about an election, or one observation of it. Opaque and generational, as a
/// [`LockId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The current leader of an election.
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

/// Event of a question about an election, or of an observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElectionEvent {
    /// This candidate leads, with this value. Reported again when the value changes.
    Leader(Leader),
    /// Nobody leads. Also while the oldest key of the election belongs to no candidate, such as one
    /// of the election `name/other`: nobody is elected behind it.
    NoLeader,
    /// The server is unreachable at present: the last report may be out of date.
    Disconnected,
    /// The question cannot be answered, or the observation cannot go on. Last event.
    Failed(Failure),
}
