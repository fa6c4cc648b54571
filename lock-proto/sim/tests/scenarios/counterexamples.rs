//! Outside the bounds the known counterexamples are found, and the remaining guarantees hold.
// S4

use core::time::Duration;

use lock_sim::scenario::{Action, Step, StoreSetup};
use lock_sim::trace::TraceEvent;
use lock_sim::{Keep, Outcome, Plan, Rule, Scenario};

/// Maximum number of seeds until a counterexample is found.
const BUDGET: u64 = 200;

/// Returns the first plan of a scenario, modified by `change`, that violates this rule.
fn search(name: &str, rule: Rule, change: impl Fn(&mut Plan)) -> (Plan, Outcome) {
    let scenario = Scenario::named(name).unwrap();
    for seed in 0..BUDGET {
        let mut plan = Plan::from_seed(scenario, seed);
        change(&mut plan);
        let outcome = plan.run_keeping(Keep::Nothing);
        assert!(outcome.violations.is_empty(), "{}\n{}", plan.replay(), plan.run());
        if outcome.excused.iter().any(|found| found.rule == rule) {
            return (plan, outcome);
        }
    }
    panic!("{name} does not show {rule} in {BUDGET} seeds");
}

fn fencing(plan: &mut Plan, on: bool) {
    let StoreSetup::Redis(store) = &mut plan.setup.store else { unreachable!("a plan for Redis") };
    store.fencing = on;
    plan.excused = if on { Vec::new() } else { vec![Rule::StaleWrite] };
}

fn refused(plan: &Plan) -> usize {
    let (outcome, trace) = plan.run_traced();
    assert!(outcome.violations.is_empty(), "{plan}\n{outcome}");
    let refused = |what: &TraceEvent| matches!(what, TraceEvent::Write { accepted: false, .. });
    trace.entries.iter().filter(|entry| refused(&entry.what)).count()
}

#[test]
fn paused_client_makes_stale_write_unless_fenced() {
    // S4
    let one_node = |plan: &mut Plan| {
        plan.setup.nodes.truncate(1);
        let odd = |action: &Action| matches!(action, Action::PauseNode(n) | Action::ResumeNode(n) if *n > 0);
        plan.steps.retain(|step| !odd(&step.action));
    };
    let (plan, _) = search("redis-pauses", Rule::StaleWrite, |plan| {
        one_node(plan);
        fencing(plan, false);
    });
    let stale =
        |plan: &Plan| plan.run_keeping(Keep::Nothing).excused.iter().any(|found| found.rule == Rule::StaleWrite);
    let small = plan.shrink(stale);
    // One client holds the lock and is paused, another takes over and writes, the first resumes.
    assert!(small.len() <= 8, "{small}");
    // With fencing tokens the same write is rejected. Random choices differ, so try several plans.
    let fenced = (0..BUDGET).map(|seed| {
        let mut plan = Plan::from_seed(plan.scenario, seed);
        fencing(&mut plan, true);
        refused(&plan)
    });
    assert!(fenced.take(40).sum::<usize>() > 0, "no stale write was even tried");
}

#[test]
fn clock_jump_at_quorum_nodes_gives_two_holders() {
    // S4
    let (plan, outcome) = search("redis-clock-jumps", Rule::MutualExclusion, |plan| {
        // Only quorums: without steps the other plans do nothing.
        if plan.setup.nodes.len() == 1 {
            plan.steps.clear();
        }
    });
    assert!(plan.setup.nodes.len() > 1 && outcome.grants > 0);
    let jumps = |plan: &Plan| plan.steps.iter().filter(|step| matches!(step.action, Action::JumpNode { .. })).count();
    let small = plan
        .shrink(|plan| plan.run_keeping(Keep::Nothing).excused.iter().any(|found| found.rule == Rule::MutualExclusion));
    assert!(jumps(&small) > 0, "nothing else breaks it: {small}");
}

#[test]
fn lagging_promoted_replica_gives_two_holders_and_growing_tokens() {
    // S4
    let (plan, _) = search("redis-promotion", Rule::MutualExclusion, |_| {});
    let small = plan
        .shrink(|plan| plan.run_keeping(Keep::Nothing).excused.iter().any(|found| found.rule == Rule::MutualExclusion));
    assert!(small.steps.iter().any(|step| matches!(step.action, Action::Redis(_))), "nothing else breaks it: {small}");
    assert!(small.len() <= 5, "{small}");
    // Even here tokens must grow and stale writes be rejected, which held in every plan tried.
    assert!(small.promises(Rule::FenceGrows) && small.promises(Rule::StaleWrite));
}

/// A client that meets a server for the first time relies on the uptime it reports. A server that
/// restarts empty and whose clock is then set forward reports a long one.
// Q6
#[test]
fn clock_jump_after_empty_restart_misleads_new_client() {
    // S4
    let (plan, _) = search("redis-first-sight", Rule::MutualExclusion, |_| {});
    // Only clocks of empty nodes jump: keys that expire early are another counterexample.
    let empty = |plan: &Plan, step: &Step| {
        let Action::JumpNode { node, .. } = step.action else { return true };
        let restart = Action::RestartNode { node, keep_data: false };
        plan.steps.iter().any(|other| other.at == step.at && other.action == restart)
    };
    let small = plan.shrink(|plan| {
        let broken = |plan: &Plan| {
            plan.run_keeping(Keep::Nothing).excused.iter().any(|found| found.rule == Rule::MutualExclusion)
        };
        plan.steps.iter().all(|step| empty(plan, step)) && broken(plan)
    });
    let has = |matches: fn(&Action) -> bool| small.steps.iter().any(|step| matches(&step.action));
    assert!(has(|action| matches!(action, Action::RestartNode { keep_data: false, .. })), "{small}");
    assert!(has(|action| matches!(action, Action::JumpNode { .. })), "{small}");
    // Clients that know the nodes time the restart by their own clocks.
    for seed in 0..BUDGET {
        let mut plan = Plan::from_seed(small.scenario, seed);
        let StoreSetup::Redis(store) = &mut plan.setup.store else { unreachable!("a plan for Redis") };
        store.preconnect = true;
        for step in &mut plan.steps {
            step.at += Duration::from_millis(500);
        }
        let outcome = plan.run_keeping(Keep::Nothing);
        assert!(outcome.excused.is_empty() && outcome.violations.is_empty(), "{}\n{plan}\n{outcome}", plan.replay());
    }
}

#[test]
fn drift_suspend_data_loss_and_eviction_give_two_holders() {
    // S4
    let redis = ["redis-drift-beyond", "redis-suspended", "redis-forgetful", "redis-eviction"];
    let others = ["etcd-drift-beyond", "etcd-suspended", "zookeeper-drift-beyond", "zookeeper-suspended"];
    for name in redis.into_iter().chain(others) {
        search(name, Rule::MutualExclusion, |_| {});
    }
}

/// A server may lose an event silently.
// E4
#[test]
fn client_without_recheck_hangs_when_watch_events_are_lost() {
    // S4
    let scenario = Scenario::named("etcd-lost-events").unwrap();
    let found = (0..BUDGET).find(|seed| {
        let mut plan = Plan::from_seed(scenario, *seed);
        let StoreSetup::Etcd(store) = &mut plan.setup.store else { unreachable!("a plan for etcd") };
        store.recheck = Duration::from_secs(24 * 60 * 60);
        plan.run_keeping(Keep::Nothing).violations.iter().any(|found| found.rule == Rule::Liveness)
    });
    assert!(found.is_some(), "no waiter and no observer missed anything in {BUDGET} seeds");
}
