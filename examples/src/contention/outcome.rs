//! The figures of a run.

use core::fmt::Write as _;
use core::time::Duration;

use hdrhistogram::Histogram;

use super::counters::{Sets, Spent};
use super::job::Workload;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the tasks did.
    pub(super) workload: Workload,
    /// How many tasks there were.
    pub(super) clients: usize,
    /// How long was asked for.
    pub(super) span: Duration,
    /// How long each hold was to be.
    pub(super) hold: Duration,
    /// How long it was.
    pub(super) window: Duration,
    /// Acquisitions that finished inside the window.
    pub(super) ops: u64,
    /// All of the run: those before and after it too.
    pub(super) total: u64,
    /// From the call to the guard, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Processor time of this process in the window.
    pub(super) cpu: Duration,
    /// Fairness among the tasks.
    pub(super) jain: f64,
    /// Locks not taken, or lost before they were given back.
    pub(super) errors: u64,
    /// The first of them.
    pub(super) first_error: Option<String>,
    /// Holders that met another.
    pub(super) violations: u64,
    /// Tasks that waited at the end.
    pub(super) pending: usize,
    /// The longest of their waits so far.
    pub(super) longest_pending: Duration,
    /// Tasks that got nothing.
    pub(super) starved: usize,
    /// How long a hold took in truth.
    pub(super) hold_mean: Duration,
    /// What it cost the servers, where they tell: from before the first acquisition until after the last one.
    pub(super) servers: Option<Spent>,
    /// How to read that.
    pub(super) sets: Sets,
}

/// Jain's index of fairness, `(Σx)² / (n Σx²)`: 1 if all have the same, 1/n if one has all; 0 if nobody has anything.
///
/// Jain, Chiu, Hawe: A quantitative measure of fairness and discrimination (1984).
pub(super) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum.powi(2) / (shares.len() as f64 * squares) }
}

