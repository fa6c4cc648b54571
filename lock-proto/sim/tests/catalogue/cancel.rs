//! Cases C: cancellation while requests are in flight.

use lock_proto::{Acquire, LockClient, MAX_TTL, Misuse, Release, Wait};
use lock_sim::redis::Condition;
use lock_sim::{Direction, World};

use super::*;

// A4, H5
#[test]
fn catalogue_c1_grant_of_abandoned_acquisition_is_released() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        warm(&mut w, 0);
        w.slow(0, 0, Direction::ToNode, ms(20)..ms(25));
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        w.run_for(ms(10));
        w.abandon(0, lock);
        w.expect(ms(20), "the server grants it to nobody", |w| w.get(0, "a").is_some());
        w.expect(ms(30), "it is released", |w| w.get(0, "a").is_none());
        let next = hold(&mut w, 1, Acquire::new("a"));
        w.run_for(secs(10));
        assert!(w.is_held(1, next));
        assert_eq!(requests(&w, 0, "extend", "a"), 0, "{}", w.log());
        assert!(w.grant(0, lock).is_none());
    }
}

// U1
#[test]
fn catalogue_c3_release_outlives_its_caller() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a"));
        w.partition(0, 0);
        w.release(0, lock);
        w.run_for(us(seed * 50));
        w.abandon(0, lock);
        // The delete is lost for good. Then wait beyond the release and connection timeouts.
        w.drop_connections(0, 0);
        w.run_for(secs(3));
        assert!(w.get(0, "a").is_some());
        w.heal_all();
        w.expect(ms(1_500), "it is released before its TTL", |w| w.get(0, "a").is_none());
        assert_never_back(&mut w, 1, secs(30));
        assert_eq!(released(&w, 0, lock), None, "nobody listens any more");
    }
}

// A4
#[test]
fn catalogue_c4_take_executed_after_round_is_deleted() {
    for (seed, leaves) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(3).clients(2).seed(seed).build();
        warm(&mut w, 0);
        for node in 0..2 {
            w.on_node(node, "SET a somebody", |node, now| node.insert(now, "a", "somebody", Some(secs(60))));
        }
        // The process of the third node is paused. Its kernel accepts data.
        w.pause_node(2);
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.run_for(us(200));
        if leaves {
            w.abandon(0, lock);
        }
        w.expect(ms(5), "the round has failed at once", |w| w.is_over(0, lock));
        // Meanwhile the client gives up every connection to it.
        w.run_for(secs(1 + seed));
        w.resume_node(2);
        // The first two nodes were also asked what they have found (A10).
        let sent = if leaves { 3 } else { 5 };
        assert_eq!(requests(&w, 0, "take", "a"), sent, "it has landed: seed {seed}\n{}", w.log());
        w.expect(ms(1_500), "what has landed is deleted", |w| w.get(2, "a").is_none());
        let back = w.run_until(secs(30), |w| w.get(2, "a").is_some());
        assert!(!back, "seed {seed}\n{}", w.log());
    }
}

// A4
#[test]
fn catalogue_c4_take_executed_after_its_delete_is_found() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        warm(&mut w, 0);
        w.slow(0, 0, Direction::ToNode, secs(3)..ms(3_001));
        let start = w.now();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(4)).wait(Wait::Try));
        w.run_for(ms(1));
        w.slow(0, 0, Direction::ToNode, us(100)..us(200));
        w.expect(secs(1), "it has failed", |w| w.is_over(0, lock));
        w.run_for((start + secs(2)).since(w.now()));
        assert_eq!((requests(&w, 0, "take", "a"), requests(&w, 0, "release", "a")), (0, 1), "{}", w.log());
        w.expect(ms(1_010), "it lands", |w| w.get(0, "a").is_some());
        w.expect((start + secs(5)).since(w.now()), "it is found, long before it ends", |w| w.get(0, "a").is_none());
        assert_never_back(&mut w, 1, secs(30));
    }
}

