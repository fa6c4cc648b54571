//! Requirements of holds and local hand-over.
// E7, E8, E9, A8, H2 to H6, U1

use lock_proto::{Acquire, Operation, Renew, Wait};

use super::*;
use crate::world::{Kind, Outcome};

#[test]
fn local_hand_over_needs_no_request() {
    // E7, A8
    let mut w = World::new(1);
    let locks: Vec<LockId> = (0..50).map(|_| w.acquire(0, Acquire::new("a"))).collect();
    w.run_for(ms(5));
    let (requests, key) = (w.requests(0), w.queue("a")[0].clone());
    for (n, lock) in locks.iter().enumerate() {
        assert!(w.is_held(0, *lock), "in order");
        assert_eq!(w.requests(0), requests);
        assert_eq!(w.fence(0, *lock), (key.create_revision as u64) << 16 | n as u64);
        if n + 1 < locks.len() {
            w.release(0, *lock);
            assert_eq!(released(&w, 0, *lock), Some(Release::Released));
        }
    }
    assert_eq!(w.queue("a")[0], key);
    w.end();
}

/// Local hand-over is limited to 100 ms. Then the client goes to the end of the queue.
#[test]
fn local_hand_over_is_limited_by_time() {
    // E7, A8
    let mut w = World::new(2);
    let mut mine = vec![w.hold(0, Acquire::new("a"))];
    let start = w.now;
    let other = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    while !w.is_held(1, other) {
        mine.push(w.acquire(0, Acquire::new("a")));
        w.run_for(ms(10));
        let lock = mine[mine.len() - 2];
        if w.is_held(0, lock) {
            w.release(0, lock);
            w.run_for(ms(3));
        }
        assert!(w.now.since(start) < ms(150), "{}", w.describe());
    }
    assert!(w.now.since(start) >= ms(100) && mine.len() > 7);
    let waiting = *mine.last().unwrap();
    assert!(!was_granted(&w, 0, waiting));
    w.release(1, other);
    w.expect(ms(5), "then the local waiter gets it", |w| w.is_held(0, waiting));
    w.end();
}

