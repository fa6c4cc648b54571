//! What happens to an acquisition.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::answer::Answer;
use super::grant::{Grant, Loss, Release};
use crate::id::NodeId;
use crate::time::Instant;

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

impl Event {
    /// No other event of this acquisition follows, and its id has ended.
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Withdrawn | Self::Failed(_) | Self::Released(_))
    }
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
    RecentlyRestarted,
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
    /// What a lock of your own has heard.
    #[must_use]
    pub fn new(waited: Duration, nodes: impl Into<Box<[Answer]>>) -> Self {
        Self { waited, nodes: nodes.into() }
    }

    /// Whether somebody was last seen holding the lock: on some node, or in this client.
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
