//! Checks of the servers.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::acquire_error::{AcquireError, AcquireErrorKind};
use super::client::Client;
use super::engine::Engine;
use super::shared::{Batch, Core};
use super::slot::Slot;
use lock_proto::Failure;
use lock_proto::Instant;

type Pong = Slot<Result<(), Failure>>;

/// The futures that wait for the check in progress.
#[derive(Default)]
pub(super) struct Pings(Vec<Arc<Pong>>);

impl Pings {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn notify(&mut self, result: &Result<(), Failure>, forked: bool, batch: &mut Batch) {
        // No waker is dropped under the mutex: the batch takes also those of dropped futures.
        for slot in self.0.drain(..) {
            slot.notify(result.clone(), true, forked, batch);
        }
    }
}

impl<E: Engine + ?Sized> Core<E> {
    fn ping(&mut self, now: Instant) -> Result<Arc<Pong>, AcquireErrorKind> {
        if self.is_closed() {
            return Err(AcquireErrorKind::ShutDown);
        }
        self.engine.machine_mut().ping(now)?;
        let slot = Arc::<Pong>::default();
        self.pings.0.push(Arc::clone(&slot));
        Ok(slot)
    }
}

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
        let shared = &self.owner.shared;
        let error = |kind| shared.error(kind, "ping", &Arc::default());
        let slot =
            shared.verb(|core, now, _| core.ping(now)).unwrap_or(Err(AcquireErrorKind::Forked)).map_err(error)?;
        let result = shared.next(&slot).await.ok_or(AcquireErrorKind::Forked).map_err(error)?;
        result.map_err(|failure| error(AcquireErrorKind::from(failure).once()))
    }
}
