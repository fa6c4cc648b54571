//! The part of a plan that is specific to ZooKeeper.

mod draw;
mod list;
mod run;

use core::fmt;
use core::time::Duration;

use crate::lock::{Renew, Wait};
use crate::sim::zookeeper::Release;

pub(super) use list::SCENARIOS;

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
    pub release: Release,
    /// Whether clients log in.
    pub login: bool,
}

/// Actions specific to ZooKeeper.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZookeeperAction {
    /// A candidate joins an election.
    Campaign {
        /// The client.
        client: usize,
        /// Identifies this candidacy in other actions.
        tag: u32,
        /// The name of the election.
        name: &'static str,
        /// TTL of a separate session, or `None` for the client's session.
        ttl: Option<Duration>,
        /// Maximum wait.
        wait: Wait,
        /// How the leadership is renewed.
        renew: Renew,
        /// Claim the leadership as soon as it is offered.
        claim: bool,
        /// Resign this long after the election.
        hold: Option<Duration>,
    },
    /// A leader proclaims another value.
    Proclaim(u32),
    /// A client queries the leader once, or observes the leadership.
    Observe {
        /// The client.
        client: usize,
        /// Identifies this query in other actions.
        tag: u32,
        /// The name of the election.
        name: &'static str,
        /// Whether to observe until closed.
        always: bool,
    },
    /// A client closes its observation.
    Close(u32),
    /// A member is cut off from the other members.
    Isolate(usize),
    /// A member that was cut off rejoins.
    Rejoin(usize),
    /// All members are cut off from each other.
    LoseQuorum,
    /// The members are connected again.
    RestoreQuorum,
    /// The leadership moves to another member.
    ChangeLeader,
    /// A follower applies what the leader commits this much later.
    Delay {
        /// The member.
        member: usize,
        /// How much later.
        lag: Duration,
    },
    /// A contender's node is deleted by hand.
    DeleteNode {
        /// The lock's name.
        name: &'static str,
        /// The first contender's node, otherwise the last one's.
        oldest: bool,
    },
    /// A contender's session is ended by hand.
    EndSession {
        /// The lock's name.
        name: &'static str,
        /// The first contender's session, otherwise the last one's.
        oldest: bool,
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
}

impl ZookeeperAction {
    /// Returns the client of this action, if it has one.
    pub(super) const fn client_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Campaign { client, .. } | Self::Observe { client, .. } => Some(client),
            Self::Proclaim(_)
            | Self::Close(_)
            | Self::Isolate(_)
            | Self::Rejoin(_)
            | Self::LoseQuorum
            | Self::RestoreQuorum
            | Self::ChangeLeader
            | Self::Delay { .. }
            | Self::DeleteNode { .. }
            | Self::EndSession { .. }
            | Self::AddForeign { .. }
            | Self::SetSequence { .. } => None,
        }
    }
}

impl fmt::Display for ZookeeperAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = |oldest: &bool| if *oldest { "first" } else { "last" };
        match self {
            Self::Campaign { client, tag, name, ttl, wait, renew, claim, hold } => {
                write!(f, "client {client} campaigns for {name} as #{tag}: wait {wait:?}, renew {renew:?}")?;
                write!(f, ", TTL {ttl:?}, resigns after {hold:?}")?;
                f.write_str(if *claim { "" } else { ", does not claim it" })
            }
            Self::Proclaim(tag) => write!(f, "#{tag} proclaims"),
            Self::Observe { client, tag, name, always } => {
                write!(f, "client {client} {} {name} as #{tag}", if *always { "observes" } else { "queries" })
            }
            Self::Close(tag) => write!(f, "#{tag} is closed"),
            Self::Isolate(member) => write!(f, "member {member} is cut off from the others"),
            Self::Rejoin(member) => write!(f, "member {member} rejoins the others"),
            Self::LoseQuorum => f.write_str("all members are cut off from each other"),
            Self::RestoreQuorum => f.write_str("all members are connected again"),
            Self::ChangeLeader => f.write_str("another member leads"),
            Self::Delay { member, lag } => write!(f, "member {member} is {lag:?} behind the leader"),
            Self::DeleteNode { name, oldest } => write!(f, "the node of the {} of {name} is deleted", whose(oldest)),
            Self::EndSession { name, oldest } => write!(f, "the session of the {} of {name} is ended", whose(oldest)),
            Self::AddForeign { name } => write!(f, "a foreign node joins the queue of {name}"),
            Self::SetSequence { name, next } => write!(f, "the next number of {name} is {next}"),
        }
    }
}

#[cfg(test)]
mod tests;
