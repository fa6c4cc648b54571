//! The checkers can fail: each of these clients has one flaw, which must be found.
// S4
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use core::time::Duration;

use super::draw::RedisRecipe;
use super::flawed::{RedisFlaw as Flaw, clients};
use super::list::QUIET;
use crate::redis::FIXED_BLOCKS;
use crate::scenario::faults::{FaultEntry, RESET, redis::FAIL_OVER, redis::JUMP, redis::LOG_OUT};
use crate::scenario::{Backend, Draws, Plan, Scenario, StoreSetup};
use crate::{Keep, Rule, scenario};
use lock_proto::redis::Protocol;

/// Maximum number of seeds until a flaw is found.
const BUDGET: u64 = 200;

/// Returns the first plan of the scenario that catches this flaw by one of these rules. The same
/// plan without the flaw must break nothing.
fn caught(name: &str, flaw: Flaw, rules: &[Rule]) -> Plan {
    let scenario = Scenario::named(name).unwrap();
    let breaks = |plan: &Plan| {
        let outcome = plan.run_redis(Keep::Nothing, clients(flaw));
        outcome.violations.iter().any(|found| rules.contains(&found.rule))
    };
    for seed in 0..BUDGET {
        let plan = Plan::from_seed(scenario, seed);
        if breaks(&plan) {
            let small = plan.shrink(breaks);
            assert!(small.len() <= plan.len());
            for plan in [&plan, &small] {
                for sound in [plan.run(), plan.run_redis(Keep::Nothing, clients(Flaw::None))] {
                    assert!(sound.violations.is_empty(), "{plan}\n{sound}");
                }
            }
            return small;
        }
    }
    panic!("{flaw:?} was not found in {BUDGET} seeds");
}

/// The rewriter without a flaw breaks nothing.
#[test]
fn rewriter_without_flaw_is_never_caught() {
    for scenario in scenario::scenarios().iter().filter(|scenario| scenario.backend == Backend::Redis) {
        let plan = Plan::from_seed(scenario, 1);
        let outcome = plan.run_redis(Keep::Lines(200), clients(Flaw::None));
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    }
}

#[test]
fn reusing_token_is_caught() {
    // S4
    // A compensating delete of an old attempt arrives after the retried take.
    // A2
    let plan = caught("redis-pauses", Flaw::SameToken, &[Rule::MutualExclusion]);
    assert!(plan.len() <= 20, "{plan}");
}

#[test]
fn watchdog_outliving_release_is_caught() {
    // S4
    let plan = caught("redis-contention", Flaw::RenewsForEver, &[Rule::OneOutcome, Rule::Leftover, Rule::Liveness]);
    assert!(plan.len() <= 2, "{plan}");
}

#[test]
fn release_without_token_check_is_caught() {
    // S4
    let plan = caught("redis-pauses", Flaw::DeletesAnything, &[Rule::MutualExclusion]);
    assert!(plan.len() <= 12, "{plan}");
}

/// A counter that runs ahead of the clock mints smaller tokens once it is lost.
#[test]
fn fixed_blocks_of_fencing_tokens_are_caught() {
    // A9
    let plans = || (0..BUDGET).map(|seed| Plan::from_seed(Scenario::named("redis-bursts").unwrap(), seed));
    for rule in [Rule::FenceAhead, Rule::FenceGrows] {
        FIXED_BLOCKS.set(true);
        let caught =
            plans().find(|plan| plan.run_keeping(Keep::Nothing).violations.iter().any(|found| found.rule == rule));
        FIXED_BLOCKS.set(false);
        let Some(plan) = caught else { panic!("not found in {BUDGET} seeds: {rule}") };
        let sound = plan.run();
        assert!(sound.violations.is_empty(), "{plan}\n{sound}");
    }
}

#[test]
fn counting_one_server_twice_is_caught() {
    // S4
    let plan = caught("redis-names", Flaw::CountsEqualNodes, &[Rule::MutualExclusion]);
    assert!(plan.steps.iter().any(|step| step.action.to_string().contains("leads")), "{plan}");
}

#[test]
fn trusting_uptime_of_new_server_is_caught() {
    // S4
    let plan = caught("redis-fail-over", Flaw::TrustsUptime, &[Rule::MutualExclusion]);
    assert!(plan.steps.iter().any(|step| step.action.to_string().contains("long-running")), "{plan}");
}

