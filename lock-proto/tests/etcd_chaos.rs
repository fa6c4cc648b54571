//! Every scenario on etcd over a slice of seeds (requirements S2 and S3): what its bounds promise holds under faults, and afterwards everybody
//! is served and nothing is left.
//!
//! `LOCK_SEEDS=100000` plays more of each, `LOCK_FIRST=5000` begins there, `LOCK_SCENARIO=etcd-turns` plays only that one, `LOCK_SEED=17` plays one
//! seed again and prints what happens.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use lock_proto::sim::scenario::{Backend, Scenario};
use lock_proto::sim::{Keep, Plan, scenarios};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn chosen() -> impl Iterator<Item = &'static Scenario> {
    let only = std::env::var("LOCK_SCENARIO").ok();
    let etcd = scenarios().iter().filter(|scenario| scenario.backend == Backend::Etcd);
    etcd.filter(move |scenario| only.as_ref().is_none_or(|name| name == scenario.name))
}

/// Prints how to play it again; whether it kept its promises.
fn is_kept(plan: &Plan) -> bool {
    let outcome = plan.run();
    if outcome.violations.is_empty() {
        return true;
    }
    println!("{}", plan.replay());
    for violation in outcome.violations.iter().take(3) {
        println!("    {violation}");
    }
    false
}

#[test]
fn s2_every_scenario_keeps_its_promises() {
    if let Some(seed) = number("LOCK_SEED") {
        for scenario in chosen() {
            let plan = Plan::from_seed(scenario, seed);
            println!("{plan}\n{}", plan.run_keeping(Keep::Lines(1_000_000)));
            assert!(is_kept(&plan));
        }
        return;
    }
    let first = number("LOCK_FIRST").unwrap_or(0);
    let mut failed = 0;
    for scenario in chosen() {
        let (mut grants, mut steps, start) = (0, 0, std::time::Instant::now());
        let seeds = number("LOCK_SEEDS").unwrap_or(20);
        for seed in first..first + seeds {
            let plan = Plan::from_seed(scenario, seed);
            let outcome = plan.run_keeping(Keep::Nothing);
            grants += outcome.grants;
            steps += outcome.steps;
            if !outcome.violations.is_empty() && !is_kept(&plan) {
                failed += 1;
            }
            if failed >= 20 {
                panic!("too many failures");
            }
        }
        println!("{}: {grants} grants, {steps} steps, {seeds} seeds in {:?}", scenario.name, start.elapsed());
    }
    assert_eq!(failed, 0);
}

#[test]
fn s5_the_same_seed_gives_the_same_log() {
    for scenario in chosen() {
        for seed in 0..3 {
            let plan = Plan::from_seed(scenario, seed);
            let (one, two) = (plan.run_keeping(Keep::Lines(10_000)), plan.run_keeping(Keep::Lines(10_000)));
            assert!(one == two && one.digest.1 > 0, "{} {seed}", scenario.name);
            assert_eq!(one.digest, plan.run_keeping(Keep::Digest).digest, "what is kept changes nothing");
        }
    }
}
