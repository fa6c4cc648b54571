//! Exhaustive searches of two clients on one register, and random walks that go deeper.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::BuildHasher as _;
use std::hash::RandomState;

use super::world::{RegisterMove, RegisterWorld, SearchPlan};
use crate::jitter::mix;
use crate::register::flaw::RegisterFlaw;

/// One holder, and one that takes over if the holder seems dead.
const TAKEOVER: SearchPlan = SearchPlan {
    flaw: None,
    unconditional: false,
    age: false,
    ticks: 9,
    unknown: 0,
    stale: 0,
    deletes: 0,
    cuts: 0,
    begun: [1, 1],
    short: false,
    releases: false,
    cancels: false,
    late: 1,
    tick: 40,
    drift: true,
    poll: 40,
};

/// The outcome of a write is unknown.
const UNKNOWN: SearchPlan = SearchPlan { unknown: 1, poll: 1_000, ..TAKEOVER };

/// A read is stale.
const STALE: SearchPlan = SearchPlan { stale: 1, ..TAKEOVER };

/// Acquisitions end, and the outcome of a write is unknown.
const ENDS: SearchPlan = SearchPlan { releases: true, cancels: true, ticks: 6, late: 0, ..UNKNOWN };

/// A holder has handed over to a shorter TTL in its client, which may be cut off.
const HANDOVER: SearchPlan = SearchPlan {
    begun: [2, 1],
    short: true,
    releases: true,
    tick: 20,
    ticks: 7,
    drift: false,
    poll: 1_000,
    cuts: 1,
    ..TAKEOVER
};

/// The first moves of a plan.
fn begin(plan: SearchPlan) -> RegisterWorld {
    let mut world = RegisterWorld::new(plan);
    if plan.short {
        let answer = RegisterMove::Answer { side: 0, place: 0 };
        let acquire = RegisterMove::Acquire { side: 0 };
        for next in [acquire, answer, answer, acquire, RegisterMove::Release { side: 0, place: 0 }] {
            assert_eq!(world.apply(next), Ok(()));
        }
        assert_eq!(world.held(), 1, "handed over");
    }
    world
}

/// Somebody deletes the record.
const DELETES: SearchPlan = SearchPlan { deletes: 1, ..TAKEOVER };

/// The store tells the age of a record.
const AGES: SearchPlan = SearchPlan { age: true, ..TAKEOVER };

/// Searches all orders of moves breadth first, up to this many states. Returns the depth that was
/// searched whole, or what is wrong and the number of moves to it.
fn search(plan: SearchPlan, states: usize) -> Result<usize, (&'static str, usize)> {
    let hasher = RandomState::new();
    let mut seen = BTreeSet::new();
    let mut level = Vec::from([begin(plan)]);
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
fn walk(plan: SearchPlan, walks: u64, length: u64) -> Result<usize, (&'static str, Vec<RegisterMove>)> {
    let plan = SearchPlan { ticks: 60, begun: [8, 8], unknown: 9, late: 99, releases: true, cancels: true, ..plan };
    let mut got = 0;
    for walk in 0..walks {
        let mut world = begin(plan);
        let mut path = Vec::new();
        for step in 0..length {
            let moves = world.moves();
            if moves.is_empty() {
                break;
            }
            let draw = |n: u64| moves[(mix(walk, 2 * step + n) % moves.len() as u64) as usize];
            let next = match draw(0) {
                // Otherwise nobody would ever get the lock.
                RegisterMove::Abandon { .. } | RegisterMove::Acquire { .. } => draw(1),
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

const STATES: usize = 80_000;

/// Returns the depth that is searched whole, and walks.
fn depth(plan: SearchPlan) -> usize {
    let depth = search(plan, STATES).unwrap_or_else(|(wrong, moves)| panic!("{wrong} after {moves} moves"));
    let got = walk(plan, 1_000, 200).unwrap_or_else(|(wrong, moves)| panic!("{wrong}: {moves:?}"));
    assert!(got > 1_000, "the lock was taken {got} times only");
    std::println!("depth {depth}, {got} grants");
    depth
}

#[test]
fn takeover_excludes_holder() {
    // RG1, RG2
    assert!(depth(TAKEOVER) > 15);
}

#[test]
fn takeover_by_age_excludes_holder() {
    // RG1
    assert!(depth(AGES) > 15);
}

#[test]
fn unknown_outcome_of_write_is_decided() {
    // RG4
    assert!(depth(UNKNOWN) > 15);
}

#[test]
fn ended_acquisitions_leave_nothing() {
    // RG4, RG8
    assert!(depth(ENDS) > 15);
}

#[test]
fn stale_reads_cost_time_only() {
    // RG6
    assert!(depth(STALE) > 15);
}

#[test]
fn local_hand_over_keeps_others_out() {
    // RG2, RG8
    assert!(depth(HANDOVER) > 12);
}

#[test]
fn deleted_record_is_not_taken_for_free() {
    // RG3, RG5
    assert!(depth(DELETES) > 15);
}

/// Searches a plan with a mistake in the machine.
fn found(flaw: RegisterFlaw, plan: SearchPlan) -> &'static str {
    search(SearchPlan { flaw: Some(flaw), ..plan }, 2 * STATES).expect_err("the flaw must be found").0
}

#[test]
fn planted_flaws_are_found() {
    // RG1 to RG5
    assert_eq!(found(RegisterFlaw::SinceDeparture, TAKEOVER), "two holders");
    assert_eq!(found(RegisterFlaw::AlikeRecords, TAKEOVER), "two holders");
    assert_eq!(found(RegisterFlaw::UnknownIsNo, ENDS), "a write was forgotten");
    assert_eq!(found(RegisterFlaw::AbsentIsFree, DELETES), "two holders");
    assert_eq!(found(RegisterFlaw::FenceFromRecord, DELETES), "a fence did not grow");
    assert_eq!(found(RegisterFlaw::ShorterTtlInFlight, HANDOVER), "two holders");
}

#[test]
fn store_that_ignores_expectations_is_found() {
    // RG0
    assert!(search(SearchPlan { unconditional: true, ..TAKEOVER }, STATES).is_err());
}
