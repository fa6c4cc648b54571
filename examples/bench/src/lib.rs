//! Shared parts of the benchmarks.

pub mod args;
pub mod cost;
pub mod raw_etcd;
pub mod raw_zookeeper;
pub mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns a client whose driver is a task of the current runtime, as the other libraries' are. The
/// benchmark `threads` of `lock-tokio` measures what a thread of its own costs.
///
/// # Errors
///
/// As [`lock_tokio::connect_on_runtime`].
pub fn connect(url: &str) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    lock_tokio::connect_on_runtime(lock_tokio::Settings::parse([url])?)
}

/// Excluded from the measurement, because the first cycles open connections.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Shared between the measured tasks and the measurement.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    stop: AtomicBool,
    done: AtomicU64,
}

impl Meter {
    /// Returns true until the tasks must stop.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.0.stop.load(Ordering::Relaxed)
    }

    /// Counts one cycle.
    pub fn count(&self) {
        self.0.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of cycles so far.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Stops the tasks.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Cycles per second, without the [`WARM_UP`].
    pub rate: f64,
    /// Total number of cycles.
    pub cycles: u64,
}

/// Runs `tasks` tasks for `span` after the [`WARM_UP`], and counts their cycles.
///
/// # Panics
///
/// If a task panics.
pub async fn measure<F>(tasks: usize, span: Duration, mut task: impl FnMut(usize, Meter) -> F) -> Measured
where
    F: Future<Output = ()> + Send + 'static,
{
    let meter = Meter::default();
    let tasks: Vec<_> = (0..tasks).map(|n| tokio::spawn(task(n, meter.clone()))).collect();
    tokio::time::sleep(WARM_UP).await;
    let (before, start) = (meter.done(), Instant::now());
    tokio::time::sleep(span).await;
    let rate = (meter.done() - before) as f64 / start.elapsed().as_secs_f64();
    meter.stop();
    for task in tasks {
        task.await.expect("a task panicked");
    }
    Measured { rate, cycles: meter.done() }
}

/// The median.
///
/// # Panics
///
/// If `of` is empty.
#[must_use]
pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
