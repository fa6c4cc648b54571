use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(2);

/// As late as this is every sleep.
const USUAL: Duration = Duration::from_millis(1);

/// How many threads and processes may have been late one after the other in what is timed.
const HOPS: u32 = 4;

/// Times what has to happen in time, on a machine that may be busy with something else.
///
/// A thread beside it sleeps and wakes: by how much it wakes late, what is timed may be late as well.
///
/// ```
/// use lock_testkit::Stopwatch;
/// use std::time::Duration;
///
/// let watch = Stopwatch::start();
/// std::thread::sleep(Duration::from_millis(30));
/// let slept = watch.elapsed();
/// watch.assert_in(slept, Duration::from_millis(30)..=Duration::from_millis(40), "slept");
/// ```
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    /// The thread ends when this is gone.
    late_ns: Arc<AtomicU64>,
}

impl Stopwatch {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// If the system gives no thread.
    #[must_use]
    pub fn start() -> Self {
        let late_ns = Arc::new(AtomicU64::new(0));
        let beside = Arc::downgrade(&late_ns);
        thread::spawn(move || {
            while let Some(late_ns) = beside.upgrade() {
                let asleep = Instant::now();
                thread::sleep(TICK);
                let late = asleep.elapsed().saturating_sub(TICK + USUAL);
                late_ns.fetch_add(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { start: Instant::now(), late_ns }
    }

    /// The time since its start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// By how much a thing that sleeps was held up since the start, for each of some that follow each other.
    fn slack(&self) -> Duration {
        // What is late at this moment is seen as well.
        thread::sleep(TICK);
        Duration::from_nanos(self.late_ns.load(Ordering::Relaxed)).saturating_mul(HOPS)
    }

    /// Asserts that `took` is in `range`, or out of it by no more than the machine explains.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    pub fn assert_in(&self, took: Duration, range: core::ops::RangeInclusive<Duration>, what: impl core::fmt::Display) {
        let slack = self.slack();
        let allowed = range.start().saturating_sub(slack)..=range.end().saturating_add(slack);
        assert!(allowed.contains(&took), "{what}: {took:?}, not in {range:?}, and the machine explains {slack:?}");
    }

    /// Asserts that no more than `limit` has passed since the start, or as much as the machine explains.
    ///
    /// # Panics
    ///
    /// If it has.
    #[track_caller]
    pub fn assert_within(&self, limit: Duration, what: impl core::fmt::Display) {
        self.assert_in(self.elapsed(), Duration::ZERO..=limit, what);
    }
}
