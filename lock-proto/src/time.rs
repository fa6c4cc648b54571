//! Time as the machines see it: a value that the caller passes in.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the host chooses.
///
/// The machines never read a clock. The caller passes `now` first to every call, from one monotonic
/// clock that keeps counting while the computer is suspended (on Linux `CLOCK_BOOTTIME`). Two
/// instants can be compared only if they come from the same clock of the same process.
///
/// Arithmetic saturates: a sum never wraps and a difference is never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// The last representable instant, some 584 years after the origin.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the instant `millis` milliseconds after the clock's origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant `by` earlier, but not before the origin.
    pub fn back(self, by: Duration) -> Self {
        self.before(nanos(by))
    }

    /// Returns the instant `nanos` nanoseconds later.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the instant `nanos` nanoseconds earlier, but not before the origin.
    #[must_use]
    pub const fn before(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Rounds down to a multiple of the largest power of two not above `interval` nanoseconds. Timers
    /// with similar intervals then fire together.
    pub(crate) const fn round_down_to(self, interval: u64) -> Self {
        let power = if interval == 0 { 0 } else { interval.ilog2() };
        Self(self.0 & (u64::MAX << power))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        self.after(nanos(by))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

/// Returns the earliest of the instants that are set.
#[must_use]
pub fn soonest<const N: usize>(all: [Option<Instant>; N]) -> Option<Instant> {
    all.into_iter().fold(None, |first, at| match (first, at) {
        (Some(first), Some(at)) => Some(first.min(at)),
        (first, at) => first.or(at),
    })
}

/// When something is due: what is due earlier compares as less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// At this instant.
    At(Instant),
    /// Not until something else happens.
    Never,
}

impl When {
    pub(crate) fn is_due(self, now: Instant) -> bool {
        self <= Self::At(now)
    }

    /// Returns the instant for a timer, which has passed if it is due now; `None` for never.
    pub(crate) const fn instant(self) -> Option<Instant> {
        match self {
            Self::Now => Some(Instant::ZERO),
            Self::At(at) => Some(at),
            Self::Never => None,
        }
    }
}

impl From<Option<Instant>> for When {
    fn from(at: Option<Instant>) -> Self {
        at.map_or(Self::Never, Self::At)
    }
}

/// A deadline, and what is due then.
pub(crate) type Deadline = (Instant, &'static str);

/// Returns the earlier deadline; of equal ones the first.
#[inline]
pub(crate) fn sooner(a: Option<Deadline>, b: Option<Deadline>) -> Option<Deadline> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// Whole nanoseconds of `d`, saturating.
#[must_use]
pub fn nanos(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000_000).saturating_add(d.subsec_nanos().into())
}

/// Whole milliseconds of `d`, rounded up, saturating. Rounding up keeps a timer from firing early.
#[must_use]
pub fn millis_up(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000).saturating_add(d.subsec_nanos().div_ceil(1_000_000).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant::MAX + Duration::from_secs(1), Instant::MAX);
        assert_eq!(Instant::ZERO.back(Duration::from_secs(1)), Instant::ZERO);
        assert_eq!(Instant::ZERO.since(Instant::MAX), Duration::ZERO);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::MAX);
    }

    #[test]
    fn round_down_to_uses_power_of_two() {
        let at = Instant::from_nanos(0b1_0110_1111);
        assert_eq!(at.round_down_to(16), Instant::from_nanos(0b1_0110_0000));
        assert_eq!(at.round_down_to(31), Instant::from_nanos(0b1_0110_0000));
        assert_eq!(at.round_down_to(1), at);
        assert_eq!(at.round_down_to(0), at);
        assert_eq!(Instant::MAX.round_down_to(u64::MAX), Instant::from_nanos(1 << 63));
    }

    #[test]
    fn when_is_ordered() {
        let at = Instant::from_millis(5);
        assert!(When::Now < When::At(Instant::ZERO) && When::At(Instant::MAX) < When::Never);
        assert!(When::Now.is_due(Instant::ZERO) && When::At(at).is_due(at) && !When::Never.is_due(Instant::MAX));
        assert!(!When::At(at).is_due(Instant::from_millis(4)));
        for timer in [Some(at), None] {
            assert_eq!(When::from(timer).instant(), timer);
        }
    }

    #[test]
    fn millis_round_up() {
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::from_millis(7)), 7);
        assert_eq!(millis_up(Duration::from_nanos(1_000_000_001)), 1_001);
        assert_eq!(millis_up(Duration::MAX), u64::MAX);
    }
}
