//! Cleanup under one lease while another is in use, and what a shutdown waits for.
// E1, E3, E6, E7, H6, U1, U2

use lock_proto::etcd::{Refusal, Reply, Request};
use lock_proto::{Acquire, Answer, Cause, ErrorClass, Fault, Renew, ServerError, Wait};

use super::*;
use crate::world::{Kind, LATENCY, Outcome};

fn not_sent() -> Reply {
    Reply::NotSent(Cause::Fault(Fault::Unreachable))
}

fn busy() -> Reply {
    Reply::Refused(Refusal::Error(ServerError { class: ErrorClass::Transient, text: "too many requests".into() }))
}

/// A client with a pending cleanup under its shared lease: a cancelled create arrives late. After
/// two seconds the client watches the key.
pub(super) fn with_a_watched_cleanup(clients: usize, late: Duration) -> World {
    let mut w = World::new(clients);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Late(late));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(5));
    w.abandon(0, lock);
    w.run_for(secs(2));
    assert_eq!(w.watched(0).len(), 1, "{}", w.describe());
    w
}

/// The lease of an earlier attempt expires with a pending cleanup under it. An acquisition or hold
/// of the same name on another lease is not affected.
#[test]
fn lease_loss_does_not_affect_attempt_on_another_lease() {
    // E1
    for stage in ["leasing", "entering", "waiting", "held"] {
        let mut w = with_a_watched_cleanup(2, secs(60));
        if stage == "waiting" {
            w.hold(1, Acquire::new("a"));
        }
        let (shared, signs) = (w.lease(0), w.count(0, Kind::KeepAlive));
        w.revoke_by_hand(shared);
        w.set_outcome(0, Kind::KeepAlive, Outcome::Slow(LATENCY, ms(400)));
        w.expect(secs(4), "the next keep-alive", |w| w.count(0, Kind::KeepAlive) > signs);
        let slow = |at| if stage == at { ms(700) } else { LATENCY };
        w.set_outcome(0, Kind::Grant, Outcome::Slow(LATENCY, slow("leasing")));
        w.set_outcome(0, Kind::Create, Outcome::Slow(LATENCY, slow("entering")));
        let creates = w.count(0, Kind::Create);
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(30)));
        w.run_for(secs(1));
        assert_eq!(was_granted(&w, 0, lock), stage != "waiting", "{stage} {}", w.describe());
        assert_eq!(lost(&w, 0, lock), None, "{stage}");
        let made = (w.count(0, Kind::Grant), w.count(0, Kind::Create) - creates, w.count(0, Kind::Put));
        assert_eq!(made, (2, 1, 0), "{stage}: one lease and one key, once each {}", w.describe());
        w.abandon(0, lock);
        w.run_for(secs(1));
        w.end();
    }
}

/// Keep-alives of one lease do not affect the other.
#[test]
fn holder_is_notified_only_of_its_own_keep_alives() {
    // H3
    let mut w = with_a_watched_cleanup(1, secs(60));
    let shared = w.lease(0);
    let lock = w.hold(0, Acquire::new("a").ttl(secs(3)));
    let own = w.lease(0);
    w.run_for(secs(6));
    let signs = |lease: i64| {
        let sent = w.sent(0, Kind::KeepAlive);
        sent.iter()
            .filter(|(_, request)| matches!(request, Request::KeepAlive { lease: l, .. } if l.get() == lease))
            .count()
    };
    let reported = w.events(0, lock).iter().filter(|event| matches!(event, Event::Renewed { .. })).count();
    assert!(signs(shared) >= 2, "{}", w.describe());
    assert_eq!(reported, signs(own), "{}", w.describe());
    w.end();
}

/// The cleanup under one lease completes, independent of attempts on another one.
#[test]
fn attempt_on_another_lease_does_not_drop_cleanup() {
    // E3
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.every(0, Kind::Delete, Some(Outcome::Lost));
    w.release(0, lock);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    let next = w.acquire(0, Acquire::new("a").ttl(secs(30)));
    w.run_for(ms(500));
    assert!(w.queue("a").len() == 2 && !was_granted(&w, 0, next), "{}", w.describe());
    w.every(0, Kind::Delete, None);
    w.expect(secs(5), "the first key goes, and the other is first", |w| w.is_held(0, next));
    w.end();
}

