//! The contract of every machine, as kept by the hub, and misuse by callers.
// M1 to M9, T2, U2

use core::fmt::Debug;
use core::hash::Hash;
use std::collections::BTreeSet;

use lock_proto::etcd::{Found, Locks, LocksOutput, Refusal, Reply};
use lock_proto::{
    Acquire, ClientId, ErrorClass, Instant, Invalid, Misuse, Operation, OperationEvent, Renew, ServerError, Wait,
};

use super::*;
use crate::world::{Kind, Outcome, config};

#[test]
fn hub_is_cloneable_and_deterministic() {
    // D2
    fn value<T: Clone + Debug + Eq + Hash + Send + Sync + 'static>() {}
    value::<Locks>();
    let run = || {
        let mut w = World::new(2);
        let lock = w.hold(0, Acquire::new("a"));
        w.acquire(1, Acquire::new("a"));
        w.run_for(secs(7));
        w.release(0, lock);
        w.run_for(ms(700));
        w.clients.remove(1).hub
    };
    assert_eq!(run(), run(), "equal histories, equal machines");
}

#[test]
fn backward_time_is_clamped_and_input_still_counts() {
    // M1
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    w.run_for(secs(5));
    let until = w.clients[0].hub.valid_until(lock);
    let hub = &mut w.clients[0].hub;
    hub.handle_timeout(w.now);
    hub.handle_timeout(Instant::ZERO);
    hub.extend(Instant::ZERO, lock).unwrap();
    let sent = core::iter::from_fn(|| hub.poll_output()).collect::<Vec<_>>();
    let [LocksOutput::Send { call, .. }] = &sent[..] else { panic!("{sent:?}") };
    hub.handle_reply(Instant::ZERO, *call, &Reply::Done(Found::Lease { ttl: 10 }));
    assert!(hub.valid_until(lock) > until, "counted from the latest time seen");
    assert_eq!(hub.valid_until(lock), Some(w.now + ms(9_898)));
}

/// After a pause the first event is `Lost`, and nothing that arrives then revives the lock.
#[test]
fn loss_is_first_event_after_pause() {
    // M2, T2
    let mut w = World::new(1);
    let lock = w.hold(0, Acquire::new("a"));
    let waiter = w.acquire(0, Acquire::new("a"));
    w.expect(secs(4), "a keep-alive is in flight", |w| w.count(0, Kind::KeepAlive) == 1);
    w.pause(0);
    let reported = w.all_events(0).len();
    w.run_for(secs(60));
    w.resume(0);
    assert_eq!(w.all_events(0)[reported], (lock, Event::Lost(Loss::Expired)), "{}", w.describe());
    assert!(!w.is_held(0, lock));
    w.run_for(secs(1));
    assert!(!w.is_held(0, lock) && w.is_held(0, waiter));
    assert_eq!(w.events(0, lock).iter().filter(|event| matches!(event, Event::Renewed { .. })).count(), 0);
    w.release(0, lock);
    w.end();
}

#[test]
fn lost_event_precedes_resulting_requests() {
    // M2
    let mut w = World::new(1);
    w.hold(0, Acquire::new("a"));
    w.acquire(0, Acquire::new("a"));
    let at = w.now + secs(60);
    let hub = &mut w.clients[0].hub;
    hub.handle_timeout(at);
    let outputs: Vec<LocksOutput> = core::iter::from_fn(|| hub.poll_output()).collect();
    assert!(matches!(outputs[0], LocksOutput::Event { event: Event::Lost(Loss::Expired), .. }), "{outputs:?}");
    assert!(outputs[1..].iter().any(|output| matches!(output, LocksOutput::Send { .. })), "the waiter contends anew");
}

#[test]
fn queued_output_is_due_now_and_drained_hub_has_no_deadline() {
    // M3
    let mut w = World::new(1);
    let (now, hub) = (w.now, &mut w.clients[0].hub);
    hub.acquire(now, &Acquire::new("a")).unwrap();
    assert_eq!(hub.next_deadline(), Some(now));
    let before = hub.clone();
    let outputs: Vec<LocksOutput> = core::iter::from_fn(|| hub.poll_output()).collect();
    assert_eq!(outputs.len(), 1);
    assert_ne!(*hub, before);
    assert_eq!(hub.next_deadline(), None, "the answer is somebody else's to wait for");
}

