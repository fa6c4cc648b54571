//! Whole worlds of clients, servers, network, clocks and faults, driven by the input.

use std::sync::OnceLock;

use lock_sim::scenario::Flaw;
use lock_sim::{Keep, Plan, Scenario};

/// Scenarios selected by the first byte: some in which every rule holds, and some beyond the
/// limits, in which fewer hold.
const REDIS: [&str; 6] =
    ["redis-everything", "redis-turns", "redis-cancel", "redis-wake", "redis-shutdown", "redis-beyond"];
const QUORUM: [&str; 2] = ["redis-quorum", "redis-data-loss"];
const ETCD: [&str; 7] = [
    "etcd-everything",
    "etcd-turns",
    "etcd-cancel",
    "etcd-shutdown",
    "etcd-by-hand",
    "etcd-drift-beyond",
    "etcd-suspended",
];
const ELECTION: [&str; 1] = ["etcd-elections"];
const ZOOKEEPER: [&str; 8] = [
    "zookeeper-everything",
    "zookeeper-turns",
    "zookeeper-cancel",
    "zookeeper-shutdown",
    "zookeeper-elections",
    "zookeeper-followers",
    "zookeeper-by-hand",
    "zookeeper-drift-beyond",
];
const REGISTER: [&str; 7] = [
    "register-everything",
    "register-locks",
    "register-late",
    "register-elections",
    "register-drift",
    "register-by-hand",
    "register-drift-beyond",
];
/// Scenarios within the bounds, most of whose runs have one node.
const REDIS_MODEL: [&str; 8] = [
    "redis-calm",
    "redis-pauses",
    "redis-cancel",
    "redis-wake",
    "redis-together",
    "redis-strangers",
    "redis-late",
    "redis-stale",
];

/// Returns the scenarios of a target that plays worlds.
fn scenarios(target: &str) -> Option<&'static [&'static str]> {
    match target {
        "redis_ops" => Some(&REDIS),
        "quorum_ops" => Some(&QUORUM),
        "etcd_ops" => Some(&ETCD),
        "election_ops" => Some(&ELECTION),
        "zk_ops" => Some(&ZOOKEEPER),
        "register_ops" => Some(&REGISTER),
        "redis_model" => Some(&REDIS_MODEL),
        _ => None,
    }
}

/// Returns whether a target plays worlds, so that [`plan`] returns its runs.
#[must_use]
pub fn plays_worlds(target: &str) -> bool {
    scenarios(target).is_some()
}

/// Returns the run of a target on these bytes, or `None` if the target plays no worlds or the bytes
/// make no run: none, or `redis_model`'s if they draw several nodes. The first byte selects the
/// scenario, and [`Plan::from_bytes`] draws from the rest.
#[must_use]
pub fn plan(target: &str, data: &[u8]) -> Option<Plan> {
    let names = scenarios(target)?;
    let model = target == "redis_model";
    let (first, rest) = data.split_first()?;
    let name = names[usize::from(*first) % names.len()];
    let scenario = Scenario::named(name).expect("a scenario of that name");
    let mut plan = Plan::from_bytes(scenario, rest);
    plan.model = model;
    (!model || plan.supports_model()).then_some(plan)
}

/// Clients of Redis nodes.
///
/// Checks all rules of the scenario, see [`Rule`](lock_sim::Rule): no two holders in true
/// time, growing fencing tokens, no stale write, one end for each acquisition, timely reports of
/// losses and bounded requests. After the faults every waiter is served and nothing is left behind.
pub fn redis_ops(data: &[u8]) {
    play("redis_ops", data, planted());
}

/// Clients of quorums.
pub fn quorum_ops(data: &[u8]) {
    play("quorum_ops", data, planted());
}

/// Clients of an etcd cluster. Also checks each grant against the queues as they were at each
/// revision, tracked independently of the machines.
pub fn etcd_ops(data: &[u8]) {
    play("etcd_ops", data, planted());
}

/// Candidates, leaders and observers of elections on an etcd cluster.
pub fn election_ops(data: &[u8]) {
    play("election_ops", data, planted());
}

/// Clients, candidates and observers of a ZooKeeper ensemble. Also checks each grant against the
/// queues as the committed transactions left them, and that no watch is left behind.
pub fn zk_ops(data: &[u8]) {
    play("zk_ops", data, planted());
}

/// Clients, candidates and observers on a store with compare-and-set. Also checks that no record is
/// replaced before its time is over.
pub fn register_ops(data: &[u8]) {
    play("register_ops", data, planted());
}

/// Clients of one Redis node beside a naive lock: `SET key token NX PX ttl`, and scripts that
/// compare the token.
///
/// Checks the same rules as [`redis_ops`], and [`Rule::Model`](lock_sim::Rule::Model).
pub fn redis_model(data: &[u8]) {
    play("redis_model", data, planted());
}

/// Plays the run of a target on these bytes, with a flaw planted in the clients or none.
///
/// # Panics
///
/// If a rule is broken.
pub fn play(target: &str, data: &[u8], flaw: Option<Flaw>) {
    let Some(mut plan) = plan(target, data) else { return };
    plan.flaw = flaw;
    let outcome = plan.run_keeping(Keep::Nothing);
    if let Some(found) = outcome.violations.first() {
        panic!("{found}\n    {}", plan.replay());
    }
}

/// Returns the flaw that `LOCK_FLAW` names, to see a target find something.
fn planted() -> Option<Flaw> {
    static FLAW: OnceLock<Option<Flaw>> = OnceLock::new();
    *FLAW.get_or_init(|| {
        let name = std::env::var("LOCK_FLAW").ok()?;
        Some(Flaw::named(&name).unwrap_or_else(|| panic!("LOCK_FLAW={name}: no flaw has this name")))
    })
}
