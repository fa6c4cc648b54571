//! Elections: the capability of a machine.

use bytes::Bytes;

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
