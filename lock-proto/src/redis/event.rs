//! What an application asks for, and what it is told.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::request::{Cause, Expiry, Key, ServerError};
use super::token::Token;
use crate::id::{LockId, NodeId};
use crate::time::Instant;

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Exactly one attempt; none if the lock is held or waited for in this client.
    Try,
    /// At most this long. Independent of the TTL.
    For(Duration),
    /// For ever.
    Forever,
}

/// Who keeps the lock alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Renew {
    /// The watchdog, for as long as the guard is held.
    Auto,
    /// The application, by `extend`; without it the lock ends a TTL after the grant.
    Manual,
    /// The watchdog, but the hold ends at the latest this long after the grant.
    ///
    /// At that time the holder is notified with [`Loss::MaxHold`], and renewal stops. The key stays until the guard is released or
    /// dropped, so that the work can come to an end before the next holder begins. A guard that stays out delays the next holder by a
    /// TTL at most: then the key ends by itself.
    ///
    /// On etcd such a lock has a lease of its own, which costs one more request to take it and one more to release it.
    AtMost(Duration),
}

/// A wish for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an Acquire does nothing until it is given to a client"]
pub struct Acquire {
    pub(crate) name: Arc<[u8]>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Wait,
    pub(crate) renew: Renew,
}

impl Acquire {
    /// The lock `name`, with the client's TTL (10 s if nothing else was set), kept alive by the watchdog, waiting for ever.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().into(), ttl: None, wait: Wait::Forever, renew: Renew::Auto }
    }

    /// How long the lock outlives the last sign of life of its holder. Whole milliseconds, rounded up.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for it.
    pub const fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Who keeps it alive.
    pub const fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }
}

/// A fencing token: grows with every grant under a namespace of one Redis node, however often the lock is lost.
///
/// Hand it to the resource that the lock protects, and let the resource refuse a token smaller than the greatest it has
/// seen.
///
/// Tokens are minted from a counter on the server, which stays at or below the server's clock in µs. Tokens keep growing:
///
/// - if the counter is evicted, or the server restarts without its data, unless its clock is set back;
/// - if the server restarts with old data, or a stale replica is promoted, once the clock of the server that grants next is
///   [`Config::fence_block`](super::Config::fence_block) µs past the time of the last grant.
///
/// They do not if the counter is lost while it is ahead of the clock, because that was set back: see [`Grant::fence_ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub(crate) u64);

impl Fence {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a holder has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Grant {
    /// The value that the key holds. A lock passed on inside the client keeps the key and its token.
    pub token: Token,
    /// The fencing token; `None` for a quorum, which has none, or if fencing is off.
    pub fence: Option<Fence>,
    /// By how much the fence counter is ahead of the server's clock, if that is a millisecond or more: the clock was set back.
    /// Tokens grow all the same while the counter is there. If it is lost before the clock has caught up, they go back by so much.
    pub fence_ahead: Option<Duration>,
    /// The TTL of the key.
    pub ttl: Duration,
    /// Until when the lock is certainly held if nothing more is heard.
    pub valid_until: Instant,
}

/// What happens to one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// Still waiting, and this is why. Told when the reason changes.
    Blocked(Blocked),
    /// The lock is offered: call `claim` to hold it. Unclaimed at a third of its TTL it is withdrawn, so that a parked
    /// future cannot keep it (requirement H5).
    Granted(Grant),
    /// The offer was withdrawn before it was claimed. Last event.
    Withdrawn,
    /// The lock was not acquired, and nothing is left behind. Last event.
    Failed(Failure),
    /// The watchdog (or `extend`) moved the end of validity. Answers no `extend`.
    Renewed {
        /// The new end.
        valid_until: Instant,
    },
    /// The answer to an `extend`: requests that were emitted at or after the call were confirmed. Each call has one answer, in the order
    /// of the calls; those that a loss or a release overtakes have none. [`Renewed`](Self::Renewed) comes before it.
    Extended,
    /// The answer to an `extend`: too few nodes confirmed it. The lock is still held until `valid_until`.
    ExtendFailed(Report),
    /// The validity ends soon and renewals do not get through: wind the work down.
    AtRisk {
        /// When it will be lost.
        valid_until: Instant,
    },
    /// The lock is lost. Terminal for the hold: whatever comes later, it is not held again. Give it back by `release` or
    /// `abandon`.
    Lost(Loss),
    /// The answer to `release`. Last event.
    Released(Release),
    /// The answer to `proclaim`: the value stands since this revision of the store.
    Proclaimed {
        /// The revision.
        revision: i64,
    },
    /// A `proclaim` was not confirmed in time: the value may or may not stand.
    ProclaimFailed(Report),
}

