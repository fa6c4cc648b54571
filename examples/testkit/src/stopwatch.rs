use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(2);

/// Typical delay of a sleep.
const TYPICAL_DELAY: Duration = Duration::from_millis(1);

/// Number of threads and processes in a row that may each be delayed.
const HOPS: u32 = 4;

/// Checks durations on a machine that may be busy with other work.
///
/// A background thread sleeps repeatedly and measures how late it wakes. Assertions allow for that.
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
    /// The thread ends when this is dropped.
    late_ns: Arc<AtomicU64>,
}

impl Stopwatch {
    /// Starts the stopwatch.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    #[must_use]
    pub fn start() -> Self {
        let late_ns = Arc::new(AtomicU64::new(0));
        let weak = Arc::downgrade(&late_ns);
        thread::spawn(move || {
            while let Some(late_ns) = weak.upgrade() {
                let asleep = Instant::now();
                thread::sleep(TICK);
                let late = asleep.elapsed().saturating_sub(TICK + TYPICAL_DELAY);
                late_ns.fetch_add(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { start: Instant::now(), late_ns }
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The scheduling delay since the start, for [`HOPS`] steps in a row.
    fn slack(&self) -> Duration {
        // Includes a delay at this moment.
        thread::sleep(TICK);
        Duration::from_nanos(self.late_ns.load(Ordering::Relaxed)).saturating_mul(HOPS)
    }

    /// Asserts that `took` is in `range`, give or take the measured scheduling delay.
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

    /// Asserts that at most `limit` has passed since the start, plus the measured scheduling delay.
    ///
    /// # Panics
    ///
    /// If more has passed.
    #[track_caller]
    pub fn assert_within(&self, limit: Duration, what: impl core::fmt::Display) {
        self.assert_in(self.elapsed(), Duration::ZERO..=limit, what);
    }
}
