//! Cases S: the session, i.e. a lease with keep-alives.

use lock_proto::etcd::{Found, Refusal, Reply, Request};
use lock_proto::{Acquire, ErrorClass, Fault, Instant, Loss, Operation, OperationEvent, Renew, ServerError, Wait};

use super::*;
use crate::world::{Kind, LATENCY, Outcome};

// E4
#[test]
fn catalogue_s1_lock_is_not_granted_on_expired_lease() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let dead = w.lease(1);
    w.cut(1);
    w.run_for(secs(12));
    assert!(!w.store.leases().contains_key(&dead));
    w.release(0, first);
    w.run_for(secs(1));
    assert!(!was_granted(&w, 1, second));
    w.heal(1);
    w.expect(secs(3), "it is granted", |w| w.is_held(1, second));
    assert_ne!(w.lease(1), dead);
    assert_eq!(w.queue("a")[0].lease, w.lease(1), "it holds what is in the store");
    w.end();
}

// E4, T2
#[test]
fn catalogue_s1_read_result_after_pause_does_not_grant() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    w.release(0, first);
    w.expect(ms(10), "the reading is under way", |w| w.count(1, Kind::Look) == 1);
    w.pause(1);
    let old = w.lease(1);
    w.run_for(secs(15));
    assert!(w.queue("a").is_empty(), "its key went with its lease");
    w.resume(1);
    assert!(!was_granted(&w, 1, second), "{}", w.describe());
    w.expect(secs(1), "it is granted", |w| w.is_held(1, second));
    assert_ne!(w.lease(1), old);
    w.end();
}

// E9
#[test]
fn catalogue_s2_revoked_lease_is_noticed_before_next_keep_alive() {
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a").ttl(secs(30)));
    w.run_for(ms(10_100));
    let signs = w.count(0, Kind::KeepAlive);
    w.revoke_by_hand(w.lease(0));
    w.expect(ms(2), "it is notified", |w| lost(w, 0, lock).is_some());
    assert_eq!(lost(&w, 0, lock), Some(Loss::Gone));
    assert_eq!(w.count(0, Kind::KeepAlive), signs);
    w.release(0, lock);
    w.end();
}

#[test]
fn catalogue_s3_takeover_is_timed_by_store() {
    let mut w = World::new(2);
    w.hold(0, Acquire::new("a"));
    let dead = w.lease(0);
    let second = w.acquire(1, Acquire::new("a"));
    w.kill(0);
    for _ in 0..3 {
        w.run_for(secs(8));
        assert!(w.store.renew(w.now, dead).is_some());
    }
    assert!(!was_granted(&w, 1, second));
    assert!(w.count(1, Kind::Look) <= 1, "{}", w.describe());
    w.expect(ms(10_010), "the key is gone, and the lock taken over", |w| w.is_held(1, second));
    w.end();
}

// E1
#[test]
fn unused_session_ends_after_idle_timeout_and_next_lock_opens_another() {
    let mut w = World::with(1, |config| config.idle_timeout(secs(60)));
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(100));
    let first = w.lease(0);
    assert!(w.is_held(0, lock), "a lock uses it");
    w.release(0, lock);
    w.run_for(secs(59));
    assert!(w.store.leases().contains_key(&first), "it is kept for later locks");
    w.run_for(secs(2));
    assert!(w.store.leases().is_empty() && w.clients[0].hub.next_deadline().is_none(), "{}", w.describe());
    let lock = w.hold(0, Acquire::new("a"));
    assert_ne!(w.lease(0), first);
    w.release(0, lock);
    w.end();
}

