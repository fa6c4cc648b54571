//! Elections: the capability of a machine, and the events of queries and observations.

use bytes::Bytes;

use super::event::Failure;
use super::request::Acquire;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::Instant;

/// Elections, for a machine whose store has them: see
/// [`LockClient::elections`](super::LockClient::elections).
///
/// A candidate is an acquisition: it is claimed, released and abandoned like a lock.
pub trait Elections {
    /// Stands for election with this value. Progress is reported as events for the returned id;
    /// [`Event::Granted`](crate::Event::Granted) means elected.
    ///
    /// # Errors
    ///
    /// As [`LockClient::acquire`](super::LockClient::acquire), or the value is too long.
    fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse>;

    /// Changes the value of the leader. Answered by [`Event::Proclaimed`](crate::Event::Proclaimed)
    /// or [`Event::ProclaimFailed`](crate::Event::ProclaimFailed).
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the candidate is not the leader, or the value is too long.
    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse>;

    /// Queries the current leader. Answered by one event.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the name is invalid, too many queries are open, or the client is shutting
    /// down.
    fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse>;

    /// Observes the leader until the query is closed. The last event says why the observation
    /// ended.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse>;

    /// Closes a query or an observation. No further events follow.
    fn close_query(&mut self, now: Instant, query: QueryId);
}

/// A query or observation of an election. Opaque and generational, like a [`LockId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The current leader of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Leader {
    /// Its key: on etcd `name/<lease id>`, on ZooKeeper the path of its node, on a register the key of
    /// the election.
    pub key: Bytes,
    /// The value it proclaims.
    pub value: Bytes,
    /// The revision of etcd, or the transaction id (`czxid`) of ZooKeeper, at which its key was
    /// created. On a register, the fence of its record.
    pub create_revision: i64,
    /// The revision of etcd, or the transaction id (`mzxid`) of ZooKeeper, at which its value was
    /// proclaimed. On a register, the version of its record, which grows with each renewal.
    pub mod_revision: i64,
}

/// Event of a query or an observation of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ElectionEvent {
    /// This candidate leads, with this value. Emitted again when the value changes.
    Leader(Leader),
    /// There is no leader. Also emitted while the oldest key of the election belongs to no
    /// candidate, such as one of the election `name/other`, because no candidate can be elected
    /// behind it.
    NoLeader,
    /// The server is currently unreachable, so the last report may be out of date. Emitted once the
    /// connection has ended. A silent connection ends after `ping_after` and `ping_timeout` (13 s)
    /// on etcd, and after two thirds of a tick and the request timeout (4 s) on ZooKeeper.
    Disconnected,
    /// The query failed, or the observation cannot continue. Last event.
    Failed(Failure),
}
