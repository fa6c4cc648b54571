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
    // S4, S16
    caught("register-calm", HostFlaw::IgnoresExpected, Rule::MutualExclusion);
}

#[test]
fn forgotten_write_of_unknown_outcome_is_caught() {
    // S4, S16
    caught("register-locks", HostFlaw::UnknownIsNo, Rule::Ghost);
}

#[test]
fn age_of_a_record_by_another_clock_is_caught() {
    // S4, S16
    caught("register-locks", HostFlaw::OtherClock, Rule::ShortenedKey);
}

#[test]
fn record_counted_from_the_departure_of_its_request_is_caught() {
    // S4, S16
    caught("register-drift", HostFlaw::SinceDeparture, Rule::ShortenedKey);
}

#[test]
fn forgotten_hint_is_caught() {
    // S8
    caught("register-calm", HostFlaw::ForgetsHints, Rule::Prompt);
}

#[test]
fn fence_from_the_record_alone_is_caught() {
    // S4, S16
    caught("register-by-hand", HostFlaw::FenceFromRecord, Rule::FenceGrows);
}

#[test]
fn record_that_is_never_freed_is_caught() {
    // S4, S16
    caught("register-calm", HostFlaw::NeverFrees, Rule::TrueLoss);
}

#[test]
fn shorter_ttl_in_the_record_is_caught() {
    // S4, S16
    caught("register-calm", HostFlaw::ShortensTtl, Rule::Validity);
}
