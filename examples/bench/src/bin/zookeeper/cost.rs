//! Cost of a measurement, by the server's counts and by processor time.

use std::time::Duration;

use lock_bench::Measured;
use lock_bench::cost::cpu_time;
use lock_testkit::ZooKeeper;

/// Counts since the server started.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Transactions, with the begins and ends of sessions.
    pub writes: u64,
    /// Requests, with pings and the questions of this benchmark.
    pub packets: u64,
    /// Deletions that were reported to watches.
    pub events: u64,
    own: Duration,
    server: Duration,
}

impl Count {
    pub fn read(server: &ZooKeeper) -> Self {
        Self {
            writes: server.zxid(),
            packets: server.metric("zk_packets_received") as u64,
            events: server.metric("zk_sum_node_deleted_watch_count") as u64,
            own: cpu_time("self"),
            server: cpu_time(&server.pid().to_string()),
        }
    }
}

/// A measurement, and its cost per lock.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Locks per second.
    pub rate: f64,
    pub writes: f64,
    pub packets: f64,
    pub events: f64,
    /// Processor time in µs: of this process and of the server.
    pub cpu: (f64, f64),
}

/// Measures `contest`.
pub async fn sample(server: &ZooKeeper, contest: impl Future<Output = Measured>) -> Sample {
    let before = Count::read(server);
    let Measured { rate, cycles } = contest.await;
    let after = Count::read(server);
    let each = |from: u64, to: u64| (to - from) as f64 / cycles as f64;
    let micros = |from: Duration, to: Duration| (to - from).as_secs_f64() * 1e6 / cycles as f64;
    Sample {
        rate,
        writes: each(before.writes, after.writes),
        packets: each(before.packets, after.packets),
        events: each(before.events, after.events),
        cpu: (micros(before.own, after.own), micros(before.server, after.server)),
    }
}
