//! The naive reference model runs beside the clients.
// S13

use lock_sim::scenario::Flaw;
use lock_sim::{Keep, Outcome, Plan, Rule, Scenario};

/// Runs a plan once more, beside the model.
// S13
pub(crate) fn compare(plan: &Plan, alone: &Outcome) {
    if plan.model || !plan.supports_model() {
        return;
    }
    let mut plan = plan.clone();
    plan.model = true;
    let outcome = plan.run_keeping(Keep::Nothing);
    if let Some(found) = outcome.violations.first() {
        crate::explain(&plan, found.rule);
        panic!("{found}\n    {}", plan.replay());
    }
    // It only looks.
    assert_eq!((alone.steps, alone.grants), (outcome.steps, outcome.grants), "{}", plan.replay());
}

/// Expects that the model catches the flaw in a run of the scenario. Returns whether it was the
/// only checker that did.
fn caught(name: &str, flaw: &str) -> bool {
    let (scenario, flaw) = (Scenario::named(name).unwrap(), Flaw::named(flaw).unwrap());
    for seed in 0..200 {
        let mut plan = Plan::from_seed(scenario, seed);
        (plan.model, plan.flaw) = (true, Some(flaw));
        let found = plan.run_keeping(Keep::Nothing).violations;
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
    assert!(caught("redis-pauses", "redis-hides-loss"), "only the model compares what a release found");
}
