//! Memory limit and eviction.

use super::*;

/// Limits the memory of a node to this much more than it uses now.
fn limit(node: &mut Node, room: usize, eviction: Eviction) {
    node.set_max_memory(Some(node.used_memory() + room), eviction);
}

#[test]
fn deleted_and_expired_keys_free_memory() {
    let mut node = node(NodeConfig::new(1));
    let empty = node.used_memory();
    for line in ["SET a 1", "SET a 12345 PX 50", "RPUSH l x y", "LPOP l", "RPUSH m x", "PEXPIRE m 50", "SET m w"] {
        request(&mut node, 0, 1, line);
        assert!(node.used_memory() > empty, "{line}");
    }
    for line in ["DEL m", "LPOP l"] {
        request(&mut node, 10, 1, line);
    }
    assert_eq!(request(&mut node, 60, 1, "GET a"), "$-1\r\n");
    assert_eq!(node.used_memory(), empty);
    request(&mut node, 60, 1, "SET a 1");
    request(&mut node, 60, 1, "FLUSHALL");
    assert_eq!(node.used_memory(), empty);
}

#[test]
fn noeviction_refuses_growing_writes_but_allows_releases() {
    let mut node = node(NodeConfig::new(1));
    request(&mut node, 0, 1, "SET lock token PX 10000");
    limit(&mut node, 200, Eviction::Never);
    assert_eq!(
        request(&mut node, 1, 1, &format!("SET big {}", "x".repeat(300))),
        "+OK\r\n",
        "room is made before, not after"
    );
    assert!(request(&mut node, 2, 1, "SET lock2 token NX PX 10000").starts_with("-OOM command not allowed"));
    let take = format!(
        "EVAL {:?} 1 lock2 0123456789abcdef0123456789abcdef:1 \"0 0 0\" 1000",
        lock_proto::redis::script::TAKE.source
    );
    assert!(request(&mut node, 3, 1, &take).starts_with("-OOM command not allowed"));
    assert_eq!(request(&mut node, 4, 1, "PEXPIRE lock 20000"), ":1\r\n");
    assert_eq!(request(&mut node, 5, 1, "DEL lock big"), ":2\r\n");
    assert_eq!(request(&mut node, 6, 1, "SET lock2 token NX PX 10000"), "+OK\r\n");
}

#[test]
fn expired_keys_are_freed_before_eviction() {
    let mut node = node(NodeConfig::new(1));
    request(&mut node, 0, 1, "SET old x PX 10");
    request(&mut node, 0, 1, "SET lock token PX 10000");
    limit(&mut node, 0, Eviction::VolatileTtl);
    request(&mut node, 0, 1, "SET new x");
    request(&mut node, 20, 1, "SET most x");
    assert!(node.exists(at(20), "lock"), "it was not needed");
}

#[test]
fn eviction_policy_decides_which_key_is_evicted() {
    for (eviction, gone) in
        [(Eviction::VolatileTtl, "short"), (Eviction::VolatileLru, "long"), (Eviction::AllKeysLru, "fence")]
    {
        let mut node = node(NodeConfig::new(1));
        request(&mut node, 0, 1, "SET fence 7");
        request(&mut node, 1, 1, "SET long x PX 90000");
        request(&mut node, 2, 1, "SET short x PX 10000");
        limit(&mut node, 0, eviction);
        request(&mut node, 3, 1, "SET new x");
        request(&mut node, 4, 1, "PING");
        for key in ["fence", "long", "short", "new"] {
            assert_eq!(node.exists(at(5), key), key != gone, "{eviction:?}: {key}");
        }
    }
    for (eviction, all) in [(Eviction::AllKeysRandom, true), (Eviction::VolatileRandom, false)] {
        let mut gone = BTreeSet::new();
        for seed in 0..40 {
            let mut node = node(NodeConfig::new(seed));
            node.evictions = seed;
            for line in ["SET fence 7", "SET long x PX 90000", "SET short x PX 10000"] {
                request(&mut node, 0, 1, line);
            }
            node.set_max_memory(Some(node.used_memory() - 1), eviction);
            request(&mut node, 1, 1, "PING");
            gone.extend(["fence", "long", "short"].into_iter().filter(|key| !node.exists(at(2), key)));
        }
        assert_eq!(gone.contains("fence"), all, "{eviction:?}");
        assert!(gone.contains("long") && gone.contains("short"), "{eviction:?}: {gone:?}");
    }
}

#[test]
fn replica_applies_evictions_but_does_not_evict() {
    let mut primary = node(NodeConfig::new(1));
    let mut replica = node(NodeConfig::new(2).max_memory(1, Eviction::AllKeysLru));
    request(&mut primary, 0, 1, "SET lock token PX 10000");
    replica.replicate(at(0), &primary.snapshot(at(0)));
    assert!(request(&mut replica, 1, 1, "GET lock").contains("token"));
    primary.set_max_memory(Some(primary.used_memory() - 1), Eviction::VolatileTtl);
    request(&mut primary, 2, 1, "PING");
    replica.handle_effect(at(3), &primary.poll_effect().unwrap());
    assert!(!replica.exists(at(3), "lock"));
}
