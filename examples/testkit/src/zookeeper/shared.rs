//! A server that tests share, each below a path of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::ZooKeeper;

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
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let server = {
            let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
            shared.upgrade().unwrap_or_else(|| {
                let server = Arc::new(ZooKeeper::start());
                *shared = Arc::downgrade(&server);
                server
            })
        };
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

    /// The server's URL with the node as its chroot.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url() + &self.path
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

    /// All nodes below, sorted, with paths that begin below the chroot.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        let all = self.server.nodes_below(&self.path);
        all.into_iter().map(|path| path[self.path.len()..].to_owned()).collect()
    }
}
