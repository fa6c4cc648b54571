//! What the stores of the queue family share. A contender has a node in a queue of the store, which
//! lives as long as its session. The first one in the queue holds the lock. A *node* here is an
//! etcd key or a ZooKeeper node.

use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use bytes::Bytes;

use super::hold::Hold;
use super::queries::QueryStore;
use super::queued::{Bid, QueueConfig, QueueEnv, Queued, Remains};
use super::sessions::{SessionEvent, SessionId, SessionStore};
use crate::error::{Invalid, Misuse};
use crate::lock::answer::Answer;
use crate::lock::grant::Loss;
use crate::time::Instant;

/// What is special about a store of the queue family. The value holds its state for one name.
pub trait QueueStore: Clone + Debug + Default + PartialEq + Eq + Hash {
    /// The name of a queue in the store.
    type Key: Clone + Debug + PartialEq + Eq + Ord + Hash;
    /// The settings that only this store has.
    type Settings: Clone + Debug + PartialEq + Eq + Hash;
    /// A request to a server.
    type Request: Clone + Debug + PartialEq + Eq + Hash;
    /// The reply to a request.
    type Reply;
    /// The purpose of a call of a lock.
    type Call: Clone + Debug + PartialEq + Eq + Hash;
    /// An output of the locks that only this store has.
    type Output: Clone + Debug + PartialEq + Eq + Hash;
    /// State that the locks of a client share.
    type Shared: Clone + Debug + Default + PartialEq + Eq + Hash;
    /// The store's part of a session.
    type Session: SessionStore<Self>;
    /// Entry into the queue.
    type Enter: Progress<Self>;
    /// The wait in the queue, behind another node.
    type Contender: Progress<Self>;
    /// The node of a hold.
    type Node: Clone + Debug + PartialEq + Eq + Hash;
    /// The watch on the node of a hold.
    type Watch: Keep<Self>;
    /// What an ended hold leaves in the store; by default nothing.
    type Left: Clone + Debug + Default + PartialEq + Eq + Hash;
    /// The deletion of something that was left.
    type Cleanup: Cleanup<Self>;
    /// The node of a hold, as the application sees it.
    type Owner;
    /// The store's part of a query or observation.
    type Query: QueryStore<Self>;

    /// True if ownership is proven by a write to the node, whose revision begins a new series of
    /// fencing tokens.
    const WRITE_PROVES: bool;
    /// True if the end of a session resolves the releases of its nodes.
    const END_RESOLVES: bool;
    /// True if pings keep a session alive, and renewals are needed only to prove it.
    const RENEWALS_PROVE: bool = false;
    /// True if queries and observations use the shared session, which then does not end while one
    /// is open.
    const QUERIES_USE_SESSION: bool = true;

    // --- contending ---

    /// Enters the queue, or waits for the session.
    fn enter(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, session: SessionId);
    /// Ends the contention, and deletes its node unless the session is lost.
    fn leave(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>);
    /// Handles the reply to a call.
    fn answered(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, call: Self::Call, reply: &Self::Reply);
    /// Returns true if a node created for one head of the local queue also serves the next.
    fn serves(_left: &Bid, _next: &Bid) -> bool {
        true
    }

    // --- holding ---

    /// Returns how long the TTL proves the session.
    fn validity(_: &QueueConfig<Self>, ttl: Duration) -> Duration {
        ttl
    }
    /// The hold has ended. Returns what it leaves in the store.
    fn end(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, hold: &Hold<Self>, loss: Option<Loss>) -> Self::Left;
    /// The hold was lost, and its holder notified.
    fn lost(_: &mut Queued<Self>, _: &mut QueueEnv<Self>, _: &Remains<Self>) {}
    /// Deletes what an ended hold left, if its session lives on.
    fn clean_up(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, remains: &Remains<Self>);

    /// Returns the cleanups.
    fn cleanups(queued: &Queued<Self>) -> impl Iterator<Item = &Self::Cleanup>;

    // --- time, and the end ---

