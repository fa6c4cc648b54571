//! A server that tests share, each below a path of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::ZooKeeper;
use crate::authority::Authority;

/// A new node on a server that the tests of this process share. The server stops with the last of
/// them.
///
/// For tests that do not stop the server or count its requests.
#[derive(Clone, Debug)]
pub struct Chroot {
    server: Arc<ZooKeeper>,
    path: String,
}

impl Chroot {
    /// Creates a node, and starts the server if no other test uses it at present.
    ///
    /// # Panics
    ///
    /// Like [`ZooKeeper::start`].
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it may start a server")]
    pub fn new() -> Self {
        static SERVER: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
        Self::on(&SERVER, ZooKeeper::start)
    }

    /// Like [`new`](Self::new), on a server with TLS.
    ///
    /// # Panics
    ///
    /// Like [`ZooKeeper::start`].
    #[must_use]
    pub fn over_tls() -> Self {
        static SERVER: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
        Self::on(&SERVER, || ZooKeeper::builder().tls(Authority::new().server()).start())
    }

    /// A node on this server, which no other test uses.
    #[must_use]
    pub fn alone(server: ZooKeeper) -> Self {
        Self::below(Arc::new(server))
    }

    fn on(shared: &Mutex<Weak<ZooKeeper>>, start: impl FnOnce() -> ZooKeeper) -> Self {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(start());
            *shared = Arc::downgrade(&server);
            server
        });
        drop(shared);
        Self::below(server)
    }

    fn below(server: Arc<ZooKeeper>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = format!("/test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.create(&path, "");
        Self { server, path }
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> &ZooKeeper {
        &self.server
    }

    /// The path of the node.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The server, to kill it. Works only if it is used [`alone`](Self::alone).
    ///
    /// # Panics
    ///
    /// If other tests use it.
    pub fn server_mut(&mut self) -> &mut ZooKeeper {
        Arc::get_mut(&mut self.server).expect("other tests use this server")
    }

    /// The server's URL with the node as its chroot.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url_at(&self.path)
    }

    /// Like [`url`](Self::url), with TLS if the server has it.
    #[must_use]
    pub fn lock_url(&self) -> String {
        self.server.lock_url_at(&self.path)
    }

    /// The address with the chroot, as Java clients and kazoo want it.
    #[must_use]
    pub fn hosts(&self) -> String {
        format!("{}{}", self.server.address(), self.path)
    }

    /// The names of the nodes of a lock, sorted.
    #[must_use]
    pub fn nodes_of(&self, name: &str) -> Vec<String> {
        self.server.children(&format!("{}/{name}", self.path))
    }

    /// The paths of all ephemeral nodes below, sorted, beginning below the chroot.
    #[must_use]
    pub fn ephemerals(&self) -> Vec<String> {
        let is_ephemeral = |path: &String| {
            let stat = self.server.stat(&format!("{}{path}", self.path));
            stat.is_some_and(|stat| stat.ephemeral_owner != 0)
        };
        self.nodes().into_iter().filter(is_ephemeral).collect()
    }

    /// Deletes a node of a lock. Returns true if it existed.
    pub fn delete(&self, name: &str, node: &str) -> bool {
        self.server.delete(&format!("{}/{name}/{node}", self.path))
    }

    /// All nodes below, sorted, with paths that begin below the chroot.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        let all = self.server.nodes_below(&self.path);
        all.into_iter().map(|path| path[self.path.len()..].to_owned()).collect()
    }
}
