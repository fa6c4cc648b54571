//! `report.md`: the figures as tables.

use core::fmt::Write as _;

use super::Report;
use super::charts::number;
use super::findings::findings;
use super::plan::Scenario;
use crate::contention::outcome::{Outcome, Time};

pub(super) const COLUMNS: [&str; 15] = [
    "method",
    "locks/s",
    "mean",
    "P50",
    "P70",
    "P90",
    "P99",
    "longest",
    "Jain",
    "got nothing",
    "CPU a lock",
    "on servers",
    "sent",
    "executed",
    "held",
];

pub(super) fn row(title: &str, outcome: &Outcome) -> [String; 15] {
    let time = |us: f64| Time(us).to_string();
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    [
        title.to_owned(),
        number(outcome.rate()),
        time(outcome.mean_us()),
        time(outcome.quantile_us(0.5)),
        time(outcome.quantile_us(0.7)),
        time(outcome.quantile_us(0.9)),
        time(outcome.quantile_us(0.99)),
        time(outcome.longest_us()),
        format!("{:.3}", outcome.jain),
        outcome.starved.to_string(),
        time(outcome.cpu_per_1000() * 1e3),
        or_none(outcome.server_cpu_per_1000().map(|seconds| time(seconds * 1e3))),
        or_none(outcome.requests().map(number)),
        or_none(outcome.commands().map(number)),
        time(outcome.hold_mean.as_secs_f64() * 1e6),
    ]
}

pub(super) fn remark(outcome: &Outcome) -> Option<String> {
    let mut remarks = Vec::new();
    if outcome.violations > 0 {
        remarks.push(format!("{} OVERLAPS of holders", outcome.violations));
    }
    if outcome.errors > 0 {
        let first = outcome.first_error.as_deref().unwrap_or("unknown");
        remarks.push(format!("{} errors, the first: {first}", outcome.errors));
    }
    (!remarks.is_empty()).then(|| remarks.join("; "))
}

pub(super) fn heading(scenario: &Scenario) -> String {
    format!("{}: {}", scenario.title, scenario.about)
}

pub(super) fn markdown(report: &Report) -> String {
    let mut text = "# Polling, wake-up, local hand-over: distributed locks under contention\n\n".to_owned();
    for (name, value) in &report.facts {
        let _ = writeln!(text, "- {name}: `{value}`");
    }
    text += "\n| method | description |\n| --- | --- |\n";
    for method in &report.plan.methods {
        let _ = writeln!(text, "| {} | {} |", method.title, method.about);
    }
    text += "\n## Claims and measurements\n\n| claim | measured |\n| --- | --- |\n";
    for finding in findings(report) {
        let _ = writeln!(text, "| {} | {} |", finding.claim, finding.measured);
    }
    for (s, scenario) in report.plan.scenarios.iter().enumerate() {
        let _ = write!(text, "\n## {}\n\n| {} |\n|", heading(scenario), COLUMNS.join(" | "));
        text += &" --- |".repeat(COLUMNS.len());
        text.push('\n');
        let mut remarks = Vec::new();
        for (method, result) in report.rows(s) {
            match result {
                Ok(outcome) => {
                    let _ = writeln!(text, "| {} |", row(method.title, outcome).join(" | "));
                    remarks.extend(remark(outcome).map(|remark| format!("{}: {remark}", method.title)));
                }
                Err(why) => remarks.push(format!("{} was not measured: {why}", method.title)),
            }
        }
        for remark in remarks {
            let _ = writeln!(text, "\n{remark}.");
        }
    }
    text += "\nTimes are from the call to the lock. CPU a lock is user and system time of all clients together; on servers, sent and executed \
             are counted by the servers: commands from clients, and those plus the commands of scripts; for etcd and ZooKeeper, messages received. Held is the actual length of a hold.\n";
    text
}
