//! Edge cases: nothing is repeated, missed or reported wrongly.
// E1, E3, E4, E5, E9, T2, U1

use lock_proto::etcd::{Found, Refusal, Reply};
use lock_proto::{Acquire, Drift, Invalid, Misuse};

use super::*;
use crate::world::{Kind, LATENCY, Outcome};

/// A key is created after the read that follows the opening of a watch, but before its reply
/// arrives. The event and the reply may arrive in any order.
#[test]
fn key_created_during_read_is_not_missed() {
    // E3
    let mut w = pending_cleanup::with_a_watched_cleanup(1, ms(3_000));
    w.run_for(ms(980));
    w.set_outcome(0, Kind::Look, Outcome::Slow(LATENCY, ms(100)));
    w.break_watches(0);
    w.run_for(ms(40));
    assert_eq!(w.queue("a").len(), 1, "it has landed, and the reading is under way");
    w.expect(ms(100), "it goes", |w| w.queue("a").is_empty());
    w.end();
}

/// A waiter's own key is deleted after the read that would prove its turn was executed, and the
/// event arrives before the reply. The watch reports it once only.
#[test]
fn own_key_deleted_during_proving_read_is_not_missed() {
    // E4
    let mut w = World::new(3);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(20));
    let third = w.acquire(2, Acquire::new("a"));
    w.run_for(ms(20));
    let key = w.queue("a")[1].key.clone();
    w.set_outcome(1, Kind::Look, Outcome::Slow(LATENCY, ms(50)));
    w.release(0, first);
    w.run_for(ms(10));
    w.delete_by_hand(&key);
    w.expect(ms(50), "the third one has it", |w| w.is_held(2, third));
    w.run_for(ms(200));
    assert!(!w.is_held(1, second), "{}", w.describe());
    assert_eq!(release_and_wait(&mut w, 2, third), Release::Released);
    w.expect(ms(100), "the second one has queued again", |w| w.is_held(1, second));
    w.end();
}

/// The next waiter waits for a read that cleanup needed anyway. It adopts the key that the read
/// finds, and the key is not deleted.
#[test]
fn key_found_by_cleanup_read_is_adopted_by_next_waiter() {
    // E6
    let mut w = World::new(1);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    let lock = w.acquire(0, Acquire::new("a"));
    w.abandon(0, lock);
    w.set_outcome(0, Kind::Look, Outcome::Slow(LATENCY, ms(20)));
    w.expect(ms(100), "what became of it is read", |w| w.count(0, Kind::Look) == 1);
    let next = w.acquire(0, Acquire::new("a"));
    w.expect(ms(30), "the next one has it", |w| w.is_held(0, next));
    let made = (w.count(0, Kind::Delete), w.count(0, Kind::Look), w.queue("a").len());
    assert_eq!(made, (0, 1, 1), "{}", w.describe());
    w.end();
}

/// The delete was sent during the hold, and its reply arrives after the end of the lease.
#[test]
fn delete_in_flight_answers_release_after_lease_loss() {
    // U1
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
    let until = w.grant(0, lock).valid_until;
    w.run_for(until.since(w.now) - ms(10));
    w.set_outcome(0, Kind::Delete, Outcome::Slow(LATENCY, ms(200)));
    w.release(0, lock);
    w.expect(ms(250), "the answer", |w| released(w, 0, lock).is_some());
    assert_eq!(released(&w, 0, lock), Some(Release::Released), "{}", w.describe());
    w.end();
}

/// At the end of its validity the lock is lost. A delete sent then was not sent by the holder.
#[test]
fn release_at_end_of_validity_is_too_late() {
    // T2, U1
    for (before, reported) in [(ms(100), Release::Released), (ms(0), Release::Unknown)] {
        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a"));
        w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
        w.now = w.grant(0, lock).valid_until.back(before);
        w.set_outcome(0, Kind::Delete, Outcome::Reset);
        w.release(0, lock);
        assert_eq!(lost(&w, 0, lock), before.is_zero().then_some(Loss::Expired));
        w.expect(secs(3), "the answer", |w| released(w, 0, lock).is_some());
        assert_eq!(released(&w, 0, lock), Some(reported), "{}", w.describe());
        w.end();
    }
}

/// A reopened watch on the own key causes one read, and the next one only after its reply.
#[test]
fn own_key_reads_do_not_overlap() {
    // E9
    let mut w = World::with(1, |config| config.watch_own_after(Duration::ZERO));
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(ms(10));
    let looks = w.count(0, Kind::Look);
    w.set_outcome(0, Kind::Look, Outcome::Slow(LATENCY, ms(200)));
    for n in 0..10 {
        w.put_by_hand(&format!("something else {n}"), 0);
        w.break_watches(0);
        w.run_for(ms(10));
        assert_eq!(w.count(0, Kind::Look), looks + 1, "{n}");
    }
    w.run_for(ms(200));
    assert_eq!(w.count(0, Kind::Look), looks + 2, "what was opened since is ahead of the first one");
    w.forget(|key| key.starts_with(b"something"));
    let _ = release_and_wait(&mut w, 0, lock);
    w.end();
}

