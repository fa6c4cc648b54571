//! Exhaustive searches of two clients on one register, and random walks that go deeper.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::BuildHasher as _;
use std::hash::RandomState;

use super::world::{Move, Plan, World};
use crate::jitter::mix;
use crate::register::lock::Flaw;

/// Takes over from a holder that may be dead.
const TAKEOVER: Plan = Plan {
    flaw: None,
    unconditional: false,
    age: false,
    ticks: 9,
    unknown: 1,
    stale: 1,
    deletes: 0,
    begun: 1,
    short: false,
    ends: false,
    late: 2,
    tick: 40,
    drift: true,
};

/// Cancels and releases.
const ENDS: Plan = Plan { ends: true, late: 1, ..TAKEOVER };

/// Hands over in a client, to a shorter TTL.
const HANDOVER: Plan =
    Plan { begun: 2, short: true, ends: true, unknown: 0, stale: 0, tick: 20, drift: false, ..TAKEOVER };

/// Somebody deletes the record.
const DELETES: Plan = Plan { deletes: 1, stale: 0, ..TAKEOVER };

/// The store tells the age of a record.
const AGES: Plan = Plan { age: true, ..TAKEOVER };

/// Searches all orders of moves breadth first, up to this many states. Returns the depth that was
/// searched whole, or what is wrong and the number of moves to it.
fn search(plan: Plan, states: usize) -> Result<usize, (&'static str, usize)> {
    let hasher = RandomState::new();
    let mut seen = BTreeSet::new();
    let mut level = Vec::from([World::new(plan)]);
    for depth in 0.. {
        let mut deeper = Vec::new();
        for world in &level {
            for next in world.moves() {
                let mut after = world.clone();
                after.apply(next).map_err(|wrong| (wrong, depth + 1))?;
                if seen.insert(hasher.hash_one(&after)) {
                    deeper.push(after);
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
    let plan = Plan { ticks: 60, begun: 8, unknown: 9, stale: 9 * plan.stale, late: 99, ..plan };
    let mut got = 0;
    for walk in 0..walks {
        let mut world = World::new(plan);
        let mut path = Vec::new();
        for step in 0..length {
            let moves = world.moves();
            if moves.is_empty() {
                break;
            }
            let draw = |n: u64| moves[(mix(walk, 2 * step + n) % moves.len() as u64) as usize];
            let next = match draw(0) {
                // Otherwise nobody would ever get the lock.
                Move::Abandon { .. } | Move::Acquire { .. } => draw(1),
                next => next,
            };
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
    for plan in
        [TAKEOVER, Plan { unknown: 0, ..TAKEOVER }, Plan { stale: 0, ..TAKEOVER }, ENDS, HANDOVER, DELETES, AGES]
    {
        let start = std::time::Instant::now();
        std::println!("{plan:?} {:?} {:?}", search(plan, 50_000), start.elapsed());
        let start = std::time::Instant::now();
        std::println!("{:?} {:?}", walk(plan, 1_000, 200), start.elapsed());
    }
}

#[test]
fn flaws() {
    let plans = [
        (Flaw::SinceDeparture, TAKEOVER),
        (Flaw::UnknownIsNo, ENDS),
        (Flaw::AbsentIsFree, DELETES),
        (Flaw::AlikeRecords, TAKEOVER),
        (Flaw::ShorterTtlInFlight, HANDOVER),
        (Flaw::FenceFromRecord, DELETES),
    ];
    for (flaw, plan) in plans {
        let plan = Plan { flaw: Some(flaw), ..plan };
        let start = std::time::Instant::now();
        std::println!("{flaw:?} {:?} {:?}", search(plan, 50_000), start.elapsed());
        std::println!(
            "{flaw:?} {:?} {:?}",
            walk(plan, 2_000, 200).map_err(|(wrong, path)| (wrong, path.len())),
            start.elapsed()
        );
    }
    let plan = Plan { unconditional: true, ..TAKEOVER };
    std::println!("unconditional {:?}", search(plan, 50_000));
}
