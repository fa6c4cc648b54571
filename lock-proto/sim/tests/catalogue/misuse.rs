//! Cases X: interfaces that invite mistakes.

use lock_proto::{Acquire, Event, LockClient, Misuse, Release, Renew};
use std::collections::BTreeSet;

use lock_sim::World;

use super::*;

// A2
#[test]
fn catalogue_x2_every_grant_has_unique_token() {
    for seed in 0..5 {
        let mut w = World::redis(1).clients(3).seed(seed).build();
        let mut seen = BTreeSet::new();
        for round in 0..15 {
            let client = round % 3;
            let lock = hold(&mut w, client, Acquire::new("a"));
            assert_eq!(w.get(0, "a").unwrap(), token(&w, client, lock));
            assert!(seen.insert(token(&w, client, lock)), "a token came twice");
            let _ = release_and_wait(&mut w, client, lock);
        }
    }
}

// A8
#[test]
fn catalogue_x3_acquisitions_of_one_client_exclude_each_other() {
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let locks: Vec<_> = (0..12).map(|_| w.acquire_for(0, Acquire::new("a"), ms(15))).collect();
        let other = w.acquire_for(1, Acquire::new("a"), ms(15));
        let mut most = 0;
        let all_over = w.run_until(secs(5), |w| {
            most = most.max(locks.iter().filter(|lock| w.is_held(0, **lock)).count());
            w.is_over(1, other) && locks.iter().all(|lock| w.is_over(0, *lock))
        });
        assert!(all_over && most == 1, "{most} held at once: seed {seed}\n{}", w.log());
        assert!(locks.iter().all(|lock| released(&w, 0, *lock) == Some(Release::Released)));
        let fences: Vec<_> = locks.iter().map(|lock| w.grant(0, *lock).unwrap().fence.unwrap()).collect();
        assert!(fences.is_sorted() && fences.iter().collect::<BTreeSet<_>>().len() == fences.len());
    }
}

// H3
#[test]
fn catalogue_x4_ttl_does_not_disable_renewal() {
    let mut w = World::redis(1).build();
    let auto = hold(&mut w, 0, Acquire::new("a").ttl(secs(1)));
    let manual = hold(&mut w, 0, Acquire::new("b").ttl(secs(1)).renew(Renew::Manual));
    w.run_for(secs(10));
    assert!(w.is_held(0, auto) && lost(&w, 0, manual).is_some());
}

// M5, M6
#[test]
fn catalogue_x5_lock_without_grant_cannot_be_released() {
    let mut w = World::redis(1).clients(2).build();
    let first = hold(&mut w, 0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(100));
    let refused = w.try_verb(1, |machine, now| machine.release(now, second));
    assert_eq!(refused, Err(Misuse::NotHeld(second)));
    assert!(w.is_held(0, first));
    let _ = release_and_wait(&mut w, 0, first);
    w.expect(ms(100), "the wait has gone on", |w| w.is_held(1, second));
    let refused = w.try_verb(0, |machine, now| machine.release(now, first));
    assert_eq!(refused, Err(Misuse::Stale(first)), "what has ended has ended");
    assert!(w.is_held(1, second));
}

// A9
#[test]
fn catalogue_x6_fencing_token_belongs_to_grant() {
    let mut w = World::redis(1).clients(2).build();
    let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(1)));
    let fence = w.grant(0, first).unwrap().fence.unwrap();
    w.pause_client(0);
    let second = w.acquire(1, Acquire::new("a"));
    w.expect(secs(2), "the second holds", |w| w.is_held(1, second));
    w.resume_client(0);
    assert!(matches!(w.events(0, first).last(), Some(Event::Lost(_))));
    assert_eq!(w.grant(0, first).unwrap().fence, Some(fence));
    assert!(w.grant(1, second).unwrap().fence > Some(fence));
    let side_keys = w.keys(0).into_iter().filter(|key| key.contains("fence")).count();
    assert_eq!(side_keys, 1, "one counter, however many locks");
}