/// Observers read and watch without a lease.
// E1
#[test]
fn observer_does_not_keep_unused_lease_alive() {
    let mut w = World::with(1, |config| config.idle_timeout(secs(60)));
    let query = w.verb(0, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    let lock = w.hold(0, Acquire::new("b"));
    w.release(0, lock);
    w.run_for(secs(61));
    assert!(w.store.leases().is_empty(), "{}", w.describe());
    let leads = w.campaign(0, "a", "one");
    w.run_for(ms(10));
    assert!(matches!(w.election_events(0, query).last(), Some(OperationEvent::Leader(_))));
    w.release(0, leads);
    w.end();
}

// E1
#[test]
fn lease_that_was_never_granted_is_not_requested_for_ever() {
    let mut w = World::with(1, |config| config.idle_timeout(secs(60)));
    w.cut(0);
    w.acquire(0, Acquire::new("a").wait(Wait::For(secs(1))));
    w.run_for(secs(120));
    let sent = w.requests(0);
    w.run_for(secs(100));
    assert_eq!(w.requests(0), sent, "{}", w.describe());
    w.heal(0);
    w.end();
}

/// The server ends the lease itself, at the latest a TTL after the client took it for expired.
// E1
#[test]
fn revocation_is_not_repeated_for_ever_after_lease_expired() {
    for release_after in [secs(1), secs(5), secs(60)] {
        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a").ttl(secs(3)));
        w.cut(0);
        w.run_for(release_after);
        w.release(0, lock);
        w.run_for(secs(20));
        let sent = w.count(0, Kind::Revoke);
        assert!(sent > 8, "{}", w.describe());
        w.run_for(secs(60));
        assert_eq!(w.count(0, Kind::Revoke), sent, "after {release_after:?}\n{}", w.describe());
        assert_eq!(w.clients[0].hub.next_deadline(), None);
        w.heal(0);
        w.end();
    }
}

/// While the lease may exist, its keys block others.
// E1
#[test]
fn revocation_is_repeated_while_lease_may_exist() {
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a").ttl(secs(300)));
    w.cut(0);
    w.release(0, lock);
    w.run_for(secs(200));
    w.heal(0);
    w.expect(secs(4), "it is revoked", |w| w.store.leases().is_empty());
    w.end();
}

/// Only a request makes the channel connect. The handshakes of `tests/handshakes.rs` with seed 4
/// took longer than its bound.
// E1
#[test]
fn lease_is_requested_as_often_as_channel_connects() {
    for reply in [Reply::NotSent(Fault::Refused.into()), Reply::Unknown(Fault::Reset.into())] {
        let mut w = World::new(1);
        w.set_outcome(0, Kind::Grant, Outcome::Answer(Reply::NotSent(Fault::Refused.into())));
        for kind in [Kind::Grant, Kind::KeepAlive] {
            w.every(0, kind, Some(Outcome::Answer(reply.clone())));
        }
        let lock = w.acquire(0, Acquire::new("a"));
        w.run_for(secs(60));
        let at: Vec<Instant> = w.sent(0, Kind::Grant).into_iter().map(|(at, _)| at).collect();
        let longest = at.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
        assert!(longest <= secs(1) + 2 * LATENCY && at.len() < 70, "{longest:?} {}", at.len());
        w.every(0, Kind::Grant, None);
        w.every(0, Kind::KeepAlive, None);
        w.expect(secs(1) + 10 * LATENCY, "it is granted", |w| w.is_held(0, lock));
        w.release(0, lock);
        w.end();
    }
}

// E1
#[test]
fn catalogue_s4_keep_alive_reply_without_positive_ttl_is_loss() {
    for ttl in [0, -1, i64::MIN] {
        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a"));
        w.set_outcome(0, Kind::KeepAlive, Outcome::Answer(Reply::Done(Found::Lease { ttl })));
        w.expect(ms(3_400), "it is notified", |w| lost(w, 0, lock).is_some());
        assert_eq!(lost(&w, 0, lock), Some(Loss::Gone));
        assert!(!w.is_held(0, lock));
        w.release(0, lock);
        w.run_for(secs(20));
        w.end();
    }
}

// H5
#[test]
fn catalogue_s5_abandoned_or_unclaimed_lock_is_released() {
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.abandon(0, lock);
    w.run_for(ms(5));
    assert!(w.queue("a").is_empty());
    w.leave_unclaimed(0);
    let parked = w.acquire(0, Acquire::new("b"));
    w.run_for(secs(4));
    assert!(was_granted(&w, 0, parked));
    assert!(w.queue("b").is_empty());
    assert!(w.store.leases().contains_key(&w.lease(0)), "the session lives on");
    w.end();
}

// E1
#[test]
fn catalogue_s5_existing_lease_id_is_not_used() {
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Grant, Outcome::Answer(Reply::Refused(Refusal::LeaseExists)));
    let lock = w.hold(0, Acquire::new("a"));
    let ids: Vec<Request> = w.sent(0, Kind::Grant).into_iter().map(|(_, request)| request).collect();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
    let at: Vec<_> = w.sent(0, Kind::Grant).into_iter().map(|(at, _)| at).collect();
    assert_eq!(at[1].since(at[0]), LATENCY, "at once");
    let Request::Grant { lease: foreign, .. } = ids[0] else { panic!() };
    w.run_for(secs(20));
    assert!(w.is_held(0, lock));
    assert!(
        !w.sent(0, Kind::KeepAlive)
            .iter()
            .any(|(_, request)| matches!(request, Request::KeepAlive { lease, .. } if *lease == foreign))
    );
    w.end();
    assert!(!w.sent(0, Kind::Revoke).iter().any(|(_, request)| *request == Request::Revoke { lease: foreign }));
}

