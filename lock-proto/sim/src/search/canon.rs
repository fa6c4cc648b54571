//! A canonical hash of a state, independent of its history.

use alloc::vec::Vec;
use core::hash::Hasher;
use core::ops::Range;
use core::time::Duration;

use crate::rng::mix;
use lock_proto::Instant;
use lock_proto::time::nanos;

/// From this value on, a hashed `u32` is the nanoseconds of a duration; no other `u32` is as large.
const DURATION: u64 = 1_000_000;

/// A hasher under which equivalent states are equal: only relative times and the order of ids
/// count.
///
/// Counters and clocks grow with every step, so two runs that reach equivalent states never have
/// the same numbers in them. `Canon` makes any type that derives `Hash` comparable without
/// knowledge of its fields. The model starts its clock and each family of ids in a separate range.
/// The magnitude of a hashed number thus identifies its kind.
///
/// * An instant in the range given to [`times`](Self::times) is hashed as its distance from the
///   present, which [`now`](Self::now) sets. The distance is rounded up to a multiple of the grain,
///   so that due and future instants stay distinct. All instants more than `past` ago are equal.
///   The subsecond part of a `Duration`, which is hashed as a `u32`, is rounded up likewise if it
///   is at least a millisecond.
/// * Ids in a range given to [`ids`](Self::ids) are renumbered in order. Consecutive ids stay
///   consecutive; any gap becomes a gap of one.
/// * Everything else is hashed unchanged. Bytes are read eight at a time, because the standard
///   library hashes a slice of numbers as its bytes. Choose ranges below 2^61, which no ASCII text
///   reaches.
///
/// States that differ by less than a grain count as equal, and the search continues only from the
/// first of them. Counterexamples are therefore real, since they are replayed from concrete states,
/// but the search may miss states that differ only by such amounts.
#[derive(Clone, Debug, Default)]
pub struct Canon {
    times: Range<u64>,
    past: i64,
    grain: i64,
    ids: Vec<Range<u64>>,
    /// Lower bound of all ranges, so that one comparison rules out most numbers.
    least: u64,
    now: u64,
    words: Vec<u64>,
    /// The ids found, with their positions in `words`.
    found: Vec<(u64, usize)>,
}

impl Canon {
    /// Creates a hasher without ranges.
    #[must_use]
    pub fn new() -> Self {
        Self { least: u64::MAX, grain: 1, ..Self::default() }
    }

    /// Declares that instants lie in `range`, in nanoseconds. `grain` is the smallest difference
    /// that counts; all instants more than `past` ago are equal.
    #[must_use]
    pub fn times(mut self, range: Range<Instant>, past: Duration, grain: Duration) -> Self {
        self.times = range.start.as_nanos()..range.end.as_nanos();
        self.least = self.least.min(self.times.start);
        self.past = signed(nanos(past));
        self.grain = signed(nanos(grain)).max(1);
        self
    }

    /// Declares that numbers in `range` are ids of one family.
    #[must_use]
    pub fn ids(mut self, range: Range<u64>) -> Self {
        self.least = self.least.min(range.start);
        self.ids.push(range);
        self
    }

    /// Sets the present for the values hashed next.
    pub const fn now(&mut self, now: Instant) {
        self.now = now.as_nanos();
    }

    /// Clears the hasher for another state.
    pub fn clear(&mut self) {
        self.words.clear();
        self.found.clear();
    }

    /// Returns the fingerprint of all values hashed since [`clear`](Self::clear).
    pub fn fingerprint(&mut self) -> u64 {
        self.rename();
        self.words.iter().fold(0, |hash, word| mix(hash ^ word, 1))
    }

    fn rename(&mut self) {
        self.found.sort_unstable();
        let (mut last, mut new) = (0, 0);
        for (id, place) in self.found.drain(..) {
            // A gap between families counts like any other gap.
            new += (id - last).min(2);
            last = id;
            if let Some(word) = self.words.get_mut(place) {
                *word = new;
            }
        }
    }

