//! Requirement S4: the checkers can fail. Each of these clients does one thing wrong, and must be caught.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::run::FLAW;
use crate::etcd::Flaw;
use crate::sim::scenario::{Plan, Scenario};
use crate::sim::{Keep, Rule};

/// Within this many seeds a flaw must be found.
const BUDGET: u64 = 60;

/// The first run of a scenario that catches clients with this flaw by this rule. Without the flaw it breaks nothing.
fn caught(name: &str, flaw: Flaw, rule: Rule) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let plan = Plan::from_seed(scenario, seed);
        FLAW.set(Some(flaw));
        let outcome = plan.run_keeping(Keep::Nothing);
        FLAW.set(None);
        if outcome.violations.iter().any(|found| found.rule == rule) {
            let sound = plan.run();
            assert!(sound.violations.is_empty(), "{plan}\n{sound}");
            return;
        }
    }
    panic!("{flaw:?} was not found in {BUDGET} seeds");
}

#[test]
fn s4_a_waiter_that_does_not_look_for_its_own_key_is_caught() {
    caught("etcd-by-hand", Flaw::SkipsOwnKey, Rule::Fifo);
}

#[test]
fn s4_an_unlock_that_looks_at_no_revision_is_caught() {
    caught("etcd-late", Flaw::DeletesAnyRevision, Rule::MutualExclusion);
}
