//! What the stores of the queue family share, and what is special about each. A contender has a
//! node in a queue of the store, which lives as long as its session. The first one in the queue
//! holds the lock. A *node* here is an etcd key or a ZooKeeper node.

use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use bytes::Bytes;

use super::hold::QueueHold;
use super::queued::{QueueConfig, QueueEnv, QueueRemains, Queued};
use super::sessions::{QueueSession, SessionCall, SessionEvent, SessionId};
use crate::error::{Invalid, Misuse};
use crate::lock::answer::Answer;
use crate::lock::grant::Loss;
use crate::lock::operation::{LeaderQuery, OpenOperation};
use crate::time::{Instant, When};

/// What a client and its store exchange.
pub trait QueueProtocol: Sized {
    /// The name of a queue in the store.
    type Key: Clone + Debug + PartialEq + Eq + Ord + Hash;
    /// The settings that only this store has.
    type Settings: Clone + Debug + PartialEq + Eq + Hash;
    /// A request to a server.
    type Request: Clone + Debug + PartialEq + Eq + Hash;
    /// The reply to a request.
    type Reply;
    /// An output of the locks that only this store has.
    type Output: Clone + Debug + PartialEq + Eq + Hash;

    /// Checks the TTL of a lock, and rounds it as the server does.
    fn check_ttl(config: &QueueConfig<Self>, ttl: Duration) -> Result<Duration, Invalid>;
    /// Returns how long the TTL proves the session.
    fn validity(_: &QueueConfig<Self>, ttl: Duration) -> Duration {
        ttl
    }
    /// Returns the queue of a lock.
    fn key(config: &QueueConfig<Self>, name: &[u8]) -> Result<Self::Key, Misuse>;
    /// Returns the queue of an election.
    fn election(config: &QueueConfig<Self>, name: &[u8]) -> Result<Self::Key, Misuse> {
        Self::key(config, name)
    }
    /// Returns a request that changes nothing, to check a server.
    fn ping(env: &mut QueueEnv<Self>) -> Self::Request
    where
        Self: QueueStore;
    /// Returns what the reply to it means; [`Answer::Granted`] if the server works.
    fn pong(reply: &Self::Reply) -> Answer;
}

/// How a store contends for, keeps and ends a hold. The value is the store's state for one name,
/// apart from contention and hold.
pub trait QueueStore: QueueProtocol + Clone + Debug + Default + PartialEq + Eq + Hash {
    /// The purpose of a call of a lock.
    type Call: Clone + Debug + PartialEq + Eq + Hash;
    /// The progress of the contention; by default there is none.
    type Contention: Clone + Debug + Default + PartialEq + Eq + Hash;
    /// The node of a hold, and what is known of it.
    type Node: Clone + Debug + PartialEq + Eq + Hash;
    /// The node of a hold, as the application sees it.
    type Owner;
    /// The store's part of what the locks of a client share.
    type Client: QueueClient<Self>;

    /// True if ownership is proven by a write to the node, whose revision begins a new series of
    /// fencing tokens.
    const WRITE_PROVES: bool;
    /// True if the end of a session resolves the releases of its nodes.
    const END_RESOLVES: bool;
    /// True if pings keep a session alive, and renewals are needed only to prove it.
    const RENEWALS_PROVE: bool;
    /// True if queries and observations use the shared session, which then does not end while one
    /// is open.
    const QUERIES_USE_SESSION: bool;
    /// True if a waiting node shows for whom it was created, and serves no other waiter.
    const NODES_SHOW_BIDS: bool;

    // --- contending ---

    /// Enters the queue, or waits for the session.
    fn enter(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, session: SessionId);
    /// Returns how far the contention has come.
    fn contending(contention: &Self::Contention) -> Option<Contending>;
    /// Ends the contention, and deletes its node unless the session is lost.
    fn leave(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>);

    // --- holding ---

