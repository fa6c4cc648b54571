//! Setup and result of a contest.

use std::time::{Duration, Instant};

use lock_bench::cost::{Cost, cpu_time};
use lock_bench::raw_etcd::{RANGE, RawEtcd};
use lock_proto::etcd::message::{RangeRequest, RangeResponse};
use lock_testkit::Etcd;

/// Time limit for all contenders to enter the queue.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which the queue is counted until all are in it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
pub const NAME: &str = "waiters";

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub clients: usize,
    pub hold: Duration,
    pub span: Duration,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the start until all keys were in the queue.
    pub enter: Duration,
    pub span: Duration,
    pub grants: u64,
    /// Total duration of all holds.
    pub held: Duration,
    pub starved: u64,
    /// The longest wait, including those that had not ended.
    pub longest: Duration,
    pub errors: u64,
    pub usage: Usage,
}

#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Unary calls during the measurement.
    calls: u64,
    /// Messages on watch streams during the measurement.
    watch: (u64, u64),
    /// Watch and keep-alive streams since the start.
    streams: (u64, u64),
    /// Processor time of the contenders and of the server during the measurement.
    cpu: (Duration, Duration),
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.grants as f64 / self.span.as_secs_f64()
    }

    pub fn mean_hold(&self) -> Duration {
        self.held / u32::try_from(self.grants.max(1)).unwrap_or(u32::MAX)
    }

    /// Mean time between two holds.
    pub fn gap(&self) -> Duration {
        Duration::from_secs_f64(self.span.as_secs_f64() / self.grants.max(1) as f64).saturating_sub(self.mean_hold())
    }

    pub fn print_head() {
        println!(
            "{:<14} {:>8} {:>9} {:>9} {:>9} {:>8} {:>8} {:>6} {:>6} {:>11} {:>9} {:>6} {:>6}",
            "",
            "enter",
            "locks/s",
            "hold",
            "gap",
            "starved",
            "longest",
            "errors",
            "calls",
            "recv/sent",
            "streams",
            "µs",
            "server"
        );
    }

    pub fn print(&self, title: &str) {
        let each = |count: u64| count as f64 / self.grants.max(1) as f64;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / self.grants.max(1) as f64;
        let Usage { calls, watch, streams, cpu } = &self.usage;
        println!(
            "{title:<14} {:>8.2?} {:>9.1} {:>9.1?} {:>9.1?} {:>8} {:>8.2?} {:>6} {:>6.2} {:>11} {:>9} {:>6.0} {:>6.0}",
            self.enter,
            self.rate(),
            self.mean_hold(),
            self.gap(),
            self.starved,
            self.longest,
            self.errors,
            each(*calls),
            format!("{:.2}/{:.2}", each(watch.0), each(watch.1)),
            format!("{}+{}", streams.0, streams.1),
            micros(cpu.0),
            micros(cpu.1),
        );
    }
}

/// Waits until the queue has `clients` keys. Returns the time since `start`.
pub async fn entered(etcd: &Etcd, clients: usize, start: Instant) -> Duration {
    let bare = RawEtcd::connect(etcd).await;
    loop {
        let (key, range_end) = (format!("{NAME}/").into(), format!("{NAME}0").into());
        let count = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        let counted: RangeResponse = bare.call(RANGE, count).await;
        if counted.count >= clients as i64 {
            return start.elapsed();
        }
        assert!(start.elapsed() < TIMEOUT, "{} of {clients} have entered after {TIMEOUT:?}", counted.count);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

pub struct Snapshot(Cost, (Duration, Duration));

impl Snapshot {
    /// `process` runs the contenders.
    pub fn now(etcd: &Etcd, process: &str) -> Self {
        Self(Cost::read(etcd), (cpu_time(process), cpu_time(&etcd.pid().to_string())))
    }

    pub fn since(self, before: Self) -> Usage {
        let streams = self.0.streams;
        let cost = self.0 - before.0;
        Usage { calls: cost.sum(), watch: cost.watch, streams, cpu: (self.1.0 - before.1.0, self.1.1 - before.1.1) }
    }
}
