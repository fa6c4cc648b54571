//! What is particular to etcd in a plan.

mod draw;
mod list;
mod run;

use core::fmt;
use core::time::Duration;

use crate::lock::{Renew, Wait};
use crate::sim::etcd::Condition;

pub(super) use list::SCENARIOS;

/// The settings of the cluster and of every client, as far as a plan varies them. There are as many members as the setup has nodes; their
/// clocks keep true time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdStore {
    /// The TTL of the lease that the locks of a client share. Whole seconds.
    pub session_ttl: Duration,
    /// How long a lock is passed on inside a client.
    pub turn: Duration,
    /// How long a request may be unanswered.
    pub request_timeout: Duration,
    /// From when on a holder watches its own key; `None`: after a third of the TTL.
    pub watch_own_after: Option<Duration>,
    /// How long the watch stream may be silent.
    pub watch_quiet: Duration,
    /// How often is read what is watched, though nothing was reported.
    pub recheck: Duration,
    /// How much later than it comes a call may be executed.
    pub late: Duration,
    /// Whether clients log in, and how long a token lives without being used; `None`: nobody logs in.
    pub token_ttl: Option<Duration>,
}

/// What can happen with etcd only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdAction {
    /// A candidate stands for election.
    Campaign {
        /// The client.
        client: usize,
        /// What other actions call this candidacy.
        tag: u32,
        /// The election's name.
        name: &'static str,
        /// The TTL of a lease of its own; `None` for the client's.
        ttl: Option<Duration>,
        /// How long to wait.
        wait: Wait,
        /// Who keeps it alive.
        renew: Renew,
        /// Take the office as soon as it is offered.
        claim: bool,
        /// Resign so long after the election, in two steps: the work is asked to stop, and the office is given up when it has.
        hold: Option<Duration>,
    },
    /// A leader proclaims another value.
    Proclaim(u32),
    /// Somebody asks who leads (once), or observes it.
    Observe {
        /// The client.
        client: usize,
        /// What other actions call it.
        tag: u32,
        /// The election's name.
        name: &'static str,
        /// Until it is closed, not once.
        always: bool,
    },
    /// Somebody observes no longer.
    Close(u32),
    /// A member ends in an orderly way.
    StopMember(usize),
    /// A member is cut off from the other members.
    Isolate(usize),
    /// It hears them again.
    Rejoin(usize),
    /// No member hears another.
    LoseQuorum,
    /// They hear each other again.
    RestoreQuorum,
    /// The leader hands over to another member.
    ChangeLeader,
    /// The history is compacted.
    Compact,
    /// Somebody writes a key that has nothing to do with locks.
    Touch,
    /// Every watch is cancelled by its member.
    CancelWatches,
    /// Every stream of a member ends.
    EndStreams(usize),
    /// From now on the watches of a member miss what happens.
    LoseEvents(usize),
    /// They report it again.
    KeepEvents(usize),
    /// Every token becomes invalid.
    ExpireTokens,
    /// Somebody deletes a key of this lock by hand: that of the holder, or that of the last in its queue.
    DeleteKey {
        /// The lock's name.
        name: &'static str,
        /// The holder's.
        oldest: bool,
    },
    /// Somebody deletes a key of this lock and writes it anew.
    ReplaceKey {
        /// The lock's name.
        name: &'static str,
        /// The holder's.
        oldest: bool,
    },
    /// Somebody revokes the lease of a key of this lock.
    RevokeLease {
        /// The lock's name.
        name: &'static str,
        /// The holder's.
        oldest: bool,
    },
    /// The cluster enters or leaves a state in which it refuses requests.
    Condition {
        /// Which.
        condition: Condition,
        /// Whether it enters it.
        on: bool,
    },
}

impl EtcdAction {
    /// The client that it is about, if it names one.
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
                write!(f, "client {client} stands for {name} as #{tag}: wait {wait:?}, renew {renew:?}")?;
                if let Some(ttl) = ttl {
                    write!(f, ", TTL {ttl:?}")?;
                }
                match hold {
                    Some(hold) => write!(f, ", resigns after {hold:?}")?,
                    None => f.write_str(", stays in office")?,
                }
                f.write_str(if *claim { "" } else { ", does not claim it" })
            }
            Self::Proclaim(tag) => write!(f, "#{tag} proclaims"),
            Self::Observe { client, tag, name, always: true } => {
                write!(f, "client {client} observes {name} as #{tag}")
            }
            Self::Observe { client, tag, name, always: false } => {
                write!(f, "client {client} asks who leads {name} as #{tag}")
            }
            Self::Close(tag) => write!(f, "#{tag} is closed"),
            Self::StopMember(member) => write!(f, "member {member} ends in an orderly way"),
            Self::Isolate(member) => write!(f, "member {member} is cut off from the others"),
            Self::Rejoin(member) => write!(f, "member {member} hears the others again"),
            Self::LoseQuorum => f.write_str("no member hears another"),
            Self::RestoreQuorum => f.write_str("the members hear each other again"),
            Self::ChangeLeader => f.write_str("another member leads"),
            Self::Compact => f.write_str("the history is compacted"),
            Self::Touch => f.write_str("something else is written"),
            Self::CancelWatches => f.write_str("every watch is cancelled"),
            Self::EndStreams(member) => write!(f, "the streams of member {member} end"),
            Self::LoseEvents(member) => write!(f, "the watches of member {member} miss what happens"),
            Self::KeepEvents(member) => write!(f, "the watches of member {member} report what happens again"),
            Self::ExpireTokens => f.write_str("every token becomes invalid"),
            Self::DeleteKey { name, oldest } => write!(f, "the key of the {} of {name} is deleted", whose(oldest)),
            Self::ReplaceKey { name, oldest } => write!(f, "the key of the {} of {name} is replaced", whose(oldest)),
            Self::RevokeLease { name, oldest } => write!(f, "the lease of the {} of {name} is revoked", whose(oldest)),
            Self::Condition { condition, on: true } => write!(f, "the cluster refuses: {condition:?}"),
            Self::Condition { condition, on: false } => write!(f, "the cluster is over {condition:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
