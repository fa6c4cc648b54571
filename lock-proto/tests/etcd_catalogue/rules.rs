//! Requirements of sessions, keys and the queue.
// E1 to E6, A5, T1

use lock_proto::etcd::message::{COMPARE_MOD, Op};
use lock_proto::etcd::{LeaseId, Queue, Refusal, Reply, Request, Rpc};
use lock_proto::{Acquire, Answer, Cause, Drift, ErrorClass, Fault, Renew, ServerError, Wait};

use super::*;
use crate::world::{Kind, Outcome};

#[test]
fn locks_share_one_lease_unless_ttl_or_renewal_differs() {
    // E1
    let mut w = World::new(1);
    for n in 0..20 {
        w.hold(0, Acquire::new(format!("shared-{n}")));
    }
    // Whole seconds, rounded up: the session's TTL.
    w.hold(0, Acquire::new("equal").ttl(ms(9_100)));
    assert_eq!(w.store.leases().len(), 1);
    w.hold(0, Acquire::new("short").ttl(secs(3)));
    w.hold(0, Acquire::new("manual").renew(Renew::Manual));
    w.hold(0, Acquire::new("at most").renew(Renew::AtMost(secs(60))));
    assert_eq!(w.store.leases().len(), 4);
    w.end();
}

/// The client chooses the lease id and can repeat a grant without a reply. That the lease exists
/// then is no error. Its TTL counts from a keep-alive, because the time of the grant is unknown.
#[test]
fn unanswered_grant_is_repeated_with_same_id() {
    // E1
    for outcome in [Outcome::Reset, Outcome::Unanswered] {
        let mut w = World::new(1);
        w.set_outcome(0, Kind::Grant, outcome);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(ms(1_200), "it is held", |w| w.is_held(0, lock));
        let grants = w.sent(0, Kind::Grant);
        assert_eq!((grants.len(), &grants[0].1), (2, &grants[1].1));
        let (emitted, _) = w.sent(0, Kind::KeepAlive)[0];
        assert_eq!(w.grant(0, lock).valid_until, emitted + ms(9_898));
        assert_eq!(w.store.leases().len(), 1);
        w.end();
    }
}

/// Found by fuzzing `etcd_ops`: an isolated member delayed a create for longer than the TTL. The
/// key was no longer watched, and blocked the queue as long as the client lived.
#[test]
fn create_arriving_after_ttl_does_not_block_queue() {
    // E3
    for others in [false, true] {
        let mut w = World::new(2);
        let other = others.then(|| w.hold(0, Acquire::new("other")));
        w.set_outcome(0, Kind::Create, Outcome::Late(secs(35)));
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::For(ms(100))));
        w.expect(ms(150), "the end of the wait", |w| failure(w, 0, lock).is_some());
        let lease = w.lease(0);
        w.run_for(secs(30));
        // Without other keys the lease is gone, and the create fails; otherwise the key is deleted
        // as soon as it is seen.
        assert_eq!(w.store.leases().contains_key(&lease), others, "{}", w.describe());
        w.run_for(secs(10));
        assert_eq!(w.queue("a"), [], "{}", w.describe());
        let second = w.hold(1, Acquire::new("a"));
        w.release(1, second);
        // A new lock uses another lease, and the first lease ends with its last hold.
        let third = w.hold(0, Acquire::new("a"));
        assert_ne!(w.queue("a")[0].lease, lease);
        w.release(0, third);
        if let Some(other) = other {
            w.release(0, other);
        }
        w.run_for(secs(1));
        assert!(!w.store.leases().contains_key(&lease), "{}", w.describe());
        w.end();
    }
}

#[test]
fn lease_of_cancelled_acquisition_is_revoked() {
    // E1
    for (outcome, give_up_after) in
        [(Outcome::Reset, 5), (Outcome::Lost, 5), (Outcome::Unanswered, 5), (Outcome::Late(ms(300)), 5)]
    {
        let mut w = World::new(1);
        w.set_outcome(0, Kind::Grant, outcome.clone());
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(60)));
        w.run_for(ms(give_up_after));
        w.abandon(0, lock);
        w.run_for(secs(2));
        assert!(w.store.leases().is_empty(), "{outcome:?} {}", w.describe());
        w.end();
    }
}

