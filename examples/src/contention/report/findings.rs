//! The findings in words: claims about polling and watching beside the measured figures.

use super::Report;
use super::charts::number;
use crate::contention::outcome::{Outcome, Time};

pub(super) struct Finding {
    pub(super) claim: &'static str,
    pub(super) measured: String,
}

/// A figure for the head of the page.
pub(super) struct Headline {
    pub(super) figure: String,
    pub(super) text: String,
}

/// Returns the share of waits that took at least this many times the mean.
fn tail(outcome: &Outcome, times: f64) -> f64 {
    let limit = (outcome.latencies.mean() * times) as u64;
    let long: u64 = outcome
        .latencies
        .iter_recorded()
        .filter(|at| at.value_iterated_to() >= limit)
        .map(|at| at.count_at_value())
        .sum();
    long as f64 / outcome.latencies.len().max(1) as f64
}

fn spread(outcome: &Outcome) -> String {
    format!("{} × the mean", number(outcome.quantile_us(0.99) / outcome.mean_us().max(f64::MIN_POSITIVE)))
}

fn each(report: &Report, keys: &[&str], scenario: usize, text: impl Fn(&Outcome) -> String) -> String {
    let clauses = keys.iter().filter_map(|key| {
        let outcome = report.named(key, scenario).filter(|outcome| outcome.ops > 0)?;
        let title = report.plan.methods.iter().find(|method| method.key == *key)?.title;
        Some(format!("{title} {}", text(outcome)))
    });
    clauses.collect::<Vec<_>>().join("; ")
}

/// Compares the claims with the measurements. Scenario 0 is the one with few clients.
pub(super) fn findings(report: &Report) -> Vec<Finding> {
    let middle = 2.min(report.plan.scenarios.len() - 1);
    let change = |key: &str| {
        let rate = |scenario| report.named(key, scenario).map(Outcome::rate);
        let steps = [(1, 2), (2, 3)].map(|(from, to)| Some(100.0 * (rate(to)? / rate(from)? - 1.0)));
        steps.into_iter().flatten().map(|percent| format!("{percent:+.0} %")).collect::<Vec<_>>().join(", then ")
    };
    vec![
        Finding {
            claim: "Few clients, locking often: a polling lock has a long tail; about a tenth of the waits take 10 to 20 times \
                    the mean.",
            measured: each(
                report,
                &["polling", "redis-rs", "rslock", "wakeup", "turns", "etcd", "zookeeper"],
                0,
                |outcome| {
                    format!(
                        "{:.1} % of ten times the mean or more, P99 {}",
                        100.0 * tail(outcome, 10.0),
                        spread(outcome)
                    )
                },
            ),
        },
        Finding {
            claim: "Many clients: the tail of polling gets longer with the number of clients.",
            measured: each(
                report,
                &["polling", "redis-rs", "rslock", "wakeup", "quorum", "etcd", "zookeeper"],
                middle,
                |outcome| format!("P99 {}, longest {}", spread(outcome), Time(outcome.longest_us())),
            ),
        },
        Finding {
            claim: "Ten times the clients cost polling a quarter of its locks a second; watching stays as it is.",
            measured: [
                "polling",
                "redis-rs",
                "rslock",
                "wakeup",
                "etcd",
                "etcd-client",
                "zookeeper",
                "zookeeper-client",
            ]
            .into_iter()
            .filter_map(|key| {
                let title = report.plan.methods.iter().find(|method| method.key == key)?.title;
                Some(format!("{title} {}", change(key)))
            })
            .collect::<Vec<_>>()
            .join("; "),
        },
        Finding {
            claim: "Watching is steady but slower.",
            measured: each(
                report,
                &[
                    "polling",
                    "wakeup",
                    "turns",
                    "etcd",
                    "etcdturns",
                    "etcd-client",
                    "zookeeper",
                    "zookeeperturns",
                    "zookeeper-client",
                ],
                middle,
                |outcome| format!("{} locks a second, fairness {:.2}", number(outcome.rate()), outcome.jain),
            ),
        },
        Finding {
            claim: "Watching uses 10 to 15 % less processor time.",
            measured: each(
                report,
                &["polling", "redis-rs", "rslock", "wakeup", "turns", "etcd", "zookeeper"],
                middle,
                |outcome| {
                    let server = outcome.server_cpu_per_1000().unwrap_or_default();
                    format!("{} a lock, servers included", Time((outcome.cpu_per_1000() + server) * 1e3))
                },
            ),
        },
    ]
}

/// Returns the figures for the head of the page: ten times the smallest number of clients, one
/// connection each.
pub(super) fn headlines(report: &Report) -> Vec<Headline> {
    let middle = 2.min(report.plan.scenarios.len() - 1);
    let clients = report.plan.scenarios.get(middle).map_or(0, |scenario| scenario.clients.get());
    let pair = |other| report.named("wakeup", middle).zip(report.named(other, middle));
    let mut headlines = Vec::new();
    if let Some((wake, poll)) = pair("polling") {
        headlines.push(Headline {
            figure: format!("{:.1} ×", wake.quantile_us(0.99) / wake.mean_us().max(f64::MIN_POSITIVE)),
            text: format!(
                "the mean wait is the P99 with wake-up and {clients} clients; by polling it is {}",
                spread(poll)
            ),
        });
        headlines.push(Headline {
            figure: format!("{:.2}", wake.jain),
            text: format!(
                "fairness (Jain) with wake-up; {:.2} by polling, where {} acquired nothing",
                poll.jain, poll.starved
            ),
        });
    }
    if let Some(hand_over) = report.named("turns", middle)
        && let Some(commands) = hand_over.requests()
    {
        headlines.push(Headline {
            figure: number(commands),
            text: format!("commands for each lock with local hand-over among {clients} tasks of one client"),
        });
    }
    let all = report.cells.iter().filter_map(|cell| cell.outcome.as_ref().ok());
    let (locks, overlaps) = all.fold((0, 0), |(a, b), outcome| (a + outcome.total, b + outcome.violations));
    headlines.push(Headline {
        figure: overlaps.to_string(),
        text: format!("overlapping holds in {} acquisitions", number(locks as f64)),
    });
    headlines
}
