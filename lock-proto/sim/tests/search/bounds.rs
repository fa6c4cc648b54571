//! Outside the bounds two clients hold the lock, and the search finds the shortest counterexample.
// S4

use core::time::Duration;

use lock_proto::Drift;

use crate::breaks;
use crate::world::{Action, Budget, World};

const TWO: &str = "A and B both hold the lock";

/// A clock that loses a tenth, where the settings allow a hundredth.
#[test]
fn slow_clock_gives_two_holders() {
    // S4
    let budget = Budget { stalls: 1, ..Budget::default() };
    let world = World { paces: vec![[900, 1_000]], budget, ..World::new() };
    let found = breaks("a clock that is too slow", &world, 8, TWO);
    assert!(found.actions.contains(&Action::Pass), "only time breaks it");
}

/// A clock that loses a hundredth, where the settings allow no drift: the margin is needed.
// T1
#[test]
fn missing_drift_allowance_gives_two_holders() {
    // S4
    let budget = Budget { stalls: 1, ..Budget::default() };
    let none = |config: lock_proto::redis::Config| config.drift(Drift { divisor: u32::MAX, margin: Duration::ZERO });
    let world = World { paces: vec![[990, 1_000]], budget, config: none, ..World::new() };
    breaks("no allowance for drift", &world, 8, TWO);
}

/// A client is paused after checking its guard. Only a fenced resource rejects its late write.
#[test]
fn pause_after_guard_check_gives_two_holders() {
    // S4
    let budget = Budget { stalls: 1, ..Budget::default() };
    let world = World { budget, acts_on_memory: true, ..World::new() };
    let found = breaks("a pause after the look at the guard", &world, 8, TWO);
    assert!(found.actions.iter().any(|action| matches!(action, Action::Stall(_))), "only a pause breaks it");
}

#[test]
fn data_loss_on_single_node_gives_two_holders() {
    // S4
    let budget = Budget { forgets: 1, ..Budget::default() };
    let world = World { budget, ..World::new() };
    let found = breaks("a node that forgets", &world, 7, TWO);
    assert!(found.actions.contains(&Action::Forget(0)), "only that breaks it");
}

/// One node of three is enough: its clock jumps, or it loses its data and does not report that.
#[test]
fn data_loss_on_quorum_node_gives_two_holders() {
    // S4
    let budget = Budget { forgets: 1, ..Budget::default() };
    let world = World { nodes: 3, prompt: true, paces: vec![[1_000, 1_000]], budget, ..World::new() };
    let found = breaks("a node of a quorum that forgets", &world, 7, TWO);
    assert!(found.actions.iter().any(|action| matches!(action, Action::Forget(_))), "only that breaks it");
}
