//! The source of randomness in a simulation, seeded by one number.

use core::ops::Range;
use core::time::Duration;

use lock_proto::time::nanos;

/// What the state grows by: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the `n`th number of the generator with this seed, from 0.
pub(crate) const fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(GOLDEN));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A small generator (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014). Its whole state is one number, so a simulation can be cloned, compared and
/// replayed. Not suitable for secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next(&mut self) -> u64 {
        let number = mix(self.0, 0);
        self.0 = self.0.wrapping_add(GOLDEN);
        number
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Takes the high half of the product; the bias is below bound / 2^64.
        u64::try_from((u128::from(self.next()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// Returns true once in `n` times on average, never for `n` = 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// Returns a duration in `range`, or its start if the range is empty.
    pub fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let span = nanos(range.end.saturating_sub(range.start));
        range.start + Duration::from_nanos(self.below(span))
    }

    /// Picks one of `items`, or returns `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(usize::try_from(self.below(items.len() as u64)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_reference_sequence() {
        // The first three outputs for seed 1234567 of the reference implementation.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn below_is_in_range_and_uniform() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.below(0), 0);
        let mut seen = [0_u32; 7];
        for _ in 0..7_000 {
            seen[usize::try_from(rng.below(7)).unwrap_or(99)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
