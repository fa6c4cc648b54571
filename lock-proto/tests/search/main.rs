//! Exhaustive search over the real hubs: every way in which two clients can meet at one node, or at three (requirements S4 and S6).
//!
//! The hubs are [`redis::Locks`](lock_proto::redis::Locks) as they are shipped; the nodes do the least that the typed requests ask for; the
//! explorer is [`sim::search`](lock_proto::sim::search), breadth first, so that what it finds is as short as can be.
//!
//! What can happen next is a choice, and every choice is tried: a client wants the lock, gives it back, gives up waiting, stands still
//! or dies; a request is executed, a reply is heard, or their connection breaks, and what it had brought is executed later or never; a
//! node forgets; or time passes, up to the next instant at which something happens by itself. What goes wrong has a budget. Clocks
//! run slower and faster by as much as the settings allow for (1 %), a reply comes within the patience of whoever waits or costs
//! a connection, and an application gives its lock back after 1.5 TTLs at the latest. So the smallest worlds are searched to
//! their end, and the others to a depth: every way of that many choices is tried, none beyond.
//!
//! In every state: at most one client holds the lock, in true time; fencing tokens grow in the order in which they are told; no key
//! outlives its last user by more than a TTL; no key is deleted whose guard is out; every event fits. From some states, chosen by count,
//! everything is led to its end: everybody is served, and nothing is left.
//!
//! Two states count as one if they differ in the values of counters, or in times by less than a twentieth of the TTL
//! ([`Canon`](lock_proto::sim::search::Canon)); jitter, which follows from counters, is taken as it comes first.
//!
//! `LOCK_DEPTH=3` searches all worlds three choices deeper; `--nocapture` shows the counts and the shortest counterexamples.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod bounds;
mod broken;
mod client;
mod kept;
mod node;
mod state;
mod world;

use core::ops::Range;
use core::time::Duration;

use lock_proto::sim::search::{Counterexample, Outcome, Search};

use world::{Action, World};

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_millis(1_000);
/// When a client gives a silent connection up.
const ANSWERED_WITHIN: Duration = Duration::from_millis(200);
/// An application keeps the lock for this long at the most.
const HOLD: Duration = Duration::from_millis(1_500);

// Clocks and counters begin in ranges of their own, so that a state can be told without them.
const EPOCH: u64 = 1_000_000_000_000_000_000;
const NUMBERS: Range<u64> = 1 << 50..1 << 51;
const FENCES: Range<u64> = 1 << 52..1 << 53;
const CALLS: Range<u64> = 1 << 54..1 << 55;

fn explore(name: &str, world: &World, search: Search) -> Outcome<Action> {
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

/// Every way of at most `depth` choices keeps every promise, and all of `wanted` comes about, over at least `floor` states.
fn keeps(name: &str, world: &World, depth: usize, floor: usize, wanted: &[&str]) -> Outcome<Action> {
    let deeper = std::env::var("LOCK_DEPTH").ok().map_or(0, |text| text.parse().unwrap());
    let outcome = explore(name, world, Search::new().depth(depth.saturating_add(deeper)));
    if let Some(found) = &outcome.counterexample {
        panic!("{name}:\n{found}");
    }
    assert!(outcome.states >= floor, "{name}: {} states, and not {floor}", outcome.states);
    for what in wanted {
        let states = outcome.sometimes.iter().find(|(known, _)| known == what).unwrap().1;
        assert!(states > 0, "{name}: never {what}");
    }
    assert!(world.settle_every == 0 || world.settled.get() > 0, "{name}: nothing was led to its end");
    outcome
}

/// The shortest way to break a promise has `steps` choices; one less, and none is found.
fn breaks(name: &str, world: &World, steps: usize, rule: &str) -> Counterexample<Action> {
    let outcome = explore(name, world, Search::new().depth(steps));
    let Some(found) = outcome.counterexample else { panic!("{name}: not found within {steps} choices: {outcome}") };
    assert_eq!(found.rule, rule, "{name}:\n{found}");
    assert_eq!(found.actions.len(), steps, "{name}: found sooner\n{found}");
    assert_eq!(found.trace.len(), steps);
    found
}