#[test]
fn stale_id_is_rejected_and_never_reused() {
    // M6
    let mut w = World::new(1);
    let mut seen = BTreeSet::new();
    let first = w.hold(0, Acquire::new("a"));
    let _ = release_and_wait(&mut w, 0, first);
    for _ in 0..100 {
        let lock = w.hold(0, Acquire::new("a"));
        assert!(seen.insert(lock) && lock != first);
        let stale = Misuse::Stale(first);
        assert_eq!(w.verb(0, |hub, now| hub.release(now, first)), Err(stale));
        assert_eq!(w.verb(0, |hub, now| hub.claim(now, first)), Err(stale));
        assert_eq!(w.verb(0, |hub, now| hub.extend(now, first)), Err(stale));
        assert_eq!(w.verb(0, |hub, now| hub.owner_guard(now, first)), Err(stale));
        assert_eq!(w.verb(0, |hub, now| hub.proclaim(now, first, "x".into())), Err(stale));
        assert_eq!(w.verb(0, |hub, _| (hub.valid_until(first), hub.owner(first))), (None, None));
        w.abandon(0, first);
        assert!(w.is_held(0, lock));
        let _ = release_and_wait(&mut w, 0, lock);
    }
    let query = w.verb(0, |hub, now| hub.start(now, Operation::Leader("a".into()))).unwrap();
    w.run_for(ms(5));
    w.verb(0, |hub, now| hub.cancel(now, query));
    let next = w.verb(0, |hub, now| hub.start(now, Operation::Observe("a".into()))).unwrap();
    w.verb(0, |hub, now| hub.cancel(now, query));
    w.run_for(ms(5));
    assert_eq!(w.election_events(0, next), [OperationEvent::NoLeader]);
    w.end();
}

/// A held lock needs only the session's keep-alives: no timer runs before its warning.
#[test]
fn idle_holds_wake_only_for_keep_alives() {
    // M7
    let mut w = World::with(1, |config| config.watch_own_after(secs(3_600)));
    for n in 0..500 {
        w.hold(0, Acquire::new(format!("lock-{n}")));
    }
    let mut wakes = 0;
    let end = w.now + secs(30);
    while w.now < end {
        let due = w.clients[0].hub.next_deadline().unwrap();
        w.run_for(due.since(w.now).max(Duration::from_nanos(1)));
        w.run_for(ms(2));
        wakes += 1;
    }
    assert!(wakes <= 12, "woken {wakes} times in thirty seconds");
}

/// A request that was not sent needs no cleanup; one that may have arrived does.
#[test]
fn unsent_create_needs_no_cleanup_but_unknown_does() {
    // M8
    for (not_sent, cleanups) in [(true, 0), (false, 1)] {
        let mut w = World::new(1);
        warm(&mut w, 0);
        let cause = lock_proto::Cause::Fault(lock_proto::Fault::Reset);
        let reply = if not_sent { Reply::NotSent(cause) } else { Reply::Unknown(cause) };
        w.set_outcome(0, Kind::Create, Outcome::Answer(reply));
        let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.run_for(secs(1));
        assert!(failure(&w, 0, attempt).is_some());
        assert_eq!(w.count(0, Kind::Look).min(1), cleanups, "{}", w.describe());
        w.end();
    }
}

/// A copy of a client gets another id, which makes it a different client.
#[test]
fn clients_with_different_ids_choose_different_leases() {
    // M9
    let mut leases = BTreeSet::new();
    for id in 0..1_000 {
        let mut hub = Locks::new(Instant::ZERO, config(), ClientId::from_bits(id), 7).unwrap();
        hub.acquire(Instant::ZERO, &Acquire::new("a")).unwrap();
        let Some(LocksOutput::Send { request, .. }) = hub.poll_output() else { panic!() };
        leases.insert(format!("{request:?}"));
    }
    assert_eq!(leases.len(), 1_000);
}