#[test]
fn validity_follows_granted_ttl() {
    // T1, E1
    let mut w = World::with(1, |config| config.session_ttl(secs(1)));
    let start = w.now;
    let lock = w.hold(0, Acquire::new("a"));
    assert_eq!(w.grant(0, lock).ttl, secs(2));
    assert_eq!(w.grant(0, lock).valid_until, start + ms(2_000 - 20 - 2));
    w.run_for(secs(20));
    assert!(w.is_held(0, lock));
    // A third of two seconds, less at most a tenth of that.
    assert!((29..=34).contains(&w.count(0, Kind::KeepAlive)), "{}", w.count(0, Kind::KeepAlive));
    w.end();
    let mut w = World::with(1, |config| config.drift(Drift { divisor: 10, margin: ms(50) }));
    let start = w.now;
    let lock = w.hold(0, Acquire::new("a"));
    assert_eq!(w.grant(0, lock).valid_until, start + ms(10_000 - 1_000 - 50));
    w.end();
}

#[test]
fn key_is_name_and_lease_in_bare_hexadecimal() {
    // E2
    for (bits, hex) in
        [(1, "1"), (0xabc, "abc"), (0x0694_d71e_2f3b_c907, "694d71e2f3bc907"), (u64::MAX, "7fffffffffffffff")]
    {
        let key = Queue::new(b"app/", b"stock").key(LeaseId::from_bits(bits));
        assert_eq!(key, format!("app/stock/{hex}"));
        assert!(!Queue::new(b"app/", b"stock").is_foreign(&key));
    }
    let mut w = World::with(1, |config| config.prefix("app/"));
    w.hold(0, Acquire::new("stock"));
    let key = w.queue("app/stock")[0].key.clone();
    assert_eq!(key, format!("app/stock/{:x}", w.lease(0)));
    w.end();
}

/// A foreign contender, as created by `etcdctl lock`, is treated like ours.
#[test]
fn waiter_queues_behind_etcdctl_contender() {
    // E2
    let mut w = World::new(1);
    w.put_by_hand("a/694d71e2f3bc907", 0);
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(20));
    assert!(was_blocked(&w, 0, lock, Blocked::Held) && !was_granted(&w, 0, lock));
    w.delete_by_hand(&"a/694d71e2f3bc907".into());
    w.expect(ms(5), "it is granted", |w| w.is_held(0, lock));
    w.end();
}

#[test]
fn uncontended_lock_takes_two_requests() {
    // E3
    let mut w = World::new(1);
    warm(&mut w, 0);
    let (before, watches) = (w.requests(0), w.clients[0].watches_opened.len());
    for _ in 0..10 {
        let lock = w.hold(0, Acquire::new("a"));
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    }
    assert_eq!(w.requests(0) - before, 20, "{}", w.describe());
    assert_eq!((w.count(0, Kind::Create), w.count(0, Kind::Delete)), (10, 10));
    assert_eq!(w.clients[0].watches_opened.len(), watches);
    w.end();
}

/// A create without a reply may arrive after the delete that should remove it. The own key is
/// watched for another TTL, and deleted when it appears; then the watch is closed.
#[test]
fn key_arriving_within_ttl_is_deleted() {
    // E3
    for late in [1_100, 2_000, 5_000, 9_000] {
        let mut w = World::new(1);
        warm(&mut w, 0);
        w.set_outcome(0, Kind::Create, Outcome::Late(ms(late)));
        let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.run_for(ms(late));
        assert!(failure(&w, 0, attempt).is_some());
        w.run_for(ms(20));
        assert!(w.queue("a").is_empty(), "late by {late} ms {}", w.describe());
        assert!(w.store.leases().contains_key(&w.lease(0)));
        w.run_for(secs(25));
        // Nothing is left, not even the lease that a later create could use.
        assert!(w.verb(0, |hub, _| hub.next_deadline_reason()).is_none() && w.store.leases().is_empty());
        w.end();
    }
}

/// The key is found, but may not be written: the waiter fails and leaves no key.
#[test]
fn refused_adoption_leaves_no_key() {
    // E3
    let mut w = World::new(1);
    warm(&mut w, 0);
    let refusal =
        Refusal::Error(ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() });
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    w.set_outcome(0, Kind::Put, Outcome::Answer(Reply::Refused(refusal)));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(200));
    assert!(matches!(failure(&w, 0, lock), Some(Failure::Refused(_))));
    assert!(w.queue("a").is_empty(), "{}", w.describe());
    w.end();
}

