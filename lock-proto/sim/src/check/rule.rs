//! The rules that the checkers enforce.

use alloc::string::String;
use core::fmt;

use lock_proto::Instant;

/// A guarantee that can be violated.
// S3
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// At any true time, at most one acquisition believes that it holds a lock.
    MutualExclusion,
    /// Fencing tokens increase in the order in which the store granted them.
    FenceGrows,
    /// The fencing counter stays behind its server's clock, so that losing it is harmless.
    FenceAhead,
    /// A fencing token was minted by the server for this lock and client.
    FenceMinted,
    /// A resource that checks fencing tokens accepts no write of an older grant after a newer one.
    StaleWrite,
    /// No holder is told a later end of validity than that of its key, lease or session on most
    /// servers. None is granted a lock by a key whose deletion its client was told of.
    Validity,
    /// Waiters, holders and releasing clients learn of an end in time.
    Notified,
    /// On a single store, a loss to another client is reported only if there was one, and that of
    /// the key only if it is gone. A release is reported as done only if most nodes lack the key.
    TrueLoss,
    /// Every acquisition receives a legal sequence of events, with one end.
    OneOutcome,
    /// No client shortens the TTL of a key.
    ShortenedKey,
    /// Waiters are served in FIFO order, where that is guaranteed.
    Fifo,
    /// One release wakes at most one waiter.
    OneWoken,
    /// Requests are bounded, per acquisition and over time.
    Bounded,
    /// After the faults stop, every waiter is served.
    Liveness,
    /// Nothing is left at the end: no key, no timer, no traffic.
    Leftover,
    /// An idle client has left no key behind. Abandoned tokens were deleted, even late ones.
    Ghost,
    /// Without faults, a released lock reaches the next waiter within a few round trips.
    Prompt,
    /// No request is repeated, or abandoned while in progress, because its reply is late.
    Twice,
    /// No login leaves with credentials that have expired, that the server has rejected, or that were
    /// supplied for another connection. After a rejection, the next request for credentials says so.
    Credentials,
    /// While nothing fails, no hold that the client renews is lost.
    Kept,
    /// The clients agree with the naive reference model that runs beside them.
    // S13
    Model,
    /// A machine requests nothing impossible, makes progress when called, and does not panic.
    Contract,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 22] = [
        Self::MutualExclusion,
        Self::FenceGrows,
        Self::FenceAhead,
        Self::FenceMinted,
        Self::StaleWrite,
        Self::Validity,
        Self::Notified,
        Self::TrueLoss,
        Self::OneOutcome,
        Self::ShortenedKey,
        Self::Fifo,
        Self::OneWoken,
        Self::Bounded,
        Self::Liveness,
        Self::Leftover,
        Self::Ghost,
        Self::Prompt,
        Self::Twice,
        Self::Credentials,
        Self::Kept,
        Self::Model,
        Self::Contract,
    ];

    /// Describes the rule in a few words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::MutualExclusion => "one holder at a time",
            Self::FenceGrows => "fencing tokens grow",
            Self::FenceAhead => "the fence counter does not run ahead of the clock",
            Self::FenceMinted => "fencing tokens come from the server",
            Self::StaleWrite => "no stale write is accepted",
            Self::Validity => "no hold is believed longer than the servers keep it",
            Self::Notified => "every end is reported in time",
            Self::TrueLoss => "no loss or release is reported falsely",
            Self::OneOutcome => "one outcome per acquisition",
            Self::ShortenedKey => "no key's TTL is shortened",
            Self::Fifo => "first come, first served",
            Self::OneWoken => "a release wakes one waiter",
            Self::Bounded => "requests are bounded",
            Self::Liveness => "every waiter is served",
            Self::Leftover => "nothing is left behind",
            Self::Ghost => "abandoned tokens are deleted",
            Self::Prompt => "a release reaches the next waiter",
            Self::Twice => "no work is done twice",
            Self::Credentials => "credentials are valid, and used where they belong",
            Self::Kept => "no hold is lost while nothing fails",
            Self::Model => "clients agree with the naive model",
            Self::Contract => "machines honour their contract",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What was observed.
    pub text: String,
    /// The time, in true time.
    pub at: Instant,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.at, self.text)
    }
}
