//! Settings of a client on a register.

use alloc::boxed::Box;
use core::time::Duration;

use super::flaw::RegisterFlaw;
use super::record::Record;
use crate::error::{ConfigError, Invalid, Misuse};
use crate::lock::{self, Backoff, DAY, MAX_TTL, MIN_TTL, Renew};
use crate::time::millis_up;

/// All settings of a client on a register. [`Client::new`](super::Client) validates them.
pub type Config = lock::Config<RegisterSettings>;

/// The settings specific to registers. See [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegisterSettings {
    poll: Backoff,
    clock_margin: Duration,
    store_clock: bool,
    label: Box<str>,
    #[cfg(test)]
    pub(super) flaw: Option<RegisterFlaw>,
}

impl Default for Config {
    /// The settings for a store about which nothing is known.
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// Creates the settings for a store about which nothing is known: a poll each second, and a
    /// second for each request.
    pub fn new() -> Self {
        let store = RegisterSettings {
            poll: Backoff::fixed(Duration::from_secs(1)),
            clock_margin: Duration::from_secs(1),
            store_clock: true,
            label: Box::default(),
            #[cfg(test)]
            flaw: None,
        };
        Self::with(Duration::from_secs(1), DAY, store)
    }

    /// How often a waiter reads the record, while nothing tells it of a change. Default: each
    /// second. The interval grows as long as it waits, from `every` to `max`, and up to a quarter of
    /// it is jitter.
    pub const fn poll(mut self, poll: Backoff) -> Self {
        self.store.poll = poll;
        self
    }

    /// How much less than its age, as the store measures it, a record counts as old. Default: 1 s.
    ///
    /// Locks exclude each other as long as the store's clock does not step forward by more than
    /// this within a TTL, also when another server of the store takes over.
    pub const fn clock_margin(mut self, margin: Duration) -> Self {
        self.store.clock_margin = margin;
        self
    }

    /// Whether the age of a record counts that the store measures by its own clock. Default: true.
    ///
    /// Without it, a client must itself watch the record of a dead holder for a TTL before it takes
    /// the lock. A program that tries once, and ends, then never gets it.
    pub const fn store_clock(mut self, on: bool) -> Self {
        self.store.store_clock = on;
        self
    }

    /// Who holds the lock, for people who look at the record: host and process, for example. Cut to
    /// [`MAX_LABEL`](super::MAX_LABEL) bytes. Default: empty.
    pub fn label(mut self, label: &str) -> Self {
        self.store.label = Record::label_of(label);
        self
    }

    /// Validates every setting.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range, with its value and the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let RegisterSettings { poll, clock_margin, .. } = &self.store;
        let durations = [
            ("poll.every", poll.every, Duration::from_millis(1), DAY),
            ("poll.max", poll.max, poll.every, DAY),
            ("clock_margin", *clock_margin, Duration::ZERO, DAY),
        ];
        self.check_ranges(durations, [])
    }

    pub(super) const fn poll_interval(&self) -> Backoff {
        self.store.poll
    }

    pub(super) const fn label_text(&self) -> &str {
        &self.store.label
    }

    /// Checks a TTL, and rounds it up to whole milliseconds.
    pub(super) fn check_ttl(&self, given: Duration, renew: Renew) -> Result<Duration, Misuse> {
        if given < MIN_TTL || given > MAX_TTL {
            return Err(Invalid::Ttl { given, min: MIN_TTL, max: MAX_TTL }.into());
        }
        if renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold.into());
        }
        let ttl = Duration::from_millis(millis_up(given));
        let validity = self.drift.validity(ttl);
        if !self.is_renewable(ttl, validity) {
            return Err(Invalid::Drift { ttl: given, validity }.into());
        }
        Ok(ttl)
    }

    /// Returns for how long another client must have seen a record before it may be replaced.
    // RG1
    pub(super) fn takeover_after(&self, ttl: Duration) -> Duration {
        ttl.saturating_add(ttl - self.drift.validity(ttl))
    }

    /// Returns how old a record certainly is, if the store tells.
    // RG1
    pub(super) fn certain_age(&self, age: Option<Duration>) -> Duration {
        age.filter(|_| self.store.store_clock).map_or(Duration::ZERO, |age| age.saturating_sub(self.store.clock_margin))
    }

    /// Returns true if a test has planted this flaw.
    #[cfg(test)]
    pub(super) fn has(&self, flaw: RegisterFlaw) -> bool {
        self.store.flaw == Some(flaw)
    }

    /// Returns true if a test has planted this flaw.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests use it")]
    pub(super) const fn has(&self, _: RegisterFlaw) -> bool {
        false
    }
}
