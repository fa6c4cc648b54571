//! What a holder is granted, and how a hold ends.

use core::fmt;
use core::time::Duration;

use crate::id::ClientId;
use crate::time::Instant;

/// Identifies a grant. On Redis it is the value that the attempt writes:
/// `<client id, 32 hex digits>:<number>`, ASCII.
///
/// Other lock libraries only compare the value with their own, so its format is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The client.
    pub client: ClientId,
    /// The number of the attempt on Redis, elsewhere of the grant, from 1. It grows with each one
    /// of the client and stays below 2^53, so that Lua compares it exactly.
    pub number: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

/// A fencing token. It grows with every grant of one lock, even if locks are lost. Tokens of
/// different locks say nothing about the order of their grants.
///
/// On Redis all clients of a lock must use the same prefix: each prefix has its own counter, and
/// clients that reach one key by two prefixes get tokens in no order.
///
/// Pass it to the resource that the lock protects, and let the resource refuse any token smaller
/// than the largest it has seen. The module [`fence`](crate::fence) has such checks.
///
/// A Redis server mints tokens from a counter that follows its clock in µs, and exceeds it by at
/// most 16. Tokens keep growing:
///
/// - if the counter is evicted, or the server restarts without its data, unless its clock is set
///   back, or the next grant of the lock comes within 31 µs;
/// - if the server restarts with old data, or a stale replica is promoted, once the clock of the
///   server that grants next is `fence_block` (a setting) and 16 µs past the time of the last
///   grant.
///
/// On a register the token is the time of day of the host at the grant in ms, or more if an earlier
/// one was higher, times 1 024, plus the number of the local hand-over.
///
/// Those of Redis may shrink if the clock was set back and the counter, then ahead of the clock, is lost: see
/// [`Grant::fence_ahead_ms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub(crate) u64);

impl Fence {
    /// Creates a token for a custom lock.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number for a signed 64-bit column (`BIGINT`), in the same order. Tokens of Redis and
    /// etcd fit, and those of ZooKeeper until its 32 768th election of a leader. A number that does
    /// not fit becomes `i64::MAX`.
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        if self.0 > i64::MAX as u64 { i64::MAX } else { self.0 as i64 }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The terms on which a lock was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Grant {
    /// The token of this grant. On Redis it is the value of the key, which a local hand-over keeps.
    pub token: Token,
    /// The fencing token; `None` for a quorum, or if fencing is off.
    pub fence: Option<Fence>,
    /// How far the fence counter is ahead of the server's clock, in whole ms: 0, unless the clock
    /// was set back. On a register, ahead of the host's clock, if that is more than a minute. Tokens
    /// grow as long as the counter exists. If it is lost before the clock has caught up, they shrink
    /// by this much.
    pub fence_ahead_ms: u32,
    /// The TTL of the key.
    pub ttl: Duration,
    /// The end of validity, unless a renewal moves it.
    pub valid_until: Instant,
}

impl Grant {
    /// Creates the grant of a custom lock.
    #[must_use]
    pub const fn new(token: Token, fence: Option<Fence>, ttl: Duration, valid_until: Instant) -> Self {
        Self { token, fence, fence_ahead_ms: 0, ttl, valid_until }
    }
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its validity ran out before a renewal was confirmed.
    #[error("no renewal was confirmed in time")]
    Expired,
    /// The key is gone before its expiry: deleted, flushed, evicted, or lost by a restart.
    #[error("the key is gone")]
    Gone,
    /// The key holds another client's value.
    #[error("another client has the lock")]
    Taken,
    /// The maximal hold time is over, see [`Renew::AtMost`](super::Renew::AtMost).
    #[error("the maximal hold time is over")]
    MaxHold,
    /// The client was shut down, which has released the lock, whether or not the guard still exists.
    /// Or its driver has ended, with its runtime for example.
    #[error("the client was shut down, or the runtime of its driver has ended")]
    ShutDown,
    /// Nodes of the quorum turned out to be the same server, and too few others granted the lock.
    #[error("nodes of the quorum are the same server")]
    EqualNodes,
}

/// Outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the release may have found that the lock was lost"]
#[non_exhaustive]
pub enum Release {
    /// The key was still this client's, and is removed or handed over to the next waiter of this
    /// client. The lock may have been reported as lost before: its validity ends earlier than the
    /// key.
    Released,
    /// The lock had expired, and no other client holds it. A later waiter of this client may.
    Expired,
    /// The lock had ended, and another client holds it.
    Taken,
    /// The server did not confirm in time. Cleanup continues in the background; the key expires at
    /// its TTL at the latest.
    Unknown,
}
