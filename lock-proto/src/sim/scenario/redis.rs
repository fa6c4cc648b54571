//! What is particular to Redis in a plan.

use core::fmt;
use core::time::Duration;

use crate::redis::{Poll, Wake};
use crate::sim::redis::Condition;

/// The settings of every client, as far as a plan varies them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// How often waiters try.
    pub poll: Poll,
    /// How waiters are woken.
    pub wake: Wake,
    /// How long a lock is passed on inside a client, and how long the client then stays away.
    pub turn: (Duration, Duration),
    /// Whether grants carry fencing tokens. A quorum's never do.
    pub fencing: bool,
    /// How many fencing tokens a grant reserves.
    pub fence_block: u32,
}

/// What can happen to Redis only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisAction {
    /// A node enters or leaves a condition in which it refuses commands.
    Condition {
        /// The node.
        node: usize,
        /// Which.
        condition: Condition,
        /// Whether it enters it.
        on: bool,
    },
    /// A node forgets its scripts.
    FlushScripts(usize),
    /// Somebody deletes the key of a lock, or an eviction does.
    Delete {
        /// On this node.
        node: usize,
        /// The lock's name.
        name: &'static str,
    },
}

impl fmt::Display for RedisAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition { node, condition, on: true } => write!(f, "node {node} refuses: {condition:?}"),
            Self::Condition { node, condition, on: false } => write!(f, "node {node} is over {condition:?}"),
            Self::FlushScripts(node) => write!(f, "node {node} forgets its scripts"),
            Self::Delete { node, name } => write!(f, "node {node}: the key of {name} is deleted"),
        }
    }
}
