//! Runs all scenarios: invariants hold under faults, and nothing is left after them.
//!
//! `LOCK_SEEDS=100000` sets the number of seeds, `LOCK_FIRST=5000` the first one, and
//! `LOCK_SCENARIO=redis-wake` selects one scenario. A failure prints a command that runs it again,
//! shrinks the plan, and prints it with its log. `LOCK_FLAW` and `LOCK_MODEL` change the plans.
// S1, S2, S3, S4, S5
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod counterexamples;
mod flaws;
mod model;
mod record;
mod same;
mod speed;

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use lock_sim::scenario::{Bounds, Flaw};
use lock_sim::{Keep, Plan, Rule, Scenario, scenarios};

/// Seeds per scenario of weight 1 in a plain `cargo test`.
const SEEDS: u64 = 40;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn chosen() -> Vec<&'static Scenario> {
    match std::env::var("LOCK_SCENARIO") {
        Ok(name) => vec![Scenario::named(&name).unwrap_or_else(|| panic!("no scenario is called {name}"))],
        Err(_) => scenarios().iter().collect(),
    }
}

/// Applies `LOCK_FLAW=NAME`, which plants a flaw in the clients of its store, and `LOCK_MODEL=1`,
/// which runs the naive model beside them.
fn with_variables(mut plan: Plan) -> Plan {
    if let Ok(name) = std::env::var("LOCK_FLAW") {
        let flaw = Flaw::named(&name).unwrap_or_else(|| panic!("no flaw is called {name}"));
        plan.flaw = Some(flaw).filter(|flaw| flaw.backend() == plan.scenario.backend);
        let chosen = std::env::var_os("LOCK_SCENARIO").is_some();
        assert!(plan.flaw.is_some() || !chosen, "{name} is for another store than that of {}", plan.scenario.name);
    }
    plan.model |= std::env::var_os("LOCK_MODEL").is_some();
    plan
}

/// Prints the smallest plan that violates the same rule, with its log.
fn explain(plan: &Plan, rule: Rule) {
    let small = plan.shrink(|plan| plan.run_keeping(Keep::Nothing).violations.iter().any(|found| found.rule == rule));
    // `LOCK_LOG=1` prints the whole log.
    let lines = if std::env::var_os("LOCK_LOG").is_some() { usize::MAX } else { 400 };
    println!("{small}\n{}", small.run_keeping(Keep::Lines(lines)));
}

#[test]
fn invariants_hold_under_faults_and_nothing_is_left_after() {
    // S2, S13
    if number("LOCK_SEED").is_some() || std::env::var("LOCK_BYTES").is_ok() {
        return;
    }
    let (chosen, next) = (chosen(), AtomicUsize::new(0));
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = run_seeds(scenario);
                    failed.lock().unwrap().extend(found);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// Runs one scenario with each seed, and returns the commands that replay the first failures.
fn run_seeds(scenario: &'static Scenario) -> Vec<String> {
    let first = number("LOCK_FIRST").unwrap_or(0);
    let seeds = number("LOCK_SEEDS").unwrap_or(SEEDS * scenario.weight);
    let (began, mut grants, mut steps, mut time) = (Instant::now(), 0, 0, 0.0);
    let (mut failed, mut excused) = (Vec::new(), BTreeMap::new());
    for seed in first..first + seeds {
        let plan = with_variables(Plan::from_seed(scenario, seed));
        let outcome = plan.run_keeping(Keep::Nothing);
        (grants, steps, time) = (grants + outcome.grants, steps + outcome.steps, time + outcome.time.as_secs_f64());
        for found in &outcome.excused {
            *excused.entry(found.rule).or_insert(0) += 1;
        }
        let Some(found) = outcome.violations.first() else {
            model::compare(&plan, &outcome);
            continue;
        };
        println!("{found}\n    {}", plan.replay());
        failed.push(plan.replay());
        if failed.len() >= 5 {
            break;
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "{:24} {seeds} seeds, {grants} grants, {steps} steps, {time:.0} s simulated in {took:.2} s; found beyond the bounds: {excused:?}",
        scenario.name
    );
    assert!(grants > 0 || seeds < 5, "{} grants nothing", scenario.name);
    failed
}

/// Replays a failure. The command that a failure prints runs this.
#[test]
fn replay() {
    let plan = match (number("LOCK_SEED"), std::env::var("LOCK_BYTES")) {
        (Some(seed), _) => Plan::from_seed(chosen()[0], seed),
        (None, Ok(hex)) => {
            let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            Plan::from_bytes(chosen()[0], &(0..hex.len() / 2).map(|i| digits(2 * i)).collect::<Vec<u8>>())
        }
        (None, Err(_)) => return,
    };
    let plan = with_variables(plan);
    // `LOCK_LOG=1` prints the whole log.
    let outcome =
        if std::env::var_os("LOCK_LOG").is_some() { plan.run_keeping(Keep::Lines(usize::MAX)) } else { plan.run() };
    match outcome.violations.first() {
        None => println!("{plan}\nnothing is broken: {outcome}"),
        Some(found) => {
            explain(&plan, found.rule);
            panic!("{found}");
        }
    }
}

#[test]
fn same_seed_gives_same_bytes() {
    // S5
    for scenario in scenarios() {
        let plan = Plan::from_seed(scenario, 4_711);
        let all = Keep::Lines(usize::MAX);
        let (one, two) = (plan.run_keeping(all), Plan::from_seed(scenario, 4_711).run_keeping(all));
        assert_eq!(one, two, "{}", scenario.name);
        assert!(one.digest.1 > 0);
        let (traced, trace) = plan.run_traced();
        assert_eq!((traced.digest, traced.steps), (one.digest, one.steps), "{}", scenario.name);
        assert!(!trace.messages.is_empty() && trace.end.as_nanos() > 0);
        let unseen = plan.run_keeping(Keep::Nothing);
        assert_eq!((unseen.steps, unseen.time, unseen.grants), (one.steps, one.time, one.grants), "{}", scenario.name);
    }
}

#[test]
fn any_bytes_make_plan_and_fewer_bytes_make_smaller_plan() {
    for scenario in scenarios() {
        assert!(Plan::from_bytes(scenario, &[]).is_empty(), "{}", scenario.name);
        let bytes: Vec<u8> = (0..=255).cycle().take(700).collect();
        let (long, brief) = (Plan::from_bytes(scenario, &bytes), Plan::from_bytes(scenario, &bytes[..200]));
        assert!(long.len() > brief.len(), "{}", scenario.name);
        for plan in [long, brief] {
            let outcome = plan.run();
            assert!(outcome.violations.is_empty(), "{}\n{outcome}", plan.replay());
        }
    }
}

#[test]
fn scenario_names_are_unique_and_excused_rules_match_bounds() {
    let names: std::collections::BTreeSet<_> = scenarios().iter().map(|scenario| scenario.name).collect();
    assert_eq!(names.len(), scenarios().len());
    for scenario in scenarios() {
        assert_eq!(scenario.bounds == Bounds::Within, scenario.excused.is_empty(), "{}", scenario.name);
        assert!(Scenario::named(scenario.name).is_some() && scenario.weight > 0);
    }
}
