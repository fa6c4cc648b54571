//! The etcd queue, searched by `stateright`: all ways in which two or three clients can meet.
//!
//! The hubs are the real [`etcd::Locks`](lock_proto::etcd::Locks). The store executes their typed
//! requests. Every possible next event is a choice:
//!
//! * requests are executed and replies are delivered, in any order;
//! * watches are opened and their events are delivered;
//! * clients request and release the lock;
//! * as bounded faults, requests and replies are lost (a lost request is executed later or never),
//!   a client dies, and an operator deletes a waiter's key.
//!
//! Time passes up to the next timer, only when nothing is in flight. An application releases its
//! lock after at most half of the TTL.
//!
//! Always: one owner, which has the oldest key; an unlock deletes only its own key, and never one
//! that is held; fencing tokens grow; in final states every waiter has been served. Eventually,
//! without faults: every waiter is served and the queue is empty. (The checker examines this only
//! at the ends of paths. Time is bounded here, so endless paths are found, too.) Sometimes, to
//! prove that the search is not vacuous: the first client gets the lock, the last one gets it, all
//! wait at once.
//!
//! States that differ only in the values of counters, or in times by less than a thirtieth of the
//! TTL, are equal ([`Canon`](lock_sim::search::Canon)).
//!
//! `LOCK_DEPTH=3` searches three choices deeper where the search is bounded; `--nocapture` shows
//! the counts and the counterexamples.
// S4, S6
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

extern crate alloc;

mod client;
#[path = "../../../tests/common/etcd.rs"]
mod etcd;
mod model;

use core::ops::Range;
use core::time::Duration;

use stateright::{Checker, Model};

use model::{Action, Budget, FIRST, OWN, PROMISES, Queue, SOMETIMES, SUCCESSOR, State, Variant, describe};

const TTL: Duration = Duration::from_secs(3);
const HOLD: Duration = Duration::from_millis(1_500);

// Clocks and counters start in distinct ranges, so that a state can be described without them.
const EPOCH: u64 = 1_000_000_000_000_000_000;
const REVISIONS: Range<u64> = 1 << 40..1 << 41;
/// A revision shifted by sixteen bits.
const FENCES: Range<u64> = 1 << 56..1 << 57;
const CALLS: Range<u64> = 1 << 50..1 << 51;
const WATCHES: Range<u64> = 1 << 52..1 << 53;

type Path = Vec<(State, Option<Action>)>;

