//! The search catches subtly wrong protocols, each by its shortest counterexample. The real
//! protocol passes all of these.
// S4

use crate::node::Variant;
use crate::world::{Action, Budget, World};
use crate::{breaks, keeps};

const TWO: &str = "A and B both hold the lock";

fn caught(name: &str, variant: Variant, world: World, steps: usize, rule: &str) -> Vec<Action> {
    keeps(name, &world, steps, 0, &[]);
    breaks(name, &World { variant, ..world }, steps, rule).actions
}

fn even_clocks() -> World {
    World { paces: vec![[1_000, 1_000]], ..World::new() }
}

/// With one token for all attempts, an old compensating delete ends the retried lock.
// A2
#[test]
fn same_token_for_every_attempt_gives_two_holders() {
    // S4
    let world = World { budget: Budget { cuts: 2, ..Budget::default() }, ..even_clocks() };
    let actions = caught("same token", Variant::SameToken, world, 11, TWO);
    assert!(actions.iter().any(|action| matches!(action, Action::ExecuteLate(_))), "by something that arrives late");
}

/// A delete that does not compare the token ends another client's lock.
// U1
#[test]
fn release_without_token_check_gives_two_holders() {
    // S4
    let world = World { budget: Budget { cuts: 1, ..Budget::default() }, ..even_clocks() };
    caught("blind release", Variant::BlindRelease, world, 9, TWO);
}

/// A renewal that rewrites the key without comparing the token takes it from its new holder.
// H1
#[test]
fn renewal_without_token_check_gives_two_holders() {
    // S4
    let world = World { acquires: [2, 1], budget: Budget { cuts: 1, ..Budget::default() }, ..even_clocks() };
    let actions = caught("blind renewal", Variant::BlindRenewal, world, 15, TWO);
    assert!(actions.iter().any(|action| matches!(action, Action::ExecuteLate(_))), "by something that arrives late");
}

/// A watchdog that is not stopped keeps the key alive for good.
// H2
#[test]
fn endless_renewal_leaves_key_without_holder() {
    // S4
    caught("endless renewal", Variant::EndlessRenewal, even_clocks(), 11, "a key lives on, and nobody is there");
}
