//! The naive reference model runs beside the clients.
// S13

use lock_proto::sim::scenario::{Bounds, Flaw};
use lock_proto::sim::{Keep, Plan, Rule, Scenario};

/// Seeds per scenario in a plain `cargo test`.
const SEEDS: u64 = 25;

fn with_model(scenario: &'static Scenario, seed: u64, flaw: Option<Flaw>) -> Plan {
    let mut plan = Plan::from_seed(scenario, seed);
    (plan.model, plan.flaw) = (true, flaw);
    plan
}

#[test]
fn clients_agree_with_naive_model() {
    // S13
    let seeds = crate::number("LOCK_SEEDS").unwrap_or(SEEDS);
    for scenario in crate::chosen().into_iter().filter(|scenario| scenario.bounds == Bounds::Within) {
        for seed in 0..seeds {
            let plan = with_model(scenario, seed, None);
            let outcome = plan.run_keeping(Keep::Nothing);
            if let Some(found) = outcome.violations.first() {
                crate::explain(&plan, found.rule);
                panic!("{found}\n    {}", plan.replay());
            }
            // It only looks.
            let alone = Plan::from_seed(scenario, seed).run_keeping(Keep::Nothing);
            assert_eq!((alone.steps, alone.grants), (outcome.steps, outcome.grants), "{}", plan.replay());
        }
    }
}

/// Expects that the model catches the flaw in a run of the scenario. Returns whether it was the
/// only checker that did.
fn caught(name: &str, flaw: &str) -> bool {
    let (scenario, flaw) = (Scenario::named(name).unwrap(), Flaw::named(flaw).unwrap());
    for seed in 0..200 {
        let found = with_model(scenario, seed, Some(flaw)).run_keeping(Keep::Nothing).violations;
        if found.iter().any(|found| found.rule == Rule::Model) {
            return found.iter().all(|found| found.rule == Rule::Model);
        }
    }
    panic!("{flaw} was not found");
}

#[test]
fn model_catches_flawed_clients() {
    // S4, S13
    caught("redis-pauses", "redis-deletes-anything");
    caught("redis-pauses", "redis-same-token");
    caught("redis-contention", "redis-renews-for-ever");
    assert!(caught("redis-pauses", "redis-hides-loss"), "only the model compares the outcomes of releases");
}
