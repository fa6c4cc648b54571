//! The result of a shutdown.

/// Result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Shutdown {
    /// Number of locks that were not released in time, and on etcd and ZooKeeper of sessions that
    /// were not ended. Their keys expire at their TTL. Includes locks that were lost before and
    /// whose guard still exists.
    ///
    /// On etcd a request for a lease that was repeated may be executed after the lease was revoked.
    /// That lease has no keys and ends after its TTL. It is not counted.
    ///
    /// If the driver was dropped, as with its runtime, releases still to be sent are not counted.
    pub unreleased: u32,
}
