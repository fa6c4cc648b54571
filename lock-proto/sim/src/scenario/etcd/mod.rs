//! The part of a plan that is specific to etcd.

mod draw;
mod flawed;
mod list;
mod run;

use core::fmt;
use core::time::Duration;

use crate::etcd::Condition;

pub(super) use draw::draw;
pub use flawed::EtcdFlaw;
pub(super) use list::SCENARIOS;
pub(super) use run::run;

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
    /// Keep-alives are answered per lease and late, as etcd's gRPC proxy does.
    pub per_lease: bool,
}

/// Actions specific to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdAction {
    /// A member stops in order.
    StopMember(usize),
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
    /// A key of this lock is deleted by hand and created again.
    ReplaceKey {
        /// The lock's name.
        name: &'static str,
        /// The holder's key, otherwise the newest in the queue.
        oldest: bool,
    },
    /// A condition of the cluster begins or ends.
    Condition {
        /// The condition.
        condition: Condition,
        /// Whether it begins.
        on: bool,
    },
}

impl fmt::Display for EtcdAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = |oldest: &bool| if *oldest { "holder" } else { "last in the queue" };
        match self {
            Self::StopMember(member) => write!(f, "member {member} stops"),
            Self::Compact => f.write_str("the history is compacted"),
            Self::Touch => f.write_str("an unrelated key is written"),
            Self::CancelWatches => f.write_str("every watch is cancelled"),
            Self::EndStreams(member) => write!(f, "the streams of member {member} end"),
            Self::LoseEvents(member) => write!(f, "the watches of member {member} lose events"),
            Self::KeepEvents(member) => write!(f, "the watches of member {member} report events again"),
            Self::ExpireTokens => f.write_str("every token becomes invalid"),
            Self::ReplaceKey { name, oldest } => write!(f, "the key of the {} of {name} is replaced", whose(oldest)),
            Self::Condition { condition, on: true } => write!(f, "condition of the cluster: {condition:?}"),
            Self::Condition { condition, on: false } => write!(f, "the cluster recovers from {condition:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
