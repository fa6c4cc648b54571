//! The locks of docs/test-your-own-lock.md.

pub mod compared;
pub mod leased;
pub mod naive;
pub mod redlock;

use lock_sim::{Keep, Plan, Rule, Scenario};

/// The body of the fuzz target: the input is the plan of a run.
pub fn fuzz(data: &[u8]) {
    let scenario = Scenario::named("redis-pauses").expect("a scenario");
    let plan = Plan::from_bytes(scenario, data);
    if plan.setup.nodes.len() > 1 {
        return;
    }
    let outcome = plan.run_own(Keep::Nothing, compared::Compared);
    assert!(!outcome.has(Rule::MutualExclusion), "{plan}\n{outcome}");
}