/// The next attempt adopts a key that could not be deleted. If that attempt is cancelled without
/// progress, the key is deleted after all.
#[test]
fn stalled_attempt_leaves_no_key() {
    // E3
    let cause = Cause::Fault(Fault::Unreachable);
    let busy = ServerError { class: ErrorClass::Transient, text: "etcdserver: too many requests".into() };
    for kind in [Kind::Create, Kind::Put] {
        for reply in [Reply::NotSent(cause.clone()), Reply::Refused(Refusal::Error(busy.clone()))] {
            let mut w = World::new(1);
            let lock = w.hold(0, Acquire::new("a"));
            w.every(0, Kind::Delete, Some(Outcome::Lost));
            w.release(0, lock);
            w.run_for(ms(1_002));
            w.every(0, kind, Some(Outcome::Answer(reply.clone())));
            let lock = w.acquire(0, Acquire::new("a"));
            w.run_for(ms(500));
            assert!(w.count(0, kind) > 1);
            w.every(0, kind, None);
            w.every(0, Kind::Delete, None);
            w.abandon(0, lock);
            w.run_for(secs(1));
            assert!(w.queue("a").is_empty(), "{kind:?} {reply:?} {}", w.describe());
            w.end();
        }
    }
}

/// A later attempt does not drop the cleanup of an earlier one, however it ends: a try on an
/// occupied queue, a rejected attempt, and a hold whose key is deleted.
#[test]
fn later_attempt_does_not_drop_cleanup() {
    // E3
    let refusal =
        Refusal::Error(ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() });
    for case in 0..3 {
        let mut w = World::new(2);
        warm(&mut w, 0);
        let other = (case == 0).then(|| w.hold(1, Acquire::new("a")));
        w.set_outcome(0, Kind::Create, Outcome::Late(secs(6)));
        let lock = w.acquire(0, Acquire::new("a"));
        w.run_for(ms(10));
        w.abandon(0, lock);
        w.run_for(secs(2));
        match case {
            0 => drop(w.acquire(0, Acquire::new("a").wait(Wait::Try))),
            1 => {
                w.set_outcome(0, Kind::Create, Outcome::Answer(Reply::Refused(refusal.clone())));
                w.acquire(0, Acquire::new("a"));
            }
            _ => {
                let lock = w.hold(0, Acquire::new("a"));
                w.run_for(ms(3_500));
                let key = w.queue("a")[0].key.clone();
                w.delete_by_hand(&key);
                w.expect(ms(5), "the loss", |w| lost(w, 0, lock).is_some());
                let _ = release_and_wait(&mut w, 0, lock);
            }
        }
        w.run_for(secs(5));
        assert_eq!(w.queue("a").len(), usize::from(other.is_some()), "{case} {}", w.describe());
        assert!(w.store.leases().contains_key(&w.lease(0)));
        w.end();
    }
}

#[test]
fn try_makes_at_most_one_attempt() {
    // A5
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let before = w.requests(0);
    let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try));
    let Some(Failure::TimedOut(report)) = failure(&w, 0, attempt) else { panic!("{}", w.describe()) };
    assert!(report.is_busy() && report.nodes.is_empty());
    assert_eq!(w.requests(0), before, "held in this client: no request");
    warm(&mut w, 1);
    let attempt = w.acquire(1, Acquire::new("a").wait(Wait::For(Duration::ZERO)));
    w.run_for(ms(1));
    let Some(Failure::TimedOut(report)) = failure(&w, 1, attempt) else { panic!("{}", w.describe()) };
    assert!(matches!(report.nodes[0], Answer::Taken(_)));
    assert_eq!(w.count(1, Kind::Create), 1);
    w.release(0, first);
    w.run_for(ms(2));
    let attempt = w.acquire(1, Acquire::new("a").wait(Wait::Try));
    w.run_for(ms(1));
    assert!(w.is_held(1, attempt));
    // A waiter behind a local try is not affected by its failure.
    let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try));
    let waiter = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(10));
    assert!(failure(&w, 0, attempt).is_some() && was_blocked(&w, 0, waiter, Blocked::Held));
    w.end();
}

#[test]
fn try_is_not_repeated_after_loss_of_its_session() {
    // A5
    let mut w = World::new(1);
    w.every(0, Kind::KeepAlive, Some(Outcome::Lost));
    let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try).renew(Renew::Manual));
    w.expect(secs(60), "the end of the attempt", |w| failure(w, 0, attempt).is_some());
    assert_eq!(w.count(0, Kind::Create), 1, "{}", w.describe());
    w.every(0, Kind::KeepAlive, None);
    w.end();
}