impl Outcome {
    /// Acquisitions a second.
    pub(super) fn rate(&self) -> f64 {
        self.ops as f64 / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The latency that this part of the acquisitions did not exceed, in microseconds.
    pub(super) fn quantile_us(&self, part: f64) -> f64 {
        self.latencies.value_at_quantile(part) as f64 / 1e3
    }

    /// The mean latency in microseconds.
    pub(super) fn mean_us(&self) -> f64 {
        self.latencies.mean() / 1e3
    }

    /// The longest latency in microseconds.
    pub(super) fn max_us(&self) -> f64 {
        self.latencies.max() as f64 / 1e3
    }

    /// The longest wait in microseconds, also if it was not over.
    pub(super) fn longest_us(&self) -> f64 {
        self.max_us().max(self.longest_pending.as_secs_f64() * 1e6)
    }

    /// Processor time in seconds for a thousand acquisitions.
    pub(super) fn cpu_per_1000(&self) -> f64 {
        per(self.cpu.as_secs_f64() * 1e3, self.ops)
    }

    /// The same on the servers.
    pub(super) fn server_cpu_per_1000(&self) -> Option<f64> {
        Some(per(self.servers.as_ref()?.cpu.as_secs_f64() * 1e3, self.total))
    }

    /// Commands that the servers executed for each acquisition.
    pub(super) fn commands(&self) -> Option<f64> {
        Some(per(self.servers.as_ref()?.commands as f64, self.total))
    }

    /// Commands that clients sent for each acquisition.
    pub(super) fn requests(&self) -> Option<f64> {
        Some(per(self.servers.as_ref()?.requests(self.sets)? as f64, self.total))
    }

    /// The line for programs: names and order are fixed.
    pub(super) fn json(&self) -> String {
        let us = |value: f64| format!("{value:.1}");
        let fields: [(&str, String); 21] = [
            ("workload", format!("\"{}\"", self.workload.name())),
            ("clients", self.clients.to_string()),
            ("seconds", self.span.as_secs_f64().to_string()),
            ("hold_ms", self.hold.as_millis().to_string()),
            ("ops", self.ops.to_string()),
            ("ops_total", self.total.to_string()),
            ("ops_per_s", format!("{:.1}", self.rate())),
            ("mean_us", us(self.mean_us())),
            ("p50_us", us(self.quantile_us(0.5))),
            ("p70_us", us(self.quantile_us(0.7))),
            ("p90_us", us(self.quantile_us(0.9))),
            ("p99_us", us(self.quantile_us(0.99))),
            ("max_us", us(self.max_us())),
            ("client_cpu_s", format!("{:.4}", self.cpu.as_secs_f64())),
            ("cpu_s_per_1000", format!("{:.6}", self.cpu_per_1000())),
            ("jain", format!("{:.4}", self.jain)),
            ("errors", self.errors.to_string()),
            ("violations", self.violations.to_string()),
            ("pending", self.pending.to_string()),
            ("pending_max_us", us(self.longest_pending.as_secs_f64() * 1e6)),
            ("starved", self.starved.to_string()),
        ];
        line(&[&fields[..], &[("hold_us_mean", us(self.hold_mean.as_secs_f64() * 1e6))]].concat())
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let Self { ops, clients, window, .. } = self;
        let time = |us: f64| Time(us).to_string();
        let mut rows = vec![
            (
                "workload",
                format!(
                    "{}, {clients} tasks, {:.1} s, hold {:?}",
                    self.workload.name(),
                    window.as_secs_f64(),
                    self.hold
                ),
            ),
            ("locks taken", format!("{ops} ({:.0} a second)", self.rate())),
            (
                "wait",
                format!(
                    "mean {}, P50 {}, P70 {}, P90 {}, P99 {}, longest {}",
                    time(self.mean_us()),
                    time(self.quantile_us(0.5)),
                    time(self.quantile_us(0.7)),
                    time(self.quantile_us(0.9)),
                    time(self.quantile_us(0.99)),
                    time(self.max_us())
                ),
            ),
            ("held in truth", format!("{} on the average", time(self.hold_mean.as_secs_f64() * 1e6))),
            (
                "fairness",
                format!(
                    "{:.3} (Jain; 1 is fair); {} tasks got nothing; {} wait, the longest since {}",
                    self.jain,
                    self.starved,
                    self.pending,
                    time(self.longest_pending.as_secs_f64() * 1e6)
                ),
            ),
            ("processor here", format!("{} for each lock", time(self.cpu_per_1000() * 1e3))),
        ];
        if let (Some(commands), Some(cpu)) = (self.commands(), self.server_cpu_per_1000()) {
            let sent = self.requests().map_or_else(String::new, |sent| format!(", {sent:.2} of them sent by clients"));
            let text = format!("{} for each lock, and {commands:.2} commands{sent}", time(cpu * 1e3));
            rows.push(("on the servers", text));
        }
        rows.push(("overlaps seen", self.violations.to_string()));
        let first = self.first_error.as_ref().map_or_else(String::new, |error| format!("; the first: {error}"));
        rows.push(("errors", format!("{}{first}", self.errors)));
        aligned(&rows)
    }
}

fn per(what: f64, ops: u64) -> f64 {
    if ops == 0 { 0.0 } else { what / ops as f64 }
}

/// An object of JSON in one line. The values are numbers, or words in quotes that need no escaping.
pub(super) fn line(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// Names to the left, values to the right.
pub(super) fn aligned(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (i, (name, value)) in rows.iter().enumerate() {
        let _ = write!(text, "{}{name:<width$}  {value}", if i == 0 { "" } else { "\n" });
    }
    text
}

/// Microseconds as people write them, with two or three digits.
pub(super) struct Time(pub(super) f64);

impl core::fmt::Display for Time {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (value, unit) = match self.0 {
            us if us < 999.5 => (us, "µs"),
            us if us < 999_500.0 => (us / 1e3, "ms"),
            us => (us / 1e6, "s"),
        };
        let digits = if value < 9.95 { 1 } else { 0 };
        write!(f, "{value:.digits$} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_if_all_have_the_same() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        close(jain(&[5, 5, 5]), 1.0);
        close(jain(&[9, 0, 0]), 1.0 / 3.0);
        close(jain(&[3, 1]), 0.8);
        close(jain(&[0, 0]), 0.0);
        close(jain(&[]), 0.0);
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        for (us, text) in [
            (0.0, "0.0 µs"),
            (3.26, "3.3 µs"),
            (42.4, "42 µs"),
            (999.6, "1.0 ms"),
            (12_300.0, "12 ms"),
            (2_250_000.0, "2.2 s"),
        ] {
            assert_eq!(Time(us).to_string(), text);
        }
    }
}
