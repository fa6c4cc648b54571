//! The checkers can fail: each of these hosts or stores has one flaw, which must be found.
// S4
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::RegisterHostFlaw as HostFlaw;
use super::flawed::clients;
use crate::scenario::{Backend, Flaw, Plan, Scenario, scenarios};
use crate::{Keep, Rule};

/// Maximum number of seeds until a flaw is found.
const BUDGET: u64 = 100;

/// Expects that a run of the scenario catches this flaw by this rule, and that the same run without
/// the flaw breaks nothing.
fn caught(name: &str, flaw: HostFlaw, rule: Rule) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let sound = Plan::from_seed(scenario, seed);
        let plan = Plan { flaw: Some(Flaw::Register(flaw)), ..sound.clone() };
        if plan.run_keeping(Keep::Nothing).violations.iter().any(|found| found.rule == rule) {
            for sound in [sound.run(), sound.run_register(Keep::Nothing, clients(HostFlaw::None))] {
                assert!(sound.violations.is_empty(), "{plan}\n{sound}");
            }
            return;
        }
    }
    panic!("{flaw:?} was not found in {BUDGET} seeds");
}

/// The rewriter without a flaw breaks nothing.
#[test]
fn rewriter_without_flaw_is_never_caught() {
    for scenario in scenarios().iter().filter(|scenario| scenario.backend == Backend::Register) {
        let plan = Plan::from_seed(scenario, 1);
        let outcome = plan.run_register(Keep::Lines(200), clients(HostFlaw::None));
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    }
}

#[test]
fn store_that_ignores_the_expected_revision_is_caught() {
    // S4
    caught("register-calm", HostFlaw::IgnoresExpected, Rule::MutualExclusion);
}
