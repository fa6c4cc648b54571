//! What is measured, whoever wrote it.

use super::{Failed, Job, Outcome};

/// A task's way to its lock. What belongs to the task alone, or is shared with the other tasks, is settled when it is made.
pub trait Contender: Send + 'static {
    /// The lock while it is held.
    type Held: Send;

    /// Connects, and does all else that is done once. Not measured.
    fn ready(&mut self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Takes the lock, however long it takes. An error is counted, and it is tried again.
    fn acquire(&mut self) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Gives it back, and returns when that is done. An error says that it was lost before, or may still be held.
    fn release(&mut self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;
}

/// Where the locks of a peer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// One Redis server, or several of them.
    Redis {
        /// Whether it knows how to use several.
        quorum: bool,
    },
    /// etcd.
    Etcd,
}

/// Another library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name for `--peer`.
    pub name: &'static str,
    /// What a reader is told of it, such as its version and its way.
    pub about: String,
    /// Its servers.
    pub store: Store,
}

/// The other libraries that this program was built with.
pub trait Peers {
    /// All of them.
    fn list(&self) -> Vec<Peer>;

    /// Measures one of them.
    ///
    /// # Errors
    ///
    /// There is no such peer, or its servers do not answer.
    fn measure(&self, peer: &str, job: &Job) -> Result<Outcome, Failed>;
}

/// None.
impl Peers for () {
    fn list(&self) -> Vec<Peer> {
        Vec::new()
    }

    fn measure(&self, peer: &str, _: &Job) -> Result<Outcome, Failed> {
        Err(Failed::usage(format_args!("--peer {peer}: this program was built without peers")))
    }
}
