//! Cases E: elections.

use lock_proto::etcd::{Leader, MAX_VALUE, Reply};
use lock_proto::{Acquire, Cause, Fault, Operation, OperationEvent, Wait};

use super::*;
use crate::world::{Kind, Outcome};

pub(crate) fn leader(event: &OperationEvent) -> Option<&Leader> {
    if let OperationEvent::Leader(leader) = event { Some(leader) } else { None }
}

// E4, E10
#[test]
fn catalogue_e1_candidate_with_expired_lease_is_not_elected() {
    let mut w = World::new(3);
    let first = w.campaign(0, "a", "one");
    w.expect(ms(10), "the first leads", |w| w.is_held(0, first));
    let second = w.campaign(1, "a", "two");
    w.run_for(ms(10));
    let query = w.verb(2, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.cut(1);
    w.run_for(secs(11));
    w.release(0, first);
    w.run_for(secs(1));
    assert!(!was_granted(&w, 1, second));
    assert_eq!(w.election_events(2, query).last(), Some(&OperationEvent::NoLeader));
    w.heal(1);
    w.expect(secs(3), "the second leads", |w| w.is_held(1, second));
    w.run_for(ms(5));
    let seen = w.election_events(2, query).last().and_then(leader).unwrap();
    assert_eq!((&seen.key, &seen.value[..]), (&w.queue("a")[0].key, &b"two"[..]));
    w.end();
}

// E3
#[test]
fn catalogue_e2_ended_candidacy_never_leads() {
    for lose in [None, Some(Outcome::Reset), Some(Outcome::Lost), Some(Outcome::Unanswered)] {
        let mut w = World::new(2);
        let first = w.campaign(0, "a", "one");
        w.run_for(ms(10));
        let want = Acquire::new("a").wait(Wait::For(secs(1)));
        let second = w.verb(1, |hub, now| hub.campaign(now, &want, "two".into())).unwrap();
        w.run_for(ms(10));
        w.break_watches(1);
        if let Some(outcome) = lose {
            w.set_outcome(1, Kind::Delete, outcome);
        }
        w.run_for(secs(4));
        assert!(matches!(failure(&w, 1, second), Some(Failure::TimedOut(_))));
        assert_eq!(w.queue("a").len(), 1);
        w.release(0, first);
        w.run_for(secs(1));
        assert!(w.queue("a").is_empty());
        w.end();
    }
}

// E4
#[test]
fn catalogue_e3_recreated_key_is_not_own_key() {
    let mut w = World::new(1);
    let lock = w.campaign(0, "a", "one");
    w.run_for(secs(4));
    assert!(w.is_held(0, lock));
    let key = w.queue("a")[0].key.clone();
    w.break_watches(0);
    w.delete_by_hand(&key);
    w.put_by_hand(core::str::from_utf8(&key).unwrap(), w.lease(0));
    w.expect(ms(10), "it is notified", |w| lost(w, 0, lock).is_some());
    assert_eq!(lost(&w, 0, lock), Some(Loss::Gone));
    w.release(0, lock);
    w.run_for(secs(5));
    w.forget(|_| true);
    w.end();
}

// E10
#[test]
fn catalogue_e4_observers_are_notified_of_no_leader() {
    let mut w = World::new(2);
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.run_for(ms(10));
    assert_eq!(w.election_events(1, query), [OperationEvent::NoLeader]);
    w.campaign(0, "a", "one");
    w.run_for(ms(10));
    assert_eq!(&w.election_events(1, query).last().and_then(leader).unwrap().value[..], b"one");
    w.break_watches(1);
    assert_eq!(w.election_events(1, query).last(), Some(&OperationEvent::Disconnected));
    w.run_for(ms(10));
    assert_eq!(&w.election_events(1, query).last().and_then(leader).unwrap().value[..], b"one");
    w.kill(0);
    w.run_for(secs(11));
    assert_eq!(w.election_events(1, query).last(), Some(&OperationEvent::NoLeader));
    w.end();
}

// E10, H6
#[test]
fn catalogue_e5_key_is_deleted_only_after_guard_release() {
    let mut w = World::new(2);
    let first = w.campaign(0, "a", "one");
    w.run_for(ms(10));
    let second = w.campaign(1, "a", "two");
    w.run_for(ms(10));
    w.cut(0);
    w.expect(secs(10), "the signal", |w| lost(w, 0, first).is_some());
    w.heal(0);
    let before = w.requests(0);
    // The time between the local and the store's end of the lease is the drift allowance.
    w.run_for(ms(50));
    assert_eq!(w.requests(0), before, "{}", w.describe());
    assert!(!was_granted(&w, 1, second) && w.queue("a").len() == 2);
    w.release(0, first);
    w.expect(ms(10), "the successor", |w| w.is_held(1, second));
    assert_eq!(released(&w, 0, first), Some(Release::Released));
    w.end();
}

#[test]
fn catalogue_e6_each_election_ends_once() {
    let mut w = World::new(3);
    let mut all = Vec::new();
    for round in 0..12 {
        for client in 0..3 {
            all.push((client, w.campaign(client, "a", "me")));
        }
        w.run_for(ms(20));
        match round % 4 {
            0 => {
                let lease = w.store.keys().values().min_by_key(|kv| kv.create_revision).unwrap().lease;
                w.revoke_by_hand(lease);
            }
            1 => w.break_watches(round % 3),
            2 => w.run_for(secs(5)),
            _ => w.cut(round % 3),
        }
        w.run_for(secs(11));
        (0..3).for_each(|client| w.heal(client));
        for (client, lock) in &all {
            let _ = w.verb(*client, |hub, now| hub.release(now, *lock));
        }
        w.run_for(secs(1));
    }
    for _ in 0..all.len() {
        for (client, lock) in &all {
            let _ = w.verb(*client, |hub, now| hub.release(now, *lock));
        }
        w.run_for(ms(50));
    }
    for (client, lock) in &all {
        let events = w.events(*client, *lock);
        let count = |f: fn(&Event) -> bool| events.iter().filter(|event| f(event)).count();
        let (elected, ended) = (count(|e| matches!(e, Event::Granted(_))), count(|e| matches!(e, Event::Released(_))));
        let lost = count(|e| matches!(e, Event::Lost(_)));
        assert_eq!((elected, ended), (1, 1), "{events:?}");
        assert!(lost <= elected);
        assert!(matches!(events.last(), Some(Event::Released(_))), "{events:?}");
    }
    w.end();
}

// E10, H2
#[test]
fn catalogue_e7_resigned_leadership_is_not_renewed() {
    let mut w = World::new(2);
    let want = Acquire::new("a").ttl(secs(3));
    let first = w.verb(0, |hub, now| hub.campaign(now, &want, "one".into())).unwrap();
    w.run_for(ms(10));
    let second = w.campaign(1, "a", "two");
    w.set_outcome(0, Kind::KeepAlive, Outcome::Slow(ms(1), ms(400)));
    w.expect(ms(1_200), "a keep-alive is in flight", |w| w.count(0, Kind::KeepAlive) == 1);
    w.release(0, first);
    w.run_for(ms(10));
    assert!(w.is_held(1, second));
    let reported = w.events(0, first);
    w.run_for(secs(20));
    assert_eq!(w.count(0, Kind::KeepAlive), 1);
    assert_eq!(w.events(0, first), reported);
    assert!(!w.store.leases().contains_key(&w.lease(0)));
    w.end();
}

// E2
#[test]
fn catalogue_e8_locks_and_elections_share_one_queue_per_name() {
    for name in ["a", "a/", "/", "a/b", "\u{0}\u{ff}"] {
        let mut w = World::new(2);
        let lock = w.hold(0, Acquire::new(name));
        let candidate = w.verb(1, |hub, now| hub.campaign(now, &Acquire::new(name), "two".into())).unwrap();
        w.run_for(ms(10));
        assert!(was_blocked(&w, 1, candidate, Blocked::Held), "a lock and an election of one name are one queue");
        let requested = w.verb(1, |hub, now| hub.start(now, Operation::Leader(name.into()))).unwrap();
        let observed = w.verb(1, |hub, now| hub.start(now, Operation::Observe(name.into()))).unwrap();
        w.run_for(ms(10));
        let key = w.verb(0, |hub, _| hub.owner(lock)).unwrap().key;
        assert_eq!(w.election_events(1, requested).last().and_then(leader).unwrap().key, key);
        assert_eq!(w.election_events(1, observed).last().and_then(leader).unwrap().key, key);
        w.release(0, lock);
        w.run_for(ms(10));
        assert_eq!(&w.election_events(1, observed).last().and_then(leader).unwrap().value[..], b"two");
        w.end();
    }
}

/// etcd answers a request that is too large without its usual prefix, so that the outcome is open.
#[test]
fn value_that_is_too_long_is_refused() {
    // E10
    let mut w = World::new(1);
    let leader = w.campaign(0, "board", "a");
    w.run_for(ms(10));
    for (len, is_ok) in [(MAX_VALUE, true), (MAX_VALUE + 1, false)] {
        let proclaimed = w.verb(0, |hub, now| hub.proclaim(now, leader, vec![b'x'; len].into()));
        assert_eq!(proclaimed.is_ok(), is_ok);
        let stands = w.verb(0, |hub, now| hub.campaign(now, &Acquire::new("other"), vec![b'x'; len].into()));
        assert_eq!(stands.is_ok(), is_ok);
    }
    w.run_for(ms(10));
    assert_eq!((w.count(0, Kind::Put), w.queue("board")[0].value.len()), (1, MAX_VALUE));
    w.end();
}

/// A proxy answers reads and no writes.
#[test]
fn unanswered_put_is_repeated_with_pauses() {
    // E7, E10
    let mut w = World::new(1);
    let leader = w.campaign(0, "board", "a");
    w.run_for(ms(10));
    w.every(0, Kind::Put, Some(Outcome::Answer(Reply::Unknown(Cause::Fault(Fault::Reset)))));
    let start = w.now;
    w.verb(0, |hub, now| hub.proclaim(now, leader, "b".into())).unwrap();
    w.run_for(secs(30));
    let puts: Vec<_> = w.sent(0, Kind::Put).iter().map(|(at, _)| at.since(start)).collect();
    assert!(puts.len() < 30 && puts[1] < ms(5), "{puts:?}");
    w.every(0, Kind::Put, None);
    w.run_for(secs(4));
    assert!(w.is_held(0, leader));
    w.end();
}
