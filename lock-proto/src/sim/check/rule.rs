//! What the checkers look for.

use alloc::string::String;
use core::fmt;

use crate::time::Instant;

/// A promise that can be broken (requirement S3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// No two believe to hold a lock at the same true time.
    MutualExclusion,
    /// Fencing tokens grow, in the order in which the store granted.
    FenceGrows,
    /// The counter of fencing tokens stays behind its server's clock, so that tokens grow even if it is lost.
    FenceAhead,
    /// A resource that checks fencing tokens takes no write of an older grant after one of a newer.
    StaleWrite,
    /// Who waits, holds or gives back is told in time that it is over.
    Told,
    /// Who is told that somebody else has the lock is told the truth, where one store decides.
    TrueLoss,
    /// Every acquisition is told a legal sequence of events, with one end.
    OneOutcome,
    /// No key's life is shortened by a client.
    ShortenedKey,
    /// Waiters are served in the order in which they asked, where that is promised.
    Fifo,
    /// One release wakes at most one waiter.
    OneWoken,
    /// Requests are bounded, for each acquisition and in time.
    Bounded,
    /// After the faults everybody is served.
    Liveness,
    /// After everything nothing is left: no key, no timer, no traffic.
    Leftover,
    /// A client that has nothing to do any more has left no key behind: what it had given up was deleted, also if it came late.
    Ghost,
    /// While nothing goes wrong, a lock that is given back reaches whoever waits for it within a
    /// few round trips.
    Prompt,
    /// No work is done twice, or given up while it is being done, because an answer is late.
    Twice,
    /// A machine keeps its contract: it asks for nothing impossible, moves on when it is called, and does not panic.
    Contract,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 17] = [
        Self::MutualExclusion,
        Self::FenceGrows,
        Self::FenceAhead,
        Self::StaleWrite,
        Self::Told,
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
        Self::Contract,
    ];

    /// The promise in a few words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::MutualExclusion => "one holder at a time",
            Self::FenceGrows => "fencing tokens grow",
            Self::FenceAhead => "the fence counter stays behind the clock",
            Self::StaleWrite => "no stale write is taken",
            Self::Told => "the end is told in time",
            Self::TrueLoss => "no loss is made up",
            Self::OneOutcome => "one outcome an acquisition",
            Self::ShortenedKey => "no key's life is shortened",
            Self::Fifo => "first come, first served",
            Self::OneWoken => "one is woken a release",
            Self::Bounded => "requests are bounded",
            Self::Liveness => "everybody is served",
            Self::Leftover => "nothing is left behind",
            Self::Ghost => "what was given up is deleted",
            Self::Prompt => "a release reaches the next waiter",
            Self::Twice => "no work is done twice",
            Self::Contract => "machines keep their contract",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What was seen.
    pub text: String,
    /// When, in true time.
    pub at: Instant,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.at, self.text)
    }
}
