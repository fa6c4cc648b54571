//! Limits for figures that are the same in every run, kept in `limits.txt`.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::Work;

/// New limits exceed the measured figure by this factor.
const HEADROOM: f64 = 1.02;
/// Below this fraction of its limit, a figure is reported as improvable.
const SLACK: f64 = 0.9;

const HEAD: &str = "\
# What a unit of work may cost at most. `make bench-check` measures it and fails when a limit is passed.
#
# Instructions are those of Rust code (the allocator and memcpy of the system are not counted), compiled for x86_64 by the
# compiler named below. Allocations are those asked for, and their bytes, reallocations included.
#
# When a figure rises: find the cause (docs/benchmarks.md says how), and mend it; or set the limits anew by `make bench-limits` and say
# in the commit why it is worth it.
";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    work: String,
    figure: String,
}

#[derive(Clone, Debug)]
struct Limits {
    rustc: String,
    rows: BTreeMap<Key, (f64, f64)>,
}

impl Limits {
    fn path() -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/limits.txt"))
    }

    fn read() -> Self {
        Self::parse(&std::fs::read_to_string(Self::path()).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut limits = Self { rustc: String::new(), rows: BTreeMap::new() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            if let Some(rustc) = line.strip_prefix("compiler ") {
                limits.rustc = rustc.trim().to_owned();
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let [work, figure, limit, measured] = words[..] else { panic!("limits.txt: not four words: {line}") };
            let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("limits.txt: not a number: {line}"));
            let key = Key { work: work.to_owned(), figure: figure.to_owned() };
            limits.rows.insert(key, (number(limit), number(measured)));
        }
        limits
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}\ncompiler {}\n\n", self.rustc);
        writeln!(text, "# {:<14}{:<14}{:>10}{:>10}", "work", "figure", "limit", "measured").expect("a string");
        for (Key { work, figure }, (limit, measured)) in &self.rows {
            writeln!(text, "{work:<16}{figure:<14}{limit:>10}{measured:>10}").expect("a string");
        }
        text
    }

    /// Sets the limits from measured figures, and drops workloads that no longer exist.
    fn set(&mut self, measured: &[Measured]) {
        self.rows.retain(|key, _| crate::find(&key.work).is_some());
        for measured in measured {
            self.rows.insert(measured.key(), (round(measured.value * HEADROOM), measured.value));
        }
    }

    /// Describes the figures that exceed their limits.
    fn exceeded(&self, measured: &[Measured]) -> Vec<String> {
        let words = |measured: &Measured| {
            let (Key { work, figure }, now) = (measured.key(), measured.value);
            match self.rows.get(&measured.key()) {
                None => Some(format!("{work}: {figure} have no limit")),
                Some((limit, before)) if now > *limit => {
                    Some(format!("{work}: {figure} rose from {before} to {now}; the limit is {limit}"))
                }
                Some(_) => None,
            }
        };
        measured.iter().filter_map(words).collect()
    }
}

/// A measured figure.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    work: &'static Work,
    figure: &'static str,
    value: f64,
}

impl Measured {
    /// `total` is for one run of `work`.
    #[must_use]
    pub fn new(work: &'static Work, figure: &'static str, total: u64) -> Self {
        Self { work, figure, value: round(total as f64 / f64::from(work.units)) }
    }

    fn key(&self) -> Key {
        Key { work: self.work.name.to_owned(), figure: self.figure.to_owned() }
    }
}

/// Compares figures with their limits and reports what rose, or sets the limits.
#[must_use]
pub fn judge(measured: &[Measured], set: bool) -> ExitCode {
    let mut limits = Limits::read();
    let rustc = rustc();
    show(&limits, measured);
    if set {
        limits.set(measured);
        limits.rustc = rustc;
        std::fs::write(Limits::path(), limits.text()).expect("limits.txt can be written");
        println!("the limits are set");
        return ExitCode::SUCCESS;
    }
    let exceeded = limits.exceeded(measured);
    if exceeded.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("\nmore than allowed:");
    exceeded.iter().for_each(|line| eprintln!("    {line}"));
    if limits.rustc != rustc {
        eprintln!("The limits are for {}, this is {rustc}: that alone may explain a few percent.", limits.rustc);
    }
    eprintln!(
        "Find the cause (docs/benchmarks.md says how) and mend it; or `make bench-limits`, and say why in the commit."
    );
    ExitCode::FAILURE
}

fn show(limits: &Limits, measured: &[Measured]) {
    println!("{:<16}{:<14}{:>10}{:>10}{:>9}  one unit is", "work", "figure", "limit", "now", "since");
    for measured in measured {
        let (limit, before) = limits.rows.get(&measured.key()).copied().unwrap_or_default();
        let &Measured { work: &Work { name, unit, .. }, figure, value } = measured;
        let since = if before > 0.0 { format!("{:+.1}%", (value / before - 1.0) * 100.0) } else { String::new() };
        let hint = if value < limit * SLACK { " (could have a lower limit: `make bench-limits`)" } else { "" };
        println!("{name:<16}{figure:<14}{limit:>10}{value:>10}{since:>9}  {unit}{hint}");
    }
}

/// Rounds to three decimals, and large values to integers.
fn round(value: f64) -> f64 {
    if value >= 1_000.0 { value.round() } else { (value * 1_000.0).round() / 1_000.0 }
}

fn rustc() -> String {
    let output = Command::new("rustc").arg("--version").output().expect("rustc can be run");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALL;

    #[test]
    fn exceeded_limit_is_reported_with_both_figures() {
        let work = &ALL[0];
        let figure = |value: f64| [Measured { work, figure: "instructions", value }];
        let mut limits = Limits::parse("compiler rustc 1\ngone-work  bytes 1 1\n");
        assert_eq!(limits.exceeded(&figure(1.0)), ["redis: instructions have no limit"]);
        limits.set(&figure(1_000.0));
        let limits = Limits::parse(&limits.text());
        assert_eq!((limits.rustc.as_str(), limits.rows.len()), ("rustc 1", 1), "other work is forgotten");
        assert_eq!(limits.exceeded(&figure(1_020.0)), [""; 0]);
        assert_eq!(
            limits.exceeded(&figure(1_021.0)),
            ["redis: instructions rose from 1000 to 1021; the limit is 1020"]
        );
    }

    #[test]
    fn all_work_has_limits() {
        let limits = Limits::read();
        for work in &ALL {
            for figure in ["instructions", "allocations", "bytes"] {
                let key = Measured::new(work, figure, 0).key();
                assert!(limits.rows.contains_key(&key), "{key:?}: set it by `make bench-limits`");
            }
        }
    }
}
