//! The pause before something that fails again and again is tried again.

use core::time::Duration;

use super::tuning::Poll;
use crate::jitter::{doubled, jitter};

/// Failures in a row, and the pauses they ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Backoff {
    pub(crate) failures: u32,
}

impl Backoff {
    /// Counts a failure. The count starts over if the connection or stream had lasted as long as the longest pause.
    pub(crate) fn failed(&mut self, lasted: Duration, poll: Poll) {
        if lasted >= poll.max {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// The pause before the next attempt. The first `free` failures cost none. Up to a quarter of it is taken off as
    /// jitter, a pure hash of `seed` and `n`.
    pub(crate) fn pause(self, free: u32, poll: Poll, seed: u64, n: u64) -> Duration {
        let Some(times) = self.failures.checked_sub(free + 1) else { return Duration::ZERO };
        let pause = doubled(poll.every, times, poll.max);
        pause.saturating_sub(jitter(seed, n, pause / 4))
    }
}
