//! What scenarios on the queue stores, etcd and ZooKeeper, have in common.

pub(super) mod draw;
pub(super) mod recipes;

use core::fmt;
use core::time::Duration;

use super::show::show_claim;
use crate::check::Rule;
use lock_proto::{Renew, Wait};

/// Where another program changes queues, two clients may believe to hold a lock. Stale writes are
/// still rejected.
pub(super) const CHANGED_BY_HAND: &[Rule] = &[Rule::MutualExclusion];
/// The same, where a holder cannot know how long the servers keep its lock.
pub(super) const WRONG_CLOCKS: &[Rule] = &[Rule::MutualExclusion, Rule::Validity];

/// Actions specific to queue stores: elections, their members, and the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueAction {
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
        /// Claim the leadership this long after it is offered. `None`: only a later action does.
        claim: Option<Duration>,
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
    /// The key of a contender for this lock is deleted by hand.
    DeleteKey {
        /// The lock's name.
        name: &'static str,
        /// The holder's key, otherwise the newest in the queue.
        oldest: bool,
    },
    /// The session of a contender for this lock is ended by hand: on etcd its lease.
    EndSession {
        /// The lock's name.
        name: &'static str,
        /// The holder's session, otherwise that of the newest in the queue.
        oldest: bool,
    },
}

impl QueueAction {
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
            | Self::DeleteKey { .. }
            | Self::EndSession { .. } => None,
        }
    }
}

impl QueueAction {
    /// Returns the member of this action, if it has one.
    pub(super) const fn node_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Isolate(member) | Self::Rejoin(member) => Some(member),
            Self::Campaign { .. }
            | Self::Observe { .. }
            | Self::Proclaim(_)
            | Self::Close(_)
            | Self::LoseQuorum
            | Self::RestoreQuorum
            | Self::ChangeLeader
            | Self::DeleteKey { .. }
            | Self::EndSession { .. } => None,
        }
    }
}

impl fmt::Display for QueueAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = |oldest: &bool| if *oldest { "holder" } else { "last in the queue" };
        match self {
            Self::Campaign { client, tag, name, ttl, wait, renew, claim, hold } => {
                write!(f, "client {client} campaigns for {name} as #{tag}: wait {wait:?}, renew {renew:?}")?;
                if let Some(ttl) = ttl {
                    write!(f, ", TTL {ttl:?}")?;
                }
                match hold {
                    Some(hold) => write!(f, ", resigns after {hold:?}")?,
                    None => f.write_str(", does not resign")?,
                }
                show_claim(f, *claim)
            }
            Self::Proclaim(tag) => write!(f, "#{tag} proclaims"),
            Self::Observe { client, tag, name, always: true } => {
                write!(f, "client {client} observes {name} as #{tag}")
            }
            Self::Observe { client, tag, name, always: false } => {
                write!(f, "client {client} queries the leader of {name} as #{tag}")
            }
            Self::Close(tag) => write!(f, "#{tag} is closed"),
            Self::Isolate(member) => write!(f, "member {member} is cut off from the others"),
            Self::Rejoin(member) => write!(f, "member {member} rejoins the others"),
            Self::LoseQuorum => f.write_str("all members are cut off from each other"),
            Self::RestoreQuorum => f.write_str("all members are connected again"),
            Self::ChangeLeader => f.write_str("another member leads"),
            Self::DeleteKey { name, oldest } => write!(f, "the key of the {} of {name} is deleted", whose(oldest)),
            Self::EndSession { name, oldest } => write!(f, "the session of the {} of {name} is ended", whose(oldest)),
        }
    }
}
