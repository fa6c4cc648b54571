//! The source of all decisions of a plan: a seed or a byte string.

use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::rng::Rng;
use lock_proto::time::nanos;

/// A source of decisions. A seed never runs out. A byte string supplies a few bytes per decision
/// and then zeros. Zero always selects the quiet choice, so a fuzzer that shortens its input
/// produces a smaller plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chance(ChanceSource);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ChanceSource {
    Seed(Rng),
    Bytes { bytes: Vec<u8>, at: usize },
}

impl Chance {
    /// Creates an endless source from a seed.
    #[must_use]
    pub const fn seed(seed: u64) -> Self {
        Self(ChanceSource::Seed(Rng::new(seed)))
    }

    /// Creates a source that reads from a byte string.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Self {
        Self(ChanceSource::Bytes { bytes: bytes.to_vec(), at: 0 })
    }

    /// Returns true if every further decision will be 0. Always false for a seed.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        match &self.0 {
            ChanceSource::Seed(_) => false,
            ChanceSource::Bytes { bytes, at } => *at >= bytes.len(),
        }
    }

    /// Returns the next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends: it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.take(8)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        match &mut self.0 {
            ChanceSource::Seed(rng) => rng.below(bound),
            ChanceSource::Bytes { .. } if bound <= 1 => 0,
            ChanceSource::Bytes { .. } => {
                let bits = u64::BITS - (bound - 1).leading_zeros();
                self.take(bits.div_ceil(8)) % bound
            }
        }
    }

    /// Like [`below`](Self::below), for an index. Returns 0 if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// Returns true once in `n` times on average. Returns false for 0, and for exhausted bytes
    /// unless `n` is 1.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == n - 1
    }

    /// Returns a duration in `range`, or its start if the range is empty.
    pub fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let span = nanos(range.end.saturating_sub(range.start));
        range.start + Duration::from_nanos(self.below(span))
    }

    /// Returns whole milliseconds below `bound`. Uses fewer bytes than
    /// [`duration`](Self::duration).
    pub fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }

    /// Picks one of `items`. The first item should be the quiet choice.
    ///
    /// # Panics
    ///
    /// Panics if `items` is empty.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())].clone()
    }

    fn take(&mut self, count: u32) -> u64 {
        match &mut self.0 {
            ChanceSource::Seed(rng) => rng.next(),
            ChanceSource::Bytes { bytes, at } => {
                let mut value = 0;
                for shift in 0..count {
                    let byte = bytes.get(*at).copied().unwrap_or(0);
                    *at = at.saturating_add(1);
                    value |= u64::from(byte) << (8 * shift);
                }
                value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_chance_repeats_and_is_never_exhausted() {
        let (mut one, mut two) = (Chance::seed(5), Chance::seed(5));
        let drawn: Vec<u64> = (0..100).map(|_| one.below(10)).collect();
        assert_eq!(drawn, (0..100).map(|_| two.below(10)).collect::<Vec<_>>());
        assert!(drawn.iter().any(|n| *n != drawn[0]) && !one.is_exhausted());
    }

    #[test]
    fn bytes_are_read_in_order_then_lowest_choice_is_drawn() {
        let mut chance = Chance::bytes(&[7, 1, 2, 3]);
        assert_eq!(chance.below(1), 0, "nothing to decide takes no byte");
        assert_eq!(chance.below(5), 2);
        assert_eq!(chance.below(300), (2 << 8 | 1) % 300);
        assert!(!chance.is_exhausted());
        assert!(chance.one_in(4), "the highest choice is the loud one");
        assert!(chance.is_exhausted());
        assert_eq!(chance.below(10), 0);
        assert!(!chance.one_in(2));
        assert_eq!(chance.pick(&[3, 4]), 3);
        assert_eq!(chance.next(), 0);
        let range = Duration::from_millis(3)..Duration::from_millis(9);
        assert_eq!(chance.duration(&range), range.start);
    }
}
