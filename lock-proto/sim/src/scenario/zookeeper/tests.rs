//! The checkers can fail: each of these clients has one flaw, which must be found.
// S4
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

mod flawed;
mod same_guid;
mod stops;

use alloc::format;
use core::time::Duration;

use crate::scenario::{Backend, Plan, Scenario, scenarios};
use crate::zookeeper::World;
use crate::{Keep, Rule};
use flawed::{ServerFlaw, clients};
use lock_proto::{Acquire, Event, Loss};

/// Maximum number of seeds until a flaw is found.
const BUDGET: u64 = 300;

/// Expects that a run of the scenario catches this flaw by this rule, and that the same run without
/// the flaw breaks nothing.
fn caught(name: &str, flaw: ServerFlaw, rule: Rule) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let plan = Plan::from_seed(scenario, seed);
        let outcome = plan.run_zookeeper(Keep::Nothing, clients(flaw));
        if outcome.violations.iter().any(|found| found.rule == rule) {
            std::println!("{flaw:?}: seed {seed} of {name}");
            for sound in [plan.run(), plan.run_zookeeper(Keep::Nothing, clients(ServerFlaw::None))] {
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
        let outcome = plan.run_zookeeper(Keep::Lines(200), clients(ServerFlaw::None));
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    }
}

/// A follower that is cut off from its leader answers pings while the leader ends the session.
#[test]
fn renewal_by_pings_alone_is_caught() {
    // S4, ZK1
    caught("zookeeper-followers", ServerFlaw::RenewsByPings, Rule::MutualExclusion);
}

#[test]
fn watching_predecessor_by_exists_is_caught() {
    // S4, ZK3
    caught("zookeeper-cancel", ServerFlaw::WatchesByExists, Rule::Leftover);
}

#[test]
fn believing_a_lock_longer_than_its_session_is_caught() {
    // S3, S4
    caught("zookeeper-calm", ServerFlaw::ShortensSessions, Rule::Validity);
}

#[test]
fn token_of_another_transaction_is_caught() {
    // S3, S4, ZK4
    caught("zookeeper-calm", ServerFlaw::ShiftsTokens, Rule::FenceMinted);
}

#[test]
fn fencing_token_from_sequence_number_is_caught() {
    // S4, ZK4
    caught("zookeeper-cancel", ServerFlaw::FencesBySequence, Rule::FenceGrows);
}

/// The node of a dying session, found after an unanswered create of the next one, ends soon.
#[test]
fn recognising_own_node_by_guid_alone_is_caught() {
    // S4, ZK2
    caught("zookeeper-everything", ServerFlaw::RecognisesByGuid, Rule::FenceGrows);
}

/// A node that the server does not delete stays until its session ends.
#[test]
fn taking_refused_deletion_for_done_is_caught() {
    // S4, ZK6
    caught("zookeeper-refusals", ServerFlaw::IgnoresRefusals, Rule::Liveness);
}