/// A poll would otherwise hide the flaw, because every waiter is served in the end.
#[test]
fn forgetting_wake_during_attempt_is_caught() {
    // S8
    let plan = caught("redis-calm", Flaw::ForgetsHints, &[Rule::Prompt]);
    assert!(plan.setup.clients.len() > 1 && !plan.is_empty(), "{plan}");
}

#[test]
fn resending_unanswered_attempt_is_caught() {
    // S9
    let plan = caught("redis-calm", Flaw::SendsTwice, &[Rule::Twice]);
    assert!(plan.len() <= 3, "{plan}");
}

#[test]
fn letting_locks_expire_is_caught() {
    // S4, S11
    caught("redis-calm", Flaw::NeverRenews, &[Rule::Kept]);
}

/// Polls would otherwise hide the flaw: nothing is prompt from the first fault until all faults
/// end.
#[test]
fn waiting_without_wake_ups_after_lost_connection_is_caught() {
    // S4, S8
    caught("redis-wake", Flaw::NeverWaitsAgain, &[Rule::Prompt]);
}

#[test]
fn hiding_what_a_shutdown_leaves_is_caught() {
    // S4
    caught("redis-shutdown", Flaw::HidesLeftovers, &[Rule::Leftover]);
}

#[test]
fn counting_replies_of_replaced_connection_is_caught() {
    // S4
    caught("redis-stale", Flaw::MixesConnections, &[Rule::MutualExclusion]);
}

/// An attempt may arrive after the delete that covered it, and after the next use of its name.
#[test]
fn forgetting_second_look_for_late_attempts_is_caught() {
    // S4, A4
    caught("redis-late", Flaw::DeletesOnce, &[Rule::Ghost]);
    // Packets that crawl excuse only what they may have caused.
    caught("redis-slow", Flaw::DeletesOnce, &[Rule::Ghost]);
    // The key is gone after a TTL, often before an idle connection is closed.
    let is_ghost = |seed: &u64| {
        let plan = Plan::from_seed(Scenario::named("redis-late").unwrap(), *seed);
        let outcome = plan.run_redis(Keep::Nothing, clients(Flaw::DeletesOnce));
        outcome.violations.iter().any(|found| found.rule == Rule::Ghost)
    };
    let count = (0..40).filter(is_ghost).count();
    assert!(count >= 8, "{count}");
}

#[test]
fn wake_up_connection_left_open_is_caught() {
    // S4, A7
    let plan = caught("redis-wake", Flaw::KeepsWakeConnection, &[Rule::Leftover]);
    assert!(plan.len() <= 3, "{plan}");
}

#[test]
fn retrying_without_pause_is_caught() {
    // S3, S4
    let plan = caught("redis-contention", Flaw::RetriesAtOnce, &[Rule::Bounded]);
    assert!(plan.len() <= 3, "{plan}");
}

#[test]
fn hiding_rejection_of_credentials_is_caught() {
    // S4, S11
    caught("redis-credentials", Flaw::HidesRejections, &[Rule::Credentials]);
}

