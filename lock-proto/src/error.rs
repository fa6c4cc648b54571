//! What a caller can do wrong: one of the three channels for failures (requirement M5). The others are
//! [`Fault`](crate::Fault), an input, and outcomes, which are events.

use alloc::boxed::Box;
use core::time::Duration;

use crate::id::{LockId, NodeId};

/// A verb was called that cannot be carried out. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The id belongs to an acquisition that has ended, or to another client.
    #[error("lock {0} has ended")]
    Stale(LockId),
    /// The lock is not held (yet, or any more), so there is nothing to claim or extend.
    #[error("lock {0} is not held")]
    NotHeld(LockId),
    /// The client is shutting down and takes no new locks.
    #[error("the client is shutting down")]
    ShuttingDown,
    /// As many locks are held or waited for as the client was configured for.
    #[error("{limit} locks are held or waited for, which is the limit of this client")]
    TooMany {
        /// The configured limit.
        limit: u32,
    },
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// A value that no lock can be made with. The message names the value and what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The name is empty or too long.
    #[error("a lock's name must have 1 to {max} bytes, this one has {len}")]
    NameLength {
        /// Length of the name, in bytes.
        len: usize,
        /// The longest allowed, in bytes.
        max: usize,
    },
    /// The prefix is too long.
    #[error("a key prefix may have up to {max} bytes, this one has {len}")]
    PrefixLength {
        /// Length of the prefix, in bytes.
        len: usize,
        /// The longest allowed, in bytes.
        max: usize,
    },
    /// The key would contain the marker of this library's own side keys.
    #[error("a lock's key (prefix and name) must not contain `lock-proto:`, which marks this library's own keys")]
    NameReserved,
    /// The TTL is out of range.
    #[error("a TTL must be between {min:?} and {max:?}, this one is {given:?}")]
    Ttl {
        /// What was asked for.
        given: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// A maximal hold time of zero.
    #[error("the maximal hold time must be longer than zero")]
    MaxHold,
    /// A quorum cannot promise safety for a TTL longer than restarted nodes are kept out for.
    #[error(
        "a quorum of this client keeps restarted nodes out for {quarantine:?}; a TTL of {given:?} is longer than that"
    )]
    TtlOverQuarantine {
        /// What was asked for.
        given: Duration,
        /// The client's setting.
        quarantine: Duration,
    },
    /// The drift settings leave no time for two tries of a renewal.
    #[error(
        "with these drift settings a TTL of {ttl:?} is valid for {validity:?} only, too short for two tries of a renewal"
    )]
    Drift {
        /// What was asked for.
        ttl: Duration,
        /// What is left of it.
        validity: Duration,
    },
    /// The round timeout leaves no time for a second try within the TTL.
    #[error("a round timeout of {round:?} is too long for a TTL of {ttl:?}: at most a quarter of it is allowed")]
    RoundTimeout {
        /// The client's setting.
        round: Duration,
        /// What was asked for.
        ttl: Duration,
    },
}

/// A client cannot be configured like this. The message names the value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Neither one node nor a quorum of an odd number.
    #[error("{given} nodes are neither a single server nor a quorum: give 1, or an odd number from 3 to {max}")]
    NodeCount {
        /// How many were given.
        given: usize,
        /// The most that are allowed.
        max: usize,
    },
    /// Two nodes, or two members of a cluster, with one address.
    #[error("{0} and {1} are the same server ({2}): name each server once")]
    EqualNodes(NodeId, NodeId, Box<str>),
    /// A URL that cannot be used.
    #[error(transparent)]
    Url(#[from] crate::url::UrlError),
    /// A setting out of range.
    #[error("{setting} must be between {min:?} and {max:?}, it is {given:?}")]
    Duration {
        /// The setting's name.
        setting: &'static str,
        /// What was given.
        given: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// A setting out of range.
    #[error("{setting} must be between {min} and {max}, it is {given}")]
    Number {
        /// The setting's name.
        setting: &'static str,
        /// What was given.
        given: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// A value that no lock could be made with.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}
