//! The etcd hub against an adversary: typed requests, a simulated store, virtual time, one seed per
//! run.
//!
//! In the first phase anything may happen. Requests are lost or executed late or without a reply,
//! watches break, leases expire, processes are paused, keys are deleted by hand, verbs come in
//! every state. In the second phase everything works again and every guard is released. Then
//! nothing may be left: no key, lease, waiter or timer.
//!
//! `LOCK_SEEDS=100000` explores more, `LOCK_FIRST=5000` sets the first seed, and `LOCK_SEED=17`
//! runs one seed and prints its events.
// S2, S3
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

extern crate alloc;

#[path = "../common/etcd.rs"]
mod etcd;
mod process;
#[path = "../common/seeds.rs"]
mod seeds;
mod world;

use seeds::run_seeds;
use world::World;

fn run(seed: u64, log: bool) {
    let mut world = World::new(seed, log);
    world.chaos();
    world.settle();
}

#[test]
fn invariants_hold_under_faults_and_nothing_is_left_after() {
    // S2
    run_seeds(300, run);
}