/// The fence counts the local hand-overs in 16 bits. Local hand-over ends with the last number.
#[test]
fn zero_hand_over_time_disables_local_hand_over() {
    // E7, A8
    let mut w = World::with(1, |config| config.handover_window(Duration::ZERO));
    let first = w.acquire(0, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    w.expect(ms(10), "it is held", |w| w.is_held(0, first));
    w.release(0, first);
    w.expect(ms(10), "and by the other", |w| w.is_held(0, second));
    assert_eq!((w.count(0, Kind::Create), w.fence(0, second) & 0xffff), (2, 0));
    w.end();
}

#[test]
fn local_hand_over_is_limited_by_fence_counter() {
    // E7, E8
    let mut w = World::with(1, |config| config.handover_window(secs(3_600)).watch_own_after(secs(3_600)));
    let mut lock = w.hold(0, Acquire::new("a"));
    let first = w.fence(0, lock);
    for n in 0..(1 << 16) - 1 {
        let next = w.acquire(0, Acquire::new("a"));
        w.release(0, lock);
        lock = next;
        assert_eq!(w.fence(0, lock), first + n + 1);
    }
    assert_eq!(w.count(0, Kind::Delete), 0);
    let next = w.acquire(0, Acquire::new("a"));
    w.release(0, lock);
    w.expect(ms(10), "another hand-over", |w| w.is_held(0, next));
    assert_eq!(w.count(0, Kind::Delete), 1);
    assert!(w.fence(0, next) > w.fence(0, lock) && w.fence(0, next) & 0xffff == 0);
    w.end();
}

#[test]
fn separate_lease_is_not_handed_over() {
    // E7
    let mut w = World::new(1);
    let requests = [Acquire::new("a").ttl(secs(3)), Acquire::new("a").ttl(secs(3)), Acquire::new("a")];
    let locks = requests.map(|want| w.acquire(0, want));
    for (n, lock) in locks.into_iter().enumerate() {
        w.expect(ms(50), "it gets the lock", |w| w.is_held(0, lock));
        assert_eq!((w.count(0, Kind::Create), w.queue("a").len()), (n + 1, 1));
        assert_eq!(w.fence(0, lock) & 0xffff, 0);
        w.release(0, lock);
    }
    w.end();
}

/// Found by fuzzing `etcd_ops`: waiters with separate leases time out together, and each becomes
/// the head for a moment. The lease requested for one of them was kept alive for good.
#[test]
fn waiters_timing_out_together_leave_no_lease() {
    // E7
    let mut w = World::new(1);
    let holder = w.hold(0, Acquire::new("a"));
    let want = || Acquire::new("a").ttl(secs(3)).wait(Wait::For(secs(1)));
    let waiters = [(); 3].map(|()| w.acquire(0, want()));
    w.set_outcome(0, Kind::Delete, Outcome::Late(ms(300)));
    w.run_for(ms(900));
    w.release(0, holder);
    w.expect(ms(150), "the end of all waits", |w| waiters.iter().all(|lock| failure(w, 0, *lock).is_some()));
    w.run_for(secs(10));
    assert_eq!(w.store.leases().len(), 1, "{}", w.describe());
    w.end();
}

/// Found by fuzzing `election_ops`: an offered leadership is not claimed and is handed over when
/// the offer expires. At the same instant the watch of the next leader's key is due.
#[test]
fn watch_due_at_offer_expiry_is_opened_on_hand_over() {
    // E7
    let mut w = World::with(1, |config| config.watch_own_after(Duration::ZERO));
    w.leave_unclaimed(0);
    let first = w.campaign(0, "e", "one");
    let second = w.campaign(0, "e", "two");
    w.expect(secs(4), "the offer ends", |w| w.events(0, first).contains(&Event::Withdrawn));
    w.expect(ms(5), "the next one is offered it", |w| was_granted(w, 0, second));
    assert_eq!(w.watched(0).len(), 1);
    w.abandon(0, second);
    w.end();
}

/// A hand-over first writes the key, so that the old holder's guarded transactions fail.
#[test]
fn owner_guard_is_invalidated_before_next_grant() {
    // E7
    let mut w = World::new(1);
    let first = w.hold(0, Acquire::new("a"));
    let guard = w.verb(0, |hub, now| hub.owner_guard(now, first)).unwrap();
    assert_eq!(guard.mod_revision, w.queue("a")[0].mod_revision);
    let second = w.acquire(0, Acquire::new("a"));
    let third = w.acquire(0, Acquire::new("a"));
    w.release(0, first);
    assert!(!was_granted(&w, 0, second), "not before the key has changed");
    w.expect(ms(2), "the second", |w| w.is_held(0, second));
    let key = w.queue("a")[0].clone();
    assert!(key.mod_revision > guard.mod_revision && key.create_revision == guard.create_revision);
    assert_eq!(key.lease, w.lease(0));
    assert_eq!(w.fence(0, second), (key.mod_revision as u64) << 16);
    w.release(0, second);
    assert!(w.is_held(0, third));
    assert_eq!(w.count(0, Kind::Put), 1);
    w.end();
}

/// The put gets no reply. The client reads the key and repeats the put, so that ownership follows
/// from a put's own reply and two grants never have the same fence.
#[test]
fn unanswered_put_is_read_and_repeated() {
    // E7
    for (outcome, executed) in
        [(Outcome::Reset, true), (Outcome::Unanswered, true), (Outcome::Lost, false), (Outcome::Late(ms(1_300)), false)]
    {
        let mut w = World::new(1);
        let first = w.hold(0, Acquire::new("a"));
        let guard = w.verb(0, |hub, now| hub.owner_guard(now, first)).unwrap();
        w.set_outcome(0, Kind::Put, outcome.clone());
        let second = w.acquire(0, Acquire::new("a"));
        w.release(0, first);
        w.expect(ms(1_050), "the second", |w| w.is_held(0, second));
        let key = w.queue("a")[0].clone();
        assert_eq!((w.count(0, Kind::Put), w.count(0, Kind::Look)), (2, 1), "{outcome:?}");
        assert_eq!(w.fence(0, second), (key.mod_revision as u64) << 16);
        assert_eq!(key.mod_revision - guard.mod_revision, 1 + i64::from(executed), "{}", w.describe());
        w.run_for(secs(5));
        assert!(w.is_held(0, second), "a late put changes nothing");
        assert_eq!(w.queue("a")[0], key);
        w.end();
    }
}

/// The own key is read for its watch during a put. The reply to the read does not confirm the put.
#[test]
fn read_in_flight_does_not_confirm_put() {
    // E7
    for election in [false, true] {
        let mut w = World::with(1, |config| config.handover_window(secs(60)));
        let first = if election { w.campaign(0, "a", "one") } else { w.hold(0, Acquire::new("a")) };
        w.run_for(secs(1));
        w.put_by_hand("something else", 0);
        w.set_outcome(0, Kind::Look, Outcome::Slow(ms(1), ms(100)));
        w.expect(secs(3), "the reading", |w| w.count(0, Kind::Look) == 1);
        w.every(0, Kind::Put, Some(Outcome::Lost));
        let second = w.acquire(0, Acquire::new("a"));
        if election {
            w.verb(0, |hub, now| hub.proclaim(now, first, "two".into())).unwrap();
        } else {
            w.verb(0, |hub, now| hub.owner_guard(now, first)).unwrap();
            w.release(0, first);
        }
        w.run_for(ms(700));
        assert_eq!(w.count(0, Kind::Put), 1);
        assert!(!was_granted(&w, 0, second), "{}", w.describe());
        assert!(!w.events(0, first).iter().any(|event| matches!(event, Event::Proclaimed { .. })), "{}", w.describe());
        w.every(0, Kind::Put, None);
        w.run_for(secs(2));
        assert!(election || w.is_held(0, second));
        w.forget(|key| key.starts_with(b"something"));
        w.end();
    }
}

#[test]
fn key_loss_ends_local_hand_over() {
    // E7
    let mut w = World::new(1);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(4));
    let key = w.queue("a")[0].clone();
    w.delete_by_hand(&key.key);
    w.expect(ms(10), "the second, with a key of its own", |w| w.is_held(0, second));
    assert_eq!(lost(&w, 0, first), Some(Loss::Gone));
    assert!(w.queue("a")[0].create_revision > key.create_revision);
    assert!(w.fence(0, second) > w.fence(0, first));
    assert_eq!(release_and_wait(&mut w, 0, first), Release::Expired);
    assert!(w.is_held(0, second));
    w.end();
}

