//! Cases U: releasing a lock.

use lock_proto::{Acquire, Blocked, Event, Loss, Release, Renew};
use lock_sim::redis::Condition;
use lock_sim::{Direction, World};

use super::*;

// U1
#[test]
fn catalogue_u1_late_release_does_not_affect_next_holder() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(3).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(1)));
        w.pause_client(0);
        let second = w.acquire(1, Acquire::new("a"));
        w.expect(secs(2), "the second holds", |w| w.is_held(1, second));
        let third = w.acquire(2, Acquire::new("a"));
        w.run_for(ms(50));
        w.resume_client(0);
        assert_eq!(release_and_wait(&mut w, 0, first), Release::Taken, "seed {seed}\n{}", w.log());
        w.run_for(secs(20));
        assert_eq!(w.get(0, "a").unwrap(), token(&w, 1, second));
        assert!(w.is_held(1, second) && !w.is_held(2, third));
    }
}

// U1
#[test]
fn catalogue_u2_definite_release_outcomes_are_not_repeated() {
    let by_hand = || Acquire::new("a").ttl(secs(2)).renew(Renew::Manual);
    for (seed, nodes) in (0..10).map(|seed| (seed, [1, 3][seed as usize % 2])) {
        for outcome in [Release::Released, Release::Expired, Release::Taken, Release::Unknown] {
            let mut w = World::redis(nodes).clients(2).seed(seed).build();
            let lock = hold(&mut w, 0, by_hand());
            w.run_for(ms(100));
            match outcome {
                Release::Expired => w.run_for(secs(3)),
                Release::Taken => {
                    let next = w.acquire(1, Acquire::new("a"));
                    w.expect(secs(4), "the next one holds", |w| w.is_held(1, next));
                }
                Release::Unknown => (0..nodes).for_each(|node| w.partition(0, node)),
                _ => {}
            }
            let start = w.now();
            assert_eq!(release_and_wait(&mut w, 0, lock), outcome, "seed {seed}\n{}", w.log());
            let took = w.now().since(start);
            if outcome == Release::Unknown {
                assert_eq!(took, secs(2));
                continue;
            }
            assert!(took < ms(5), "{outcome:?} took {took:?}");
            w.run_for(secs(20));
            assert_eq!(requests(&w, 0, "release", "a"), nodes, "{outcome:?} is not repeated\n{}", w.log());
        }
    }
}

// U1
#[test]
fn catalogue_u3_expired_and_taken_are_distinguished() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Expired, "it was not there any more");
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        w.on_node(0, "SET a other", |node, now| node.insert(now, "a", "other", Some(secs(60))));
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Taken, "it was somebody else's");
        assert_eq!(w.get(0, "a"), Some(&b"other"[..]));
    }
}

// U1
#[test]
fn catalogue_u3_lock_lost_to_other_client_is_released_as_taken() {
    let mut w = World::redis(1).build();
    let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
    w.on_node(0, "SET a other", |node, now| node.insert(now, "a", "other", Some(secs(60))));
    w.expect(secs(1), "the loss is reported", |w| lost(w, 0, lock) == Some(Loss::Taken));
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Taken);
}

// U1
#[test]
fn catalogue_u5_delete_with_lost_reply_counts_as_released() {
    for (seed, next_in_between) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a"));
        warm(&mut w, 1);
        w.cut(0, 0, Direction::ToClient);
        w.release(0, lock);
        w.expect(ms(5), "it is executed", |w| w.get(0, "a").is_none());
        let next = next_in_between.then(|| hold(&mut w, 1, Acquire::new("a")));
        w.drop_connections(0, 0);
        w.heal_all();
        w.expect(secs(1), "it is answered", |w| w.is_over(0, lock));
        assert_eq!(released(&w, 0, lock), Some(Release::Released), "seed {seed}\n{}", w.log());
        assert!(requests(&w, 0, "release", "a") >= 2, "it was repeated");
        if let Some(next) = next {
            w.run_for(secs(20));
            assert!(w.is_held(1, next), "the repeated delete takes nothing from the next one\n{}", w.log());
        }
    }
}

