//! The part of a plan that is specific to etcd.

pub(super) mod draw;
mod flawed;
mod list;
mod run;

use core::fmt;
use core::time::Duration;

use crate::lock::{Renew, Wait};
use crate::sim::etcd::Condition;

pub use flawed::EtcdFlaw;
pub(super) use list::SCENARIOS;

/// Settings of the cluster and of every client that a plan varies. The cluster has as many members
/// as the setup has nodes; their clocks keep true time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdStore {
    /// TTL of the session lease that the locks of a client share, in whole seconds.
    pub session_ttl: Duration,
    /// How long a client hands a lock over locally.
    pub turn: Duration,
    /// Timeout of a request.
    pub request_timeout: Duration,
    /// When a holder starts to watch its own key; `None`: after a third of the TTL.
    pub watch_own_after: Option<Duration>,
    /// Maximum silence of the watch stream.
    pub watch_quiet: Duration,
    /// Interval at which watched keys are read even without an event.
    pub recheck: Duration,
    /// Maximum delay between arrival and execution of a call, and that of its reply.
    pub late: Duration,
    /// Number of members in the settings of clients, which ask the cluster for the others. `None`
    /// for all.
    pub known: Option<usize>,
    /// Lifetime of an unused token, or `None` if clients do not log in.
    pub token_ttl: Option<Duration>,
}

/// Actions specific to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdAction {
    /// A candidate joins an election.
    Campaign {
        /// The client.
        client: usize,
        /// Identifies this candidacy in other actions.
        tag: u32,
        /// The name of the election.
        name: &'static str,
        /// TTL of a separate lease, or `None` for the client's session lease.
        ttl: Option<Duration>,
        /// Maximum wait.
        wait: Wait,
        /// How the leadership is renewed.
        renew: Renew,
        /// Claim the leadership as soon as it is offered.
        claim: bool,
        /// Resign this long after the election, in two steps: the leader is asked to stop, and
        /// resigns when its work has ended.
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
    /// A member stops in order.
    StopMember(usize),
    /// A member is isolated from the other members.
    Isolate(usize),
    /// An isolated member rejoins.
    Rejoin(usize),
    /// All members are isolated from each other.
    LoseQuorum,
    /// The members are connected again.
    RestoreQuorum,
    /// The leadership moves to another member.
    ChangeLeader,
    /// The history is compacted.
    Compact,
    /// An unrelated key is written.
    Touch,
    /// Every watch is cancelled by its member.
    CancelWatches,
    /// All streams of a member end.
    EndStreams(usize),
    /// The watches of a member start to lose events.
    LoseEvents(usize),
    /// The watches of a member report events again.
    KeepEvents(usize),
    /// Every token becomes invalid.
    ExpireTokens,
    /// A key of this lock is deleted by hand.
    DeleteKey {
        /// The lock's name.
        name: &'static str,
        /// The holder's key, otherwise the newest in the queue.
        oldest: bool,
    },
    /// A key of this lock is deleted by hand and created again.
    ReplaceKey {
        /// The lock's name.
        name: &'static str,
        /// The holder's key, otherwise the newest in the queue.
        oldest: bool,
    },
    /// The lease of a key of this lock is revoked by hand.
    RevokeLease {
        /// The lock's name.
        name: &'static str,
        /// The holder's key, otherwise the newest in the queue.
        oldest: bool,
    },
    /// A condition in which the cluster refuses requests begins or ends.
    Condition {
        /// The condition.
        condition: Condition,
        /// Whether it begins.
        on: bool,
    },
}

impl EtcdAction {
    /// Returns the client of this action, if it has one.
    pub(super) const fn client_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Campaign { client, .. } | Self::Observe { client, .. } => Some(client),
            Self::Proclaim(_)
            | Self::Close(_)
            | Self::StopMember(_)
            | Self::Isolate(_)
            | Self::Rejoin(_)
            | Self::LoseQuorum
            | Self::RestoreQuorum
            | Self::ChangeLeader
            | Self::Compact
            | Self::Touch
            | Self::CancelWatches
            | Self::EndStreams(_)
            | Self::LoseEvents(_)
            | Self::KeepEvents(_)
            | Self::ExpireTokens
            | Self::DeleteKey { .. }
            | Self::ReplaceKey { .. }
            | Self::RevokeLease { .. }
            | Self::Condition { .. } => None,
        }
    }
}

impl fmt::Display for EtcdAction {
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
                f.write_str(if *claim { "" } else { ", does not claim it" })
            }
            Self::Proclaim(tag) => write!(f, "#{tag} proclaims"),
            Self::Observe { client, tag, name, always: true } => {
                write!(f, "client {client} observes {name} as #{tag}")
            }
            Self::Observe { client, tag, name, always: false } => {
                write!(f, "client {client} queries the leader of {name} as #{tag}")
            }
            Self::Close(tag) => write!(f, "#{tag} is closed"),
            Self::StopMember(member) => write!(f, "member {member} stops"),
            Self::Isolate(member) => write!(f, "member {member} is cut off from the others"),
            Self::Rejoin(member) => write!(f, "member {member} rejoins the others"),
            Self::LoseQuorum => f.write_str("all members are cut off from each other"),
            Self::RestoreQuorum => f.write_str("all members are connected again"),
            Self::ChangeLeader => f.write_str("another member leads"),
            Self::Compact => f.write_str("the history is compacted"),
            Self::Touch => f.write_str("an unrelated key is written"),
            Self::CancelWatches => f.write_str("every watch is cancelled"),
            Self::EndStreams(member) => write!(f, "the streams of member {member} end"),
            Self::LoseEvents(member) => write!(f, "the watches of member {member} lose events"),
            Self::KeepEvents(member) => write!(f, "the watches of member {member} report events again"),
            Self::ExpireTokens => f.write_str("every token becomes invalid"),
            Self::DeleteKey { name, oldest } => write!(f, "the key of the {} of {name} is deleted", whose(oldest)),
            Self::ReplaceKey { name, oldest } => write!(f, "the key of the {} of {name} is replaced", whose(oldest)),
            Self::RevokeLease { name, oldest } => write!(f, "the lease of the {} of {name} is revoked", whose(oldest)),
            Self::Condition { condition, on: true } => write!(f, "the cluster refuses: {condition:?}"),
            Self::Condition { condition, on: false } => write!(f, "the cluster recovers from {condition:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