    fn number(&mut self, n: u64) {
        if n >= self.least && n < u64::MAX {
            if self.times.contains(&n) {
                let ahead = signed(n) - signed(self.now);
                let ahead = ahead.max(-self.past);
                let steps = if ahead > 0 { (ahead - 1) / self.grain + 1 } else { ahead / self.grain };
                return self.words.push(steps.cast_unsigned());
            }
            if self.ids.iter().any(|range| range.contains(&n)) {
                self.found.push((n, self.words.len()));
            }
        }
        self.words.push(n);
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Hasher for Canon {
    fn finish(&self) -> u64 {
        self.clone().fingerprint()
    }

    fn write(&mut self, bytes: &[u8]) {
        let (numbers, rest) = bytes.as_chunks();
        // A slice of numbers is hashed as its bytes.
        for number in numbers {
            self.number(u64::from_ne_bytes(*number));
        }
        if !rest.is_empty() {
            self.words.push(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.words.push(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        let n = u64::from(n);
        let grain = self.grain.cast_unsigned();
        self.words.push(if n < DURATION { n } else { n.div_ceil(grain) * grain });
    }

    fn write_u64(&mut self, n: u64) {
        self.number(n);
    }

    fn write_i64(&mut self, n: i64) {
        self.number(n.cast_unsigned());
    }

    fn write_usize(&mut self, n: usize) {
        self.words.push(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::Hash;

    const EPOCH: u64 = 1 << 60;
    const FIRST: u64 = 1 << 50;

    fn hash(now: u64, value: impl Hash) -> u64 {
        let at = Instant::from_nanos;
        let (past, grain) = (Duration::from_nanos(100), Duration::from_nanos(10));
        let mut canon = Canon::new().times(at(EPOCH)..at(EPOCH + (1 << 50)), past, grain).ids(FIRST..FIRST + (1 << 40));
        canon.now(at(EPOCH + now));
        value.hash(&mut canon);
        assert_eq!(canon.finish(), canon.fingerprint());
        canon.fingerprint()
    }

    #[test]
    fn instants_are_hashed_relative_to_now() {
        let at = |n: u64| Instant::from_nanos(EPOCH + n);
        assert_eq!(hash(1_000, at(1_020)), hash(5_000, at(5_020)));
        assert_ne!(hash(1_000, at(1_020)), hash(1_000, at(1_030)));
        // Equal within a grain, but due and future stay distinct.
        assert_eq!(hash(1_000, at(1_011)), hash(1_000, at(1_020)));
        assert_ne!(hash(1_000, at(1_000)), hash(1_000, at(1_001)));
        assert_eq!(hash(1_000, at(1_000)), hash(1_000, at(995)));
        assert_eq!(hash(5_000, at(4_900)), hash(5_000, at(10)));
        assert_ne!(hash(5_000, at(4_900)), hash(5_000, at(4_950)));
        assert_eq!(hash(0, Duration::from_nanos(5_000_001)), hash(0, Duration::from_nanos(5_000_009)));
        assert_ne!(hash(0, Duration::from_nanos(5_000_001)), hash(0, Duration::from_nanos(5_000_011)));
        assert_ne!(hash(1_000, Instant::ZERO), hash(1_000, Instant::MAX));
    }

    #[derive(Hash)]
    struct Id(u64);

    #[test]
    fn ids_are_hashed_by_order() {
        let ids = |ids: &[u64]| hash(0, ids.iter().map(|id| Id(FIRST + id)).collect::<Vec<_>>());
        assert_eq!(ids(&[3, 4, 4]), ids(&[30, 31, 31]));
        assert_eq!(ids(&[7, 3]), ids(&[70, 3]));
        assert_ne!(ids(&[3, 4]), ids(&[4, 3]));
        assert_ne!(ids(&[3, 4]), ids(&[3, 3]));
        // Consecutive ids differ from ids with a gap.
        assert_ne!(ids(&[3, 4]), ids(&[3, 5]));
        assert_ne!(hash(0, 3_u64), hash(0, 30_u64));
    }
}