// A3
#[test]
fn catalogue_u7_client_never_waits_for_key_it_released() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a"));
        let old = token(&w, 0, lock);
        w.cut(0, 0, Direction::ToNode);
        w.release(0, lock);
        w.run_for(ms(1));
        w.abandon(0, lock);
        w.drop_connections(0, 0);
        w.heal_all();
        assert_eq!(w.get(0, "a").unwrap(), old, "the delete was lost");
        let again = w.acquire(0, Acquire::new("a"));
        w.expect(ms(200), "it is held at once", |w| w.is_held(0, again));
        assert!(!was_blocked(&w, 0, again, Blocked::Held), "seed {seed}\n{}", w.log());
        w.run_for(secs(30));
        assert!(w.is_held(0, again), "the pending delete does not affect it: seed {seed}\n{}", w.log());
    }
}

// A8
#[test]
fn catalogue_u8_loss_lets_local_waiters_proceed() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        let second = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        let third = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        w.run_for(ms(100));
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        w.expect(secs(1), "the second holds", |w| w.is_held(0, second));
        assert_eq!(lost(&w, 0, first), Some(Loss::Gone), "seed {seed}\n{}", w.log());
        let _ = release_and_wait(&mut w, 0, second);
        w.expect(ms(200), "and then the third", |w| w.is_held(0, third));
        assert_ne!(release_and_wait(&mut w, 0, first), Release::Released, "seed {seed}\n{}", w.log());
        w.run_for(secs(10));
        assert!(w.is_held(0, third));
    }
}

// H2, P2
#[test]
fn catalogue_u9_refused_writes_are_not_reported_as_gone_or_taken() {
    const CONDITIONS: [Condition; 4] =
        [Condition::DiskError, Condition::ReadOnly, Condition::Loading, Condition::OutOfMemory];
    for (seed, condition) in (0..20).map(|seed| (seed, CONDITIONS[seed as usize % 4])) {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(ms(500));
        w.set_condition(0, condition, true);
        w.run_for(ms(1_500));
        assert!(w.is_held(0, lock) && lost(&w, 0, lock).is_none(), "{condition:?}, seed {seed}\n{}", w.log());
        w.set_condition(0, condition, false);
        w.run_for(secs(10));
        assert!(w.is_held(0, lock), "{condition:?}, seed {seed}\n{}", w.log());
        // It rejects the release for a while.
        w.set_condition(0, condition, true);
        w.release(0, lock);
        w.run_for(ms(700));
        w.set_condition(0, condition, false);
        w.expect(ms(1_200), "it is released", |w| w.is_over(0, lock));
        assert_eq!(released(&w, 0, lock), Some(Release::Released), "{condition:?}, seed {seed}\n{}", w.log());
        // It rejects the release for good.
        let lock = hold(&mut w, 1, Acquire::new("b").ttl(secs(3)));
        if condition != Condition::OutOfMemory {
            w.set_condition(0, condition, true);
            w.expect(secs(4), "it is lost in the end", |w| lost(w, 1, lock).is_some());
            assert_eq!(lost(&w, 1, lock), Some(Loss::Expired), "{condition:?}, seed {seed}\n{}", w.log());
            let events = w.events(1, lock);
            assert!(!events.iter().any(|event| matches!(event, Event::Lost(Loss::Taken | Loss::Gone))), "{events:?}");
        }
    }
}

/// The work of a lost hold goes on during the shutdown.
// H6, U2
#[test]
fn shutdown_leaves_key_to_guard_of_lost_hold() {
    for (seed, returned) in (0..10).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(30)).renew(Renew::AtMost(secs(10))));
        w.expect(secs(11), "the maximal time is over", |w| lost(w, 0, lock) == Some(Loss::MaxHold));
        let next = w.acquire(1, Acquire::new("a"));
        if returned {
            w.release(0, lock);
        }
        w.shutdown(0, secs(1));
        w.expect(secs(1), "it has stopped", |w| w.stopped(0).is_some());
        assert_eq!(w.stopped(0), Some(u32::from(!returned)), "seed {seed}");
        w.run_for(secs(5));
        assert_eq!(w.is_held(1, next), returned, "seed {seed}\n{}", w.log());
        w.expect(secs(31), "the key has ended", |w| w.is_held(1, next));
    }
}