/// The head of the queue leaves while its separate lease is being granted or its key is created.
/// The next waiter gets the lease that it requested.
#[test]
fn next_waiter_is_granted_on_its_requested_lease() {
    // E1
    for slow in [Kind::Grant, Kind::Create] {
        let mut w = World::new(1);
        warm(&mut w, 0);
        w.set_outcome(0, slow, Outcome::Slow(ms(20), ms(20)));
        let first = w.acquire(0, Acquire::new("a").ttl(secs(3)));
        let second = w.acquire(0, Acquire::new("a"));
        w.run_for(ms(10));
        w.abandon(0, first);
        w.expect(secs(1), "it is the other's", |w| w.is_held(0, second));
        assert_eq!(w.grant(0, second).ttl, secs(10), "{slow:?} {}", w.describe());
        w.run_for(secs(1));
        assert_eq!((w.store.leases().len(), w.queue("a").len()), (1, 1), "{slow:?} {}", w.describe());
        w.end();
    }
}

/// The same, once the key is in the queue behind a foreign one.
#[test]
fn next_waiter_queues_on_its_requested_lease() {
    // E1
    let mut w = World::new(2);
    let holder = w.hold(1, Acquire::new("a"));
    warm(&mut w, 0);
    let first = w.acquire(0, Acquire::new("a").ttl(secs(3)));
    let second = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(10));
    w.abandon(0, first);
    w.run_for(ms(10));
    w.release(1, holder);
    w.expect(ms(10), "it is the other's", |w| w.is_held(0, second));
    assert_eq!((w.grant(0, second).ttl, w.queue("a").len()), (secs(10), 1), "{}", w.describe());
    w.end();
}

/// A waiter on the lease of the leaving head takes over its key or grant, and its place.
#[test]
fn next_waiter_takes_over_pending_request_of_cancelled_head() {
    // E7
    for slow in [Kind::Grant, Kind::Create] {
        let mut w = World::new(1);
        w.set_outcome(0, slow, Outcome::Slow(ms(20), ms(20)));
        let first = w.acquire(0, Acquire::new("a"));
        let second = w.acquire(0, Acquire::new("a"));
        w.run_for(ms(10));
        w.abandon(0, first);
        w.expect(ms(50), "it is the other's", |w| w.is_held(0, second));
        assert_eq!((w.count(0, Kind::Grant), w.requests(0)), (1, 2), "{slow:?} {}", w.describe());
        w.end();
    }
}

#[test]
fn next_waiter_takes_over_queue_place_of_cancelled_head() {
    // E7
    let mut w = World::new(2);
    let holder = w.hold(1, Acquire::new("a"));
    let first = w.acquire(0, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(10));
    w.abandon(0, first);
    assert!(was_blocked(&w, 0, second, Blocked::Held));
    w.run_for(ms(10));
    assert_eq!((w.count(0, Kind::Create), w.count(0, Kind::Delete)), (1, 0), "{}", w.describe());
    w.release(1, holder);
    w.expect(ms(10), "it is the other's", |w| w.is_held(0, second));
    w.end();
}

#[test]
fn lease_of_unsent_grant_is_not_revoked() {
    // E1
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Grant, Outcome::Answer(not_sent()));
    let lock = w.acquire(0, Acquire::new("a").ttl(secs(30)));
    w.run_for(ms(5));
    w.abandon(0, lock);
    w.run_for(secs(1));
    assert_eq!((w.count(0, Kind::Grant), w.count(0, Kind::Revoke)), (1, 0), "{}", w.describe());
    w.end();
}

/// The lease was lost with two guards. Releasing the first does not revoke it: the other's holder
/// may still be at work, and its key is left alone.
#[test]
fn lost_lease_is_revoked_after_last_guard_is_released() {
    // H6
    let mut w = World::new(1);
    let locks = ["a", "b"].map(|name| w.hold(0, Acquire::new(name)));
    w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
    w.expect(secs(11), "the loss", |w| locks.iter().all(|lock| lost(w, 0, *lock).is_some()));
    w.every(0, Kind::KeepAlive, None);
    w.release(0, locks[0]);
    w.run_for(ms(50));
    assert_eq!(w.count(0, Kind::Revoke), 0, "{}", w.describe());
    w.release(0, locks[1]);
    w.run_for(ms(50));
    assert_eq!(w.count(0, Kind::Revoke), 1, "{}", w.describe());
    w.end();
}