struct Found {
    states: usize,
    exhausted: bool,
    /// Discovered properties of the model, each with a path.
    paths: Vec<(&'static str, Path)>,
}

impl Found {
    fn path(&self, property: &str) -> Option<&Path> {
        self.paths.iter().find(|(name, _)| *name == property).map(|(_, path)| path)
    }
}

/// Tries every path of at most `steps` choices.
fn search(name: &str, model: &Queue, steps: usize) -> Found {
    let start = std::time::Instant::now();
    // The checker counts states instead of steps, and does not check the last one.
    let target = steps.saturating_add(2);
    let checker = model.clone().checker().target_max_depth(target).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    let mut paths: Vec<_> = checker.discoveries().into_iter().map(|(name, path)| (name, path.into_vec())).collect();
    paths.sort_by_key(|(name, _)| *name);
    let (transitions, seconds) = (checker.state_count(), start.elapsed().as_secs_f64());
    println!("{name}: {states} states, {transitions} transitions, depth {}, {seconds:.1} s", depth - 1);
    for (what, path) in &paths {
        println!("  {what}: after {} steps", path.len() - 1);
    }
    Found { states, exhausted: depth < target, paths }
}

fn explain(rule: &str, path: &Path) -> String {
    let mut text = String::new();
    for (n, (state, action)) in path.iter().enumerate() {
        match action {
            Some(action) => text += &format!("{:>3}  {}\n", n + 1, describe(state, *action)),
            None => text += &format!("  => not so: {rule}. {}\n", state.broken.as_deref().unwrap_or_default()),
        }
    }
    text
}

/// Checks that all paths of up to `steps` choices keep the invariants, over `floor` states or more.
fn keeps(name: &str, model: &Queue, steps: usize, floor: usize) -> Found {
    let deeper = std::env::var("LOCK_DEPTH").ok().map_or(0, |text| text.parse().unwrap());
    let found = search(name, model, steps.saturating_add(deeper));
    for rule in PROMISES {
        if let Some(path) = found.path(rule) {
            panic!("{name}:\n{}", explain(rule, path));
        }
    }
    for what in SOMETIMES {
        assert!(found.path(what).is_some(), "{name}: never {what}");
    }
    assert!(found.states >= floor, "{name}: {} states, and not {floor}", found.states);
    found
}

/// Checks that the shortest counterexample to `rule` has `steps` choices, and that the real
/// protocol passes all such paths.
fn breaks(name: &str, model: &Queue, steps: usize, rule: &str) -> Path {
    for (steps, variant) in [(steps, Variant::Ours), (steps - 1, model.variant)] {
        let found = search(name, &Queue { variant, ..model.clone() }, steps);
        for rule in PROMISES {
            assert!(found.path(rule).is_none(), "{name}: {variant:?} breaks sooner: {rule}");
        }
    }
    let found = search(name, model, steps);
    let path = found.path(rule).unwrap_or_else(|| panic!("{name}: not found within {steps} choices"));
    println!("{}", explain(rule, path));
    assert_eq!(path.len() - 1, steps);
    path.clone()
}

fn fair(acquires: &[u8]) -> Queue {
    Queue { acquires: acquires.to_vec(), budget: Budget::default(), variant: Variant::Ours, prompt: false }
}

#[test]
fn exhaustive_search_of_two_clients_finds_no_violation() {
    // S6
    let found = keeps("two clients", &fair(&[1, 1]), usize::MAX / 2, 1_500);
    assert!(found.exhausted && found.path("everybody gets it").is_some());
}

#[test]
fn exhaustive_search_with_reacquiring_client_finds_no_violation() {
    // S6
    let found = keeps("two clients, one comes again", &fair(&[2, 1]), usize::MAX / 2, 9_000);
    assert!(found.exhausted && found.path("everybody gets it").is_some());
}

#[test]
fn exhaustive_search_of_three_clients_finds_no_violation() {
    // S6
    let model = Queue { prompt: true, ..fair(&[1, 1, 1]) };
    let found = keeps("three clients", &model, usize::MAX / 2, 30_000);
    assert!(found.exhausted && found.path("everybody gets it").is_some());
}

#[test]
fn search_with_lost_message_finds_no_violation() {
    // S6
    let budget = Budget { losses: 1, ..Budget::default() };
    keeps("a loss", &Queue { budget, prompt: true, ..fair(&[2, 1]) }, 15, 10_000);
}

#[test]
fn search_with_crash_and_lost_message_finds_no_violation() {
    // S6
    let budget = Budget { losses: 1, crashes: 1, ..Budget::default() };
    let found = keeps("a loss and a crash", &Queue { budget, prompt: true, ..fair(&[1, 1]) }, 14, 10_000);
    assert!(found.path(SUCCESSOR).is_some());
}

#[test]
fn search_with_deleted_waiter_key_finds_no_violation() {
    // S6
    let budget = Budget { tampers: 1, ..Budget::default() };
    keeps("a waiter's key is deleted", &Queue { budget, prompt: true, ..fair(&[2, 1]) }, 18, 3_000);
}

/// A client that does not check that its own key still exists takes the lock without having it.
// E4
#[test]
fn missing_own_key_check_is_found() {
    // S4
    let budget = Budget { tampers: 1, ..Budget::default() };
    let model = Queue { budget, variant: Variant::NoOwnKeyCheck, prompt: true, ..fair(&[2, 1]) };
    let path = breaks("no look at the own key", &model, 11, FIRST);
    assert!(path.iter().any(|(_, action)| matches!(action, Some(Action::Tamper(_)))), "only that breaks it");
}

/// A delete without a revision check removes the key of a later acquisition.
// E6
#[test]
fn unlock_without_revision_check_is_found() {
    // S4
    let budget = Budget { losses: 1, ..Budget::default() };
    let model = Queue { budget, variant: Variant::BlindUnlock, prompt: true, ..fair(&[2, 1]) };
    let path = breaks("an unguarded unlock", &model, 10, OWN);
    let last = path.iter().rev().find_map(|(_, action)| *action);
    assert!(matches!(last, Some(Action::ExecuteLate(_))), "by something that is executed late: {last:?}");
}
