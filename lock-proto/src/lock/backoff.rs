//! Pauses between attempts.

use core::time::Duration;

use crate::jitter::{doubled, jitter};

/// The pause between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    /// Time between two attempts. Up to a quarter of it is jitter.
    pub every: Duration,
    /// The interval doubles with each attempt up to this value. Equal to `every` for a fixed
    /// interval.
    pub max: Duration,
}

impl Backoff {
    /// A fixed interval.
    #[must_use]
    pub const fn fixed(every: Duration) -> Self {
        Self { every, max: every }
    }

    /// An interval that doubles from `first` to `max`.
    #[must_use]
    pub const fn exponential(first: Duration, max: Duration) -> Self {
        Self { every: first, max }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::fixed(Duration::from_millis(50))
    }
}

/// Consecutive failures, and the pauses that follow them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Failures {
    pub(crate) failures: u32,
}

impl Failures {
    /// Counts a failure. The count restarts after a connection or stream that lasted `poll.max`.
    pub(crate) fn failed(&mut self, lasted: Duration, poll: Backoff) {
        if lasted >= poll.max {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns the pause before the next attempt, less up to a quarter of jitter; zero for the
    /// first `free` failures.
    pub(crate) fn pause(self, free: u32, poll: Backoff, seed: u64, n: u64) -> Duration {
        let Some(times) = self.failures.checked_sub(free + 1) else { return Duration::ZERO };
        let pause = doubled(poll.every, times, poll.max);
        pause.saturating_sub(jitter(seed, n, pause / 4))
    }
}
