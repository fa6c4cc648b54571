//! Exhausted memory, missing replicas, and an unreachable primary.

use lock_sim::redis::{Eviction, NodeConfig};

use crate::generate::Generator;
use crate::{CONNS, Pair};

/// Without blocking commands: how Redis treats blocked clients when memory is short is unspecified.
fn generator(seed: u64) -> Generator {
    let mut generator = Generator::new(seed, CONNS);
    generator.blocking = false;
    generator
}

#[test]
fn memory_limit_gives_same_replies_under_each_policy() {
    let policies = [
        ("noeviction", Eviction::Never),
        ("allkeys-lru", Eviction::AllKeysLru),
        ("volatile-lru", Eviction::VolatileLru),
        ("allkeys-random", Eviction::AllKeysRandom),
        ("volatile-random", Eviction::VolatileRandom),
        ("volatile-ttl", Eviction::VolatileTtl),
    ];
    let mut pair = Pair::new(NodeConfig::new(1), |_| {});
    pair.log_in(&[]);
    for (seed, (name, eviction)) in (41..).zip(policies) {
        let mut generator = generator(seed);
        pair.run(&mut generator, 200);
        pair.control.round_trip(&["CONFIG", "SET", "maxmemory-policy", name]);
        pair.control.round_trip(&["CONFIG", "SET", "maxmemory", "1"]);
        // Less than an empty server uses, so that everything is evicted that may be.
        pair.model.set_max_memory(Some(1), eviction);
        pair.run(&mut generator, 200);
        pair.run_line("DBSIZE");
        pair.control.round_trip(&["CONFIG", "SET", "maxmemory", "0"]);
        pair.model.set_max_memory(None, eviction);
    }
}

#[test]
fn writes_without_replicas_get_same_replies() {
    let mut pair = Pair::new(NodeConfig::new(1).min_replicas(1), |control| {
        control.round_trip(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    });
    pair.log_in(&[]);
    pair.run(&mut generator(51), 500);
}

#[test]
fn replica_without_stale_reads_gives_same_replies() {
    let mut pair = Pair::new(NodeConfig::new(1).serve_stale_data(false), |control| {
        control.round_trip(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    });
    pair.log_in(&[]);
    let mut generator = generator(61);
    generator.channels = true;
    pair.run(&mut generator, 200);
    // Nothing listens on the discard port.
    pair.control.round_trip(&["REPLICAOF", "127.0.0.1", "9"]);
    let now = pair.now();
    pair.model.demote(now);
    pair.run(&mut generator, 500);
    pair.run_line("ROLE");
}
