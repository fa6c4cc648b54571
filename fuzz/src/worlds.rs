//! Whole worlds of clients, servers, network, clocks and faults, driven by the input.

use lock_proto::sim::{Keep, Plan, Scenario};

/// Scenarios selected by the first byte: some in which every promise holds, and some beyond the
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

/// Clients of Redis nodes. The first byte selects the scenario, and [`Plan::from_bytes`] draws from
/// the rest.
///
/// Checks all promises of the scenario, see [`Rule`](lock_proto::sim::Rule): no two holders in true
/// time, growing fencing tokens, no stale write, one end for each acquisition, timely reports of
/// losses and bounded requests. After the faults every waiter is served and nothing is left behind.
pub fn redis_ops(data: &[u8]) {
    play(&REDIS, data);
}

/// Clients of quorums.
pub fn quorum_ops(data: &[u8]) {
    play(&QUORUM, data);
}

/// Clients of an etcd cluster. Also checks each grant against the queues as they were at each
/// revision, tracked independently of the machines.
pub fn etcd_ops(data: &[u8]) {
    play(&ETCD, data);
}

/// Candidates, leaders and observers of elections on an etcd cluster.
pub fn election_ops(data: &[u8]) {
    play(&ELECTION, data);
}

/// Clients, candidates and observers of a ZooKeeper ensemble. Also checks each grant against the
/// queues as the committed transactions left them, and that no watch is left behind.
pub fn zk_ops(data: &[u8]) {
    play(&ZOOKEEPER, data);
}

fn play(names: &[&str], data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let name = names[usize::from(*first) % names.len()];
    let scenario = Scenario::named(name).expect("a scenario of that name");
    let plan = Plan::from_bytes(scenario, rest);
    let outcome = plan.run_keeping(Keep::Nothing);
    if let Some(found) = outcome.violations.first() {
        panic!("{found}\n    {}", plan.replay());
    }
}