/// The reply to the grant was lost, and the lease expired before its use, without any key.
#[test]
fn lease_expired_before_use_is_granted_again() {
    // E1
    for gone in [Reply::Refused(Refusal::LeaseNotFound), Reply::Done(Found::Lease { ttl: 0 })] {
        let mut w = World::new(1);
        w.set_outcome(0, Kind::Grant, Outcome::Reset);
        w.set_outcome(0, Kind::KeepAlive, Outcome::Answer(gone));
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(ms(50), "the keep-alive is answered", |w| w.count(0, Kind::KeepAlive) == 1);
        let lease = w.lease(0);
        w.revoke_by_hand(lease);
        w.expect(ms(200), "it is held", |w| w.is_held(0, lock));
        assert_eq!((w.lease(0), w.count(0, Kind::Grant)), (lease, 3), "{}", w.describe());
        w.end();
    }
}

#[test]
fn proclamation_causes_no_requests_by_candidates() {
    // E4
    let mut w = World::new(2);
    let leader = w.campaign(0, "board", "a");
    w.run_for(ms(10));
    w.campaign(1, "board", "b");
    w.run_for(ms(200));
    let requests = w.requests(1);
    for value in ["c", "d", "e"] {
        w.verb(0, |hub, now| hub.proclaim(now, leader, value.into())).unwrap();
        w.run_for(ms(10));
    }
    assert_eq!((w.count(0, Kind::Put), w.requests(1)), (3, requests), "{}", w.describe());
    w.end();
}

/// A cached watch that is not open at the end of a wait may have missed events.
#[test]
fn watch_not_open_at_end_of_wait_is_not_retained() {
    // E5
    let mut w = cached_watches::after_release();
    let lock = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    let line: Vec<_> = w.queue("a").into_iter().map(|kv| kv.key).collect();
    assert_eq!(line.len(), 2);
    w.block_watches(1);
    cached_watches::release_held(&mut w, 0);
    w.expect(secs(3), "it gets the lock, as was read", |w| w.is_held(1, lock));
    assert!(!w.watched(1).contains(&line[0]), "{:?}", w.watched(1));
    w.end();
}

/// A write while the reply to the create is in flight. If it was to the own key, the key must be
/// adopted; if to the predecessor's, it is ignored.
#[test]
fn write_during_create_triggers_read_only_for_own_key() {
    // E5
    for (place, puts) in [(0, 0), (1, 1)] {
        let mut w = cached_watches::after_release();
        w.set_outcome(1, Kind::Create, Outcome::Slow(ms(1), ms(20)));
        let lock = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(10));
        let (looks, made) = (w.count(1, Kind::Look), w.count(1, Kind::Put));
        let kv = w.queue("a")[place].clone();
        w.put_by_hand(core::str::from_utf8(&kv.key).unwrap(), kv.lease);
        w.run_for(ms(40));
        assert_eq!((w.count(1, Kind::Look) - looks, w.count(1, Kind::Put) - made), (puts, puts), "{place}");
        assert!(!was_granted(&w, 1, lock), "{}", w.describe());
        w.end();
    }
}

#[test]
fn ttl_that_drift_uses_up_is_refused() {
    let mut w = World::with(1, |config| config.drift(Drift { divisor: 100, margin: ms(800) }));
    let short = w.verb(0, |hub, now| hub.acquire(now, &Acquire::new("a").ttl(secs(1))));
    assert!(matches!(short, Err(Misuse::Invalid(Invalid::Drift { validity, .. })) if validity == ms(190)), "{short:?}");
    w.hold(0, Acquire::new("a").ttl(secs(5)));
    w.end();
}

/// etcd never grants less than was requested. Another server may.
#[test]
fn lease_that_drift_uses_up_is_refused() {
    let mut w = World::with(1, |config| config.drift(Drift { divisor: 100, margin: ms(1_500) }));
    w.set_outcome(0, Kind::Grant, Outcome::Answer(Reply::Done(Found::Lease { ttl: 2 })));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(1));
    assert!(matches!(failure(&w, 0, lock), Some(Failure::Refused(_))), "{}", w.describe());
    assert_eq!(w.count(0, Kind::Grant), 1);
    w.hold(0, Acquire::new("a"));
    w.end();
}