#[test]
fn shutdown_settles_everything_and_leaves_nothing() {
    // U2
    let mut w = World::new(2);
    let held = w.hold(0, Acquire::new("a"));
    let local = w.acquire(0, Acquire::new("a"));
    let own = w.hold(0, Acquire::new("b").ttl(secs(30)));
    let other = w.hold(1, Acquire::new("c"));
    let remote = w.acquire(0, Acquire::new("c"));
    let query = w.verb(0, |hub, now| hub.start(now, Operation::Observe("c".into()))).unwrap();
    w.run_for(ms(10));
    w.shut_down(0, secs(2));
    assert!(!w.verb(0, |hub, _| hub.is_stopped()), "the store has not confirmed it yet");
    assert_eq!(failure(&w, 0, local), Some(Failure::ShuttingDown));
    assert_eq!(failure(&w, 0, remote), Some(Failure::ShuttingDown));
    assert_eq!(w.election_events(0, query).last(), Some(&OperationEvent::Failed(Failure::ShuttingDown)));
    w.run_for(ms(10));
    for lock in [held, own] {
        assert_eq!(lost(&w, 0, lock), Some(Loss::ShutDown));
        assert_eq!(released(&w, 0, lock), Some(Release::Released));
    }
    assert_eq!(w.clients[0].stopped, Some(0));
    assert!(w.verb(0, |hub, _| hub.is_stopped()));
    assert!(w.store.keys().len() == 1 && w.store.leases().len() == 1 && w.is_held(1, other));
    assert_eq!(w.verb(0, |hub, now| hub.acquire(now, &Acquire::new("d"))), Err(Misuse::ShuttingDown));
    assert_eq!(w.verb(0, |hub, now| hub.start(now, Operation::Leader("d".into()))), Err(Misuse::ShuttingDown));
    assert_eq!(w.verb(0, |hub, _| hub.next_deadline()), None);
    w.end();
}

/// A shutdown waits for requests in flight and undoes them.
#[test]
fn shutdown_waits_for_requests_in_flight() {
    // U2
    for us in (0..5_000).step_by(250) {
        for outcome in [None, Some(Outcome::Slow(ms(200), ms(200))), Some(Outcome::Late(ms(300)))] {
            for kind in [Kind::Grant, Kind::Create] {
                let mut w = World::new(1);
                if let Some(outcome) = outcome.clone() {
                    w.set_outcome(0, kind, outcome);
                }
                w.acquire(0, Acquire::new("a"));
                w.run_for(Duration::from_micros(us));
                w.end();
            }
        }
    }
}

