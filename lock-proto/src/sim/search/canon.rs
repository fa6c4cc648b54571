//! What a state is, apart from how it came about.

use alloc::vec::Vec;
use core::hash::Hasher;
use core::ops::Range;
use core::time::Duration;

use crate::jitter::mix;
use crate::time::{Instant, nanos};

/// Nanoseconds of a duration: no other `u32` is that large.
const DURATION: u64 = 1_000_000;

/// A hasher that takes equal situations for equal: instants count from now, and ids by their order alone.
///
/// Counters and clocks grow with every step, so two runs that lead to the same situation never lead to the same numbers. Whatever
/// derives `Hash` is made comparable all the same, without knowing its fields: the model lets its clock and each family of ids
/// begin in a range of its own, so that a number that is hashed tells by its size what it is.
///
/// * An instant of the range given to [`times`](Self::times) is hashed as its distance from the present, which
///   [`now`](Self::now) sets for what follows, in steps of the grain, rounded up: what is due stays apart from what is not. All
///   that is longer ago than `past` is equally long ago. The part of a `Duration` below a second, which is hashed as a `u32`, is rounded
///   up likewise if it is a millisecond or more.
/// * Ids of a range given to [`ids`](Self::ids) are numbered anew in their order. Neighbours stay neighbours, and where numbers are
///   left out, one is.
/// * Everything else is hashed as it is. Bytes are taken eight at a time, because the standard library hashes a slice of numbers
///   as its bytes; so ranges are best chosen below 2^61, where no ASCII text is.
///
/// Two states that differ by less than a grain are taken for one, and only the first of them is searched on. So what is
/// found is real, since it is replayed from concrete states; what is not found was not there but for such differences.
#[derive(Clone, Debug, Default)]
pub struct Canon {
    times: Range<u64>,
    past: i64,
    grain: i64,
    ids: Vec<Range<u64>>,
    /// No number of any range is smaller: most numbers are told apart by one comparison.
    least: u64,
    now: u64,
    words: Vec<u64>,
    /// Where an id stands, with the id.
    found: Vec<(u64, usize)>,
}

impl Canon {
    /// A hasher that knows no ranges yet.
    #[must_use]
    pub fn new() -> Self {
        Self { least: u64::MAX, grain: 1, ..Self::default() }
    }

    /// Instants lie in `range`, in nanoseconds. `grain` is the least difference that counts, and what is longer ago than
    /// `past` is long ago.
    #[must_use]
    pub fn times(mut self, range: Range<Instant>, past: Duration, grain: Duration) -> Self {
        self.times = range.start.as_nanos()..range.end.as_nanos();
        self.least = self.least.min(self.times.start);
        self.past = signed(nanos(past));
        self.grain = signed(nanos(grain)).max(1);
        self
    }

    /// Numbers in `range` are ids of one family.
    #[must_use]
    pub fn ids(mut self, range: Range<u64>) -> Self {
        self.least = self.least.min(range.start);
        self.ids.push(range);
        self
    }

    /// The present, on the clock of whoever is hashed next.
    pub const fn now(&mut self, now: Instant) {
        self.now = now.as_nanos();
    }

    /// Forgets what was hashed.
    pub fn clear(&mut self) {
        self.words.clear();
        self.found.clear();
    }

    /// The fingerprint of all that was hashed since [`clear`](Self::clear).
    pub fn fingerprint(&mut self) -> u64 {
        self.rename();
        self.words.iter().fold(0, |hash, word| mix(hash ^ word, 1))
    }

    /// Numbers the ids that were met anew.
    fn rename(&mut self) {
        self.found.sort_unstable();
        let (mut last, mut new) = (0, 0);
        for (id, place) in self.found.drain(..) {
            // Between families the gap is as wide as any.
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
    fn instants_count_from_now() {
        let at = |n: u64| Instant::from_nanos(EPOCH + n);
        assert_eq!(hash(1_000, at(1_020)), hash(5_000, at(5_020)));
        assert_ne!(hash(1_000, at(1_020)), hash(1_000, at(1_030)));
        // Within a grain; but what is due is not what is to come.
        assert_eq!(hash(1_000, at(1_011)), hash(1_000, at(1_020)));
        assert_ne!(hash(1_000, at(1_000)), hash(1_000, at(1_001)));
        assert_eq!(hash(1_000, at(1_000)), hash(1_000, at(995)));
        // Long ago is long ago.
        assert_eq!(hash(5_000, at(4_900)), hash(5_000, at(10)));
        assert_ne!(hash(5_000, at(4_900)), hash(5_000, at(4_950)));
        assert_eq!(hash(0, Duration::from_nanos(5_000_001)), hash(0, Duration::from_nanos(5_000_009)));
        assert_ne!(hash(0, Duration::from_nanos(5_000_001)), hash(0, Duration::from_nanos(5_000_011)));
        // The ends of time are no instants.
        assert_ne!(hash(1_000, Instant::ZERO), hash(1_000, Instant::MAX));
    }

    #[derive(Hash)]
    struct Id(u64);

    #[test]
    fn ids_count_by_their_order() {
        let ids = |ids: &[u64]| hash(0, ids.iter().map(|id| Id(FIRST + id)).collect::<Vec<_>>());
        assert_eq!(ids(&[3, 4, 4]), ids(&[30, 31, 31]));
        assert_eq!(ids(&[7, 3]), ids(&[70, 3]));
        assert_ne!(ids(&[3, 4]), ids(&[4, 3]));
        assert_ne!(ids(&[3, 4]), ids(&[3, 3]));
        // A number after another is not one that comes later.
        assert_ne!(ids(&[3, 4]), ids(&[3, 5]));
        // Other numbers are what they are.
        assert_ne!(hash(0, 3_u64), hash(0, 30_u64));
    }
}
