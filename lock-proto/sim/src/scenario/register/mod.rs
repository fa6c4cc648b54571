//! Scenarios on a store with compare-and-set.

mod draw;
mod flawed;
mod list;
mod run;

use core::fmt;
use core::time::Duration;

use crate::register::RegisterConfig;
use lock_proto::Backoff;

pub(super) use draw::draw;
pub use flawed::RegisterHostFlaw;
pub(super) use list::SCENARIOS;
pub(super) use run::run;

/// Settings of the store and of every client that a plan varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterStore {
    /// TTL of locks without one of their own.
    pub ttl: Duration,
    /// How long a client hands a lock over locally.
    pub turn: Duration,
    /// Timeout of a request.
    pub request_timeout: Duration,
    /// Polling interval of waiters.
    pub poll: Backoff,
    /// Whether the age of a record counts that the store tells.
    pub store_clock: bool,
    /// Maximum delay between arrival and execution of a request.
    pub late: Duration,
    /// How the store behaves.
    pub store: RegisterConfig,
}

/// Actions specific to a store with compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterAction {
    /// Reads may be behind by this much.
    Lag(Duration),
    /// Requests begin or cease to fail.
    Fail(bool),
    /// Watches begin or cease to miss changes.
    LoseHints(bool),
    /// The clock of the store is ahead of true time by so many ms.
    SetClock(i64),
    /// The records of locks that nobody has held for long are deleted.
    Sweep,
    /// A backup is made.
    BackUp,
    /// The last backup is restored.
    Restore,
}

impl fmt::Display for RegisterAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lag(lag) => write!(f, "reads are up to {lag:?} behind"),
            Self::Fail(true) => f.write_str("some requests fail"),
            Self::Fail(false) => f.write_str("no request fails any more"),
            Self::LoseHints(true) => f.write_str("watches miss changes"),
            Self::LoseHints(false) => f.write_str("watches report changes again"),
            Self::SetClock(ms) => write!(f, "the clock of the store is {ms} ms ahead"),
            Self::Sweep => f.write_str("old free records are deleted"),
            Self::BackUp => f.write_str("a backup is made"),
            Self::Restore => f.write_str("the backup is restored"),
        }
    }
}

#[cfg(test)]
mod tests;