    /// Does the due work of the state for one name.
    fn timeout(_: &mut Queued<Self>, _: &mut QueueEnv<Self>) {}
    /// Returns the next deadline of the state for one name, and its reason. Without one, the state
    /// can be dropped.
    fn deadline(&self) -> Option<(Instant, &'static str)> {
        None
    }
    /// Prepares the lock for the shutdown of the client.
    fn shutdown(_: &mut Queued<Self>, _: &mut QueueEnv<Self>) {}

    // --- the client ---

    /// Checks the TTL of a lock, and rounds it as the server does.
    fn check_ttl(config: &QueueConfig<Self>, ttl: Duration) -> Result<Duration, Invalid>;
    /// Returns the queue of a lock.
    fn key(config: &QueueConfig<Self>, name: &[u8]) -> Result<Self::Key, Misuse>;
    /// Returns the queue of an election.
    fn election(config: &QueueConfig<Self>, name: &[u8]) -> Result<Self::Key, Misuse> {
        Self::key(config, name)
    }
    /// Returns a request that changes nothing, to check a server.
    fn ping(env: &mut QueueEnv<Self>) -> Self::Request;
    /// Returns what the reply to it means; [`Answer::Granted`] if the server works.
    fn pong(reply: &Self::Reply) -> Answer;
}

/// The progress of the head of the local queue towards the lock.
pub trait Progress<S: QueueStore>: Clone + Debug + PartialEq + Eq + Hash {
    /// Returns its session.
    fn session(&self) -> SessionId;
    /// Returns true if only the holder is ahead, or nobody: its session must be proven.
    fn is_next(&self) -> bool {
        false
    }
    /// Returns its next deadline.
    fn deadline(&self) -> Option<Instant>;
    /// Does the work that is due at the deadline.
    fn timeout(queued: &mut Queued<S>, env: &mut QueueEnv<S>);
    /// The session continues on a new connection: all watches are gone.
    fn up(_: &mut Queued<S>, _: &mut QueueEnv<S>) {}
    /// The session was renewed.
    fn renewed(_: &mut Queued<S>, _: &mut QueueEnv<S>) {}
}

/// How a store keeps the node of a hold. The value is the watch on the node.
pub trait Keep<S: QueueStore>: Clone + Debug + PartialEq + Eq + Hash {
    /// Watches the node of a long hold, and does whatever else is due to keep it.
    fn work(queued: &mut Queued<S>, env: &mut QueueEnv<S>);
    /// Returns when [`work`](Self::work) is due.
    fn deadline(hold: &Hold<S>) -> Option<Instant>;
    /// Writes this value to the node, or reads the node (`None`). Returns false if nothing was sent.
    fn write(queued: &mut Queued<S>, env: &mut QueueEnv<S>, value: Option<Bytes>) -> bool;
    /// The session continues on a new connection: all watches are gone.
    fn up(_: &mut Queued<S>, _: &mut QueueEnv<S>) {}
    /// Returns the node for the application.
    fn owner(key: &S::Key, hold: &Hold<S>, env: &QueueEnv<S>) -> Option<S::Owner>;
}

/// The deletion of what an attempt or a hold has left.
pub trait Cleanup<S: QueueStore>: Clone + Debug + PartialEq + Eq + Hash {
    /// Returns its session.
    fn session(&self) -> SessionId;
    /// Returns its next deadline.
    fn deadline(&self) -> Option<Instant>;
    /// Returns true if the session need not stay alive for it.
    fn is_open_ended(&self) -> bool {
        false
    }
    /// Returns true if a shutdown need not wait for it.
    fn is_drained(&self) -> bool {
        false
    }
    /// Does the work of cleanups that is due.
    fn timeout(queued: &mut Queued<S>, env: &mut QueueEnv<S>);
    /// The session is lost or has ended, and its nodes end with it.
    fn lost(queued: &mut Queued<S>, env: &mut QueueEnv<S>, session: SessionId, event: &SessionEvent);
}