// E1
#[test]
fn catalogue_s6_every_key_is_attached_to_own_lease() {
    let mut w = World::new(2);
    let locks =
        [Acquire::new("a"), Acquire::new("b").ttl(secs(3)), Acquire::new("c").ttl(ms(500))].map(|want| w.hold(0, want));
    w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let keys: Vec<_> = w.store.keys().into_values().collect();
    assert_eq!(keys.len(), 4);
    assert!(keys.iter().all(|kv| kv.lease != 0 && w.store.leases().contains_key(&kv.lease)));
    w.run_for(secs(65));
    assert!(locks.iter().all(|lock| w.is_held(0, *lock)), "{}", w.describe());
    w.end();
}

// E6
#[test]
fn catalogue_s7_overwritten_key_is_reattached_to_its_lease() {
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(4));
    let (key, lease) = (w.queue("a")[0].key.clone(), w.lease(0));
    w.put_by_hand(core::str::from_utf8(&key).unwrap(), 0);
    assert_eq!(w.queue("a")[0].lease, 0);
    w.expect(ms(100), "it is on its lease", |w| w.queue("a")[0].lease == lease);
    assert!(w.is_held(0, lock));
    w.kill(0);
    w.run_for(secs(11));
    assert!(w.store.keys().is_empty(), "it ends with its holder");
}

/// The watch does not report the write: it is not open yet, or is being opened again.
// E6
#[test]
fn key_overwritten_before_watch_opens_is_reattached() {
    for (held, gap) in [(secs(1), secs(3)), (secs(4), ms(100))] {
        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a"));
        w.run_for(held);
        w.lose_events(0, true);
        let (key, lease) = (w.queue("a")[0].key.clone(), w.lease(0));
        w.put_by_hand(core::str::from_utf8(&key).unwrap(), 0);
        w.lose_events(0, false);
        w.break_watches(0);
        w.run_for(gap);
        assert_eq!((w.queue("a")[0].lease, w.is_held(0, lock)), (lease, true), "{}", w.describe());
        assert_eq!(w.count(0, Kind::Put), 1, "{}", w.describe());
        w.release(0, lock);
        w.end();
    }
}