/// A lease must end because a late create could still use it. It waits for the pending release of
/// another name, so that its result is known.
#[test]
fn ending_lease_waits_for_pending_release() {
    // U1
    let mut w = World::new(1);
    let other = w.hold(0, Acquire::new("other"));
    w.set_outcome(0, Kind::Create, Outcome::Late(secs(35)));
    let lock = w.acquire(0, Acquire::new("a").wait(Wait::For(ms(100))));
    let given_up = w.now;
    // The key of `a` is watched for a TTL; then the lease must end.
    w.expect(secs(15), "the last reading", |w| w.sent(0, Kind::Look).iter().any(|(at, _)| *at > given_up + secs(9)));
    assert!(failure(&w, 0, lock).is_some());
    w.every(0, Kind::Delete, Some(Outcome::Answer(busy())));
    w.release(0, other);
    w.run_for(ms(500));
    w.every(0, Kind::Delete, None);
    w.expect(secs(2), "the answer", |w| released(w, 0, other).is_some());
    assert_eq!(released(&w, 0, other), Some(Release::Released), "{}", w.describe());
    w.end();
}

/// A create that may still arrive is remembered while its lease holds the lock again, even if a
/// cleanup under another lease completes.
#[test]
fn completed_cleanup_does_not_drop_another() {
    // E3
    let mut w = with_a_watched_cleanup(1, secs(4));
    let own = w.hold(0, Acquire::new("a").ttl(secs(30)));
    w.set_outcome(0, Kind::Delete, Outcome::Slow(LATENCY, ms(300)));
    w.release(0, own);
    let shared = w.acquire(0, Acquire::new("a"));
    w.expect(ms(100), "it is held on the other lease", |w| w.is_held(0, shared));
    w.run_for(ms(500));
    w.release(0, shared);
    w.run_for(secs(3));
    assert!(w.queue("a").is_empty(), "what landed is deleted {}", w.describe());
    w.end();
}

/// A late key is deleted once. The event of that delete does not cause another.
#[test]
fn late_key_is_deleted_once() {
    // E3
    let mut w = with_a_watched_cleanup(1, secs(4));
    w.run_for(secs(4));
    assert_eq!((w.count(0, Kind::Delete), w.queue("a").len()), (1, 0), "{}", w.describe());
    w.end();
}

/// A put in flight at the release gets no reply, and the key is gone. Another client deleted it,
/// because no delete of ours was sent.
#[test]
fn unanswered_put_does_not_count_as_release() {
    // U1
    let mut w = World::new(1);
    let leader = w.campaign(0, "board", "a");
    w.run_for(ms(10));
    w.set_outcome(0, Kind::Put, Outcome::Reset);
    w.verb(0, |hub, now| hub.proclaim(now, leader, "b".into())).unwrap();
    w.release(0, leader);
    w.run_for(ms(2));
    let key = w.queue("board")[0].key.clone();
    w.delete_by_hand(&key);
    w.expect(secs(3), "the answer", |w| released(w, 0, leader).is_some());
    assert_eq!((released(&w, 0, leader), w.count(0, Kind::Delete)), (Some(Release::Expired), 0), "{}", w.describe());
    w.end();
}

#[test]
fn failure_reports_server_error_or_missing_reply() {
    let refused = ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() };
    let cause = Cause::Fault(Fault::Reset);
    let cases = [
        (Reply::Refused(Refusal::Error(refused.clone())), Answer::Rejected(refused)),
        (Reply::NotSent(cause.clone()), Answer::Unreachable(cause.clone())),
        (Reply::Unknown(cause.clone()), Answer::Unknown(cause)),
    ];
    for (reply, reported) in cases {
        let mut w = World::new(1);
        warm(&mut w, 0);
        w.set_outcome(0, Kind::Create, Outcome::Answer(reply));
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.run_for(ms(1));
        let Some(Failure::Refused(report) | Failure::TimedOut(report)) = failure(&w, 0, lock) else {
            panic!("{}", w.describe())
        };
        assert_eq!(report.nodes[..], [reported]);
        w.end();
    }
}

