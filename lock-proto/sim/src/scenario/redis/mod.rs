//! Scenarios on one Redis node, and on a quorum of several.

mod draw;
mod flawed;
mod list;
mod run;

use core::fmt;
use core::time::Duration;

use crate::redis::Condition;
use lock_proto::Backoff;
use lock_proto::redis::{Protocol, Wake};

pub(super) use draw::{RedisRecipe, draw, loses_track};
pub use flawed::RedisFlaw;
pub(super) use list::SCENARIOS;
pub(super) use run::run;

/// Settings of every client that a plan varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// The longest TTL of any lock. A restarted quorum node does not vote for this long.
    pub ttl: Duration,
    /// Timeout of a quorum round.
    pub round: Duration,
    /// Polling interval of waiters.
    pub poll: Backoff,
    /// How waiters are woken.
    pub wake: Wake,
    /// How long a client hands a lock over locally, and how long it then backs off.
    pub turn: (Duration, Duration),
    /// Whether grants carry fencing tokens. Those of a quorum never do.
    pub fencing: bool,
    /// Maximum number of fencing tokens that one script mints.
    pub fence_block: u32,
    /// How long client hosts gather writes.
    pub gather: Duration,
    /// Whether clients have to log in.
    pub login: bool,
    /// Whether every client connects to every node before the first step.
    pub preconnect: bool,
    /// How long after its last login a node closes a connection.
    pub login_limit: Option<Duration>,
    /// The version of the protocol that clients ask for.
    pub protocol: Protocol,
}

/// Time for the clients to connect.
const CONNECT_TIME: Duration = Duration::from_millis(500);

/// Actions specific to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisAction {
    /// A condition in which a node refuses commands begins or ends.
    Condition {
        /// The node.
        node: usize,
        /// The condition.
        condition: Condition,
        /// Whether it begins.
        on: bool,
    },
    /// A node drops its script cache.
    FlushScripts(usize),
    /// A node requires every connection to log in again.
    LogOut(usize),
    /// A key is evicted or deleted by another program.
    Evict {
        /// The node.
        node: usize,
        /// The name of the lock, or `None` for the fence counter.
        name: Option<&'static str>,
    },
    /// Another program creates a key with the name of a lock, if there is none.
    Occupy {
        /// The node.
        node: usize,
        /// The lock's name.
        name: &'static str,
        /// A list, otherwise a foreign lock.
        list: bool,
        /// TTL of the key.
        key_ttl: Duration,
    },
    /// Replication to the replica of a node stops.
    StopReplication(usize),
    /// The replica of a node is promoted with the data it has.
    Promote(usize),
    /// Like `Promote`, with a replica that has been running for long.
    FailOver(usize),
    /// The address of a node leads a client to another node.
    Redirect {
        /// The client.
        client: usize,
        /// The node of the address.
        node: usize,
        /// The node that the client reaches.
        to: usize,
    },
}

impl fmt::Display for RedisAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition { node, condition, on: true } => write!(f, "node {node} refuses: {condition:?}"),
            Self::Condition { node, condition, on: false } => write!(f, "node {node} recovers from {condition:?}"),
            Self::LogOut(node) => write!(f, "node {node} logs all connections out"),
            Self::FlushScripts(node) => write!(f, "node {node} drops its scripts"),
            Self::Evict { node, name: Some(name) } => write!(f, "node {node} evicts the key of {name}"),
            Self::Evict { node, name: None } => write!(f, "node {node} evicts the counter of fencing tokens"),
            Self::Occupy { node, name, list, key_ttl } => {
                let what = if *list { "data" } else { "a foreign lock" };
                write!(f, "another program puts {what} under {name} on node {node}, for {key_ttl:?}")
            }
            Self::StopReplication(node) => write!(f, "replication of node {node} stops"),
            Self::Promote(node) => write!(f, "the replica of node {node} is promoted"),
            Self::FailOver(node) => write!(f, "the long-running replica of node {node} is promoted"),
            Self::Redirect { client, node, to } => {
                write!(f, "the address of node {node} leads client {client} to node {to}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