/// The fence is not the create revision: a key may be older than its predecessor's grants.
#[test]
fn fence_grows_across_clients_and_local_hand_overs() {
    // E8
    let mut w = World::new(3);
    let mut last = 0;
    let mut held = (0, w.hold(0, Acquire::new("a")));
    for round in 1..12 {
        let client = round % 3;
        let next = w.acquire(client, Acquire::new("a"));
        w.run_for(ms(5));
        for _ in 0..3 {
            let again = w.acquire(held.0, Acquire::new("a"));
            w.verb(held.0, |hub, now| hub.owner_guard(now, held.1)).unwrap();
            w.release(held.0, held.1);
            w.expect(ms(10), "passed on", |w| w.is_held(held.0, again));
            held.1 = again;
            assert!(w.fence(held.0, again) > last);
            last = w.fence(held.0, again);
        }
        w.release(held.0, held.1);
        w.expect(ms(10), "the next one", |w| w.is_held(client, next));
        let fence = w.fence(client, next);
        let owner = w.verb(client, |hub, _| hub.owner(next)).unwrap();
        assert!(fence > last);
        assert_eq!(fence, (owner.revision as u64) << 16);
        assert!(owner.revision > owner.create_revision, "the revision of the reading that proved it");
        last = fence;
        held = (client, next);
    }
    w.end();
}