#[test]
fn unused_name_is_forgotten() {
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("some-name"));
    assert!(format!("{:?}", w.clients[0].hub).contains("some-name"));
    let _ = release_and_wait(&mut w, 0, lock);
    assert!(!format!("{:?}", w.clients[0].hub).contains("some-name"), "{:?}", w.clients[0].hub);
    w.end();
}

/// A cancelled create that was never sent needs no cleanup. If an earlier one may have arrived, its
/// key is still looked for.
#[test]
fn cancelled_unexecuted_create_adds_no_cleanup() {
    // E3
    for answer in [not_sent(), busy()] {
        let mut w = World::new(1);
        warm(&mut w, 0);
        w.set_outcome(0, Kind::Create, Outcome::Answer(answer.clone()));
        let lock = w.acquire(0, Acquire::new("a"));
        w.abandon(0, lock);
        let requests = w.requests(0);
        w.run_for(secs(5));
        let signs = w.count(0, Kind::KeepAlive);
        assert_eq!(w.requests(0) - signs, requests, "{answer:?} {}", w.describe());
        w.set_outcome(0, Kind::Create, Outcome::Reset);
        w.set_outcome(0, Kind::Create, Outcome::Answer(answer.clone()));
        let creates = w.count(0, Kind::Create);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(1), "the second create", |w| w.count(0, Kind::Create) == creates + 2);
        w.abandon(0, lock);
        w.run_for(ms(100));
        assert!(w.queue("a").is_empty(), "{answer:?} {}", w.describe());
        w.end();
    }
}

/// A key created after the read and before its watch is open is found once the watch is open.
#[test]
fn key_created_before_watch_opens_is_not_missed() {
    // E3
    for us in (0..60_000).step_by(250) {
        let mut w = World::new(1);
        warm(&mut w, 0);
        let late = secs(1) + Duration::from_micros(us);
        w.set_outcome(0, Kind::Create, Outcome::Late(late));
        let lock = w.acquire(0, Acquire::new("a"));
        w.abandon(0, lock);
        // The request times out after a second, and the first read follows after a backoff.
        w.run_for(late.max(ms(1_040)) + ms(10));
        assert!(w.queue("a").is_empty(), "{us} {}", w.describe());
        w.end();
    }
}

/// The delete did not arrive, and the client's next attempt adopts the key: a local hand-over.
#[test]
fn release_is_answered_when_next_attempt_adopts_key() {
    // U1
    let mut w = World::new(1);
    let first = w.hold(0, Acquire::new("a"));
    w.every(0, Kind::Delete, Some(Outcome::Answer(not_sent())));
    w.release(0, first);
    w.run_for(ms(2));
    w.hold(0, Acquire::new("a"));
    assert_eq!(released(&w, 0, first), Some(Release::Released), "{}", w.describe());
    assert_eq!(w.count(0, Kind::Put), 1);
    w.every(0, Kind::Delete, None);
    w.end();
}

/// The key is written between each read and put. The client backs off between attempts.
#[test]
fn adoption_of_constantly_written_key_backs_off() {
    // E6
    let mut w = World::new(1);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    w.every(0, Kind::Put, Some(Outcome::Slow(ms(2), LATENCY)));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(1));
    let (key, lease) = (w.queue("a")[0].key.clone(), w.lease(0));
    for _ in 0..500 {
        w.put_by_hand(core::str::from_utf8(&key).unwrap(), lease);
        w.run_for(ms(1));
    }
    assert!((2..10).contains(&w.count(0, Kind::Put)), "{}", w.count(0, Kind::Put));
    assert!(!was_granted(&w, 0, lock));
    w.expect(secs(3), "left in peace, it is granted", |w| w.is_held(0, lock));
    w.end();
}