/// A waiter watches its own key and its predecessor. If that one leaves without having held the
/// lock, it watches the one before.
#[test]
fn waiter_watches_its_own_key_and_its_predecessor() {
    // E4
    let mut w = World::new(3);
    w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    w.acquire(2, Acquire::new("a"));
    w.run_for(ms(10));
    let keys: Vec<_> = w.queue("a").into_iter().map(|kv| kv.key).collect();
    // The own key last: its watch shows that there was no write while the other was opened.
    assert_eq!(w.clients[2].watches_opened, [keys[1].clone(), keys[2].clone()]);
    w.abandon(1, second);
    w.run_for(ms(10));
    assert_eq!(w.clients[2].watches_opened, [keys[1].clone(), keys[2].clone(), keys[0].clone()]);
    assert_eq!(w.count(2, Kind::Look), 1);
    w.end();
}

/// A watch reports only changes after its opening. Changes between the last read and the opening
/// cause one more read; unrelated writes cause no others.
#[test]
fn write_before_watch_opens_causes_one_more_read() {
    // E5
    for (unrelated, looks) in [(false, 0), (true, 1)] {
        let mut w = World::new(2);
        w.hold(0, Acquire::new("a"));
        warm(&mut w, 1);
        w.acquire(1, Acquire::new("a"));
        w.run_for(Duration::from_micros(1_200));
        assert_eq!(w.queue("a").len(), 2);
        if unrelated {
            w.put_by_hand("something else", 0);
        }
        w.run_for(ms(20));
        assert_eq!(w.count(1, Kind::Look), looks, "{}", w.describe());
        for n in 0..100 {
            w.put_by_hand(&format!("something else {n}"), 0);
            w.run_for(ms(1));
        }
        assert_eq!(w.count(1, Kind::Look), looks);
        w.forget(|key| key.starts_with(b"something"));
        w.end();
    }
}

#[test]
fn release_before_watch_opens_is_not_missed() {
    // E5
    for us in (0..3_000).step_by(50) {
        let mut w = World::new(2);
        let first = w.hold(0, Acquire::new("a"));
        warm(&mut w, 1);
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(Duration::from_micros(us));
        w.release(0, first);
        w.expect(ms(8), "the next one has it", |w| w.is_held(1, second));
        w.end();
    }
}

/// The predecessor leaves during a read. Its outdated result is replaced by another read.
#[test]
fn release_during_read_is_not_missed() {
    // E5
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    warm(&mut w, 1);
    w.set_outcome(1, Kind::Look, Outcome::Slow(ms(1), ms(50)));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(Duration::from_micros(1_200));
    w.put_by_hand("something else", 0);
    w.run_for(ms(10));
    assert_eq!(w.count(1, Kind::Look), 1);
    w.release(0, first);
    w.expect(ms(50), "the next one has it", |w| w.is_held(1, second));
    assert_eq!(w.count(1, Kind::Look), 2);
    w.forget(|key| key.starts_with(b"something"));
    w.end();
}

#[test]
fn release_wakes_one_waiter() {
    // E5
    const CLIENTS: usize = 10;
    let mut w = World::new(CLIENTS);
    let mut locks = vec![w.hold(0, Acquire::new("a"))];
    for client in 1..CLIENTS {
        locks.push(w.acquire(client, Acquire::new("a")));
        w.run_for(ms(5));
    }
    for client in 0..CLIENTS - 1 {
        let before: Vec<usize> = (0..CLIENTS).map(|client| w.requests(client)).collect();
        w.release(client, locks[client]);
        w.expect(ms(3), "the next one has it", |w| w.is_held(client + 1, locks[client + 1]));
        w.run_for(ms(20));
        let made: Vec<usize> = (0..CLIENTS).map(|client| w.requests(client) - before[client]).collect();
        assert!(
            made.iter().enumerate().all(|(n, made)| *made == usize::from(n == client || n == client + 1)),
            "{made:?}"
        );
    }
    w.end();
}

