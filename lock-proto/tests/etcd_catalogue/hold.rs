//! Cases K, L and X: validity, notification of a loss, and ownership.

use std::collections::BTreeSet;

use lock_proto::etcd::Locks;
use lock_proto::{Acquire, Grant, Instant};

use super::*;
use crate::world::{Kind, LATENCY, Outcome};

/// The validity of a TTL of ten seconds: 1 % and 2 ms are reserved for drift.
// T1
const TEN: Duration = ms(9_898);

// E1, T1
#[test]
fn catalogue_k4_validity_counts_from_send_time() {
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Grant, Outcome::Slow(ms(10), ms(500)));
    let start = w.now;
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(ms(520), "it is held", |w| w.is_held(0, lock));
    assert_eq!(w.grant(0, lock).valid_until, start + TEN);
    w.set_outcome(0, Kind::KeepAlive, Outcome::Slow(ms(10), ms(800)));
    w.expect(secs(5), "it is kept alive", |w| w.events(0, lock).iter().any(|e| matches!(e, Event::Renewed { .. })));
    let (emitted, _) = w.sent(0, Kind::KeepAlive)[0];
    assert_eq!(w.clients[0].hub.valid_until(lock), Some(emitted + TEN));
    assert_eq!(w.now, emitted + ms(810));
    w.end();
}

// T2
#[test]
fn catalogue_l3_every_holder_is_notified_of_session_loss() {
    let mut w = World::new(1);
    let names = ["a", "b", "c"];
    let locks = names.map(|name| w.hold(0, Acquire::new(name)));
    let until = w.clients[0].hub.valid_until(locks[0]).unwrap();
    w.cut(0);
    w.expect(secs(11), "all are notified", |w| locks.iter().all(|lock| lost(w, 0, *lock) == Some(Loss::Expired)));
    assert_eq!(w.now, until);
    assert!(locks.iter().all(|lock| !w.is_held(0, *lock)));
    assert_eq!(w.store.keys().len(), 3, "before the store gives them to anybody else");
    for lock in locks {
        let lost = w.events(0, lock).iter().filter(|event| matches!(event, Event::Lost(_))).count();
        assert_eq!(lost, 1);
        w.release(0, lock);
    }
    w.heal(0);
    w.run_for(secs(5));
    w.end();
}

// T2
#[test]
fn catalogue_l4_hung_watch_does_not_delay_loss() {
    let mut w = World::new(2);
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(4));
    let until = w.clients[0].hub.valid_until(lock).unwrap();
    let waiter = w.acquire(1, Acquire::new("a"));
    w.cut(0);
    w.expect(secs(11), "it is notified", |w| lost(w, 0, lock).is_some());
    assert_eq!(w.now, until);
    let at_risk: Vec<Instant> =
        w.timed(0, lock).iter().filter(|(_, e)| matches!(e, Event::AtRisk { .. })).map(|(at, _)| *at).collect();
    assert_eq!(at_risk, [until.back(ms(2_500))]);
    assert!(!w.is_held(1, waiter));
    w.expect(secs(1), "the next one has it", |w| w.is_held(1, waiter));
    w.release(0, lock);
    w.heal(0);
    w.run_for(secs(3));
    w.end();
}

#[test]
fn catalogue_x1_ownership_is_not_bound_to_thread() {
    fn moves<T: Send + Sync + 'static>() {}
    moves::<Locks>();
    moves::<LockId>();
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    let (now, mut hub) = (w.now, w.clients[0].hub.clone());
    let released = std::thread::spawn(move || hub.release(now, lock).is_ok());
    assert!(released.join().unwrap());
    w.end();
}

#[test]
fn catalogue_x2_every_grant_has_unique_token_and_fence() {
    let mut w = World::new(2);
    let mut grants: Vec<Grant> = Vec::new();
    let mut waiting: Vec<(usize, LockId)> = (0..60).map(|n| (n % 2, w.acquire(n % 2, Acquire::new("a")))).collect();
    while !waiting.is_empty() {
        w.expect(secs(1), "somebody has it", |w| waiting.iter().any(|(client, lock)| w.is_held(*client, *lock)));
        let place = waiting.iter().position(|(client, lock)| w.is_held(*client, *lock)).unwrap();
        let (client, lock) = waiting.remove(place);
        grants.push(w.grant(client, lock));
        w.run_for(ms(7));
        w.release(client, lock);
    }
    let tokens: BTreeSet<String> = grants.iter().map(|grant| grant.token.to_string()).collect();
    let fences: BTreeSet<u64> = grants.iter().map(|grant| grant.fence.unwrap().get()).collect();
    assert_eq!((tokens.len(), fences.len()), (60, 60));
    w.end();
}

// E7
#[test]
fn catalogue_x3_acquisitions_of_one_client_exclude_each_other() {
    let mut w = World::new(1);
    let requests =
        [Acquire::new("a"), Acquire::new("a").ttl(secs(3)), Acquire::new("a"), Acquire::new("a").ttl(secs(5))];
    let mut waiting: Vec<LockId> = requests.into_iter().map(|want| w.acquire(0, want)).collect();
    while !waiting.is_empty() {
        w.expect(secs(1), "one has it", |w| waiting.iter().any(|lock| w.is_held(0, *lock)));
        let held: Vec<LockId> = waiting.iter().copied().filter(|lock| w.is_held(0, *lock)).collect();
        assert_eq!(held, [waiting[0]], "one at a time, in order");
        waiting.remove(0);
        w.run_for(ms(30));
        w.release(0, held[0]);
    }
    w.end();
}

// H3
#[test]
fn catalogue_x4_ttl_does_not_disable_renewal() {
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a").ttl(secs(3)));
    w.run_for(secs(30));
    assert!(w.is_held(0, lock));
    assert_eq!(w.grant(0, lock).ttl, secs(3));
    w.end();
}

/// The tests above rely on a latency of half a millisecond in each direction.
const _: () = assert!(LATENCY.as_micros() == 500);
