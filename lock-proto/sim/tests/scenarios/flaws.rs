//! How soon planted flaws are found: `cargo test --release -p lock-sim --test scenarios -- --ignored
//! planted --nocapture`.
//!
//! Runs are those of `explore --scenario all`, without the scenarios of other stores. `LOCK_FLAW`
//! selects one flaw; `LOCK_FLAW=none` searches with clients as they are, such as after a change by
//! hand, and `LOCK_STORE=redis` only with those of one store.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use lock_sim::scenario::{Backend, Flaw};
use lock_sim::{Keep, Plan, Scenario, scenarios};

/// The seeds of each scenario of weight 1.
const ROUNDS: u64 = 1_000;
/// On two cores.
const SECONDS: u64 = 60;

/// Returns the scenarios of a round, and the seed of each.
fn round(number: u64, backend: Option<Backend>) -> Vec<(&'static Scenario, u64)> {
    let heaviest = scenarios().iter().map(|scenario| scenario.weight).max().unwrap_or(0);
    let all = (0..heaviest).flat_map(|place| scenarios().iter().map(move |scenario| (scenario, place)));
    let own = all.filter(|(scenario, place)| {
        scenario.weight > *place && backend.is_none_or(|backend| scenario.backend == backend)
    });
    own.map(|(scenario, place)| (scenario, number * scenario.weight + place)).collect()
}

/// Prints the first finding, and how many runs and seconds it took. Returns whether there is one.
fn search(flaw: Option<Flaw>, backend: Option<Backend>) -> bool {
    let plans = (0..ROUNDS).flat_map(|number| round(number, backend));
    let (plans, runs, found) = (Mutex::new(plans), AtomicU64::new(0), Mutex::new(None));
    let began = Instant::now();
    let work = || {
        while found.lock().unwrap().is_none() && began.elapsed().as_secs() < SECONDS {
            let Some((scenario, seed)) = plans.lock().unwrap().next() else { return };
            let mut plan = Plan::from_seed(scenario, seed);
            plan.flaw = flaw;
            let outcome = plan.run_keeping(Keep::Nothing);
            runs.fetch_add(1, Ordering::Relaxed);
            if let Some(violation) = outcome.violations.first() {
                found.lock().unwrap().get_or_insert((scenario.name, seed, violation.rule));
            }
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| _ = scope.spawn(work)));
    let name = flaw.map_or_else(|| "none".into(), |flaw| flaw.to_string());
    let (runs, seconds) = (runs.into_inner(), began.elapsed().as_secs_f64());
    let found = found.into_inner().unwrap();
    match found {
        Some((scenario, seed, rule)) => {
            println!("{name:32} {runs:6} runs, {seconds:5.1} s: {scenario}, seed {seed}, {rule}");
        }
        None => println!("{name:32} {runs:6} runs, {seconds:5.1} s: nothing"),
    }
    found.is_some()
}

#[test]
#[ignore = "takes up to a minute for each flaw"]
fn planted_flaws_are_found_soon() {
    // S4
    let store = match std::env::var("LOCK_STORE").as_deref() {
        Ok("redis") => Some(Backend::Redis),
        Ok("etcd") => Some(Backend::Etcd),
        Ok("zookeeper") => Some(Backend::Zookeeper),
        _ => None,
    };
    let named = std::env::var("LOCK_FLAW").ok();
    if named.as_deref() == Some("none") {
        return assert!(search(None, store));
    }
    let chosen = Flaw::all().filter(|flaw| named.as_deref().is_none_or(|name| flaw.to_string() == name));
    let of_store = chosen.filter(|flaw| store.is_none_or(|store| flaw.backend() == store));
    let missed: Vec<Flaw> = of_store.filter(|flaw| !search(Some(*flaw), Some(flaw.backend()))).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
