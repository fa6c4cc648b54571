//! Many runs on many threads, up to the first that shows what is looked for.

use core::num::NonZero;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use lock_proto::sim::{Keep, Outcome, Plan, Rule, Scenario};

use super::quiet::quietly;

/// How often somebody who watches is told how far the search is.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// What to run, and what to look for.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// Every seed is run with each of these.
    pub(super) scenarios: Vec<&'static Scenario>,
    /// The seeds.
    pub(super) seeds: Range<u64>,
    /// Beside broken promises: a finding of this rule where it cannot be promised.
    pub(super) find: Option<Rule>,
    /// So many threads.
    pub(super) jobs: NonZero<usize>,
}

/// A run that shows what was looked for.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The run.
    pub(super) plan: Plan,
    /// The rule that it shows broken.
    pub(super) rule: Rule,
    /// Whether that was promised.
    pub(super) promised: bool,
}

/// What was run, all in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Runs.
    pub(super) runs: u64,
    /// How often a lock was granted.
    pub(super) grants: u64,
    /// How often a machine was called.
    pub(super) steps: u64,
    /// How often something was found that cannot be promised.
    pub(super) excused: u64,
    /// Simulated time.
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

/// The rule that a run of `plan` shows broken: one that is promised before one that is looked for.
#[must_use]
pub(super) fn look(plan: Plan, outcome: &Outcome, find: Option<Rule>) -> Option<Found> {
    if let Some(broken) = outcome.violations.first() {
        return Some(Found { plan, rule: broken.rule, promised: true });
    }
    let rule = find?;
    outcome.excused.iter().any(|found| found.rule == rule).then_some(Found { plan, rule, promised: false })
}

impl Found {
    /// The smallest run found that shows the same.
    #[must_use]
    pub(super) fn shrink(&self) -> Plan {
        self.plan.shrink(|plan| {
            let outcome = quietly(|| plan.run_keeping(Keep::Nothing));
            let found = if self.promised { outcome.violations } else { outcome.excused };
            found.iter().any(|found| found.rule == self.rule)
        })
    }
}

impl Search {
    /// How many runs there are.
    #[must_use]
    pub(super) fn runs(&self) -> u64 {
        (self.seeds.end - self.seeds.start).saturating_mul(self.scenarios.len() as u64)
    }

    fn plan(&self, number: u64) -> Plan {
        let all = self.scenarios.len() as u64;
        let scenario = self.scenarios[usize::try_from(number % all).unwrap_or(0)];
        Plan::from_seed(scenario, self.seeds.start + number / all)
    }

    /// Runs it. What comes back is the first run in order of seeds (then of scenarios) that shows something, whichever thread was first.
    /// `watch` is told now and then how far it is.
    pub(super) fn run(&self, mut watch: impl FnMut(&Tally)) -> (Option<Found>, Tally) {
        let counters = Counters::default();
        // Numbers are given out in order, so nothing before `first` is left out when every thread has reached it.
        let (next, first) = (AtomicU64::new(0), AtomicU64::new(self.runs()));
        let best = Mutex::new(None);
        let work = || {
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= first.load(Relaxed) {
                    return;
                }
                let plan = self.plan(number);
                let outcome = quietly(|| plan.run_keeping(Keep::Nothing));
                counters.add(&outcome);
                if let Some(found) = look(plan, &outcome, self.find) {
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
            while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(TELL_EVERY) {
                watch(&counters.tally());
            }
        });
        (best.into_inner().unwrap_or_else(PoisonError::into_inner), counters.tally())
    }
}
