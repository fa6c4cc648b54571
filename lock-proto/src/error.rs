//! Errors of the caller. The other two channels for failures are [`Fault`](crate::Fault), an input,
//! and events, which report the outcome of an acquisition.
// M5

use alloc::boxed::Box;
use core::time::Duration;

use crate::id::{LockId, NodeId};

/// A verb that cannot be carried out. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The id belongs to an acquisition that has ended, or to another client.
    #[error("lock {0} has ended")]
    Stale(LockId),
    /// The lock is not held at this time, so there is nothing to extend or release.
    #[error("lock {0} is not held")]
    NotHeld(LockId),
    /// The lock is not offered at this time, so there is nothing to claim.
    #[error("lock {0} is not offered: it still waits, or was claimed before")]
    NotOffered(LockId),
    /// The client is shutting down and takes no new locks.
    #[error("the client is shutting down")]
    ShuttingDown,
    /// The client has reached its configured number of locks, counting those that are waited for,
    /// or of operations.
    #[error("the client has reached its limit of {limit} (`max_locks`)")]
    TooMany {
        /// The configured limit.
        limit: u32,
    },
    /// The store has no elections.
    #[error("this store has no elections")]
    NoElections,
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// An invalid value in a request. The message names the value and what is allowed.
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
    /// The key contains the marker that this library reserves for its own keys.
    #[error("a lock's key (prefix and name) must not contain `lock-proto:`, which marks this library's own keys")]
    NameReserved,
    /// ZooKeeper does not allow the name as a path.
    #[error(
        "on ZooKeeper a lock's name (with prefix) is a path: UTF-8 without control characters, private-use characters, or characters from U+FFF0 on (such as emoji); no part of it is empty, `.` or `..`; and it is not below /zookeeper, which is the server's own"
    )]
    Path,
    /// The value is too long.
    #[error("a value may have up to {max} bytes, this one has {len}")]
    ValueLength {
        /// Length of the value, in bytes.
        len: usize,
        /// The longest allowed, in bytes.
        max: usize,
    },
    /// The TTL is shorter than the servers' clock allows.
    #[error(
        "on ZooKeeper a TTL must have at least {least:?}, five ticks of the servers ({tick:?}; `tick_ms` in the URL, in a program `Config::tick`), this one has {given:?}"
    )]
    TtlUnderTicks {
        /// The requested value.
        given: Duration,
        /// The shortest allowed.
        least: Duration,
        /// The client's setting.
        tick: Duration,
    },
    /// The TTL is out of range.
    #[error("a TTL must be between {min:?} and {max:?}, this one is {given:?}")]
    Ttl {
        /// The requested value.
        given: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// The maximal hold time is zero.
    #[error("the maximal hold time must be longer than zero")]
    MaxHold,
    /// The TTL is longer than the quarantine of restarted nodes, so a quorum could not guarantee
    /// safety.
    #[error(
        "a quorum of this client keeps restarted nodes out for {quarantine:?}; a TTL of {given:?} is longer than that"
    )]
    TtlOverQuarantine {
        /// The requested value.
        given: Duration,
        /// The client's setting.
        quarantine: Duration,
    },
    /// The drift settings leave no time for two attempts at a renewal.
    #[error(
        "with these drift settings a TTL of {ttl:?} is valid for {validity:?} only, too short for two tries of a renewal"
    )]
    Drift {
        /// The requested value.
        ttl: Duration,
        /// What drift leaves of it.
        validity: Duration,
    },
    /// The round timeout leaves no time for a second attempt within the TTL.
    #[error("a round timeout of {round:?} is too long for a TTL of {ttl:?}: at most a quarter of it is allowed")]
    RoundTimeout {
        /// The client's setting.
        round: Duration,
        /// The requested value.
        ttl: Duration,
    },
}

/// An invalid client configuration. The message names the value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The number of nodes is neither one nor the odd number of a quorum.
    #[error("{given} nodes are neither a single server nor a quorum: give 1, or an odd number from 3 to {max}")]
    NodeCount {
        /// The number of nodes given.
        given: usize,
        /// The largest number allowed.
        max: usize,
    },
    /// Two nodes, or two members of a cluster, have the same address.
    #[error("{0} and {1} are the same server ({2}): name each server once")]
    EqualNodes(NodeId, NodeId, Box<str>),
    /// An invalid URL.
    #[error(transparent)]
    Url(#[from] crate::url::UrlError),
    /// A duration is out of range.
    #[error("{setting} must be between {min:?} and {max:?}, it is {given:?}")]
    Duration {
        /// The setting's name.
        setting: &'static str,
        /// The value given.
        given: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// A number is out of range.
    #[error("{setting} must be between {min} and {max}, it is {given}")]
    Number {
        /// The setting's name.
        setting: &'static str,
        /// The value given.
        given: u64,
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// A setting that no lock could use.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}