#[test]
fn unexecuted_put_is_repeated_without_read() {
    // E10
    for answer in [not_sent(), busy()] {
        let mut w = World::new(1);
        let leader = w.campaign(0, "board", "a");
        w.run_for(ms(10));
        w.set_outcome(0, Kind::Put, Outcome::Answer(answer.clone()));
        w.verb(0, |hub, now| hub.proclaim(now, leader, "b".into())).unwrap();
        w.run_for(secs(1));
        assert_eq!((w.count(0, Kind::Put), w.count(0, Kind::Look)), (2, 0), "{answer:?} {}", w.describe());
        assert_eq!(w.queue("board")[0].value, "b");
        w.end();
    }
}

/// A create that may still arrive uses a revoked lease, so the shutdown does not wait for it.
#[test]
fn shutdown_does_not_wait_for_late_create() {
    // U2
    let mut w = with_a_watched_cleanup(1, secs(6));
    w.shut_down(0, secs(30));
    w.run_for(ms(10));
    assert_eq!((w.clients[0].stopped, w.store.leases().len()), (Some(0), 0), "{}", w.describe());
    w.end();
}

/// A key known to exist is deleted instead of being left to its lease.
#[test]
fn shutdown_completes_pending_cleanup() {
    // U2
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.set_outcome(0, Kind::Delete, Outcome::Answer(not_sent()));
    w.abandon(0, lock);
    w.run_for(ms(1));
    w.shut_down(0, secs(30));
    w.run_for(secs(1));
    assert_eq!((w.clients[0].stopped, w.count(0, Kind::Delete)), (Some(0), 2), "{}", w.describe());
    w.end();
}

/// Regression: the shutdown was reported as complete, and the lease remained until its TTL ended.
#[test]
fn shutdown_counts_lease_whose_end_is_refused() {
    // U2
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.release(0, lock);
    w.set_outcome(0, Kind::Revoke, Outcome::Answer(denied()));
    w.shut_down(0, secs(30));
    w.run_for(secs(1));
    assert_eq!((w.clients[0].stopped, w.store.leases().len()), (Some(1), 1), "{}", w.describe());
}

/// A pending release is answered before the client stops, if only with `Unknown`.
#[test]
fn shutdown_timeout_settles_pending_releases() {
    // U2
    let mut w = World::new(1);
    let locks = ["a", "b"].map(|name| w.hold(0, Acquire::new(name)));
    w.cut(0);
    w.release(0, locks[0]);
    w.shut_down(0, secs(1));
    w.run_for(ms(999));
    assert_eq!(locks.map(|lock| released(&w, 0, lock)), [None; 2]);
    w.run_for(ms(1));
    assert_eq!(locks.map(|lock| released(&w, 0, lock)), [Some(Release::Unknown); 2], "{}", w.describe());
    assert_eq!(w.clients[0].stopped, Some(3));
}

/// A manual extension on a separate lease, while keep-alives of the cleanup's lease fail.
#[test]
fn extension_is_not_failed_by_another_lease() {
    // H3
    let mut w = with_a_watched_cleanup(1, secs(60));
    let lock = w.hold(0, Acquire::new("a").ttl(secs(30)).renew(Renew::Manual));
    let signs = w.count(0, Kind::KeepAlive);
    w.set_outcome(0, Kind::KeepAlive, Outcome::Answer(busy()));
    w.expect(secs(4), "a keep-alive of the shared lease", |w| w.count(0, Kind::KeepAlive) > signs);
    w.set_outcome(0, Kind::KeepAlive, Outcome::Slow(ms(100), ms(100)));
    w.verb(0, |hub, now| hub.extend(now, lock)).unwrap();
    w.run_for(ms(10));
    assert!(!w.events(0, lock).iter().any(|event| matches!(event, Event::ExtendFailed(_))), "{}", w.describe());
    w.run_for(ms(300));
    assert!(w.events(0, lock).iter().any(|event| matches!(event, Event::Renewed { .. })), "{}", w.describe());
    w.end();
}