/// A leader's key is overwritten by hand 10 ms after the put of a proclaim, which ends like this.
fn overwritten_during_put(outcome: Outcome) -> (World, LockId, i64) {
    let mut w = World::new(1);
    let leads = w.campaign(0, "a", "one");
    w.run_for(secs(4));
    w.set_outcome(0, Kind::Put, outcome);
    w.verb(0, |hub, now| hub.proclaim(now, leads, "two".into())).unwrap();
    w.run_for(ms(10));
    let (key, lease) = (w.queue("a")[0].key.clone(), w.lease(0));
    w.put_by_hand(core::str::from_utf8(&key).unwrap(), 0);
    (w, leads, lease)
}

/// The watch reports the write before the reply to an earlier put arrives.
// E6
#[test]
fn key_overwritten_during_put_is_reattached() {
    let (mut w, leads, lease) = overwritten_during_put(Outcome::Slow(LATENCY, ms(100)));
    w.run_for(ms(300));
    assert_eq!((w.queue("a")[0].lease, &*w.queue("a")[0].value), (lease, &b"two"[..]), "{}", w.describe());
    let (puts, looks) = (w.count(0, Kind::Put), w.count(0, Kind::Look));
    assert!(puts == 2 && looks <= 1, "{}", w.describe());
    w.release(0, leads);
    w.end();
}

/// The reply comes after the proclaim was given up.
// E7
#[test]
fn key_overwritten_during_put_that_is_given_up_is_reattached() {
    let (mut w, leads, lease) = overwritten_during_put(Outcome::Slow(ms(50), secs(10)));
    w.run_for(secs(11));
    assert_eq!((w.queue("a")[0].lease, &*w.queue("a")[0].value), (lease, &b"one"[..]), "{}", w.describe());
    w.release(0, leads);
    w.end();
}

// E1, U2
#[test]
fn catalogue_s7_no_lease_is_left_behind() {
    let mut w = World::new(1);
    let own = w.hold(0, Acquire::new("a").ttl(secs(30)));
    w.hold(0, Acquire::new("b"));
    assert_eq!(w.store.leases().len(), 2);
    let _ = release_and_wait(&mut w, 0, own);
    w.run_for(ms(5));
    assert_eq!(w.store.leases().len(), 1, "a lease of a lock's own ends with the lock");
    w.shut_down(0, secs(1));
    w.run_for(ms(5));
    assert_eq!(w.clients[0].stopped, Some(0));
    assert!(w.store.leases().is_empty() && w.store.keys().is_empty());
}

// H2, U2
#[test]
fn catalogue_s8_failed_keep_alive_is_repeated() {
    for outcome in [Outcome::Lost, Outcome::Unanswered, Outcome::Reset] {
        let mut w = World::new(1);
        let locks = ["a", "b"].map(|name| w.hold(0, Acquire::new(name)));
        for _ in 0..5 {
            w.set_outcome(0, Kind::KeepAlive, outcome.clone());
            w.run_for(secs(6));
        }
        assert!(locks.iter().all(|lock| w.is_held(0, *lock)), "{}", w.describe());
        w.cut(0);
        w.shut_down(0, secs(2));
        w.expect(ms(2_000), "closing has an end", |w| w.clients[0].stopped.is_some());
        assert!(w.clients[0].stopped > Some(0), "leftovers are reported");
        assert_eq!(w.clients[0].hub.next_deadline(), None);
    }
}

/// The reply to the grant takes so long that the lease is already due for renewal.
// E1, T1
#[test]
fn lease_granted_late_is_renewed() {
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Grant, Outcome::Slow(ms(10), secs(4)));
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(secs(5), "it is held", |w| w.is_held(0, lock));
    w.run_for(secs(30));
    assert!(w.is_held(0, lock), "{}", w.describe());
    assert_eq!(w.count(0, Kind::Grant), 1, "the lease is asked for once");
    w.release(0, lock);
    w.end();
}