    /// Writes this value to the node of the hold, or reads the node (`None`). Returns false if
    /// nothing was sent.
    fn write(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, value: Option<Bytes>) -> bool;
    /// Returns the node of the hold for the application.
    fn owner(key: &Self::Key, hold: &QueueHold<Self>, env: &QueueEnv<Self>) -> Option<Self::Owner>;
    /// The hold has ended. Returns its node, unless that is gone.
    fn end(
        queued: &mut Queued<Self>,
        env: &mut QueueEnv<Self>,
        hold: QueueHold<Self>,
        loss: Option<Loss>,
    ) -> Option<Self::Node>;
    /// Deletes what an ended hold left, if its session lives on.
    fn clean_up(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, remains: &QueueRemains<Self>);
    /// Returns the deletions that are not confirmed.
    fn cleanups(queued: &Queued<Self>) -> impl Iterator<Item = PendingCleanup>;

    // --- inputs ---

    /// Handles the reply to a call.
    fn answered(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, call: Self::Call, reply: &Self::Reply);
    /// Handles an event of a session, before its loss or failure is reported.
    fn session_event(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>, session: SessionId, event: &SessionEvent);
    /// Does the work that is due, also that which keeps the hold. Called in a shutdown, too.
    fn timeout(queued: &mut Queued<Self>, env: &mut QueueEnv<Self>);
    /// Returns the next deadline and its reason. `is_up`: requests about the hold can be sent.
    /// Without contention, hold, cleanup and deadline, the state for one name can be dropped.
    fn deadline(queued: &Queued<Self>, is_up: bool) -> Option<(Instant, &'static str)>;
}

/// What is known of a contention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contending {
    pub(crate) session: SessionId,
    pub(crate) stage: ContentionStage,
}

/// How far a contention has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentionStage {
    /// The session is not established.
    Opening,
    /// Entering the store's queue.
    Entering,
    /// Waiting in the store's queue, behind another node.
    Waiting,
    /// Only the holder is ahead, or nobody: the session must be proven.
    Next,
}

/// A deletion of what an attempt or a hold has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCleanup {
    pub(crate) session: SessionId,
    /// The session must stay alive for it.
    pub(crate) needs_session: bool,
    /// A shutdown waits for it.
    pub(crate) delays_shutdown: bool,
}

/// How a store opens, renews and ends the sessions of a client, and reads the leaders of elections.
/// The value is what else the locks of a client share.
pub trait QueueClient<S: QueueStore<Client = Self>>: Clone + Debug + Default + PartialEq + Eq + Hash {
    /// The store's part of a session.
    type Session: Clone + Debug + PartialEq + Eq + Hash;
    /// How it reads the leader of an election.
    type Query: LeaderQuery<Queued<S>, Reply = S::Reply>;

    // --- sessions ---

    /// Creates the store's part of a session.
    fn new_session(env: &mut QueueEnv<S>) -> Self::Session;
    /// Returns true if requests can be sent.
    fn is_up(_: &QueueSession<S>) -> bool {
        true
    }
    /// Returns the next deadline and its reason.
    fn session_deadline(session: &QueueSession<S>) -> (When, &'static str);
    /// Does the work that is due.
    fn session_timeout(session: &mut QueueSession<S>, env: &mut QueueEnv<S>) -> Option<SessionEvent>;
    /// Renews the session now.
    fn renew(session: &mut QueueSession<S>, env: &mut QueueEnv<S>);
    /// Handles the reply to its call.
    fn session_answered(
        session: &mut QueueSession<S>,
        env: &mut QueueEnv<S>,
        call: SessionCall,
        reply: &S::Reply,
    ) -> Option<SessionEvent>;
    /// Ends the session on the server. It is over if it cannot exist there, and ending otherwise.
    fn end_session(session: &mut QueueSession<S>, env: &mut QueueEnv<S>);

    /// Handles an event of a session, for a question or an observation. Returns true if that has
    /// ended.
    fn query_event(
        _: &mut Self::Query,
        _: &mut OpenOperation,
        _: &mut QueueEnv<S>,
        _: SessionId,
        _: &SessionEvent,
    ) -> bool {
        false
    }
}
