//! Whole clients. The world's checkers panic if two of them hold the lock.

use core::time::Duration;

use lock_proto::{Acquire, Answer, Event, Failure, LockId, Loss, Renew, Wait};
use lock_sim::World;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn want() -> Acquire {
    Acquire::new("a").ttl(secs(3))
}

#[track_caller]
fn hold(w: &mut World, client: usize, want: Acquire) -> LockId {
    let lock = w.acquire(client, want);
    w.expect(secs(1), "it is held", |w| w.is_held(client, lock));
    lock
}

fn connect_all(w: &mut World, clients: usize) {
    for client in 0..clients {
        let lock = hold(w, client, Acquire::new("warm-up").ttl(secs(3)));
        w.release(client, lock);
        w.expect(secs(1), "it is released", |w| w.is_over(client, lock));
    }
    w.run_for(ms(5));
}

fn lost(w: &World, client: usize, lock: LockId) -> Option<Loss> {
    w.events(client, lock).iter().find_map(|event| if let Event::Lost(loss) = event { Some(*loss) } else { None })
}

fn extends(w: &World, name: &str) -> usize {
    let asks = |line: &&str| line.contains("<extend") && line.split(' ').any(|word| word == name);
    w.log().lines().filter(asks).count()
}

/// The holder has three of five nodes and is partitioned from one. Then the address of another
/// leads to the third's server. Each extend gets two replies from that server, which count once.
#[test]
fn server_counts_once_when_second_name_leads_to_it() {
    // Q6
    for seed in 0..20 {
        let mut w = World::redis(5).clients(2).seed(seed).build();
        connect_all(&mut w, 2);
        for node in 3..5 {
            w.partition(0, node);
        }
        let lock = hold(&mut w, 0, want());
        w.run_for(ms(100 * seed));
        w.partition(0, 2);
        w.redirect(0, 1, 0);
        let second = w.acquire(1, want());
        w.expect(secs(8), "the second has it", |w| w.is_held(1, second));
        assert_eq!(lost(&w, 0, lock), Some(Loss::EqualNodes), "seed {seed}\n{}", w.log());
    }
}

/// Four of five servers are left, and three of them renew: the lock is kept.
#[test]
fn hold_continues_with_majority_of_servers() {
    // Q6
    for seed in 0..20 {
        let mut w = World::redis(5).seed(seed).build();
        connect_all(&mut w, 1);
        let lock = hold(&mut w, 0, want());
        w.partition(0, 4);
        w.redirect(0, 1, 0);
        w.run_for(secs(10));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
        w.redirect(0, 1, 1);
        w.partition(0, 3);
        w.run_for(secs(10));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
    }
}

#[test]
fn extend_confirmed_twice_by_one_server_counts_once() {
    // Q6
    for seed in 0..20 {
        let mut w = World::redis(5).seed(seed).build();
        connect_all(&mut w, 1);
        let lock = hold(&mut w, 0, want().renew(Renew::Manual));
        w.redirect(0, 1, 0);
        w.run_for(ms(1_500));
        for node in 2..4 {
            w.partition(0, node);
        }
        let before = w.events(0, lock).len();
        w.extend(0, lock);
        w.run_for(secs(2));
        let events = &w.events(0, lock)[before..];
        assert!(!events.iter().any(|event| matches!(event, Event::Renewed { .. })), "seed {seed}: {events:?}");
        assert!(events.iter().any(|event| matches!(event, Event::ExtendFailed(_))), "seed {seed}: {events:?}");
    }
}

/// A holder on the nodes 0 and 1 is partitioned from all nodes. Then `change` makes node 1 lose its
/// data, and another client tries.
fn changed_under_a_holder(seed: u64, change: fn(&mut World)) {
    let mut w = World::redis(3).clients(2).seed(seed).config(|c| c.quarantine(secs(3))).build();
    connect_all(&mut w, 2);
    w.stop_replication(1);
    w.partition(0, 2);
    let lock = hold(&mut w, 0, want());
    for node in 0..2 {
        w.partition(0, node);
    }
    change(&mut w);
    w.run_for(ms(100));
    let tried = w.acquire(1, want().wait(Wait::Try));
    w.expect(secs(1), "the attempt is over", |w| w.is_over(1, tried));
    let [.., Event::Failed(Failure::TimedOut(report))] = w.events(1, tried) else { panic!("{:?}", w.events(1, tried)) };
    assert_eq!(report.nodes[1], Answer::RecentlyRestarted, "seed {seed}: {report}\n{}", w.log());
    // The node counts again after the quarantine.
    let second = w.acquire(1, want());
    w.expect(secs(5), "the second has it", |w| w.is_held(1, second));
    assert!(lost(&w, 0, lock).is_some());
}

#[test]
fn promoted_replica_is_quarantined_despite_long_uptime() {
    // Q7
    for seed in 0..20 {
        changed_under_a_holder(seed, |w| w.fail_over(1));
    }
}

#[test]
fn restart_is_timed_by_client_clock() {
    // Q7
    for seed in 0..20 {
        changed_under_a_holder(seed, |w| {
            w.restart_node(1, false);
            w.jump_node_clock_forward(1, secs(60));
        });
    }
}

/// The holder learns it long before the next renewal.
#[test]
fn holder_is_notified_at_once_of_fail_over_without_its_key() {
    // Q7
    for (seed, renew) in (0..20).map(|seed| (seed, [Renew::Auto, Renew::Manual][seed as usize % 2])) {
        let mut w = World::redis(1).seed(seed).build();
        connect_all(&mut w, 1);
        let present = hold(&mut w, 0, Acquire::new("kept").ttl(secs(30)).renew(renew));
        w.stop_replication(0);
        let missing = hold(&mut w, 0, Acquire::new("gone").ttl(secs(30)).renew(renew));
        w.run_for(secs(1));
        let until = w.grant(0, present).unwrap().valid_until;
        w.fail_over(0);
        w.expect(ms(200), "the holder is notified", |w| lost(w, 0, missing) == Some(Loss::Gone));
        w.run_for(ms(100));
        assert!(w.is_held(0, present), "seed {seed}\n{}", w.log());
        assert_eq!((extends(&w, "kept"), extends(&w, "gone")), (1, 1), "seed {seed}\n{}", w.log());
        // It counts as a renewal, except for a manually renewed lock that did not request it.
        let renewed = w.events(0, present).iter().any(|event| matches!(event, Event::Renewed { .. }));
        assert_eq!(renewed, renew == Renew::Auto, "seed {seed}: {:?}", w.events(0, present));
        if renew == Renew::Manual {
            w.run_for((until + ms(1)).since(w.now()));
            assert!(!w.is_held(0, present) && lost(&w, 0, present).is_some(), "seed {seed}\n{}", w.log());
        }
    }
}

#[test]
fn reconnect_to_same_server_sends_no_holder_requests() {
    // Q7
    for nodes in [1, 3] {
        let mut w = World::redis(nodes).build();
        connect_all(&mut w, 1);
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(9)));
        // A single node reports its identity with the first renewal.
        assert_eq!(w.calls(0, "info"), if nodes == 1 { 0 } else { 1 });
        w.run_for(ms(3_100));
        assert_eq!((extends(&w, "a"), w.calls(0, "info")), (nodes, 1), "{}", w.log());
        for node in 0..nodes {
            w.drop_connections(0, node);
        }
        w.run_for(secs(1));
        assert!(w.is_held(0, lock));
        assert_eq!((extends(&w, "a"), w.calls(0, "info")), (nodes, 2), "{}", w.log());
    }
}