#[test]
fn own_key_is_watched_after_configured_hold_time() {
    // E9
    for (setting, from) in [(None, ms(10_000) / 3), (Some(ms(200)), ms(200)), (Some(Duration::ZERO), Duration::ZERO)] {
        let mut w = World::with(1, |config| match setting {
            Some(after) => config.watch_own_after(after),
            None => config,
        });
        warm(&mut w, 0);
        w.clients[0].watches_opened.clear();
        let start = w.now + ms(1);
        let lock = w.hold(0, Acquire::new("a"));
        w.expect(secs(5), "the watch", |w| !w.clients[0].watches_opened.is_empty());
        assert_eq!(w.now.since(start), from);
        assert_eq!(w.clients[0].watches_opened, [w.queue("a")[0].key.clone()]);
        w.run_for(ms(10));
        let key = w.queue("a")[0].key.clone();
        w.delete_by_hand(&key);
        w.expect(ms(1), "the loss", |w| lost(w, 0, lock).is_some());
        w.release(0, lock);
        w.end();
    }
}

#[test]
fn loss_before_watch_opens_is_not_missed() {
    // E9
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(1));
    let key = w.queue("a")[0].key.clone();
    w.delete_by_hand(&key);
    w.expect(ms(2_400), "the loss", |w| lost(w, 0, lock).is_some());
    assert_eq!(w.count(0, Kind::Look), 1);
    w.release(0, lock);
    w.end();
}

#[test]
fn many_locks_share_one_keep_alive() {
    // E9
    const LOCKS: usize = 10_000;
    let mut w = World::with(1, |config| config.watch_own_after(secs(3_600)));
    let locks: Vec<LockId> = (0..LOCKS).map(|n| w.acquire(0, Acquire::new(format!("lock-{n}")))).collect();
    w.run_for(ms(10));
    assert_eq!(w.clients[0].hub.held() as usize, LOCKS);
    let before = w.requests(0);
    w.run_for(secs(30));
    assert!(locks.iter().all(|lock| w.is_held(0, *lock)));
    let signs = w.count(0, Kind::KeepAlive);
    assert!((9..=10).contains(&signs), "{signs} in thirty seconds");
    assert_eq!(w.requests(0) - before, signs, "and nothing else");
}

#[test]
fn manual_hold_lasts_one_ttl_from_grant_or_last_extend() {
    // H3
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a").ttl(secs(3)).renew(Renew::Manual));
    w.run_for(secs(20));
    w.release(0, first);
    w.expect(ms(10), "it is held", |w| w.is_held(1, second));
    let until = w.grant(1, second).valid_until;
    assert!(until.since(w.now) > ms(2_960), "a full life from the grant on, however long it has waited");
    w.run_for(secs(2));
    w.verb(1, |hub, now| hub.extend(now, second)).unwrap();
    let extended = w.now + ms(3_000 - 30 - 2);
    w.run_for(ms(5));
    assert_eq!(w.clients[1].hub.valid_until(second), Some(extended));
    assert!(w.events(1, second).contains(&Event::Renewed { valid_until: extended }));
    w.expect(secs(4), "the end", |w| lost(w, 1, second).is_some());
    assert_eq!((w.now, lost(&w, 1, second)), (extended, Some(Loss::Expired)));
    w.release(1, second);
    w.end();
}

