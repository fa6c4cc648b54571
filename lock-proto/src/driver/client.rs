//! The handle of a client.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::lock::Lock;
use super::shared::{Owner, Shared};
use super::ticket::wait_for;

/// The handle of a client: makes locks. Cheap to clone; all clones share the connections.
///
/// When the last handle is gone (clients, waiting futures, guards), the driver shuts down by itself, as [`Client::shutdown`] with
/// the configured time for a release.
///
/// # Fork
///
/// A client belongs to the process that made it. After `fork()` the child has a copy with the same identity and the same connections, and must
/// make a client of its own. In the copy an acquisition fails with [`AcquireError::Forked`], and a driver that is polled there ends: it sends
/// nothing, and its holders are told that the lock is lost. Locks stay with the parent. A [`Guard`] that is asked in the child without a driver there
/// answers by the clock, as the parent's does, until the end of its validity: do not rely on it. (`exec` copies nothing.)
#[derive(Clone)]
pub struct Client {
    pub(super) owner: Arc<Owner>,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { owner: Arc::new(Owner { shared }) }
    }

    /// The lock of this name: 1 to 512 bytes, and with the client's prefix the key in the store, byte for byte.
    ///
    /// Nothing is sent before [`Lock::acquire`] is awaited. Defaults: the client's TTL (10 s), kept alive while the guard lives, waiting
    /// for ever.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(&self.owner, name.as_ref())
    }

    /// Ends this client, for all its clones: no new locks, waiters are answered, holders are told that their lock is lost, and what
    /// is held is released. Returns when this is done, or when `within` is over.
    ///
    /// # Cancel safety
    ///
    /// The shutdown begins at the first poll, and goes on if this future is dropped.
    pub async fn shutdown(&self, within: Duration) -> Shutdown {
        let shared = &self.owner.shared;
        shared.verb(|core, now, _| core.shutdown(now, within));
        wait_for(&shared.stopped, || shared.outcome()).await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// What a shutdown came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Shutdown {
    /// How many locks could not be given back in time. Their keys end at their TTL.
    pub unreleased: u32,
}