/// Regression: each of two clients waited behind the node that the other could not delete.
#[test]
fn waiters_leave_sessions_whose_nodes_cannot_be_deleted() {
    // ZK6
    for seed in [91, 421, 422, 759, 962] {
        let outcome = Plan::from_seed(Scenario::named("zookeeper-refusals").unwrap(), seed).claiming_at_once().run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

/// Regression: the list behind a first write that was rejected did not show the client's node, and
/// it created another one. It then waited behind its own, and all others with it.
#[test]
fn clients_of_overloaded_servers_do_not_wait_for_their_own_nodes() {
    // ZK6
    for seed in [7, 14, 18, 85] {
        let outcome = Plan::from_seed(Scenario::named("zookeeper-throttled").unwrap(), seed).run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

#[test]
fn letting_sessions_expire_is_caught() {
    // S4, S11
    caught("zookeeper-calm", ServerFlaw::NeverRenews, Rule::Kept);
}

/// Reads would otherwise hide the flaw: nothing is prompt from the first fault until all faults
/// end.
#[test]
fn waiting_without_watches_after_lost_connection_is_caught() {
    // S4, S8
    caught("zookeeper-behind", ServerFlaw::NeverWatchesAgain, Rule::Prompt);
}

#[test]
fn hiding_what_a_shutdown_leaves_is_caught() {
    // S4
    caught("zookeeper-shutdown", ServerFlaw::HidesLeftovers, Rule::Leftover);
}

#[test]
fn forgetting_what_an_application_has_asked_is_caught() {
    // S2, S4
    for (name, flaw, asked) in [
        ("zookeeper-elections", ServerFlaw::ForgetsQueries, "a query for the leader"),
        ("zookeeper-elections", ServerFlaw::ForgetsProclaims, "a proclaim"),
        ("zookeeper-everything", ServerFlaw::ForgetsExtensions, "an extension"),
    ] {
        let scenario = Scenario::named(name).unwrap();
        let is_found = |seed: &u64| {
            let outcome = Plan::from_seed(scenario, *seed).run_zookeeper(Keep::Nothing, clients(flaw));
            let unanswered = format!("has no answer to {asked}");
            outcome.violations.iter().any(|found| found.rule == Rule::Liveness && found.text.contains(&unanswered))
        };
        let seed = (0..BUDGET).find(is_found);
        std::println!("{flaw:?}: seed {seed:?} of {name}");
        assert!(seed.is_some(), "{flaw:?}");
    }
}

/// Regression: after two sessions that had expired, a client paused before it opened the next one,
/// even if that was long ago.
#[test]
fn sessions_that_expired_long_ago_cause_no_pause() {
    // S8
    let outcome = Plan::from_seed(Scenario::named("zookeeper-expiry").unwrap(), 250).claiming_at_once().run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

#[test]
fn resending_unanswered_create_is_caught() {
    // S9
    caught("zookeeper-calm", ServerFlaw::SendsTwice, Rule::Twice);
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

/// Regression: requests were numbered from 1 on every connection. A follower that was behind took
/// the commit of an earlier request for that of the new one, so a client listed the queue too
/// early, missed its own node, and then waited behind it for ever.
#[test]
fn waiter_does_not_wait_for_its_own_earlier_node() {
    // ZK6
    for (name, seed) in [
        ("zookeeper-behind", 1_237),
        ("zookeeper-followers", 1_017),
        ("zookeeper-everything", 860),
        ("zookeeper-everything", 1_207),
    ] {
        let outcome =
            Plan::from_seed(Scenario::named(name).unwrap(), seed).claiming_at_once().run_keeping(Keep::Nothing);
        assert!(outcome.violations.is_empty(), "{name}, seed {seed}: {outcome}");
    }
}

const MS: Duration = Duration::from_millis(1);

fn world() -> World {
    let config = |config: lock_proto::zookeeper::Config| config.tick(100 * MS).session_ttl(1_000 * MS);
    World::zookeeper(3).clients(1).ensemble(|ensemble| ensemble.tick(100 * MS)).config(config).seed(1).build()
}

/// Regression: the commit of another lock's create moved the validity of the session, and the
/// holders were not notified of it. Found by `zookeeper-partitions` and `zookeeper-failover`.
#[test]
fn holders_are_notified_of_validity_that_another_lock_has_moved() {
    // T2, ZK1
    let mut w = world();
    let first = w.acquire(0, Acquire::new("b"));
    w.expect(100 * MS, "the first is held", |w| w.is_held(0, first));
    for _ in 0..20 {
        w.run_for(70 * MS);
        let other = w.acquire(0, Acquire::new("a"));
        w.expect(100 * MS, "the other is held", |w| w.is_held(0, other));
        w.release(0, other);
        let known = w.events(0, first).iter().rev().find_map(|event| match event {
            Event::Granted(grant) => Some(grant.valid_until),
            Event::Renewed { valid_until } => Some(*valid_until),
            _ => None,
        });
        assert_eq!(known, lock_proto::LockClient::valid_until(w.machine(0), first));
    }
}

/// Regression: the first lock of a session that was idle was held beyond its validity.
#[test]
fn lock_of_idle_session_is_lost_in_time() {
    // T2
    for idle in [0, 50, 100, 200, 300, 400, 600] {
        let mut w = world();
        let first = w.acquire_for(0, Acquire::new("a"), MS);
        w.expect(200 * MS, "the first is over", |w| w.is_over(0, first));
        w.run_for(idle * MS);
        let second = w.acquire(0, Acquire::new("a"));
        w.expect(200 * MS, "the second is held", |w| w.is_held(0, second));
        (0..3).for_each(|member| w.pause_member(member));
        let until = w.grant(0, second).unwrap().valid_until;
        w.run_for(1_000 * MS);
        assert_eq!(w.events(0, second).last(), Some(&Event::Lost(Loss::Expired)), "{idle}: until {until}");
    }
}
