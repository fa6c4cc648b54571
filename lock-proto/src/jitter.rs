//! Jitter from a pure hash instead of a random number generator, so that runs can be replayed.

use core::time::Duration;

use crate::time::nanos;

/// Returns a pseudo-random number that depends only on its arguments (SplitMix64).
#[must_use]
pub(crate) const fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a duration in `0..span`, determined by `seed` and `n`.
#[must_use]
pub(crate) fn jitter(seed: u64, n: u64, span: Duration) -> Duration {
    Duration::from_nanos(jitter_nanos(seed, n, nanos(span)))
}

#[must_use]
pub(crate) const fn jitter_nanos(seed: u64, n: u64, span: u64) -> u64 {
    ((mix(seed, n) as u128 * span as u128) >> 64) as u64
}

/// Returns `first` doubled `times` times, at most `max`.
#[must_use]
pub(crate) fn doubled(first: Duration, times: u32, max: Duration) -> Duration {
    first.saturating_mul(1u32.checked_shl(times).unwrap_or(u32::MAX)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers that the generator's authors give for a seed of zero. Other builds must
    /// replay the same runs.
    // S5
    #[test]
    fn mix_is_splitmix64() {
        let drawn = [mix(0, 0), mix(0, 1), mix(0, 2)];
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn jitter_stays_within_span_and_varies() {
        let span = Duration::from_millis(10);
        let drawn: alloc::collections::BTreeSet<Duration> = (0..100).map(|n| jitter(7, n, span)).collect();
        assert!(drawn.iter().all(|d| *d < span));
        assert!(drawn.len() > 90, "{} different values of 100", drawn.len());
        assert_eq!(jitter(7, 3, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn doubling_stops_at_maximum() {
        let ms = Duration::from_millis;
        assert_eq!(doubled(ms(10), 0, ms(100)), ms(10));
        assert_eq!(doubled(ms(10), 3, ms(100)), ms(80));
        assert_eq!(doubled(ms(10), 4, ms(100)), ms(100));
        assert_eq!(doubled(ms(10), 500, ms(100)), ms(100));
    }
}