/// The access to one key is taken away, while another lock needs the lease.
#[test]
fn refused_delete_is_repeated_with_pauses() {
    // E3
    let mut w = World::new(1);
    let locks = ["a", "b"].map(|name| w.hold(0, Acquire::new(name)));
    w.every(0, Kind::Delete, Some(Outcome::Answer(denied())));
    w.release(0, locks[1]);
    w.run_for(secs(60));
    let sent = (w.count(0, Kind::Delete), w.count(0, Kind::Look));
    // The other lock's watch opens with a read.
    assert!((20..50).contains(&sent.0) && sent.1 <= 1, "{sent:?} {}", w.describe());
    w.every(0, Kind::Delete, None);
    w.run_for(secs(4));
    assert!(w.queue("b").is_empty() && w.is_held(0, locks[0]), "{}", w.describe());
    w.end();
}

/// The key that may not be deleted ends with its lease, once no lock needs it.
#[test]
fn refused_delete_does_not_keep_lease_alive() {
    // E3
    for shuts_down in [false, true] {
        let mut w = World::new(1);
        let locks = ["a", "b"].map(|name| w.hold(0, Acquire::new(name)));
        w.set_outcome(0, Kind::Delete, Outcome::Answer(denied()));
        w.release(0, locks[1]);
        w.run_for(ms(2));
        w.every(0, Kind::Delete, Some(Outcome::Answer(denied())));
        w.release(0, locks[0]);
        if shuts_down {
            w.shut_down(0, secs(30));
        }
        w.run_for(ms(10));
        assert!(w.store.keys().is_empty() && w.store.leases().is_empty(), "{}", w.describe());
        w.end();
    }
}

/// The reads of a pending cleanup are refused, too.
#[test]
fn refused_read_of_cleanup_is_repeated_with_pauses() {
    // E3
    let mut w = World::new(1);
    let other = w.hold(0, Acquire::new("other"));
    w.set_outcome(0, Kind::Create, Outcome::Late(secs(4)));
    w.every(0, Kind::Look, Some(Outcome::Answer(denied())));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(5));
    w.abandon(0, lock);
    w.run_for(secs(30));
    assert!((8..30).contains(&w.count(0, Kind::Look)), "{}", w.describe());
    w.every(0, Kind::Look, None);
    w.run_for(secs(4));
    assert!(w.queue("a").is_empty() && w.is_held(0, other), "{}", w.describe());
    w.end();
}

#[test]
fn refused_delete_on_lost_lease_ends_it() {
    // E3, H6
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
    w.expect(secs(11), "the loss", |w| lost(w, 0, lock).is_some());
    w.every(0, Kind::KeepAlive, None);
    w.every(0, Kind::Delete, Some(Outcome::Answer(denied())));
    w.release(0, lock);
    w.run_for(ms(50));
    assert_eq!(w.count(0, Kind::Revoke), 1, "{}", w.describe());
    w.end();
}

/// Two logins in a row are rejected: the first refuses the delete or the watch of a cleanup, the
/// second what the cleanup does next.
#[test]
fn cleanup_whose_watch_is_refused_goes_on() {
    // E3
    for (late, refused_at) in [(secs(6), secs(0)), (secs(30), secs(15))] {
        let mut w = World::new(1);
        let other = w.hold(0, Acquire::new("other"));
        w.set_outcome(0, Kind::Create, Outcome::Late(late));
        let lock = w.acquire(0, Acquire::new("a"));
        w.run_for(ms(5));
        w.abandon(0, lock);
        w.run_for(secs(2) + refused_at);
        for _ in 0..2 {
            w.refuse_watches(0);
        }
        w.run_for(late - refused_at);
        assert!(w.queue("a").is_empty() && w.is_held(0, other), "{late:?} {}", w.describe());
        w.end();
    }
}

/// The lease that a refused cleanup has retired.
#[test]
fn retired_lease_that_nobody_uses_is_revoked() {
    // E3, U1
    let mut w = World::new(1);
    let locks = ["a", "b"].map(|name| w.hold(0, Acquire::new(name)));
    w.set_outcome(0, Kind::Delete, Outcome::Answer(denied()));
    w.release(0, locks[1]);
    w.run_for(secs(1));
    assert!(w.queue("b").is_empty(), "the second delete succeeds {}", w.describe());
    let _ = release_and_wait(&mut w, 0, locks[0]);
    w.run_for(ms(50));
    assert!(w.store.leases().is_empty(), "{}", w.describe());
    w.end();
}
