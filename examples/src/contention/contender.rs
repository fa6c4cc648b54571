//! The interface of a library to be measured.

use super::{Failed, Job, Outcome};

/// Takes and releases the lock of one task. Its construction decides what it shares with other
/// tasks.
pub trait Contender: Send + 'static {
    /// The lock while it is held.
    type Held: Send;

    /// Connects, and does all other one-time work. Not measured.
    fn ready(&mut self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Takes the lock, without a timeout. The caller counts an error and retries.
    fn acquire(&mut self) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Releases the lock, and returns when that is done. An error means that the lock was lost
    /// before, or may still be held.
    fn release(&mut self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;
}

/// The store of a peer's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// One Redis server, or several of them.
    Redis {
        /// Whether the peer supports a quorum of servers.
        quorum: bool,
    },
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

/// Another library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name for `--peer`.
    pub name: &'static str,
    /// Description for readers, such as its version and its method.
    pub about: String,
    /// The store that it needs.
    pub store: Store,
    /// The largest number of clients that it can be measured with.
    pub max_clients: Option<usize>,
}

/// The other libraries that this program was built with.
pub trait Peers {
    /// Returns all peers.
    fn list(&self) -> Vec<Peer>;

    /// Measures one peer.
    ///
    /// # Errors
    ///
    /// Fails if the peer does not exist or its servers do not reply.
    fn measure(&self, peer: &str, job: &Job) -> Result<Outcome, Failed>;
}

/// No peers.
impl Peers for () {
    fn list(&self) -> Vec<Peer> {
        Vec::new()
    }

    fn measure(&self, peer: &str, _: &Job) -> Result<Outcome, Failed> {
        Err(Failed::usage(format_args!("--peer {peer}: this program was built without peers")))
    }
}