/// Each extend is confirmed by a keep-alive sent at or after the call. One in flight does not
/// count, whatever its result.
#[test]
fn keep_alive_in_flight_does_not_answer_later_extend() {
    // H3
    let answers = |w: &World, lock| {
        let of = |event: &Event| match event {
            Event::Extended => Some(true),
            Event::ExtendFailed(_) => Some(false),
            _ => None,
        };
        w.events(0, lock).iter().filter_map(of).collect::<Vec<bool>>()
    };
    // The results of the first and the second, and how long each takes.
    for first in [true, false] {
        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a").ttl(secs(30)).renew(Renew::Manual));
        w.run_for(ms(5));
        let outcome = |done: bool| if done { Outcome::Slow(ms(50), ms(50)) } else { Outcome::Lost };
        w.set_outcome(0, Kind::KeepAlive, outcome(first));
        w.verb(0, |hub, now| hub.extend(now, lock)).unwrap();
        w.run_for(ms(10));
        w.set_outcome(0, Kind::KeepAlive, outcome(!first));
        for _ in 0..2 {
            w.verb(0, |hub, now| hub.extend(now, lock)).unwrap();
        }
        w.expect(secs(10), "the first answer", |w| !answers(w, lock).is_empty());
        assert_eq!(answers(&w, lock), [first]);
        w.expect(secs(10), "the others", |w| answers(w, lock).len() == 3);
        assert_eq!(answers(&w, lock), [first, !first, !first], "{}", w.describe());
        w.release(0, lock);
        w.end();
    }
}

#[test]
fn failed_extension_is_reported_and_validity_is_unchanged() {
    // H3
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a").renew(Renew::Manual));
    w.run_for(ms(5));
    let until = w.clients[0].hub.valid_until(lock);
    w.set_outcome(0, Kind::KeepAlive, Outcome::Lost);
    w.verb(0, |hub, now| hub.extend(now, lock)).unwrap();
    w.run_for(ms(1_001));
    assert!(w.events(0, lock).iter().any(|event| matches!(event, Event::ExtendFailed(_))), "{}", w.describe());
    assert_eq!(w.clients[0].hub.valid_until(lock), until);
    w.end();
}

#[test]
fn hold_ends_at_maximum_hold_time() {
    // H3
    let mut w = World::new(2);
    let lock = w.hold(0, Acquire::new("a").renew(Renew::AtMost(secs(25))));
    let granted = w.timed(0, lock).last().unwrap().0;
    let waiter = w.acquire(1, Acquire::new("a"));
    w.expect(secs(26), "the end", |w| lost(w, 0, lock).is_some());
    assert_eq!((w.now, lost(&w, 0, lock)), (granted + secs(25), Some(Loss::MaxHold)));
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    w.expect(ms(10), "the next one", |w| w.is_held(1, waiter));
    w.end();
}

/// Regression: the key of a bounded hold was deleted while its guard still existed.
#[test]
fn bounded_hold_retains_key_until_guard_is_released() {
    // H6
    let mut w = World::new(2);
    let lock = w.hold(0, Acquire::new("a").renew(Renew::AtMost(secs(5))));
    let local = w.acquire(0, Acquire::new("a"));
    let other = w.acquire(1, Acquire::new("a"));
    w.expect(secs(6), "the loss", |w| lost(w, 0, lock).is_some());
    w.run_for(secs(2));
    assert_eq!(w.queue("a").len(), 3, "the keys of the lost holder and of two waiters\n{}", w.describe());
    assert_eq!((w.count(0, Kind::Delete), w.count(0, Kind::Revoke)), (0, 0));
    assert!(!w.is_held(0, local) && !w.is_held(1, other), "the work may still be under way");
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    assert_eq!(w.count(0, Kind::Delete), 1);
    w.expect(ms(10), "the next in the line", |w| w.is_held(1, other));
    assert_eq!(release_and_wait(&mut w, 1, other), Release::Released);
    w.expect(ms(10), "the last in the line", |w| w.is_held(0, local));
    w.end();
}

