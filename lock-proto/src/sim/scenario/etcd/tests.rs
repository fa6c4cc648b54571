//! Requirement S4: the checkers can fail. Each of these clients does one thing wrong, and must be
//! caught.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod flawed;

use crate::sim::scenario::{Backend, Plan, Scenario, scenarios};
use crate::sim::{Keep, Rule};
use flawed::{Flaw, clients};

/// Within this many seeds a flaw must be found.
const BUDGET: u64 = 60;

/// The first run of a scenario that catches clients with this flaw by this rule. Without the flaw
/// it breaks nothing.
fn caught(name: &str, flaw: Flaw, rule: Rule) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let plan = Plan::from_seed(scenario, seed);
        let outcome = plan.run_etcd(Keep::Nothing, clients(flaw));
        if outcome.violations.iter().any(|found| found.rule == rule) {
            for sound in [plan.run(), plan.run_etcd(Keep::Nothing, clients(Flaw::None))] {
                assert!(sound.violations.is_empty(), "{plan}\n{sound}");
            }
            return;
        }
    }
    panic!("{flaw:?} was not found in {BUDGET} seeds");
}

/// What is rewritten for nothing breaks nothing.
#[test]
fn the_rewriter_alone_is_never_caught() {
    for scenario in scenarios().iter().filter(|scenario| scenario.backend == Backend::Etcd) {
        let plan = Plan::from_seed(scenario, 1);
        let outcome = plan.run_etcd(Keep::Lines(200), clients(Flaw::None));
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    }
}

#[test]
fn s4_a_waiter_that_does_not_look_for_its_own_key_is_caught() {
    caught("etcd-by-hand", Flaw::SkipsOwnKey, Rule::Fifo);
}

#[test]
fn s4_an_unlock_that_looks_at_no_revision_is_caught() {
    caught("etcd-late", Flaw::DeletesAnyRevision, Rule::MutualExclusion);
}
