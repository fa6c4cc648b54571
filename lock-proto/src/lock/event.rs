//! Events of an acquisition.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::answer::Answer;
use super::grant::{Grant, Loss, Release};
use crate::id::NodeId;
use crate::time::Instant;

/// An event of one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The acquisition waits, for this reason. Emitted when the reason changes.
    Blocked(Blocked),
    /// The lock is offered: call `claim` to hold it. An offer that is not claimed within a third of
    /// the TTL (on ZooKeeper, of the validity) is withdrawn, so that a parked future cannot keep
    /// the lock.
    // H5
    Granted(Grant),
    /// The offer was withdrawn before it was claimed. Last event.
    Withdrawn,
    /// The lock was not acquired. What the attempt left is removed in the background. Last event.
    Failed(Failure),
    /// The end of validity has moved. A renewal by the watchdog or by `extend` moves it forwards;
    /// this does not answer an `extend`. It moves backwards if a node of a quorum lost the key, or
    /// a server granted a shorter session.
    Renewed {
        /// The new end of validity.
        valid_until: Instant,
    },
    /// The answer to an `extend`: requests emitted at or after the call were confirmed. Each call
    /// has one answer, in the order of the calls, unless the lock is lost or released first.
    /// [`Renewed`](Self::Renewed) precedes it.
    Extended,
    /// The answer to an `extend`: too few servers confirmed it. The lock stays held until
    /// `valid_until`.
    ExtendFailed(Report),
    /// The validity ends soon, and renewals are failing. Finish the work.
    AtRisk {
        /// When the lock will be lost.
        valid_until: Instant,
    },
    /// The lock is lost. The hold never recovers. Return the lock with `release` or `abandon`.
    Lost(Loss),
    /// The answer to `release`. Last event.
    Released(Release),
    /// The answer to `proclaim`: the value was stored at this revision.
    Proclaimed {
        /// The revision of etcd, the `mzxid` of ZooKeeper, or the version of a register's record.
        revision: i64,
    },
    /// A `proclaim` was not confirmed in time. The store may or may not have the value.
    ProclaimFailed(Report),
}

impl Event {
    /// Returns true for the last event of an acquisition. Its id has ended.
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Withdrawn | Self::Failed(_) | Self::Released(_))
    }
}

/// Why an acquisition waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Blocked {
    /// Another acquisition of this client precedes it.
    #[error("held or waited for in this client")]
    Local,
    /// Another client holds it.
    #[error("held by another client")]
    Held,
    /// Another client holds it with a key without expiry, which may never end.
    #[error("held without expiry")]
    HeldWithoutExpiry,
    /// Too few servers reply.
    #[error("too few servers answer")]
    Unreachable,
    /// Too few nodes of a quorum count: others were started too recently.
    // Q6
    #[error("too few servers count: some were started too recently, and may have lost their data")]
    RecentlyRestarted,
    /// Too few nodes of a quorum count: the addresses of others keep changing servers.
    // Q7
    #[error("too few servers count: the addresses of some keep changing servers")]
    UnstableIdentity,
}

/// Why a lock was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The wait timed out, or the only attempt failed.
    #[error("not acquired: {0}")]
    TimedOut(Report),
    /// The key holds a value that is not a lock.
    #[error("key in use by something else: {0}")]
    KeyInUse(Report),
    /// The servers refuse, and a retry would not help.
    #[error("refused: {0}")]
    Refused(Report),
    /// The numbers of the queue are used up, and the queue did not become empty in time.
    #[error("the sequence numbers of the queue are used up: {0}")]
    SequenceExhausted(Report),
    /// Two nodes of the quorum are the same server.
    #[error("{0} and {1} are the same server")]
    EqualNodes(NodeId, NodeId),
    /// The client is shutting down.
    #[error("the client is shutting down")]
    ShuttingDown,
}

impl Failure {
    /// Returns the report, for a host that waited longer than the machine knows.
    pub const fn report_mut(&mut self) -> Option<&mut Report> {
        match self {
            Self::TimedOut(report)
            | Self::KeyInUse(report)
            | Self::Refused(report)
            | Self::SequenceExhausted(report) => Some(report),
            Self::EqualNodes(..) | Self::ShuttingDown => None,
        }
    }
}

/// The last reply of each server, and the length of the wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Report {
    /// How long the acquisition waited.
    pub waited: Duration,
    /// The last reply of each server, in the configured order. Empty if the lock is held or waited
    /// for in this client, so that no server was asked. If the client yields to a waiter of another
    /// client that its last release has woken, each reply is [`Taken`](Answer::Taken) without an
    /// expiry.
    pub nodes: Box<[Answer]>,
}

impl Report {
    /// Creates the report of a custom lock.
    #[must_use]
    pub fn new(waited: Duration, nodes: impl Into<Box<[Answer]>>) -> Self {
        Self { waited, nodes: nodes.into() }
    }

    /// Returns true if the lock was last seen held, on some server or in this client.
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
