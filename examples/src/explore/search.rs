//! Runs many seeds on several threads, up to the first finding.

use core::num::NonZero;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use lock_sim::{Keep, Outcome, Plan, Rule, Scenario};

use super::args::Changes;
use super::panic_hook::without_panic_messages;

const REPORT_EVERY: Duration = Duration::from_millis(200);

/// The runs of a search, and what it looks for.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// Each seed is a round of all of these scenarios, of some with several seeds.
    pub(super) scenarios: Vec<&'static Scenario>,
    pub(super) seeds: Range<u64>,
    pub(super) changes: Changes,
    /// A rule to look for where the scenario does not promise it, beside broken rules.
    pub(super) find: Option<Rule>,
    pub(super) jobs: NonZero<usize>,
}

/// A run with a finding.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) plan: Plan,
    pub(super) rule: Rule,
    /// Whether the scenario promises this rule.
    pub(super) promised: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) runs: u64,
    pub(super) grants: u64,
    /// Calls of machines.
    pub(super) steps: u64,
    /// Findings that the scenario does not promise to avoid.
    pub(super) excused: u64,
    pub(super) time: Duration,
}

#[derive(Default)]
struct Counters {
    runs: AtomicU64,
    grants: AtomicU64,
    steps: AtomicU64,
    excused: AtomicU64,
    millis: AtomicU64,
}

impl Counters {
    fn add(&self, outcome: &Outcome) {
        self.grants.fetch_add(outcome.grants, Relaxed);
        self.steps.fetch_add(outcome.steps, Relaxed);
        self.excused.fetch_add(outcome.excused.len() as u64, Relaxed);
        self.millis.fetch_add(u64::try_from(outcome.time.as_millis()).unwrap_or(u64::MAX), Relaxed);
        self.runs.fetch_add(1, Relaxed);
    }

    fn tally(&self) -> Tally {
        Tally {
            runs: self.runs.load(Relaxed),
            grants: self.grants.load(Relaxed),
            steps: self.steps.load(Relaxed),
            excused: self.excused.load(Relaxed),
            time: Duration::from_millis(self.millis.load(Relaxed)),
        }
    }
}

/// Returns the finding of a run of `plan`: a broken rule, or else the rule to look for.
#[must_use]
pub(super) fn find_violation(plan: Plan, outcome: &Outcome, find: Option<Rule>) -> Option<Found> {
    if let Some(broken) = outcome.violations.first() {
        return Some(Found { plan, rule: broken.rule, promised: true });
    }
    let rule = find?;
    outcome.excused.iter().any(|found| found.rule == rule).then_some(Found { plan, rule, promised: false })
}

impl Found {
    /// Returns the smallest run found with the same finding.
    #[must_use]
    pub(super) fn shrink(&self) -> Plan {
        self.plan.shrink(|plan| {
            let outcome = without_panic_messages(|| plan.run_keeping(Keep::Nothing));
            let found = if self.promised { outcome.violations } else { outcome.excused };
            found.iter().any(|found| found.rule == self.rule)
        })
    }
}

impl Search {
    #[must_use]
    pub(super) fn runs(&self) -> u64 {
        (self.seeds.end - self.seeds.start).saturating_mul(self.round().count() as u64)
    }

    /// Returns the runs of a round: each scenario, and how many of its seeds come before in the
    /// round. Alone a scenario gets one seed a round.
    fn round(&self) -> impl Iterator<Item = (&'static Scenario, u64)> {
        let weight = |scenario: &Scenario| if self.scenarios.len() == 1 { 1 } else { scenario.weight };
        let heaviest = self.scenarios.iter().map(|scenario| weight(scenario)).max().unwrap_or(0);
        (0..heaviest).flat_map(move |place| {
            self.scenarios
                .iter()
                .filter(move |scenario| weight(scenario) > place)
                .map(move |scenario| (*scenario, place))
        })
    }

    fn plan(&self, number: u64) -> Plan {
        let all = self.round().count() as u64;
        let (round, place) = (number / all, usize::try_from(number % all).unwrap_or(0));
        let (scenario, before) = self.round().nth(place).unwrap_or((self.scenarios[0], 0));
        let each = if self.scenarios.len() == 1 { 1 } else { scenario.weight };
        self.changes.apply(Plan::from_seed(scenario, self.seeds.start + round * each + before))
    }

    /// Runs the search. Returns the first finding in order of seeds, then of scenarios, regardless
    /// of thread timing. Calls `watch` regularly with the totals so far.
    pub(super) fn run(&self, mut watch: impl FnMut(&Tally)) -> (Option<Found>, Tally) {
        let counters = Counters::default();
        // Numbers are assigned in order, so every run before `first` completes.
        let (next, first) = (AtomicU64::new(0), AtomicU64::new(self.runs()));
        let best = Mutex::new(None);
        let work = || {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= first.load(Relaxed) {
                    return;
                }
                let plan = self.plan(number);
                let outcome = without_panic_messages(|| plan.run_keeping(Keep::Nothing));
                counters.add(&outcome);
                if let Some(found) = find_violation(plan, &outcome, self.find) {
                    let mut best = best.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.fetch_min(number, Relaxed) > number {
                        *best = Some(found);
                    }
                }
            }
        };
        thread::scope(|scope| {
            let (working, ended) = mpsc::channel::<()>();
            for _ in 0..self.jobs.get() {
                let working = working.clone();
                scope.spawn(|| {
                    work();
                    drop(working);
                });
            }
            drop(working);
            while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(REPORT_EVERY) {
                watch(&counters.tally());
            }
        });
        (best.into_inner().unwrap_or_else(PoisonError::into_inner), counters.tally())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lock_sim::scenario::Origin;
    use lock_sim::scenarios;

    use super::*;

    #[test]
    fn scenarios_get_seeds_by_weight() {
        let jobs = NonZero::<usize>::MIN;
        let scenarios: Vec<&Scenario> = scenarios().iter().collect();
        let search = Search { scenarios, seeds: 10..13, changes: Changes::default(), find: None, jobs };
        let mut seeds: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for plan in (0..search.runs()).map(|number| search.plan(number)) {
            if let Origin::Seed(seed) = plan.origin {
                seeds.entry(plan.scenario.name).or_default().push(seed);
            }
        }
        for scenario in &search.scenarios {
            assert_eq!(seeds[scenario.name], (10..10 + 3 * scenario.weight).collect::<Vec<u64>>(), "{}", scenario.name);
        }
        let heavy = search.scenarios.iter().copied().find(|scenario| scenario.weight > 1);
        let alone = Search { scenarios: heavy.into_iter().collect(), ..search };
        assert_eq!(alone.runs(), 3);
    }
}
