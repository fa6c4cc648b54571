//! The part of a plan that is specific to ZooKeeper.

mod draw;
mod list;
mod run;
mod stops;

use core::fmt;
use core::time::Duration;

use crate::zookeeper::{Condition, ServerRelease};

pub(super) use draw::{EnsembleRecipe, draw};
pub(super) use list::SCENARIOS;
pub(super) use run::run;

/// Settings of the ensemble and of every client that a plan varies. The ensemble has as many
/// members as the setup has nodes; their clocks keep true time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZookeeperStore {
    /// Tick of the servers. Sessions time out after 2 to 20 of them.
    pub tick: Duration,
    /// Number of ticks after which a leader and a follower give each other up.
    pub sync_limit: u32,
    /// TTL of the session that the locks of a client share.
    pub session_ttl: Duration,
    /// How long a client without locks keeps its session.
    pub idle_timeout: Duration,
    /// Whether each renewal continues the session on a new connection.
    pub revalidate: bool,
    /// How long a client hands a lock over locally.
    pub turn: Duration,
    /// Timeout of a request.
    pub request_timeout: Duration,
    /// When a holder starts to watch its own node; `None`: after a third of the validity.
    pub watch_own_after: Option<Duration>,
    /// Interval at which queues are read even without an event.
    pub recheck: Duration,
    /// How often the leader deletes empty containers.
    pub container_interval: Duration,
    /// The release of the servers.
    pub release: ServerRelease,
    /// Whether clients log in.
    pub login: bool,
}

/// Actions specific to ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZookeeperAction {
    /// A follower applies what the leader commits this much later.
    Delay {
        /// The member.
        member: usize,
        /// How much later.
        lag: Duration,
    },
    /// Another program creates a node in the queue of a lock, which no client of this dialect waits
    /// for.
    AddForeign {
        /// The lock's name.
        name: &'static str,
    },
    /// The sequence numbers of a queue go on with this one.
    SetSequence {
        /// The lock's name.
        name: &'static str,
        /// The next number.
        next: i32,
    },
    /// Servers begin or cease to refuse requests.
    Condition {
        /// The condition.
        condition: Condition,
        /// Whether it begins.
        on: bool,
    },
}

impl fmt::Display for ZookeeperAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay { member, lag } => write!(f, "member {member} is {lag:?} behind the leader"),
            Self::AddForeign { name } => write!(f, "a foreign node joins the queue of {name}"),
            Self::SetSequence { name, next } => write!(f, "the next number of {name} is {next}"),
            Self::Condition { condition, on } => {
                write!(f, "{condition:?} {}", if *on { "begins" } else { "is over" })
            }
        }
    }
}

#[cfg(test)]
mod tests;
