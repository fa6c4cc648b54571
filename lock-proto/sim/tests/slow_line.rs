//! Redis servers on slow links, and many holds after a reconnect.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::time::Duration;

use lock_proto::{Acquire, Event, LockId, Wait};
use lock_sim::{Direction, World};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Connects a client to this many nodes, and then sets the round trip to twice `latency`.
fn slow(nodes: usize, latency: Duration) -> World {
    let mut w = World::redis(nodes).seed(1).build();
    let first = w.acquire_for(0, Acquire::new("first"), ms(1));
    w.expect(secs(2), "the first lock is released", |w| w.is_over(0, first));
    for node in 0..nodes {
        for direction in Direction::BOTH {
            w.slow(0, node, direction, latency..latency + ms(1));
        }
    }
    w
}

fn is_lost(w: &World, lock: LockId) -> bool {
    w.events(0, lock).iter().any(|event| matches!(event, Event::Lost(_)))
}

/// With a TTL this short on a slow link, the first renewal is late and the lock is lost. Its
/// neighbour is not affected.
#[test]
fn short_ttl_on_slow_link_is_granted_without_starving_others() {
    // P6
    for nodes in [1, 3] {
        let mut w = slow(nodes, ms(30));
        let long = w.acquire(0, Acquire::new("long").ttl(secs(10)));
        w.expect(ms(200), "the long lock is held", |w| w.is_held(0, long));
        for _ in 0..100 {
            let short = w.acquire_for(0, Acquire::new("short").ttl(ms(100)).wait(Wait::Try), ms(10));
            w.expect(ms(500), "the short lock has come and gone", |w| w.is_over(0, short));
            let granted = w.events(0, short).iter().any(|event| matches!(event, Event::Granted(_)));
            assert!(granted, "{nodes} nodes: {:?}\n{}", w.events(0, short), w.log());
        }
        w.run_for(secs(30));
        assert!(w.is_held(0, long) && !is_lost(&w, long), "{nodes} nodes: {:?}", w.events(0, long));
        assert_eq!(w.log().matches(" connected").count(), nodes, "no connection ended\n{}", w.log());
    }
}

/// A reply takes longer than the round timeout. Late grants that are still valid win.
#[test]
fn late_grant_that_is_still_valid_wins() {
    // Q1
    let mut w = slow(5, ms(200));
    let lock = w.acquire(0, Acquire::new("a").ttl(secs(1)));
    w.expect(ms(500), "it is held after one round trip", |w| w.is_held(0, lock));
    assert_eq!((0..5).map(|node| w.total_calls(node)).collect::<Vec<_>>(), vec![3; 5], "{}", w.log());
}
