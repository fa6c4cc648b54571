//! The checkers can fail: each of these clients has one flaw, which must be found.
// S4
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod flawed;

use crate::sim::scenario::{Backend, Plan, Scenario, scenarios};
use crate::sim::{Keep, Rule};
use flawed::{Flaw, clients};

/// Maximum number of seeds until a flaw is found.
const BUDGET: u64 = 150;

/// Expects that a run of the scenario catches this flaw by this rule, and that the same run without
/// the flaw breaks nothing.
fn caught(name: &str, flaw: Flaw, rule: Rule) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let plan = Plan::from_seed(scenario, seed);
        let outcome = plan.run_zookeeper(Keep::Nothing, clients(flaw));
        if outcome.violations.iter().any(|found| found.rule == rule) {
            std::println!("{flaw:?}: seed {seed} of {name}");
            for sound in [plan.run(), plan.run_zookeeper(Keep::Nothing, clients(Flaw::None))] {
                assert!(sound.violations.is_empty(), "{plan}\n{sound}");
            }
            return;
        }
    }
    panic!("{flaw:?} was not found in {BUDGET} seeds");
}

/// The rewriter without a flaw breaks nothing.
#[test]
fn rewriter_without_flaw_is_never_caught() {
    for scenario in scenarios().iter().filter(|scenario| scenario.backend == Backend::Zookeeper) {
        let plan = Plan::from_seed(scenario, 1);
        let outcome = plan.run_zookeeper(Keep::Lines(200), clients(Flaw::None));
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    }
}

/// A follower that is cut off from its leader answers pings while the leader ends the session.
#[test]
fn renewal_by_pings_alone_is_caught() {
    // S4, ZK1
    caught("zookeeper-followers", Flaw::RenewsByPings, Rule::MutualExclusion);
}

#[test]
fn watching_predecessor_by_exists_is_caught() {
    // S4, ZK3
    caught("zookeeper-cancel", Flaw::WatchesByExists, Rule::Leftover);
}

#[test]
fn fencing_token_from_sequence_number_is_caught() {
    // S4, ZK4
    caught("zookeeper-cancel", Flaw::FencesBySequence, Rule::FenceGrows);
}

#[test]
fn resending_unanswered_create_is_caught() {
    // S9
    caught("zookeeper-calm", Flaw::SendsTwice, Rule::Twice);
}

/// On a calm network, hand-overs between processes are caused by watches.
#[test]
fn hand_overs_come_from_watches() {
    // S8, ZK3
    let scenario = Scenario::named("zookeeper-calm").unwrap();
    let all = (0..100).map(|seed| Plan::from_seed(scenario, seed).run_keeping(Keep::Nothing).handovers);
    let sum = all.fold((0, 0, 0), |sum, found| (sum.0 + found.woken, sum.1 + found.polled, sum.2 + found.other));
    std::println!("woken, polled, other: {sum:?}");
    assert!(sum.0 > 300 && sum.1 * 20 < sum.0, "{sum:?}");
}

fn sound(name: &str, seeds: &[u64]) {
    for seed in seeds {
        let outcome = Plan::from_seed(Scenario::named(name).unwrap(), *seed).run();
        assert!(outcome.violations.is_empty(), "{name} {seed}\n{outcome}");
    }
}

/// Regression: the commit of another lock's create moved the validity of the session, and the
/// holders were not notified of it.
#[test]
fn holders_are_notified_of_validity_that_another_lock_has_moved() {
    // T2, ZK1
    sound("zookeeper-partitions", &[18]);
    sound("zookeeper-failover", &[7]);
}

/// Regression: the first lock of an idle session held it beyond its validity.
#[test]
fn lock_of_idle_session_is_lost_in_time() {
    // T2
    sound("zookeeper-followers", &[16, 27, 29, 57, 177]);
    sound("zookeeper-cancel", &[103]);
}