/// A guard that is never released blocks others for at most a TTL, although the client runs.
#[test]
fn key_of_unreleased_bounded_hold_expires() {
    // H6
    for most in [ms(1), secs(5), secs(25)] {
        let mut w = World::new(2);
        let lock = w.hold(0, Acquire::new("a").renew(Renew::AtMost(most)));
        let shared = w.hold(0, Acquire::new("shared"));
        let other = w.acquire(1, Acquire::new("a"));
        w.expect(secs(26), "the loss", |w| lost(w, 0, lock).is_some());
        w.expect(ms(10_100), "the next one", |w| w.is_held(1, other));
        assert!(w.is_held(0, shared), "nothing else is lost");
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Taken);
        w.end();
    }
}

/// The guard of a lost hold outlives the shutdown of its client. The lease ends by its TTL.
#[test]
fn shutdown_leaves_key_of_lost_hold_to_its_guard() {
    // H6, U2
    let mut w = World::new(2);
    let lock = w.hold(0, Acquire::new("a").renew(Renew::AtMost(secs(5))));
    let shared = w.hold(0, Acquire::new("shared"));
    let other = w.acquire(1, Acquire::new("a"));
    w.expect(secs(6), "the loss", |w| lost(w, 0, lock).is_some());
    w.shut_down(0, secs(2));
    w.run_for(ms(10));
    assert_eq!(w.clients[0].stopped, Some(1), "the lease is left");
    assert_eq!(released(&w, 0, shared), Some(Release::Released));
    w.run_for(secs(1));
    assert!(!w.is_held(1, other), "the work may still be under way");
    w.expect(ms(10_100), "the next one", |w| w.is_held(1, other));
}

