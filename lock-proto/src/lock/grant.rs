//! What a holder has, and how it ends.

use core::fmt;
use core::time::Duration;

use crate::id::ClientId;
use crate::time::Instant;

/// The value that one attempt writes: `<client id, 32 hex digits>:<number>`, ASCII.
///
/// Nothing but equality with one's own value counts for other lock libraries, so the form is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The client that made the attempt.
    pub client: ClientId,
    /// The attempt's number, from 1; grows with every attempt of the client and stays below 2^53, so that Lua
    /// compares it exactly.
    pub number: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

/// A fencing token: grows with every grant under a namespace of one Redis node, however often the lock is lost.
///
/// Hand it to the resource that the lock protects, and let the resource refuse a token smaller than the greatest it has
/// seen.
///
/// Tokens are minted from a counter on the server, which stays at or below the server's clock in µs. Tokens keep growing:
///
/// - if the counter is evicted, or the server restarts without its data, unless its clock is set back;
/// - if the server restarts with old data, or a stale replica is promoted, once the clock of the server that grants next is
///   `fence_block` (a setting) µs past the time of the last grant.
///
/// They do not if the counter is lost while it is ahead of the clock, because that was set back: see [`Grant::fence_ahead_ms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub(crate) u64);

impl Fence {
    /// A token of a lock of your own.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number for a signed 64-bit column (`BIGINT`), in the same order. Tokens of this library
    /// fit: the highest that a store issues is below 2⁶³.
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

/// What a holder has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Grant {
    /// The value that the key holds. A lock passed on inside the client keeps the key and its token.
    pub token: Token,
    /// The fencing token; `None` for a quorum, which has none, or if fencing is off.
    pub fence: Option<Fence>,
    /// By how many whole ms the fence counter is ahead of the server's clock: 0, unless that clock was set back.
    /// Tokens grow all the same while the counter is there. If it is lost before the clock has caught up, they go back by so much.
    pub fence_ahead_ms: u32,
    /// The TTL of the key.
    pub ttl: Duration,
    /// Until when the lock is certainly held if nothing more is heard.
    pub valid_until: Instant,
}

impl Grant {
    /// What a lock of your own grants.
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
    /// The key is gone, though its time had not come: deleted, flushed, evicted, or lost by a restart.
    #[error("the key is gone")]
    Gone,
    /// The key holds somebody else's value.
    #[error("another client has the lock")]
    Taken,
    /// The maximal hold time is over, see [`Renew::AtMost`](super::Renew::AtMost).
    #[error("the maximal hold time is over")]
    MaxHold,
    /// The client was shut down.
    #[error("the client was shut down")]
    ShutDown,
    /// Nodes of the quorum turned out to be one server, and too few others have the lock.
    #[error("nodes of the quorum are the same server")]
    EqualNodes,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// It was ours, and is given back. Also when it was passed on to the next waiter of this client.
    Released,
    /// It was ours until it ended by itself; nobody has it.
    Expired,
    /// It has ended, and somebody else has it now.
    Taken,
    /// No answer within the release's own time: it goes on in the background, and ends by itself at the TTL.
    Unknown,
}
