//! Cases A, C and U: acquiring, cancelling and releasing while replies are lost.

use lock_proto::{Acquire, Wait};

use super::*;
use crate::world::{Kind, Outcome};

/// Found by the simulation: a late key was found by a read, and its watch was never closed.
#[test]
fn cleanup_of_late_create_leaves_no_watch() {
    // E3
    let mut found = 0;
    for us in (0..60_000).step_by(250) {
        let mut w = World::new(1);
        warm(&mut w, 0);
        w.set_outcome(0, Kind::Create, Outcome::Late(Duration::from_secs(1) + Duration::from_micros(us)));
        let lock = w.acquire(0, Acquire::new("a"));
        w.abandon(0, lock);
        w.run_for(secs(25));
        assert!(w.queue("a").is_empty() && w.watched(0).is_empty(), "{us} {:?} {}", w.watched(0), w.describe());
        found += w.count(0, Kind::Delete);
        w.end();
    }
    assert!(found > 100, "most are found when they land: {found}");
}

// E3
#[test]
fn catalogue_a13_unanswered_create_leaves_no_key() {
    for outcome in [Outcome::Unanswered, Outcome::Reset, Outcome::Late(ms(1_300)), Outcome::Late(ms(5_000))] {
        for give_up_after in [1, 600, 1_050] {
            let mut w = World::new(2);
            warm(&mut w, 0);
            w.every(0, Kind::Create, Some(outcome.clone()));
            let lock = w.acquire(0, Acquire::new("a"));
            w.run_for(ms(give_up_after));
            w.abandon(0, lock);
            w.every(0, Kind::Create, None);
            // It may arrive late and is seen then, but must not stay.
            w.run_for(secs(6));
            assert!(w.queue("a").is_empty(), "{outcome:?} {give_up_after} {}", w.describe());
            let next = w.hold(1, Acquire::new("a"));
            w.run_for(secs(20));
            assert!(w.is_held(1, next));
            assert!(w.queue("a").len() == 1);
            w.end();
        }
    }
}

// E3, E6
#[test]
fn catalogue_a13_client_adopts_key_of_its_lost_create() {
    let mut w = World::new(1);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    let lock = w.acquire(0, Acquire::new("a"));
    w.expect(ms(100), "it is held", |w| w.is_held(0, lock));
    assert_eq!(w.count(0, Kind::Put), 1);
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    w.run_for(secs(30));
    assert!(w.queue("a").is_empty());
    w.end();
}

// E3
#[test]
fn catalogue_c8_cancellation_does_not_wait_for_server() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    w.cut(1);
    let reported = w.all_events(1).len();
    w.abandon(1, second);
    assert!(w.verb(1, |hub, now| hub.claim(now, second)).is_err(), "it has ended");
    w.run_for(secs(12));
    assert_eq!(w.all_events(1).len(), reported);
    assert_eq!(w.queue("a").len(), 1, "the key has gone with its lease");
    let requests = w.requests(1);
    w.run_for(secs(60));
    assert!(w.requests(1) <= requests + 40, "{}", w.describe());
    assert!(w.is_held(0, first));
    w.heal(1);
    w.run_for(secs(5));
    w.end();
}

#[test]
fn catalogue_c8_cleanup_continues_in_background() {
    let mut w = World::new(2);
    w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    w.cut(1);
    w.abandon(1, second);
    w.run_for(secs(3));
    assert_eq!(w.queue("a").len(), 2);
    w.heal(1);
    w.expect(secs(4), "the key is deleted", |w| w.queue("a").len() == 1);
    assert!(w.store.leases().contains_key(&w.lease(1)), "by a delete, not by the end of the lease");
    w.end();
}

#[test]
fn catalogue_c9_lock_is_not_granted_to_timed_out_waiter() {
    let mut w = World::new(3);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a").wait(Wait::For(secs(2))));
    w.run_for(ms(10));
    let third = w.acquire(2, Acquire::new("a"));
    w.run_for(ms(1_995));
    let Some(Failure::TimedOut(report)) = failure(&w, 1, second) else { panic!("{}", w.describe()) };
    assert!(report.is_busy() && report.waited == secs(2));
    assert_eq!(w.queue("a").len(), 2);
    w.release(0, first);
    w.expect(ms(5), "the third has it", |w| w.is_held(2, third));
    assert_eq!(w.all_events(1).iter().filter(|(lock, _)| *lock == second).count(), 2, "blocked, and timed out");
    w.end();
}

#[test]
fn catalogue_c9_lock_passes_on_when_cancellation_races_grant() {
    for us in (0..60_000).step_by(250) {
        let mut w = World::new(3);
        let first = w.hold(0, Acquire::new("a"));
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(10));
        let third = w.acquire(2, Acquire::new("a"));
        w.run_for(ms(10));
        w.leave_unclaimed(1);
        w.release(0, first);
        w.run_for(Duration::from_micros(us));
        w.abandon(1, second);
        w.expect(ms(10), "the third has it", |w| w.is_held(2, third));
        assert_eq!(w.queue("a").len(), 1);
        w.end();
    }
}

// E6
#[test]
fn catalogue_u4_late_delete_does_not_remove_next_hold() {
    for late in [200, 900, 1_100, 1_500, 3_000, 8_000] {
        let mut w = World::new(2);
        let lock = w.hold(0, Acquire::new("a"));
        w.set_outcome(0, Kind::Delete, Outcome::Late(ms(late)));
        w.release(0, lock);
        let next = w.acquire(0, Acquire::new("a"));
        let other = w.acquire(1, Acquire::new("a"));
        w.expect(secs(3), "the next hold", |w| w.is_held(0, next) || w.is_held(1, other));
        for _ in 0..200 {
            w.run_for(ms(50));
            let held = (w.is_held(0, next), w.is_held(1, other));
            let mine = w.queue("a").iter().any(|kv| kv.lease == w.lease(0));
            assert!(held != (true, true) && (!held.0 || mine), "late by {late} ms {}", w.describe());
        }
        assert!(w.is_held(0, next) || w.is_held(1, other));
        w.end();
    }
}

// U1
#[test]
fn catalogue_u4_unanswered_delete_is_repeated() {
    for outcome in [Outcome::Reset, Outcome::Unanswered, Outcome::Lost] {
        let mut w = World::new(1);
        let lock = w.hold(0, Acquire::new("a"));
        w.set_outcome(0, Kind::Delete, outcome);
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
        assert!(w.queue("a").is_empty());
        assert!(w.count(0, Kind::Delete) >= 2);
        w.end();
    }
}

// E6, U1
#[test]
fn catalogue_u10_unlock_removes_only_its_own_key() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let key = w.queue("a")[0].key.clone();
    w.pause(0);
    w.delete_by_hand(&key);
    w.expect(ms(5), "the next one has it", |w| w.is_held(1, second));
    w.resume(0);
    assert!(lost(&w, 0, first).is_none());
    assert_eq!(release_and_wait(&mut w, 0, first), Release::Taken);
    w.run_for(secs(20));
    assert!(w.is_held(1, second) && w.queue("a").len() == 1);
    w.end();
}
