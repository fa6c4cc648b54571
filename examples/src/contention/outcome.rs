use core::fmt::Write as _;
use core::time::Duration;

use hdrhistogram::Histogram;

use super::counters::{ServerUsage, Sets};
use super::job::Workload;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(super) workload: Workload,
    pub(super) clients: usize,
    /// Requested length of the window.
    pub(super) span: Duration,
    /// Requested length of each hold.
    pub(super) hold: Duration,
    /// Actual length of the window.
    pub(super) window: Duration,
    /// Acquisitions that finished within the window.
    pub(super) ops: u64,
    /// All acquisitions of the run, including those before and after the window.
    pub(super) total: u64,
    /// Latency from the call to the guard, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Processor time of this process in the window.
    pub(super) cpu: Duration,
    /// Jain's index of fairness among the tasks.
    pub(super) jain: f64,
    /// Locks that were not acquired, or were lost before their release.
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// Holders that overlapped with another holder.
    pub(super) violations: u64,
    /// Tasks that waited at the end.
    pub(super) pending: usize,
    /// The longest of these waits so far.
    pub(super) longest_pending: Duration,
    /// Tasks that acquired nothing.
    pub(super) starved: usize,
    /// Actual length of a hold.
    pub(super) hold_mean: Duration,
    /// Cost on the servers during the whole run, if they report it.
    pub(super) servers: Option<ServerUsage>,
    /// How to interpret the `SET` commands among it.
    pub(super) sets: Sets,
}

/// Jain's index of fairness, `(Σx)² / (n Σx²)`: 1 if all have the same, 1/n if one has all, 0 if
/// all have nothing.
///
/// Jain, Chiu, Hawe: A quantitative measure of fairness and discrimination (1984).
pub(super) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum.powi(2) / (shares.len() as f64 * squares) }
}

impl Outcome {
    pub(super) fn rate(&self) -> f64 {
        self.ops as f64 / self.window.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    pub(super) fn quantile_us(&self, part: f64) -> f64 {
        self.latencies.value_at_quantile(part) as f64 / 1e3
    }

    pub(super) fn mean_us(&self) -> f64 {
        self.latencies.mean() / 1e3
    }

    pub(super) fn max_us(&self) -> f64 {
        self.latencies.max() as f64 / 1e3
    }

    /// Returns the longest wait in microseconds, including unfinished ones.
    pub(super) fn longest_us(&self) -> f64 {
        self.max_us().max(self.longest_pending.as_secs_f64() * 1e6)
    }

    /// Returns the processor time of this process in seconds per 1000 acquisitions.
    pub(super) fn cpu_per_1000(&self) -> f64 {
        per(self.cpu.as_secs_f64() * 1e3, self.ops)
    }

    /// Returns the processor time of the servers in seconds per 1000 acquisitions.
    pub(super) fn server_cpu_per_1000(&self) -> Option<f64> {
        Some(per(self.servers.as_ref()?.cpu?.as_secs_f64() * 1e3, self.total))
    }

    pub(super) fn commands(&self) -> Option<f64> {
        Some(per(self.servers.as_ref()?.commands as f64, self.total))
    }

    pub(super) fn requests(&self) -> Option<f64> {
        Some(per(self.servers.as_ref()?.requests(self.sets)? as f64, self.total))
    }

    /// Formats the line of JSON. Its names and their order are fixed.
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
            ("actual hold", format!("{} on average", time(self.hold_mean.as_secs_f64() * 1e6))),
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
        if let Some(commands) = self.commands() {
            let sent = self.requests().map_or_else(String::new, |sent| format!(", {sent:.2} of them sent by clients"));
            let cpu = self.server_cpu_per_1000().map_or_else(|| "unknown time".to_owned(), |cpu| time(cpu * 1e3));
            let text = format!("{cpu} for each lock, and {commands:.2} commands{sent}");
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

/// Formats a JSON object on one line. Values are numbers, or quoted words that need no escaping.
pub(super) fn line(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

pub(super) fn aligned(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (i, (name, value)) in rows.iter().enumerate() {
        let _ = write!(text, "{}{name:<width$}  {value}", if i == 0 { "" } else { "\n" });
    }
    text
}

/// Formats microseconds with two or three digits and a unit.
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
    fn jain_index_matches_known_values() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        close(jain(&[5, 5, 5]), 1.0);
        close(jain(&[9, 0, 0]), 1.0 / 3.0);
        close(jain(&[3, 1]), 0.8);
        close(jain(&[0, 0]), 0.0);
        close(jain(&[]), 0.0);
    }

    #[test]
    fn times_are_formatted_in_fitting_unit() {
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
