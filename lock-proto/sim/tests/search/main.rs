//! Exhaustive search over the real hubs: all ways in which two clients can meet at 1 or 3 nodes.
//!
//! The hubs are the real [`redis::Locks`](lock_proto::redis::Locks). The nodes implement the
//! minimum that the typed requests need. The explorer is [`lock_sim::search`],
//! breadth first, so that counterexamples are as short as possible.
//!
//! Every possible next event is a choice, and every choice is tried:
//!
//! * a client requests the lock, releases it, cancels its wait, is paused or dies;
//! * a request is executed, a reply is delivered, or their connection breaks, and its requests are
//!   executed later or never;
//! * a node loses its data;
//! * time passes up to the next timer.
//!
//! The number of faults is bounded. Clocks drift by as much as the settings allow (1 %). A reply
//! arrives within the request timeout or costs a connection. An application releases its lock after
//! at most 1.5 TTLs. The smallest worlds are searched completely, the others up to a depth.
//!
//! Every state is checked: at most one client holds the lock in true time; fencing tokens grow in
//! the order of their grants; no key outlives its last user by more than a TTL; no key with a guard
//! is deleted; every event is legal. A sample of the states is run to its end: every waiter is
//! served, and nothing is left.
//!
//! Two states are equal if they differ only in the values of counters, or in times by less than a
//! twentieth of the TTL ([`Canon`](lock_sim::search::Canon)). Jitter follows from counters
//! and is taken from the first such state.
//!
//! `LOCK_DEPTH=3` searches all worlds three choices deeper; `--nocapture` shows the counts and the
//! shortest counterexamples.
// S4, S6
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod bounds;
mod broken;
mod client;
mod node;
mod state;
mod within_bounds;
mod world;

use core::ops::Range;
use core::time::Duration;

use lock_sim::search::{Counterexample, Search, SearchOutcome};

use world::{Action, World};

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_millis(1_000);
/// Request timeout of a client.
const ANSWERED_WITHIN: Duration = Duration::from_millis(200);
const HOLD: Duration = Duration::from_millis(1_500);

// Clocks and counters start in distinct ranges, so that a state can be described without them.
const EPOCH: u64 = 1_000_000_000_000_000_000;
const NUMBERS: Range<u64> = 1 << 50..1 << 51;
const FENCES: Range<u64> = 1 << 52..1 << 53;
const CALLS: Range<u64> = 1 << 54..1 << 55;

fn explore(name: &str, world: &World, search: Search) -> SearchOutcome<Action> {
    let start = std::time::Instant::now();
    let outcome = search.run(world);
    println!("{name}: {outcome}, {:.1} s", start.elapsed().as_secs_f64());
    for (what, states) in &outcome.sometimes {
        println!("  {states:>9} x {what}");
    }
    if world.settle_every > 0 {
        println!("  {:>9} x led to the end", world.settled.get());
    }
    if let Some(found) = &outcome.counterexample {
        println!("{found}");
    }
    outcome
}

/// Checks that paths of at most `depth` choices keep the invariants and reach all of `expected`,
/// over at least `floor` states.
fn keeps(name: &str, world: &World, depth: usize, floor: usize, expected: &[&str]) -> SearchOutcome<Action> {
    let deeper = std::env::var("LOCK_DEPTH").ok().map_or(0, |text| text.parse().unwrap());
    let outcome = explore(name, world, Search::new().depth(depth.saturating_add(deeper)));
    if let Some(found) = &outcome.counterexample {
        panic!("{name}:\n{found}");
    }
    assert!(outcome.states >= floor, "{name}: {} states, and not {floor}", outcome.states);
    for what in expected {
        let states = outcome.sometimes.iter().find(|(known, _)| known == what).unwrap().1;
        assert!(states > 0, "{name}: never {what}");
    }
    assert!(world.settle_every == 0 || world.settled.get() > 0, "{name}: nothing was led to its end");
    outcome
}

/// Checks that the shortest counterexample has exactly `steps` choices.
fn breaks(name: &str, world: &World, steps: usize, rule: &str) -> Counterexample<Action> {
    let outcome = explore(name, world, Search::new().depth(steps));
    let Some(found) = outcome.counterexample else { panic!("{name}: not found within {steps} choices: {outcome}") };
    assert_eq!(found.rule, rule, "{name}:\n{found}");
    assert_eq!(found.actions.len(), steps, "{name}: found sooner\n{found}");
    assert_eq!(found.trace.len(), steps);
    found
}