#[test]
fn misuse_is_rejected_without_state_change() {
    // M5
    let mut w = World::with(1, |config| config.max_locks(2));
    let before = w.clients[0].hub.clone();
    let try_it = |w: &mut World, want: Acquire| w.verb(0, |hub, now| hub.acquire(now, &want)).map(drop);
    let name = |len| Misuse::Invalid(Invalid::NameLength { len, max: 512 });
    assert_eq!(try_it(&mut w, Acquire::new("")), Err(name(0)));
    assert_eq!(try_it(&mut w, Acquire::new([b'x'; 513])), Err(name(513)));
    assert_eq!(w.verb(0, |hub, now| hub.start(now, Operation::Leader("".into()))), Err(name(0)));
    assert_eq!(w.verb(0, |hub, now| hub.start(now, Operation::Observe(vec![0; 600].into()))), Err(name(600)));
    let ttl = try_it(&mut w, Acquire::new("a").ttl(Duration::ZERO));
    assert!(matches!(ttl, Err(Misuse::Invalid(Invalid::Ttl { .. }))), "{ttl:?}");
    let hold = try_it(&mut w, Acquire::new("a").renew(Renew::AtMost(Duration::ZERO)));
    assert_eq!(hold, Err(Misuse::Invalid(Invalid::MaxHold)));
    assert_eq!(w.clients[0].hub, before);
    let waiting = w.acquire(0, Acquire::new("a"));
    let behind = w.acquire(0, Acquire::new("a"));
    assert_eq!(try_it(&mut w, Acquire::new("b")), Err(Misuse::TooMany { limit: 2 }));
    for lock in [waiting, behind] {
        let not_held = Err(Misuse::NotHeld(lock));
        assert_eq!(w.verb(0, |hub, now| hub.release(now, lock)), not_held);
        assert_eq!(w.verb(0, |hub, now| hub.extend(now, lock)), not_held);
        assert_eq!(w.verb(0, |hub, now| hub.claim(now, lock)), Err(Misuse::NotOffered(lock)));
        assert_eq!(w.verb(0, |hub, now| hub.owner_guard(now, lock)).map(drop), not_held);
    }
    w.run_for(ms(10));
    assert_eq!(w.verb(0, |hub, now| hub.claim(now, waiting)), Err(Misuse::NotOffered(waiting)), "claimed already");
    // A local waiter does not own another's hold.
    assert!(w.verb(0, |hub, _| hub.owner(waiting)).is_some());
    assert_eq!(w.verb(0, |hub, _| hub.owner(behind)), None);
    let not_held = Err(Misuse::NotHeld(behind));
    assert_eq!(w.verb(0, |hub, now| hub.extend(now, behind)), not_held);
    assert_eq!(w.verb(0, |hub, now| hub.proclaim(now, behind, "x".into())), not_held);
    assert_eq!(w.verb(0, |hub, now| hub.owner_guard(now, behind)).map(drop), not_held);
    w.abandon(0, behind);
    w.release(0, waiting);
    assert_eq!(w.verb(0, |hub, now| hub.release(now, waiting)), Err(Misuse::NotHeld(waiting)));
    w.run_for(ms(10));
    assert_eq!(w.verb(0, |hub, now| hub.release(now, waiting)), Err(Misuse::Stale(waiting)));
    w.end();
}

#[test]
fn shutdown_timeout_reports_leftover_count() {
    // U2
    let mut w = World::new(1);
    for name in ["a", "b"] {
        w.hold(0, Acquire::new(name));
    }
    w.cut(0);
    w.shut_down(0, secs(1));
    w.run_for(secs(2));
    assert_eq!(w.clients[0].stopped, Some(3), "two locks, and their lease");
}

#[test]
fn held_returns_number_of_held_locks() {
    let mut w = World::new(1);
    let ids = ["a", "b", "c"].map(|name| w.hold(0, Acquire::new(name)));
    assert_eq!(w.verb(0, |hub, _| hub.held()), 3);
    for (place, id) in ids.into_iter().enumerate() {
        w.release(0, id);
        assert_eq!(w.verb(0, |hub, _| hub.held()), 2 - place as u32);
    }
    let longest = w.verb(0, |hub, now| hub.acquire(now, &Acquire::new([b'x'; 512])));
    assert!(longest.is_ok(), "{longest:?}");
    w.end();
}

// E1
#[test]
fn permanently_refused_grant_or_revoke_is_not_retried() {
    // E1
    for (class, refused) in [(ErrorClass::Refused, true), (ErrorClass::Transient, false)] {
        let no = || Outcome::Answer(Reply::Refused(Refusal::Error(ServerError { class, text: "no".into() })));
        let mut w = World::new(1);
        w.set_outcome(0, Kind::Grant, no());
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(30)));
        w.run_for(secs(1));
        assert_eq!(matches!(failure(&w, 0, lock), Some(Failure::Refused(_))), refused, "{class:?}");
        assert_eq!((w.count(0, Kind::Grant), w.is_held(0, lock)), if refused { (1, false) } else { (2, true) });
        w.end();

        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a").ttl(secs(30)));
        w.set_outcome(0, Kind::Revoke, no());
        w.release(0, lock);
        w.run_for(secs(5));
        assert_eq!(w.count(0, Kind::Revoke), if refused { 1 } else { 2 }, "{class:?}");
        // Until its time is over, a shutdown would count the lease whose revocation was refused.
        w.run_for(secs(30));
        w.end();
    }
}