/// Regression: a stale signal ended a wait. The next wait was to be cancelled before the server had
/// begun it, and the cancel was never repeated. A release then woke nobody for five seconds.
#[test]
fn cancel_before_wait_begins_is_not_lost() {
    // S8, A7
    for seed in [725, 1183] {
        let outcome = Plan::from_seed(Scenario::named("redis-calm").unwrap(), seed).run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

/// Regression: clients without locks never closed connections whose credentials they renewed.
#[test]
fn idle_connection_is_closed_although_its_credentials_are_renewed() {
    // N19, P7, S11
    let outcome = Plan::from_seed(Scenario::named("redis-credentials").unwrap(), 0).run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

/// On a calm network, hand-overs between processes are caused by wake-ups, not by polls.
#[test]
fn hand_overs_come_from_wakes() {
    // S8, A7
    let scenario = Scenario::named("redis-calm").unwrap();
    // Where votes are split, timers decide who tries first.
    for (nodes, share) in [(1, 20), (3, 10)] {
        let plans = (0..150).map(|seed| Plan::from_seed(scenario, seed)).filter(|plan| plan.setup.nodes.len() == nodes);
        let all = plans.map(|plan| plan.run_keeping(Keep::Nothing).handovers);
        let sum = all.fold((0, 0, 0), |sum, one| (sum.0 + one.woken, sum.1 + one.polled, sum.2 + one.other));
        std::println!("{nodes} nodes: woken, polled, other: {sum:?}");
        assert!(sum.0 > 500 && sum.1 * share < sum.0, "{sum:?}");
    }
}

#[test]
fn plan_text_lists_steps_and_replay_command_names_seed() {
    let plan = Plan::from_seed(Scenario::named("redis-wake").unwrap(), 3);
    let text = plan.to_string();
    assert!(text.starts_with("redis-wake: waiters are woken") && text.contains("drawn from seed 3"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("s  ")).count(), plan.len(), "{text}");
    assert!(plan.replay().starts_with("LOCK_SCENARIO=redis-wake LOCK_SEED=3 cargo test"), "{}", plan.replay());
    let shrunk = plan.without(0..plan.len() - 1);
    assert!(
        shrunk.to_string().contains("then shrunk") && shrunk.replay().ends_with("replay  # as drawn; then changed")
    );
}

/// Regression: the text of a plan that a caller had changed named the seed alone.
#[test]
fn text_of_edited_plan_says_so() {
    let mut plan = Plan::from_seed(Scenario::named("redis-wake").unwrap(), 3);
    assert!(!plan.to_string().contains("changed") && plan.replay().ends_with(" replay"));
    plan.steps.truncate(2);
    assert!(plan.to_string().contains("drawn from seed 3, then changed\n"), "{plan}");
    assert!(plan.replay().ends_with("replay  # as drawn; then changed"), "{}", plan.replay());
}

/// Regression: a clock was set forward, and a replica did not know of it. After its promotion,
/// tokens became smaller.
#[test]
fn promoted_replica_has_wall_clock_of_primary() {
    // A9
    let outcome = Plan::from_seed(Scenario::named("redis-beyond").unwrap(), 7_000_197).claiming_at_once().run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

/// Regression: the key of a lost hold stayed if its guard was returned without a connection, during
/// the attempt of the next waiter. The release was reported as expired.
#[test]
fn lost_hold_is_deleted_after_the_reconnect_although_another_attempt_waits() {
    // A4, U1
    let mut plan = Plan::from_seed(Scenario::named("redis-together").unwrap(), 57);
    plan.model = true;
    let outcome = plan.run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

/// Regression of the checker: a server answered that a key was gone, and got its earlier data back
/// before the client reported the loss.
#[test]
fn key_may_return_after_it_was_reported_gone() {
    // S3
    let outcome = Plan::from_seed(Scenario::named("redis-bursts").unwrap(), 5_071).run();
    assert!(outcome.violations.iter().all(|found| found.rule != Rule::TrueLoss), "{outcome}");
}

/// Regression of the checker: a restored server had an older value again, and its holder handed the
/// lock over. That grant is newer than one of the value in between.
#[test]
fn hand_over_after_restore_is_new_grant() {
    // A9
    let outcome = Plan::from_seed(Scenario::named("redis-bursts").unwrap(), 10_410).run();
    assert!(outcome.violations.iter().all(|found| found.rule != Rule::FenceGrows), "{outcome}");
}

/// Regression of the checker: a stale replica had a key again that its client had deleted. The
/// client stopped, and could not know.
#[test]
fn key_that_stale_replica_brings_back_is_no_leftover() {
    // S3
    for seed in [540, 594, 848] {
        let outcome = Plan::from_seed(Scenario::named("redis-beyond").unwrap(), seed).claiming_at_once().run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

/// Regression: after `SCRIPT FLUSH` neither a release nor the next take was sent again, because a
/// later command for the lock was on its way. The take counted as a failed attempt.
#[test]
fn flushed_scripts_delay_no_waiter() {
    // P1, S8
    let outcome = Plan::from_seed(Scenario::named("redis-strangers").unwrap(), 20_192).run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

/// Regression: a socket took two logins at once, after the credentials of the first had expired.
#[test]
fn expired_login_does_not_leave_ahead_of_valid_one() {
    // N19, S11
    let outcome = Plan::from_seed(Scenario::named("redis-sockets").unwrap(), 21).run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

#[test]
fn believing_a_lock_longer_than_the_server_keeps_it_is_caught() {
    // S3, S4
    for name in ["redis-calm", "redis-quorum", "redis-eviction"] {
        caught(name, Flaw::ShortensTtl, &[Rule::Validity]);
    }
    caught("redis-pauses", Flaw::IgnoresRefusedRenewals, &[Rule::Validity]);
    caught("redis-eviction", Flaw::IgnoresRefusedRenewals, &[Rule::Validity]);
}

#[test]
fn vote_of_node_that_restarted_empty_is_caught() {
    // S3, S4, Q7
    let plan = caught("redis-data-loss", Flaw::TrustsRestartedNodes, &[Rule::Validity]);
    assert!(plan.steps.iter().any(|step| step.action.to_string().contains("starts empty")), "{plan}");
}

#[test]
fn tokens_that_were_not_minted_are_caught() {
    // S3, S4, A9
    caught("redis-calm", Flaw::TokensPastBlock, &[Rule::FenceMinted]);
    caught("redis-turns", Flaw::RepeatsTokens, &[Rule::FenceGrows]);
}

/// Scenarios are checked when the library is built.
#[test]
fn scenario_offers_what_its_faults_need() {
    fn compiles(fault: FaultEntry, recipe: RedisRecipe) -> bool {
        let recipe =
            Box::leak(Box::new(RedisRecipe { faults: Box::leak(Box::new([(RESET, 1), (fault, 2)])), ..recipe }));
        let scenario = Scenario::new("some", "some faults", Draws::Redis(recipe));
        std::panic::catch_unwind(|| scenario.check()).is_ok()
    }
    assert!(!compiles(LOG_OUT, QUIET) && compiles(LOG_OUT, RedisRecipe { login: true, ..QUIET }));
    assert!(!compiles(FAIL_OVER, QUIET) && compiles(FAIL_OVER, RedisRecipe { nodes: &[3, 5], ..QUIET }));
    assert!(!compiles(JUMP, QUIET), "beyond the bounds");
    let jumps = Scenario::named("redis-clock-jumps").unwrap();
    assert!(jumps.faults().any(|(name, weight)| (name, weight) == ("jump", 4)));
}

#[test]
fn panic_is_reported_as_violation() {
    let mut plan = Plan::from_seed(&scenario::scenarios()[0], 1);
    plan.steps.insert(0, scenario::Step { at: Duration::ZERO, action: scenario::Action::PauseNode(99) });
    let outcome = plan.run();
    assert_eq!(outcome.violations.first().map(|found| found.rule), Some(Rule::Contract), "{outcome}");
}

#[test]
fn failing_plan_shrinks_to_required_steps() {
    let plan = Plan::from_seed(Scenario::named("redis-everything").unwrap(), 8);
    let wants =
        |plan: &Plan| plan.steps.iter().filter(|step| matches!(step.action, scenario::Action::Acquire { .. })).count();
    assert!(wants(&plan) > 3 && plan.setup.clients.len() > 1);
    let small = plan.shrink(|plan| wants(plan) >= 2);
    assert_eq!((small.len(), wants(&small)), (2, 2), "{small}");
    assert!(small.setup.clients.len() < plan.setup.clients.len().max(3), "{small}");
    // A plan that does not fail is returned unchanged.
    assert_eq!(plan.shrink(|_| false).len(), plan.len());
}

/// One run in eight of some scenarios speaks RESP3, and breaks nothing.
#[test]
fn some_runs_speak_resp3() {
    // S1
    for name in ["redis-everything", "redis-quorum", "redis-credentials"] {
        let plans = (0..40).map(|seed| Plan::from_seed(Scenario::named(name).unwrap(), seed));
        let speaks =
            |plan: &Plan| matches!(&plan.setup.store, StoreSetup::Redis(store) if store.protocol == Protocol::Resp3);
        let plans: Vec<Plan> = plans.filter(speaks).collect();
        assert!((2..12).contains(&plans.len()), "{name}: {}", plans.len());
        let outcome = plans[0].run_keeping(Keep::Lines(usize::MAX));
        assert!(outcome.log.contains("HELLO 3") && outcome.violations.is_empty() && outcome.grants > 0, "{outcome}");
    }
}
