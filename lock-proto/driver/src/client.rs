//! The handle of a client.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::lock::Lock;
use super::outcome::Shutdown;
use super::shared::{Owner, Shared};
use super::ticket::wait_for;
use lock_proto::ClientId;

/// The handle of a client: makes locks and elections. Cheap to clone; all clones share the
/// connections.
///
/// ```
/// # #[cfg(not(feature = "redis"))] fn main() {}
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = lock_sim::TestServer::redis();
/// # let url = server.url();
/// use std::time::Duration;
///
/// let client = lock_tokio::connect(url)?; // "redis://127.0.0.1:6379"
/// client.ping().await?; // fails at once if the URL, the password or the network is wrong
///
/// let guard = client.lock("invoice:42").acquire().await?;
/// // … the work …
/// guard.release().await;
///
/// client.shutdown(Duration::from_secs(1)).await;
/// # Ok(())
/// # }
/// ```
///
/// The driver shuts down when the last handle is dropped, as if by [`Client::shutdown`] with the
/// configured time for a release. Handles are clients, [`Lock`]s, elections, observations, guards,
/// and futures of acquisitions and releases. An [`Observer`](super::Observer) is not a handle.
///
/// # Fork
///
/// A client belongs to the process that made it. After `fork()` the child has a copy with the same
/// identity and connections, and must make a new client. In the copy an acquisition fails with
/// [`AcquireErrorKind::Forked`](super::AcquireErrorKind::Forked), a release does nothing and is
/// [`Release::Unknown`](lock_proto::Release::Unknown), and a shutdown returns at once. A driver
/// that is polled in the child sends nothing, reports all locks as lost and ends. The parent keeps
/// its locks. Without a driver in the child, a [`Guard`](super::Guard) there answers by the clock
/// until the end of its validity: do not rely on it. (`exec` copies nothing.)
#[derive(Clone)]
pub struct Client {
    pub(super) owner: Arc<Owner>,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { owner: Arc::new(Owner { shared }) }
    }

    /// The id of this client and its clones, new for each client. On Redis the value of a held key
    /// is this id, a colon and a number ([`Guard::token`](super::Guard::token)). It is in the log
    /// line `connected`.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.owner.shared.id
    }

    /// The lock of this name, 1 to 512 bytes. The key in the store is the client's prefix followed
    /// by the name, byte for byte; on ZooKeeper it is a path below the chroot.
    ///
    /// Sends nothing before [`Lock::acquire`] is awaited. The methods of [`Lock`] name the
    /// defaults.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(&self.owner, "lock", name.as_ref())
    }

    /// Shuts down this client and all its clones: refuses new acquisitions, ends all waits, reports
    /// held locks as lost and releases them. Returns when this is done, or after `within`.
    ///
    /// The key of a lock that was lost before, and whose guard still exists, is not released: the
    /// work may be going on. It expires by its TTL at the latest.
    ///
    /// # Cancel safety
    ///
    /// The shutdown begins at the first poll, and continues if this future is dropped.
    pub async fn shutdown(&self, within: Duration) -> Shutdown {
        let shared = &self.owner.shared;
        if shared.verb(|core, now, _| core.shutdown(now, within)).is_none() {
            // In a forked child the locks belong to the parent.
            return Shutdown { unreleased: 0 };
        }
        wait_for(&shared.stopped, || shared.outcome()).await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id())
            .field("servers", &self.owner.shared.servers)
            .finish_non_exhaustive()
    }
}
