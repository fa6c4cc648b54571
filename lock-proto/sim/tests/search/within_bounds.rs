//! Within the bounds every guarantee holds.

use crate::keeps;
use crate::world::{Budget, World};

const GETS: &str = "somebody gets the lock";
const LOSES: &str = "a holder loses it";
const RELEASES: &str = "it is released";
const LATE_BACK: &str = "it had ended, or its state is unknown, when it is released";
const RENEWS: &str = "it is renewed";
const BOTH: &str = "both clients get it";
const LATE: &str = "a late attempt takes it for nobody";
const REPLACES: &str = "a client replaces what it had left behind";
const OUTLIVES: &str = "a hold outlives its first TTL";
const SUCCESSOR: &str = "one dies, and the other gets it";

#[test]
fn exhaustive_search_of_one_node_finds_no_violation() {
    // S6
    let world = World { settle_every: 200, ..World::new() };
    let expected = [GETS, RELEASES, RENEWS, BOTH, OUTLIVES];
    let outcome = keeps("nothing goes wrong", &world, usize::MAX, 25_000, &expected);
    assert!(outcome.exhausted);
}

#[test]
fn one_node_with_broken_connection_has_no_violation() {
    // S6
    let budget = Budget { cuts: 1, ..Budget::default() };
    let world = World { acquires: [2, 1], budget, settle_every: 200, ..World::new() };
    keeps("one cut", &world, 11, 10_000, &[GETS, RELEASES, RENEWS, BOTH, LATE, REPLACES]);
}

#[test]
fn one_node_with_two_broken_connections_has_no_violation() {
    // S6
    let budget = Budget { cuts: 2, ..Budget::default() };
    let world = World { budget, settle_every: 200, ..World::new() };
    keeps("two cuts", &world, 9, 20_000, &[GETS, RELEASES, RENEWS, BOTH, LATE, REPLACES]);
}

#[test]
fn one_node_with_one_fault_of_each_kind_has_no_violation() {
    // S6
    let budget = Budget { cuts: 1, crashes: 1, stalls: 1, cancels: 1, ..Budget::default() };
    let world = World { budget, settle_every: 200, ..World::new() };
    keeps("one of each", &world, 8, 20_000, &[GETS, LOSES, RELEASES, RENEWS, LATE, REPLACES, SUCCESSOR]);
}

/// A lock is handed over locally, or a local wait is cancelled.
// A8
#[test]
fn one_node_with_two_local_acquisitions_has_no_violation() {
    // S6
    let budget = Budget { cuts: 1, cancels: 1, ..Budget::default() };
    let world = World { acquires: [2, 1], at_once: 2, budget, settle_every: 200, ..World::new() };
    keeps("two requests at once", &world, 9, 15_000, &[GETS, RELEASES, RENEWS, LATE, REPLACES]);
}

/// Replies arrive at once or never, so that the same depth covers more time.
#[test]
fn one_node_over_longer_runs_has_no_violation() {
    // S6
    let budget = Budget { crashes: 1, stalls: 1, ..Budget::default() };
    let world = World { prompt: true, budget, settle_every: 400, ..World::new() };
    let expected = [GETS, LOSES, RELEASES, LATE_BACK, RENEWS, BOTH, LATE, OUTLIVES, SUCCESSOR];
    keeps("longer lives", &world, 12, 20_000, &expected);
}

#[test]
fn three_nodes_with_broken_connection_have_no_violation() {
    // S6
    let budget = Budget { cuts: 1, ..Budget::default() };
    let paces = vec![[990, 1_010]];
    let world = World { nodes: 3, prompt: true, paces, budget, settle_every: 400, ..World::new() };
    keeps("quorum, one cut", &world, 7, 15_000, &[GETS, LATE, REPLACES]);
}

#[test]
fn three_nodes_with_paused_client_have_no_violation() {
    // S6
    let budget = Budget { stalls: 1, ..Budget::default() };
    let paces = vec![[990, 1_010]];
    let world = World { nodes: 3, prompt: true, paces, budget, settle_every: 400, ..World::new() };
    keeps("quorum, a stall", &world, 8, 15_000, &[GETS, LOSES, RELEASES, RENEWS, BOTH, LATE, REPLACES]);
}