// A4, M8
#[test]
fn catalogue_c5_acquisition_dropped_at_any_moment_leaves_nothing() {
    let mut granted = 0;
    for (step, cold) in (0..80).flat_map(|step| [(step, true), (step, false)]) {
        let mut w = World::redis(1).seed(step).build();
        if !cold {
            warm(&mut w, 0);
        }
        // A polled future would claim the offer. This one is not polled.
        w.auto_claim(false);
        let lock = w.acquire(0, Acquire::new("a"));
        w.run_for(us(50 * step));
        granted += u32::from(w.grant(0, lock).is_some());
        if step % 3 == 0 {
            w.drop_connections(0, 0);
        }
        w.abandon(0, lock);
        // The connection is lost, so the delete waits for the next one.
        w.run_for(ms(50));
        assert!(w.get(0, "a").is_none(), "step {step}, cold {cold}\n{}", w.log());
        assert_never_back(&mut w, 1, secs(25));
        assert_eq!(requests(&w, 0, "extend", "a"), 0, "step {step}, cold {cold}\n{}", w.log());
        assert_clean(&w);
    }
    assert!((20..150).contains(&granted), "some leave before the grant, some after it: {granted} of 160");
}

// U1
#[test]
fn catalogue_c6_lost_release_is_repeated() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a"));
        w.run_for(ms(5));
        w.release(0, lock);
        // The delete is lost in flight.
        w.drop_connections(0, 0);
        assert!(w.get(0, "a").is_some());
        assert_eq!(
            w.try_verb(0, |machine, now| machine.release(now, lock)),
            Err(Misuse::NotHeld(lock)),
            "it is under way already"
        );
        w.expect(ms(100), "it is answered", |w| w.is_over(0, lock));
        assert_eq!(released(&w, 0, lock), Some(Release::Released), "seed {seed}\n{}", w.log());
        assert!(w.get(0, "a").is_none());
    }
}

// A4
#[test]
fn catalogue_c10_cleanup_follows_every_fault() {
    type InjectFault = fn(&mut World);
    const FAULTS: [(&str, InjectFault); 8] = [
        ("reset", |w| w.drop_connections(0, 0)),
        ("killed", |w| {
            w.kill_node(0);
            w.run_for(ms(300));
            w.restart_node(0, true);
        }),
        ("cut", |w| {
            w.partition(0, 0);
            w.run_for(secs(1));
            w.heal_all();
        }),
        ("stopped", |w| {
            w.pause_node(0);
            w.run_for(secs(1));
            w.resume_node(0);
        }),
        ("out of memory", |w| condition(w, Condition::OutOfMemory)),
        ("read-only", |w| condition(w, Condition::ReadOnly)),
        ("disk error", |w| condition(w, Condition::DiskError)),
        ("loading", |w| condition(w, Condition::Loading)),
    ];
    fn condition(w: &mut World, condition: Condition) {
        w.set_condition(0, condition, true);
        w.run_for(secs(1));
        w.set_condition(0, condition, false);
    }
    for (what, inject_fault) in FAULTS {
        for step in 0..12 {
            let mut w = World::redis(1).clients(2).seed(step).build();
            warm(&mut w, 0);
            let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
            w.run_for(us(100 * step));
            inject_fault(&mut w);
            w.run_for(secs(1));
            if w.is_over(0, lock) {
                assert!(failure(&w, 0, lock).is_some());
            } else {
                assert!(w.is_held(0, lock), "{what}, step {step}: neither held nor over\n{}", w.log());
                let _ = release_and_wait(&mut w, 0, lock);
            }
            w.expect(ms(1_500), "it is free", |w| w.get(0, "a").is_none());
            let next = w.acquire(1, Acquire::new("a").wait(Wait::Try));
            w.expect(ms(20), "the next one has it at once", |w| w.is_held(1, next));
            w.run_for(secs(25));
            assert!(w.is_held(1, next), "{what}, step {step}\n{}", w.log());
        }
    }
}

/// An attempt ended without a reply, so its node is checked a TTL later. Until then nothing needs
/// the connection.
#[test]
fn client_does_not_reconnect_for_far_check() {
    // A4, P7
    let connects = |w: &World| w.log().lines().filter(|line| line.ends_with(" connect")).count();
    let mut w = World::redis(1).build();
    warm(&mut w, 0);
    w.slow(0, 0, Direction::ToClient, ms(50)..ms(51));
    let lock = w.acquire(0, Acquire::new("a").ttl(MAX_TTL));
    w.expect(ms(5), "it is executed", |w| w.get(0, "a").is_some());
    w.abandon(0, lock);
    w.drop_connections(0, 0);
    w.slow(0, 0, Direction::ToClient, us(100)..us(200));
    w.expect(secs(1), "it is deleted", |w| w.get(0, "a").is_none());
    w.run_for(secs(1));
    let before = connects(&w);
    assert!(before >= 2, "{}", w.log());
    w.kill_node(0);
    w.run_for(secs(600));
    assert_eq!(connects(&w), before);
}
