//! Clocks with an offset and a drift, as functions of true time.

use core::time::Duration;

use lock_proto::Instant;
use lock_proto::time::nanos;

const MILLION: i128 = 1_000_000;

/// A clock with an offset and a drift. It maps true time to nanoseconds since its own origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    since: Instant,
    reading: u64,
    drift_ppm: i32,
}

impl Clock {
    /// Creates a clock that reads `reading` ns at `now` and gains `drift_ppm` µs per second. A
    /// negative drift loses time; it is limited to -999 999, so that the clock always advances.
    #[must_use]
    pub fn new(now: Instant, reading: u64, drift_ppm: i32) -> Self {
        Self { since: now, reading, drift_ppm: drift_ppm.max(-999_999) }
    }

    /// Returns the reading at `now`.
    #[must_use]
    pub fn read(&self, now: Instant) -> u64 {
        let elapsed = nanos(now.since(self.since));
        if self.drift_ppm == 0 {
            return self.reading.saturating_add(elapsed);
        }
        // Fast path: the product usually fits into 64 bits.
        if let Some(product) = elapsed.checked_mul(self.rate()) {
            return self.reading.saturating_add(product / MILLION as u64);
        }
        let elapsed = i128::from(elapsed);
        let gained = elapsed * (MILLION + i128::from(self.drift_ppm)) / MILLION;
        u64::try_from(i128::from(self.reading) + gained).unwrap_or(u64::MAX)
    }

    /// Returns the first true instant at which the clock reads at least `reading`, unless it is set
    /// in between. Never before the instant at which it was last set.
    #[must_use]
    pub fn when(&self, reading: u64) -> Instant {
        let missing = reading.saturating_sub(self.reading);
        if self.drift_ppm == 0 {
            return self.since + Duration::from_nanos(missing);
        }
        if let Some(product) = missing.checked_mul(MILLION as u64) {
            return self.since + Duration::from_nanos(product.div_ceil(self.rate()));
        }
        let missing = i128::from(missing);
        let rate = MILLION + i128::from(self.drift_ppm);
        // `read` rounds down, so this rounds up.
        let elapsed = (missing * MILLION + rate - 1) / rate;
        self.since + Duration::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    /// Millionths of a time unit that the clock advances per true time unit.
    const fn rate(&self) -> u64 {
        (MILLION as i64 + self.drift_ppm as i64).unsigned_abs()
    }

    /// Records that the clock stopped from `from` to `to`.
    pub fn pause(&mut self, from: Instant, to: Instant) {
        *self = Self::new(to, self.read(from), self.drift_ppm);
    }

    /// Sets the clock forward.
    pub fn jump_forward(&mut self, now: Instant, by: Duration) {
        *self = Self::new(now, self.read(now).saturating_add(nanos(by)), self.drift_ppm);
    }

    /// Sets the clock back, at most to its origin.
    pub fn jump_back(&mut self, now: Instant, by: Duration) {
        *self = Self::new(now, self.read(now).saturating_sub(nanos(by)), self.drift_ppm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_returns_first_instant_of_reading() {
        for drift in [-999_999, -10_000, -1, 0, 1, 333, 10_000, 2_000_000] {
            let clock = Clock::new(Instant::from_nanos(77), 1_000, drift);
            for reading in [1_001, 1_002, 1_003, 5_000, 1_234_567, 3_000_000_000] {
                let at = clock.when(reading);
                assert!(clock.read(at) >= reading, "drift {drift}, reading {reading}");
                assert!(clock.read(at.back(Duration::from_nanos(1))) < reading, "drift {drift}, reading {reading}");
            }
            assert_eq!(clock.when(0), Instant::from_nanos(77));
        }
    }

    #[test]
    fn jump_preserves_clock_rate() {
        let mut clock = Clock::new(Instant::ZERO, 0, 1_000_000);
        let at = Instant::from_nanos(100);
        clock.jump_forward(at, Duration::from_nanos(1_000));
        assert_eq!(clock.read(at), 1_200);
        clock.jump_back(at, Duration::from_nanos(5_000));
        assert_eq!(clock.read(at), 0);
        assert_eq!(clock.read(at + Duration::from_nanos(5)), 10);
    }
}