/// Every write of an own key compares its last revision, and every put attaches the lease.
#[test]
fn every_write_is_guarded_and_attaches_lease() {
    // E6
    let mut w = World::new(2);
    let mut locks = Vec::new();
    for round in 0..30_usize {
        let outcome =
            [None, Some(Outcome::Reset), Some(Outcome::Unanswered), Some(Outcome::Late(ms(1_200)))][round % 4].clone();
        let kind = [Kind::Create, Kind::Delete, Kind::Put][round % 3];
        if let Some(outcome) = outcome {
            w.set_outcome(round % 2, kind, outcome);
        }
        let lock = w.campaign(round % 2, "a", "value");
        w.run_for(ms(700));
        let _ = w.verb(round % 2, |hub, now| hub.proclaim(now, lock, "another".into()));
        w.run_for(ms(100));
        locks.push((round % 2, lock));
        if round % 3 == 2 {
            for (client, lock) in locks.drain(..) {
                w.abandon(client, lock);
            }
        }
    }
    let mut writes = 0;
    for request in w.clients.iter().flat_map(|client| &client.requests).map(|(_, request)| request) {
        let Some(Rpc::Txn(txn)) = request.rpc() else { continue };
        for op in txn.success.iter().chain(&txn.failure).filter_map(|op| op.request.as_ref()) {
            let key = match op {
                Op::Put(put) => {
                    assert!(put.lease > 0 && put.key.ends_with(format!("/{:x}", put.lease).as_bytes()), "{put:?}");
                    &put.key
                }
                Op::Delete(delete) => &delete.key,
                Op::Range(_) => continue,
                Op::Txn(_) => panic!("a request of the hub has no inner transaction: {request:?}"),
            };
            writes += 1;
            let guard = &txn.compare[0];
            let create = matches!(request, Request::Create { .. });
            assert!(create || (guard.target == COMPARE_MOD && guard.key == *key), "{request:?}");
        }
    }
    assert!(writes > 60);
    for (client, lock) in locks {
        w.abandon(client, lock);
    }
    w.run_for(secs(15));
    w.end();
}

/// A key that this attempt did not create is owned only after a guarded put: not by reading it, and
/// not if it has changed since.
#[test]
fn found_key_is_owned_only_after_guarded_put() {
    // E6
    let mut w = World::new(1);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    w.set_outcome(0, Kind::Put, Outcome::Slow(ms(20), ms(1)));
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(ms(100), "the key was found", |w| w.count(0, Kind::Put) == 1);
    assert!(!was_granted(&w, 0, lock));
    // A write before the put arrives makes the put fail.
    let key = w.queue("a")[0].key.clone();
    w.put_by_hand(core::str::from_utf8(&key).unwrap(), w.lease(0));
    w.run_for(ms(20));
    assert!(!was_granted(&w, 0, lock));
    w.expect(ms(200), "the next put has it", |w| w.is_held(0, lock));
    assert_eq!(w.count(0, Kind::Put), 2);
    let owner = w.verb(0, |hub, _| hub.owner(lock)).unwrap();
    assert_eq!(owner.mod_revision, w.queue("a")[0].mod_revision);
    assert_eq!(owner.revision, owner.mod_revision, "proven by the put's reply");
    w.end();
}

/// An adopted key keeps its place in the queue, which need not be the first.
#[test]
fn adopted_key_keeps_queue_place() {
    // E6
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    warm(&mut w, 1);
    w.set_outcome(1, Kind::Create, Outcome::Reset);
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(200));
    assert_eq!(w.count(1, Kind::Put), 1);
    assert!(!was_granted(&w, 1, second) && was_blocked(&w, 1, second, Blocked::Held));
    w.release(0, first);
    w.expect(ms(5), "it gets the lock", |w| w.is_held(1, second));
    w.end();
}

/// A waiter's key that another client has written or recreated is not the one it created. A put
/// adopts it and attaches the lease again.
#[test]
fn overwritten_or_recreated_waiter_key_is_adopted() {
    // E4, E6
    for made_again in [false, true] {
        let mut w = World::new(2);
        let first = w.hold(0, Acquire::new("a"));
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(10));
        let (key, lease) = (w.queue("a")[1].key.clone(), w.lease(1));
        if made_again {
            w.delete_by_hand(&key);
        }
        w.put_by_hand(core::str::from_utf8(&key).unwrap(), 0);
        w.run_for(ms(10));
        assert_eq!((w.queue("a")[1].lease, w.count(1, Kind::Put)), (lease, 1), "{}", w.describe());
        assert!(!was_granted(&w, 1, second));
        w.release(0, first);
        w.expect(ms(5), "it gets the lock", |w| w.is_held(1, second));
        w.kill(1);
        w.run_for(secs(11));
        assert!(w.queue("a").is_empty(), "it ends with its holder");
        w.end();
    }
}