/// Why an acquisition still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Blocked {
    /// Another acquisition of this client is before it.
    #[error("held or waited for in this client")]
    Local,
    /// Somebody else holds it.
    #[error("held by another client")]
    Held,
    /// Somebody holds it, and the key has no expiry: it may never end by itself.
    #[error("held without expiry")]
    HeldWithoutExpiry,
    /// Too few nodes answer.
    #[error("too few servers answer")]
    Unreachable,
    /// Too few nodes of a quorum count, because the others were started too recently (requirement Q6).
    #[error("too few servers count: some were started too recently, and may have lost their data")]
    TooYoung,
    /// Too few nodes of a quorum count, because the addresses of others keep leading to different servers (requirement Q7).
    #[error("too few servers count: the addresses of some lead to one server after another")]
    UnstableIdentity,
}

/// Why a lock was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The wait ran out, or the only attempt failed.
    #[error("not acquired: {0}")]
    TimedOut(Report),
    /// The key holds something that is no lock.
    #[error("key in use by something else: {0}")]
    KeyInUse(Report),
    /// The servers refuse, and a retry will not help.
    #[error("refused: {0}")]
    Refused(Report),
    /// Two nodes of the quorum are one server.
    #[error("{0} and {1} are the same server")]
    EqualNodes(NodeId, NodeId),
    /// The client is shutting down.
    #[error("the client is shutting down")]
    ShuttingDown,
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its validity ran out before a renewal was confirmed.
    #[error("no renewal was confirmed in time")]
    Expired,
    /// The key is gone, though its time had not come: deleted, flushed, evicted, or lost by a restart.
    #[error("the key is gone")]
    Gone,
    /// The key holds somebody else's value.
    #[error("another client has the lock")]
    Taken,
    /// The maximal hold time is over, see [`Renew::AtMost`].
    #[error("the maximal hold time is over")]
    MaxHold,
    /// The client was shut down.
    #[error("the client was shut down")]
    ShutDown,
    /// Nodes of the quorum turned out to be one server, and too few others have the lock.
    #[error("nodes of the quorum are the same server")]
    EqualNodes,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// It was ours, and is given back. Also when it was passed on to the next waiter of this client.
    Released,
    /// It was ours until it ended by itself; nobody has it.
    Expired,
    /// It has ended, and somebody else has it now.
    Taken,
    /// No answer within the release's own time: it goes on in the background, and ends by itself at the TTL.
    Unknown,
}

/// What was last heard of each node, and for how long the wait was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Report {
    /// How long was waited.
    pub waited: Duration,
    /// The last answer of each node, in the configured order. Empty if no node was asked, because the lock is held or waited
    /// for in this client.
    pub nodes: Box<[Answer]>,
}

impl Report {
    /// Whether somebody was last seen holding the lock: on some node, or in this client.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|answer| matches!(answer, Answer::Taken(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {:?}; ", self.waited)?;
        if self.nodes.is_empty() {
            return f.write_str("held or waited for in this client");
        }
        for (i, answer) in self.nodes.iter().enumerate() {
            write!(f, "{}node {i}: {answer}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// What a node last answered to an acquisition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// Nothing: it was not asked, or has not answered yet.
    #[default]
    Silent,
    /// The lock was granted there.
    Granted,
    /// Somebody else has it.
    Taken(Expiry),
    /// The request never left.
    Unreachable(Cause),
    /// The request left, and its answer is not known.
    Unknown(Cause),
    /// The node was started too recently to count in a quorum, or its address has begun to lead to another server: it may lack data.
    TooYoung,
    /// The address of the node led to a different server three times within a quarantine: a proxy that changes servers, or a server
    /// that crashes again and again.
    UnstableIdentity,
    /// The node refused.
    Rejected(ServerError),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("no answer yet"),
            Self::Granted => f.write_str("granted"),
            Self::Taken(Expiry::In(left)) => write!(f, "taken for another {left:?}"),
            Self::Taken(Expiry::Never) => f.write_str("taken without expiry"),
            Self::Taken(Expiry::Unknown) => f.write_str("taken"),
            Self::Unreachable(cause) => write!(f, "unreachable ({cause})"),
            Self::Unknown(cause) => write!(f, "unknown ({cause})"),
            Self::TooYoung => f.write_str("restarted too recently"),
            Self::UnstableIdentity => f.write_str("a different server at each connection"),
            Self::Rejected(error) => write!(f, "{error}"),
        }
    }
}

/// What the hub tells its surroundings. One ordered queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocksOutput {
    /// Send this request to the node, and give the answer to `handle_reply`. If it is not answered within `patience`, close the
    /// connection and answer `Unknown`, or `NotSent` if it had not left.
    Send {
        /// To be given back with the answer.
        call: crate::CallId,
        /// The request.
        request: super::request::Request,
        /// How long an answer may take.
        patience: Duration,
    },
    /// Tell an acquisition.
    Event {
        /// Which one.
        lock: LockId,
        /// What.
        event: Event,
    },
    /// Watch for the release of this lock on every node, from now on. A node that has told of one need not tell of another before this comes
    /// again.
    Listen {
        /// The lock.
        key: Key,
    },
    /// Watch it no longer.
    Unlisten {
        /// The lock.
        key: Key,
    },
    /// The shutdown is over.
    Stopped {
        /// Locks that something may be left of, until its TTL ends: their deletes were not confirmed in time.
        unreleased: u32,
    },
}