/// Each reply takes almost half of the TTL: the next keep-alive cannot wait for a quarter of it.
// E1
#[test]
fn lease_is_kept_alive_by_slow_replies() {
    let mut w = World::new(1);
    w.every(0, Kind::KeepAlive, Some(Outcome::Slow(ms(10), ms(4_800))));
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(60));
    assert!(w.is_held(0, lock), "{}", w.describe());
    w.every(0, Kind::KeepAlive, None);
    w.release(0, lock);
    w.end();
}

#[test]
fn catalogue_s8_wait_without_session_times_out() {
    let mut w = World::new(1);
    w.cut(0);
    let lock = w.acquire(0, Acquire::new("a").wait(Wait::For(secs(5))));
    let attempt = w.acquire(0, Acquire::new("b").wait(Wait::Try));
    w.run_for(secs(5));
    let Some(Failure::TimedOut(report)) = failure(&w, 0, lock) else { panic!("{}", w.describe()) };
    assert!(!report.is_busy() && report.waited == secs(5), "{report}");
    assert!(matches!(failure(&w, 0, attempt), Some(Failure::TimedOut(_))));
    assert!(was_blocked(&w, 0, lock, Blocked::Unreachable));
    w.heal(0);
    w.run_for(secs(5));
    w.end();
}

/// The reply to the grant is lost, so the lease is checked by a keep-alive.
#[test]
fn try_ends_while_granted_lease_cannot_be_checked() {
    // A5
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Grant, Outcome::Reset);
    w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
    let waiter = w.acquire(0, Acquire::new("a"));
    w.expect(secs(2), "the lease is checked", |w| w.count(0, Kind::KeepAlive) > 0);
    let attempt = w.acquire(0, Acquire::new("b").wait(Wait::Try));
    w.run_for(secs(5));
    assert!(matches!(failure(&w, 0, attempt), Some(Failure::TimedOut(_))), "{}", w.describe());
    assert!(was_blocked(&w, 0, waiter, Blocked::Unreachable));
    w.every(0, Kind::KeepAlive, None);
    w.expect(secs(3), "it is granted", |w| w.is_held(0, waiter));
    w.end();
}

fn world_that_refuses_the_check_of_a_lease() -> World {
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Grant, Outcome::Reset);
    let error = ServerError { class: ErrorClass::Refused, text: "permission denied".into() };
    w.every(0, Kind::KeepAlive, Some(Outcome::Answer(Reply::Refused(Refusal::Error(error)))));
    w
}

#[test]
fn refused_check_of_granted_lease_fails_waiters() {
    // E9
    let mut w = world_that_refuses_the_check_of_a_lease();
    let waiter = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(2));
    assert!(matches!(failure(&w, 0, waiter), Some(Failure::Refused(_))), "{}", w.describe());
    w.every(0, Kind::KeepAlive, None);
    w.run_for(secs(20));
    w.end();
}

#[test]
fn refused_check_ends_session_that_nobody_uses() {
    // U1
    let mut w = world_that_refuses_the_check_of_a_lease();
    let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try));
    w.run_for(secs(2));
    assert!(failure(&w, 0, attempt).is_some() && w.count(0, Kind::KeepAlive) == 1, "{}", w.describe());
    assert_eq!((w.count(0, Kind::Revoke), w.store.leases().len()), (1, 0));
    w.end();
}

/// A lock that is renewed by hand is granted after a keep-alive of its own.
#[test]
fn failed_keep_alive_does_not_delay_grant_of_long_lease() {
    // H3
    for failures in [1, 3] {
        let mut w = World::new(1);
        for _ in 0..failures {
            w.set_outcome(0, Kind::KeepAlive, Outcome::Reset);
        }
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(3_600)).renew(Renew::Manual));
        w.expect(secs(1), "it is granted", |w| w.is_held(0, lock));
        assert_eq!(w.count(0, Kind::KeepAlive), failures + 1, "{}", w.describe());
        w.release(0, lock);
        w.end();
    }
}
