//! Checks of the servers.

use alloc::sync::Arc;

use super::acquire_error::{AcquireError, AcquireErrorKind};
use super::client::Client;
use super::operation::Running;
use lock_proto::{Operation, OperationEvent};

impl Client {
    /// Checks the servers: connects, logs in, and waits for a reply. Takes no lock and writes no
    /// key; on ZooKeeper it opens the session that locks then use. Not required before other calls,
    /// which connect by themselves.
    ///
    /// A quorum needs a majority of its nodes, etcd and ZooKeeper a server that reaches a majority.
    /// Each server has the request timeout to accept the connection. The check does not cover
    /// access to the keys of locks, nor whether a node of a quorum was restarted recently.
    /// It ends the pause after a failed connection, unless that failed within the last milliseconds
    /// (`reconnect.every` in the settings): then it reports that failure.
    ///
    /// ZooKeeper accepts any `digest` login: the first lock fails with `NO_AUTH` if the password is
    /// wrong.
    ///
    /// # Errors
    ///
    /// [`AcquireError::is_refused`] if a retry will not help: a wrong password, a certificate that
    /// is not trusted, scripts forbidden, two nodes of a quorum that are known to be the same
    /// server. [`AcquireError::is_unreachable`] otherwise. The message names each server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ping(&self) -> Result<(), AcquireError> {
        let error = |kind| self.owner.shared.error(kind, "ping", &Arc::default());
        let ping = Running::start(&self.owner, Operation::Ping).map_err(error)?;
        match ping.next().await {
            Some(OperationEvent::Failed(failure)) => Err(error(AcquireErrorKind::from(failure).once())),
            Some(
                OperationEvent::Done
                | OperationEvent::Leader(_)
                | OperationEvent::NoLeader
                | OperationEvent::Disconnected,
            ) => Ok(()),
            None => Err(error(AcquireErrorKind::Forked)),
        }
    }
}
