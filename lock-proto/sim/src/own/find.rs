//! Searching scenarios for a run that breaks an own lock.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::etcd;
use super::lock::OwnLock;
use crate::check::Rule;
use crate::journal::Keep;
use crate::picture::Picture;
use crate::scenario::{Backend, Origin, Outcome, Plan, Scenario};
use crate::trace::Trace;

/// Number of log lines that are printed.
const LOG_LINES: usize = 40;

/// A run that breaks a rule, shrunk.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rule.
    pub rule: Rule,
    /// The shrunk plan. Its [`origin`](Plan::origin) is the plan as it was drawn.
    pub plan: Plan,
    /// The outcome of the shrunk plan.
    pub outcome: Outcome,
    /// What happened, as data.
    pub trace: Trace,
}

/// Runs the scenario with this name for each seed until a run breaks `rule`, and shrinks it.
/// Returns `None` if no run does.
///
/// Plans for a quorum are skipped, unless the lock needs one ([`OwnLock::QUORUM`]); then plans for
/// a single node are.
///
/// # Panics
///
/// If there is no scenario of Redis with this name, or if no plan of these seeds suits the lock.
pub fn find<L: OwnLock + 'static>(lock: &L, scenario: &str, seeds: Range<u64>, rule: Rule) -> Option<Found> {
    let scenario = named(scenario, Backend::Redis);
    let suits = |plan: &Plan| (plan.setup.nodes.len() > 1) == L::QUORUM;
    let run = |plan: &Plan, keep, traced| plan.run_own_keeping(keep, traced, lock.clone());
    let (found, ran) = search(scenario, &seeds, rule, suits, run);
    let (wanted, other) = if L::QUORUM { ("several nodes", "without") } else { ("one node", "with") };
    let name = scenario.name;
    assert!(ran > 0, "no seed of {seeds:?} draws {name} with {wanted}; it suits locks {other} `OwnLock::QUORUM`");
    found
}

/// Like [`own::find`](find), for a lock on etcd and a scenario of etcd.
///
/// # Panics
///
/// If there is no scenario of etcd with this name, or no seed.
pub fn find_etcd<L: etcd::OwnLock + 'static>(lock: &L, scenario: &str, seeds: Range<u64>, rule: Rule) -> Option<Found> {
    let run = |plan: &Plan, keep, traced| plan.run_own_etcd_keeping(keep, traced, lock.clone());
    search(named(scenario, Backend::Etcd), &seeds, rule, |_| true, run).0
}

/// Returns the scenario of this name. Panics unless it is one of this store.
fn named(name: &str, backend: Backend) -> &'static Scenario {
    let scenario = Scenario::named(name).unwrap_or_else(|| panic!("there is no scenario {name}"));
    let instead = match scenario.backend {
        own if own == backend => return scenario,
        Backend::Redis => "Redis: use own::find",
        Backend::Etcd => "etcd: use own::etcd::find",
        Backend::Zookeeper => "ZooKeeper, and own locks are on Redis or etcd",
        Backend::Register => "a store with compare-and-set, and own locks are on Redis or etcd",
    };
    panic!("{name} is a scenario of {instead}");
}

/// Also returns how many plans were run.
fn search(
    scenario: &'static Scenario,
    seeds: &Range<u64>,
    rule: Rule,
    suits: impl Fn(&Plan) -> bool,
    run: impl Fn(&Plan, Keep, bool) -> (Outcome, Trace),
) -> (Option<Found>, usize) {
    assert!(!seeds.is_empty(), "there is no seed in {seeds:?}");
    let breaks = |plan: &Plan| run(plan, Keep::Nothing, false).0.has(rule);
    let mut ran = 0;
    let plans = seeds.clone().map(|seed| Plan::from_seed(scenario, seed)).filter(suits);
    let Some(plan) = plans.inspect(|_| ran += 1).find(breaks) else { return (None, ran) };
    let plan = plan.shrink(breaks);
    let (outcome, trace) = run(&plan, Keep::Lines(200), true);
    (Some(Found { rule, plan, outcome, trace }), ran)
}

impl Found {
    /// Draws the run as a self-contained HTML page.
    #[must_use]
    pub fn picture(&self) -> String {
        Picture::of_plan(&self.plan, &self.outcome, &self.trace).page()
    }
}

/// Prints the plan, the log up to the violation, the violation, and the call that finds it again.
/// Repeated lines are counted.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        let broken = format!("VIOLATION {}", self.rule);
        let mut lines: Vec<(&str, usize)> = Vec::new();
        for line in self.outcome.log.lines() {
            let text = |line: &str| line.split_once(' ').map_or_else(String::new, |(_, text)| text.into());
            match lines.last_mut().filter(|(last, _)| text(last) == text(line)) {
                Some((_, repeated)) => *repeated += 1,
                None => lines.push((line, 0)),
            }
            if line.contains(&broken) {
                break;
            }
        }
        for (line, repeated) in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            writeln!(f, "{line}")?;
            if *repeated > 0 {
                writeln!(f, "  … {repeated} times more")?;
            }
        }
        let found = self.outcome.violations.iter().chain(&self.outcome.excused).find(|found| found.rule == self.rule);
        let found = found.map_or_else(|| format!("{}", self.rule), |found| format!("{found}"));
        write!(f, "BROKEN {found}")?;
        if let Origin::Seed(seed) = self.plan.origin {
            let Scenario { name, backend, .. } = self.plan.scenario;
            let module = if *backend == Backend::Etcd { "etcd::" } else { "" };
            write!(f, "\nagain: {module}find(&lock, {name:?}, {seed}..{}, Rule::{})", seed + 1, self.rule)?;
        }
        Ok(())
    }
}
