//! The checkers can fail: each of these clients has one flaw, which must be found.
// S4
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::flawed::{EtcdFlaw as Flaw, clients};
use crate::scenario::{Backend, Plan, Scenario, scenarios};
use crate::{Keep, Rule};

/// Maximum number of seeds until a flaw is found.
const BUDGET: u64 = 60;

/// Expects that a run of the scenario catches this flaw by this rule, and that the same run without
/// the flaw breaks nothing.
fn caught(name: &str, flaw: Flaw, rule: Rule) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let plan = Plan::from_seed(scenario, seed);
        let outcome = plan.run_etcd(Keep::Nothing, clients(flaw));
        if outcome.violations.iter().any(|found| found.rule == rule) {
            for sound in [plan.run(), plan.run_etcd(Keep::Nothing, clients(Flaw::None))] {
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
    for scenario in scenarios().iter().filter(|scenario| scenario.backend == Backend::Etcd) {
        let plan = Plan::from_seed(scenario, 1);
        let outcome = plan.run_etcd(Keep::Lines(200), clients(Flaw::None));
        assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    }
}

#[test]
fn waiter_not_checking_its_own_key_is_caught() {
    // S4
    caught("etcd-by-hand", Flaw::SkipsOwnKey, Rule::Fifo);
}

#[test]
fn unlock_without_revision_check_is_caught() {
    // S4
    caught("etcd-elections", Flaw::DeletesAnyRevision, Rule::MutualExclusion);
}

/// Otherwise the next read of the queue, half a minute later, would hide the flaw.
#[test]
fn forgetting_deletion_reported_during_read_is_caught() {
    // S8
    caught("etcd-calm", Flaw::ForgetsDeletion, Rule::Prompt);
}

#[test]
fn resending_unanswered_transaction_is_caught() {
    // S9
    caught("etcd-calm", Flaw::SendsTwice, Rule::Twice);
}

#[test]
fn leader_overwriting_replaced_key_is_caught() {
    // S4
    caught("etcd-replaced", Flaw::WritesAnyRevision, Rule::StaleWrite);
}

#[test]
fn counting_replies_of_replaced_connection_is_caught() {
    // S4
    caught("etcd-stale", Flaw::MixesConnections, Rule::Twice);
}

#[test]
fn looking_for_predecessor_without_end_is_caught() {
    // S3, S4
    caught("etcd-contention", Flaw::LooksWithoutEnd, Rule::Bounded);
}

#[test]
fn waiters_for_oldest_key_are_caught() {
    // S3, S4
    caught("etcd-contention", Flaw::WatchesOldest, Rule::OneWoken);
}

#[test]
fn letting_leases_expire_is_caught() {
    // S4, S11
    caught("etcd-credentials", Flaw::NeverRenews, Rule::Kept);
    caught("etcd-calm", Flaw::NeverRenews, Rule::Kept);
}

/// Reads would otherwise hide the flaw: nothing is prompt from the first fault until all faults
/// end.
#[test]
fn waiting_without_watches_after_lost_connection_is_caught() {
    // S4, S8
    caught("etcd-watches", Flaw::NeverWatchesAgain, Rule::Prompt);
}

#[test]
fn hiding_what_a_shutdown_leaves_is_caught() {
    // S4
    caught("etcd-shutdown", Flaw::HidesLeftovers, Rule::Leftover);
}

#[test]
fn believing_a_lock_longer_than_the_store_keeps_it_is_caught() {
    // S3, S4
    caught("etcd-calm", Flaw::ShortensLeases, Rule::Validity);
    caught("etcd-by-hand", Flaw::IgnoresOwnDeletion, Rule::Validity);
}

/// Regression of the checker: an observer's watch tells of the deletion of a leader's key, which the
/// hold has not watched yet.
#[test]
fn holder_need_not_learn_from_observers_watch() {
    // S3
    for seed in [78, 251] {
        let outcome = Plan::from_seed(Scenario::named("etcd-replaced").unwrap(), seed).claiming_at_once().run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

#[test]
fn token_of_another_revision_is_caught() {
    // S3, S4, E8
    caught("etcd-calm", Flaw::ShiftsTokens, Rule::FenceMinted);
}

/// The client waits for a change that its reads never show.
#[test]
fn taking_old_deletion_for_new_one_is_caught() {
    // S4, E4
    caught("etcd-calm", Flaw::TakesOldDeletions, Rule::Prompt);
}

/// A missed wake-up is not hidden: nobody reads the queue again.
#[test]
fn watch_that_opened_before_its_revision_is_caught() {
    // S8, E5
    caught("etcd-contention", Flaw::OpensWatchesInPast, Rule::Liveness);
}

#[test]
fn mixing_up_replies_to_keep_alives_is_caught() {
    // S1, E1
    caught("etcd-keep-alives", Flaw::MixesLeases, Rule::TrueLoss);
}

#[test]
fn counting_keep_alive_of_revoked_lease_is_caught() {
    // S4, E1
    caught("etcd-by-hand", Flaw::RenewsRevokedLease, Rule::Notified);
}

/// On a calm network, hand-overs between processes are caused by notifications.
#[test]
fn hand_overs_come_from_watches() {
    // S8, E5
    let scenario = Scenario::named("etcd-calm").unwrap();
    let all = (0..100).map(|seed| Plan::from_seed(scenario, seed).run_keeping(Keep::Nothing).handovers);
    let sum = all.fold((0, 0, 0), |sum, add_random| {
        (sum.0 + add_random.woken, sum.1 + add_random.polled, sum.2 + add_random.other)
    });
    std::println!("woken, polled, other: {sum:?}");
    assert!(sum.0 > 500 && sum.1 * 20 < sum.0, "{sum:?}");
}

/// Regression: a password that a server had rejected was sent again when the token of the earlier
/// one expired.
#[test]
fn rejected_credentials_are_not_sent_again() {
    // N19, S11
    for seed in [14, 45, 60, 76] {
        let outcome = Plan::from_seed(Scenario::named("etcd-credentials").unwrap(), seed).run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

/// Regression: a login was given up when its password expired before the reply, and the connection
/// with it.
#[test]
fn late_reply_to_login_costs_no_connection() {
    // N19, S11
    let outcome = Plan::from_seed(Scenario::named("etcd-credentials").unwrap(), 257).run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

/// Regression of the checker: a waiter missed the deletion of the key before its own, and its watch
/// reported the next deletion of the same key, which another waiter waited for.
#[test]
fn waiters_for_two_creations_of_one_key_may_wake_together() {
    // E4
    let outcome = Plan::from_seed(Scenario::named("etcd-lost-events").unwrap(), 5_118).claiming_at_once().run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}

/// Regression of the checker: a paused member held the first request for a lease. The lease was
/// granted by another member, and revoked. Then the first request was executed.
#[test]
fn lease_without_keys_of_late_grant_is_not_left_behind() {
    // E1
    let outcome = Plan::from_seed(Scenario::named("etcd-everything").unwrap(), 2_038).run();
    assert!(outcome.violations.is_empty(), "{outcome}");
}
