//! Exhaustive searches of two clients on one register, and random walks that go deeper.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::BuildHasher as _;
use std::hash::RandomState;

use super::world::{Move, Plan, World};
use crate::jitter::mix;
use crate::register::lock::Flaw;

const PLAN: Plan = Plan {
    flaw: None,
    unconditional: false,
    age: false,
    ticks: 9,
    unknown: 1,
    stale: 1,
    deletes: 0,
    begun: 1,
    short: false,
};

/// Searches all orders of moves breadth first, up to this many states. Returns the depth that was
/// searched whole, or what is wrong and the number of moves to it.
fn search(plan: Plan, states: usize) -> Result<usize, (&'static str, usize)> {
    let hasher = RandomState::new();
    let mut seen = BTreeSet::new();
    let mut level = Vec::from([(World::new(plan), Vec::new())]);
    for depth in 0.. {
        let mut deeper = Vec::new();
        for (world, path) in &level {
            for next in world.moves() {
                let mut after = world.clone();
                let mut path: Vec<Move> = path.clone();
                path.push(next);
                if let Err(wrong) = after.apply(next) {
                    std::println!("{path:?}");
                    return Err((wrong, depth + 1));
                }
                if seen.insert(hasher.hash_one(&after)) {
                    deeper.push((after, path));
                }
                if seen.len() > states {
                    return Ok(depth);
                }
            }
        }
        if deeper.is_empty() {
            return Ok(usize::MAX);
        }
        level = deeper;
    }
    unreachable!("the range has no end")
}

/// Walks at random. Returns how often a lock was got, or what is wrong, and the moves to it.
fn walk(plan: Plan, walks: u64, length: u64) -> Result<usize, (&'static str, Vec<Move>)> {
    let mut got = 0;
    for walk in 0..walks {
        let mut world = World::new(plan);
        let mut path = Vec::new();
        for step in 0..length {
            let moves = world.moves();
            if moves.is_empty() {
                break;
            }
            let next = moves[(mix(walk, step) % moves.len() as u64) as usize];
            path.push(next);
            let held = world.held();
            world.apply(next).map_err(|wrong| (wrong, path.clone()))?;
            got += usize::from(world.held() > held);
        }
    }
    Ok(got)
}

#[test]
fn depth_of_search() {
    for plan in [PLAN, Plan { age: true, ..PLAN }, Plan { begun: 2, short: true, ..PLAN }, Plan { deletes: 1, ..PLAN }] {
        let start = std::time::Instant::now();
        std::println!("{plan:?} {:?} {:?}", search(plan, 50_000), start.elapsed());
        let start = std::time::Instant::now();
        std::println!("{:?} {:?}", walk(Plan { ticks: 40, begun: 8, unknown: 9, stale: 9, ..plan }, 2_000, 200), start.elapsed());
    }
}

#[test]
fn flaws() {
    for flaw in [
        Flaw::SinceDeparture,
        Flaw::UnknownIsNo,
        Flaw::AbsentIsFree,
        Flaw::AlikeRecords,
        Flaw::ShorterTtlInFlight,
        Flaw::FenceFromRecord,
    ] {
        let plan = Plan { flaw: Some(flaw), short: true, begun: 2, deletes: 1, ..PLAN };
        let start = std::time::Instant::now();
        std::println!("{flaw:?} {:?} {:?}", walk(Plan { ticks: 40, begun: 8, unknown: 9, stale: 9, ..plan }, 2_000, 200).map_err(|(wrong, path)| (wrong, path.len())), start.elapsed());
    }
}