/// The same for a leader: it has time to stop. A proclamation does not extend its key's TTL.
#[test]
fn bounded_leadership_retains_key_until_guard_is_released() {
    // H6
    let mut w = World::new(2);
    let want = Acquire::new("a").renew(Renew::AtMost(secs(5)));
    let leads = w.verb(0, |hub, now| hub.campaign(now, &want, "one".into())).unwrap();
    let query = w.verb(1, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    let next = w.campaign(1, "a", "two");
    w.run_for(ms(4_999));
    w.set_outcome(0, Kind::Put, Outcome::Slow(ms(50), ms(1)));
    w.verb(0, |hub, now| hub.proclaim(now, leads, "last".into())).unwrap();
    w.expect(ms(50), "the loss", |w| lost(w, 0, leads).is_some());
    w.run_for(ms(500));
    assert_eq!(&w.queue("a")[0].value[..], b"last");
    assert!(!w.is_held(1, next));
    let seen = w.election_events(1, query).last().and_then(election::leader).unwrap();
    assert_eq!(&seen.value[..], b"last", "observers see the leader until it leaves");
    assert_eq!(release_and_wait(&mut w, 0, leads), Release::Released);
    w.expect(ms(10), "the next one", |w| w.is_held(1, next));
    w.end();
}

/// An unclaimed offer goes to the next waiter, local or remote.
#[test]
fn unclaimed_grant_is_withdrawn() {
    // H5
    let mut w = World::new(2);
    w.leave_unclaimed(0);
    let parked = w.acquire(0, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    let other = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let granted = w.timed(0, parked).last().unwrap().0;
    w.expect(secs(4), "withdrawn", |w| w.events(0, parked).contains(&Event::Withdrawn));
    assert_eq!(w.now.since(granted), ms(10_000) / 3);
    assert!(w.verb(0, |hub, now| hub.claim(now, parked)).is_err());
    w.expect(ms(10), "the other client", |w| w.is_held(1, other));
    assert!(!was_granted(&w, 0, second), "the local hand-over ended before");
    w.end();
}

/// After a loss nothing is sent for the key until the guard is released; then one delete.
#[test]
fn no_request_is_sent_after_loss_until_guard_is_released() {
    // H6
    let mut w = World::with(1, |config| config.drift(lock_proto::Drift { divisor: 10, margin: secs(1) }));
    let lock = w.hold(0, Acquire::new("a"));
    w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
    w.expect(secs(9), "the loss", |w| lost(w, 0, lock).is_some());
    let before = w.requests(0);
    w.run_for(ms(1_500));
    assert_eq!((w.requests(0), w.queue("a").len()), (before, 1));
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    assert_eq!(w.count(0, Kind::Delete), 1);
    assert!(w.queue("a").is_empty());
    w.end();
}

/// Found by the simulation: during a local hand-over with an unanswered write, the next holder's
/// wait did not time out.
#[test]
fn wait_times_out_during_pending_hand_over() {
    // E7
    let mut w = World::new(1);
    let first = w.hold(0, Acquire::new("a"));
    w.verb(0, |hub, now| hub.owner_guard(now, first)).unwrap();
    w.every(0, Kind::Put, Some(Outcome::Lost));
    let requested = w.now;
    let next = w.acquire(0, Acquire::new("a").wait(Wait::For(ms(300))));
    let last = w.acquire(0, Acquire::new("a"));
    assert_eq!(release_and_wait(&mut w, 0, first), Release::Released);
    w.expect(secs(2), "the answer", |w| failure(w, 0, next).is_some());
    assert_eq!(w.now.since(requested), ms(300));
    w.every(0, Kind::Put, None);
    w.expect(secs(3), "the last one", |w| w.is_held(0, last));
    assert!(!was_granted(&w, 0, next));
    w.release(0, last);
    w.run_for(ms(10));
    assert!(w.queue("a").is_empty());
    w.end();
}

/// It starts with the grant, however long the wait or the write of the key took.
#[test]
fn maximum_hold_time_starts_with_grant() {
    // H3
    let mut w = World::new(1);
    let first = w.hold(0, Acquire::new("a"));
    w.verb(0, |hub, now| hub.owner_guard(now, first)).unwrap();
    let next = w.acquire(0, Acquire::new("a").renew(Renew::AtMost(ms(100))));
    w.run_for(ms(400));
    w.set_outcome(0, Kind::Create, Outcome::Slow(ms(200), ms(200)));
    let _ = release_and_wait(&mut w, 0, first);
    w.expect(ms(410), "it is granted", |w| w.is_held(0, next));
    let granted = w.now;
    w.expect(ms(110), "it is over", |w| lost(w, 0, next).is_some());
    assert_eq!((lost(&w, 0, next), w.now.since(granted)), (Some(Loss::MaxHold), ms(100)));
    let _ = release_and_wait(&mut w, 0, next);
    w.end();
}

#[test]
fn release_has_four_outcomes() {
    // U1
    // Released by its holder.
    let mut w = World::new(2);
    let lock = w.hold(0, Acquire::new("a"));
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    // It was deleted, and nobody holds it.
    let lock = w.hold(0, Acquire::new("a"));
    let key = w.queue("a")[0].key.clone();
    w.delete_by_hand(&key);
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Expired);
    // It was deleted, and another client holds it.
    let lock = w.hold(0, Acquire::new("a"));
    let key = w.queue("a")[0].key.clone();
    let other = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    w.delete_by_hand(&key);
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Taken);
    w.expect(ms(5), "the other", |w| w.is_held(1, other));
    assert_eq!(release_and_wait(&mut w, 1, other), Release::Released);
    // The result is not known in time. The release goes on in the background.
    let lock = w.hold(0, Acquire::new("a"));
    w.cut(0);
    w.release(0, lock);
    let requested = w.now;
    w.expect(secs(3), "the answer", |w| released(w, 0, lock).is_some());
    assert_eq!((released(&w, 0, lock), w.now.since(requested)), (Some(Release::Unknown), secs(2)));
    assert_eq!(w.queue("a").len(), 1);
    w.heal(0);
    w.expect(secs(4), "the key is deleted", |w| w.queue("a").is_empty());
    w.end();
}
