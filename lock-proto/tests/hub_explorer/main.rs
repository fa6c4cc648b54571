//! The hub against an adversary: typed requests, simulated nodes, virtual time, one seed per run.
//!
//! In the first phase anything may happen. Connections break with requests in flight that arrive
//! later, nodes restart, processes are paused or die, verbs come in every state. In the second
//! phase everything works again and every guard is released. Then nothing may be left: no key,
//! waiter, timer or state.
//!
//! `LOCK_SEEDS=100000` explores more, `LOCK_FIRST=5000` sets the first seed, and `LOCK_SEED=17`
//! runs one seed and prints its events.
// S2, S3
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod node;
mod process;
#[path = "../common/seeds.rs"]
mod seeds;
mod world;

use seeds::run_seeds;
use world::World;

fn run(seed: u64, log: bool) {
    let nodes = [1, 3, 5, 1, 3][(seed % 5) as usize];
    let mut world = World::new(seed, nodes, log);
    world.chaos();
    world.settle();
}

#[test]
fn invariants_hold_under_faults_and_nothing_is_left_after() {
    // S2
    run_seeds(100, run);
}
