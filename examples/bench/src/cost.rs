//! Cost of a measurement, by the server's metrics and by processor time.

use std::collections::BTreeMap;
use std::ops::Sub;
use std::time::Duration;

use crate::Measured;
use lock_testkit::{Etcd, http_get};

/// Requests and messages, by etcd's metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Unary calls started, by method.
    pub calls: BTreeMap<String, u64>,
    /// Messages on watch streams, received and sent by the server.
    pub watch: (u64, u64),
    /// Keep-alive messages.
    pub keep_alives: u64,
    /// Streams opened: watch and keep-alive.
    pub streams: (u64, u64),
}

impl Cost {
    /// The counts since the server started.
    ///
    /// # Panics
    ///
    /// If the server does not reply.
    #[must_use]
    pub fn read(etcd: &Etcd) -> Self {
        let text = http_get(etcd.address(), "/metrics", Duration::from_secs(10)).expect("metrics");
        let of = |metric: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{')?.split_once("} "));
            let mut counts = BTreeMap::new();
            for (labels, count) in lines {
                let Some((_, method)) = labels.split_once("grpc_method=\"") else { continue };
                let method = method.split('"').next().unwrap_or(method);
                // Different services may have methods of the same name.
                *counts.entry(method.to_owned()).or_default() += count.parse::<f64>().expect("a count") as u64;
            }
            counts
        };
        let (received, sent) = (of("grpc_server_msg_received_total"), of("grpc_server_msg_sent_total"));
        let all = |of: &BTreeMap<String, u64>, method: &str| of.get(method).copied().unwrap_or(0);
        let mut calls = of("grpc_server_started_total");
        let streams = (all(&calls, "Watch"), all(&calls, "LeaseKeepAlive"));
        calls.retain(|method, _| method != "Watch" && method != "LeaseKeepAlive");
        Self {
            calls,
            watch: (all(&received, "Watch"), all(&sent, "Watch")),
            keep_alives: all(&received, "LeaseKeepAlive"),
            streams,
        }
    }

    /// Total number of unary calls.
    pub fn sum(&self) -> u64 {
        self.calls.values().sum()
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let calls = self.calls.into_iter().map(|(method, count)| {
            let earlier = before.calls.get(&method).copied().unwrap_or(0);
            (method, count - earlier)
        });
        Self {
            calls: calls.filter(|(_, count)| *count > 0).collect(),
            watch: (self.watch.0 - before.watch.0, self.watch.1 - before.watch.1),
            keep_alives: self.keep_alives - before.keep_alives,
            streams: (self.streams.0 - before.streams.0, self.streams.1 - before.streams.1),
        }
    }
}

/// A measurement and its cost per cycle.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Cycles per second.
    pub rate: f64,
    /// Unary calls.
    pub calls: f64,
    /// Messages on watch streams, received and sent by the server.
    pub watch: (f64, f64),
    /// Processor time in µs: of this process and of the server.
    pub cpu: (f64, f64),
}

/// Measures `contest`. Calls of the method `without` are not counted.
pub async fn sample(etcd: &Etcd, without: Option<&str>, contest: impl Future<Output = Measured>) -> Sample {
    let (cost, cpu) = (Cost::read(etcd), Cpu::read(etcd));
    let Measured { rate, cycles } = contest.await;
    let (cpu, mut cost) = (Cpu::read(etcd) - cpu, Cost::read(etcd) - cost);
    if let Some(method) = without {
        cost.calls.remove(method);
    }
    let each = |count: u64| count as f64 / cycles as f64;
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / cycles as f64;
    Sample {
        rate,
        calls: each(cost.sum()),
        watch: (each(cost.watch.0), each(cost.watch.1)),
        cpu: (micros(cpu.own), micros(cpu.server)),
    }
}

/// Processor time of this process and of the server. Unlike elapsed time, it depends little on
/// other load.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    own: Duration,
    server: Duration,
}

impl Cpu {
    fn read(etcd: &Etcd) -> Self {
        Self { own: cpu_time("self"), server: cpu_time(&etcd.pid().to_string()) }
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { own: self.own - before.own, server: self.server - before.server }
    }
}

/// User and kernel time of a process (Linux).
///
/// # Panics
///
/// If there is no such process.
#[must_use]
pub fn cpu_time(process: &str) -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("Linux");
    // The name may contain any character, and ends at the last parenthesis.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u32>().expect("a number"));
    TICK * ticks.sum::<u32>()
}
