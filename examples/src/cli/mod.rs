//! Shared parts of the command-line tools: argument parsing, exit codes, runtimes.

pub mod args;
pub mod backend;
pub mod exit;
pub mod failed;
pub(crate) mod log;
pub(crate) mod name;
pub(crate) mod output;
#[cfg(feature = "postgres")]
mod postgres;
pub mod register;
pub mod runtime;
pub(crate) mod signals;
pub(crate) mod stdio;

use core::fmt;
use core::time::Duration;

pub(crate) use output::print;

/// Limit for the cleanup on the servers at the end of a program.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A usage error: names the rejected value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns a usage error.
pub(crate) fn usage<T>(text: impl Into<String>) -> Result<T, Usage> {
    Err(Usage(text.into()))
}

/// Returns a number for names that only this run uses. Without entropy it is unique among running
/// processes.
pub(crate) fn run_number() -> u64 {
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()))
}

/// The result of a program that counts under a lock.
///
/// # Errors
///
/// Counts are missing, or locks were left behind: says what may have happened.
pub fn check_count(counted: u32, expected: u32, unreleased: u32) -> Result<(), String> {
    if counted < expected {
        let missing = expected - counted;
        return Err(format!(
            "{missing} counts are missing: a lock was not acquired, or was lost before the count was written; \
             was the server stopped, restarted or slow?"
        ));
    }
    match unreleased {
        0 => Ok(()),
        _ => Err(format!("{unreleased} locks or sessions were not ended in time; their keys expire at their TTL")),
    }
}
