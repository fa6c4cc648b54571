//! Cases M: the queue of a lock, and its watches.

use lock_proto::etcd::{Refusal, Reply};
use lock_proto::{Acquire, ErrorClass, ServerError, Wait};

use super::*;
use crate::world::{Kind, Outcome};

// E4
#[test]
fn catalogue_m1_waiter_notices_loss_of_its_own_key() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    w.revoke_by_hand(w.lease(1));
    assert_eq!(w.queue("a").len(), 1);
    w.expect(ms(10), "it is in the queue again", |w| w.queue("a").len() == 2);
    assert!(!was_granted(&w, 1, second));
    w.release(0, first);
    w.expect(ms(5), "it gets the lock", |w| w.is_held(1, second));
    w.end();
}

#[test]
fn catalogue_m1_waiter_with_deleted_key_queues_again() {
    let mut w = World::new(3);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let third = w.acquire(2, Acquire::new("a"));
    w.run_for(ms(10));
    let key = w.queue("a")[1].key.clone();
    w.delete_by_hand(&key);
    w.run_for(ms(10));
    assert_eq!(w.queue("a").len(), 3);
    assert_eq!(w.queue("a")[2].key, key, "at the end, like any new waiter");
    w.release(0, first);
    w.expect(ms(5), "the third is next", |w| w.is_held(2, third));
    assert!(!was_granted(&w, 1, second));
    w.release(2, third);
    w.expect(ms(5), "then the second", |w| w.is_held(1, second));
    w.end();
}

// E4, E5
#[test]
fn catalogue_m2_release_missed_by_broken_watch_is_read() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    w.break_watches(1);
    w.release(0, first);
    w.run_for(ms(1));
    assert!(w.queue("a").len() == 1 && !was_granted(&w, 1, second));
    w.expect(ms(5), "the release is read", |w| w.is_held(1, second));
    w.end();
}

#[test]
fn catalogue_m2_queue_is_polled_without_watch() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    // Its watches never open.
    w.block_watches(1);
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(secs(2));
    w.release(0, first);
    w.expect(ms(1_100), "it is read", |w| w.is_held(1, second));
    let fourth = w.acquire(0, Acquire::new("a").wait(Wait::For(secs(3))));
    w.block_watches(0);
    w.run_for(ms(3_010));
    assert!(matches!(failure(&w, 0, fourth), Some(Failure::TimedOut(_))));
    assert_eq!(w.queue("a").len(), 1, "no key of it stays");
    w.end();
}

// E2
#[test]
fn catalogue_m3_foreign_keys_in_queue_are_reported() {
    for foreign in ["a/other/5f", "a/data", "a/", "a/5F", "a/00112233445566778", "a/5f "] {
        for (wait, candidate) in [(Wait::Forever, false), (Wait::Try, false), (Wait::Forever, true)] {
            let mut w = World::new(1);
            w.put_by_hand(foreign, 0);
            let want = Acquire::new("a").wait(wait);
            let lock = if candidate { w.campaign(0, "a", "me") } else { w.acquire(0, want) };
            w.run_for(ms(10));
            let Some(Failure::KeyInUse(report)) = failure(&w, 0, lock) else { panic!("{foreign}: {}", w.describe()) };
            assert!(report.to_string().contains(foreign), "{report}");
            assert_eq!(w.store.keys().len(), 1, "nothing but the foreign key is left");
            w.delete_by_hand(&foreign.into());
            w.end();
        }
    }
}

#[test]
fn catalogue_m3_foreign_predecessor_of_waiter_is_reported() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    w.put_by_hand("a/b/1f", 0);
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    assert!(matches!(failure(&w, 1, second), Some(Failure::KeyInUse(_))));
    // A key of a lock with a longer name that comes later is behind, and does no harm.
    let lock = w.hold(1, Acquire::new("c"));
    w.put_by_hand("c/d/1f", 0);
    w.run_for(secs(5));
    assert!(w.is_held(1, lock) && w.is_held(0, first));
    w.forget(|key| key.ends_with(b"/1f"));
    w.end();
}

#[test]
fn catalogue_m3_foreign_key_is_reported_once_key_between_is_gone() {
    let mut w = World::new(2);
    w.hold(0, Acquire::new("a"));
    w.put_by_hand("a/b/1f", 0);
    w.put_by_hand("a/2f", 0);
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    assert!(was_blocked(&w, 1, second, Blocked::Held) && failure(&w, 1, second).is_none());
    w.delete_by_hand(&"a/2f".into());
    w.run_for(ms(10));
    assert!(matches!(failure(&w, 1, second), Some(Failure::KeyInUse(_))), "{}", w.describe());
    assert_eq!(w.queue("a").len(), 2, "its own key goes");
    w.forget(|key| key.ends_with(b"/1f"));
    w.end();
}

// E7
#[test]
fn catalogue_m4_locks_of_one_session_exclude_each_other() {
    let mut w = World::new(1);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(5));
    assert!(was_blocked(&w, 0, second, Blocked::Local));
    assert!(w.is_held(0, first) && !was_granted(&w, 0, second));
    assert_eq!(w.queue("a").len(), 1);
    w.abandon(0, second);
    w.run_for(ms(10));
    assert!(w.is_held(0, first) && w.queue("a").len() == 1, "whoever gives up frees nobody's lock");
    w.end();
}

// E4
#[test]
fn catalogue_m5_waiter_with_lost_key_is_granted_only_on_new_key() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(10));
    let old = w.lease(1);
    // At the same time. The waiter gets the event of the predecessor's key first.
    let key = w.queue("a")[0].key.clone();
    w.delete_by_hand(&key);
    w.revoke_by_hand(old);
    w.expect(ms(20), "it is granted", |w| w.is_held(1, second));
    assert_ne!(w.lease(1), old);
    assert_eq!(w.queue("a").len(), 1);
    assert_eq!(w.queue("a")[0].lease, w.lease(1));
    w.abandon(0, first);
    w.end();
}

// E8
#[test]
fn catalogue_m6_paused_holder_fails_by_guard_and_fence() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let guard = w.verb(0, |hub, now| hub.owner_guard(now, first)).unwrap();
    let passes = |w: &World| w.store.keys().get(&guard.key).is_some_and(|kv| kv.mod_revision == guard.mod_revision);
    assert!(passes(&w));
    w.pause(0);
    let second = w.acquire(1, Acquire::new("a"));
    w.expect(secs(12), "the next one has it", |w| w.is_held(1, second));
    assert!(!passes(&w));
    assert!(w.fence(1, second) > w.fence(0, first));
    w.resume(0);
    w.run_for(ms(1));
    assert!(lost(&w, 0, first).is_some());
    w.release(0, first);
    w.end();
}

// A5, E3
#[test]
fn catalogue_m7_losing_try_leaves_no_key() {
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    warm(&mut w, 1);
    let attempt = w.acquire(1, Acquire::new("a").wait(Wait::Try));
    w.run_for(ms(2));
    let Some(Failure::TimedOut(report)) = failure(&w, 1, attempt) else { panic!("{}", w.describe()) };
    assert!(report.is_busy());
    assert_eq!(w.queue("a").len(), 1);
    assert_eq!(w.count(1, Kind::Create), 1, "one request, and nothing to clean up");
    assert_eq!(w.count(1, Kind::Delete), 0);
    w.release(0, first);
    w.end();
}

#[test]
fn catalogue_m7_unanswered_try_leaves_no_key() {
    for delete in [Outcome::Lost, Outcome::Unanswered, Outcome::Reset] {
        let mut w = World::new(1);
        warm(&mut w, 0);
        w.set_outcome(0, Kind::Create, Outcome::Unanswered);
        w.set_outcome(0, Kind::Delete, delete);
        let attempt = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.expect(ms(1_010), "it is answered", |w| failure(w, 0, attempt).is_some());
        assert_eq!(w.queue("a").len(), 1);
        w.expect(ms(1_100), "its key is gone", |w| w.queue("a").is_empty());
        w.run_for(secs(30));
        assert!(w.queue("a").is_empty());
        w.end();
    }
}

/// A polling waiter that loses its read permission fails and leaves no key. One that finds the
/// cluster busy keeps waiting.
#[test]
fn waiter_without_read_permission_fails_and_leaves_no_key() {
    for (class, fails) in [(ErrorClass::Refused, true), (ErrorClass::Transient, false)] {
        let mut w = World::new(2);
        let held = w.hold(0, Acquire::new("a"));
        let waits = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(100));
        let reads = w.count(1, Kind::Look);
        let refusal = Refusal::Error(ServerError { class, text: "no".into() });
        w.set_outcome(1, Kind::Look, Outcome::Answer(Reply::Refused(refusal)));
        w.block_watches(1);
        w.expect(secs(10), "it has read", |w| w.count(1, Kind::Look) > reads);
        w.run_for(ms(100));
        assert_eq!(matches!(failure(&w, 1, waits), Some(Failure::Refused(_))), fails, "{class:?}");
        assert_eq!(w.queue("a").len(), if fails { 1 } else { 2 }, "{}", w.describe());
        w.release(0, held);
        w.run_for(secs(10));
        assert_eq!(was_granted(&w, 1, waits), !fails, "{class:?}");
        if fails {
            assert!(w.watched(1).is_empty(), "nothing is watched for nobody: {:?}", w.watched(1));
        }
        w.end();
    }
}

/// Regression: the server lost the event of the predecessor's deletion. The waiter's watches were
/// open, so it waited for good.
#[test]
fn waiter_finds_release_after_lost_event() {
    // E4
    for every in [None, Some(secs(4))] {
        let mut w = World::with(3, |config| if let Some(every) = every { config.recheck(every) } else { config });
        let limit = every.unwrap_or(secs(30));
        let first = w.hold(0, Acquire::new("a"));
        let waiter = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(10));
        let last = w.acquire(2, Acquire::new("a"));
        w.run_for(ms(10));
        w.lose_events(1, true);
        let released = w.now;
        assert_eq!(release_and_wait(&mut w, 0, first), Release::Released);
        w.expect(limit, "the waiter is served", |w| w.is_held(1, waiter));
        assert!(w.now.since(released) > limit / 2, "by nothing else than another look");
        // Its own key was deleted, and that event was lost, too.
        w.lose_events(2, true);
        let own = w.queue("a")[1].key.clone();
        w.delete_by_hand(&own);
        let _ = release_and_wait(&mut w, 1, waiter);
        w.expect(limit, "the last one enters the line again", |w| w.is_held(2, last));
        w.end();
    }
}

/// A long wait needs few reads, which waiters do not send at the same time.
#[test]
fn long_waits_read_rarely_and_at_different_times() {
    // E4
    let mut w = World::new(2);
    let locks: Vec<_> = (0..20).map(|n| w.hold(0, Acquire::new(format!("{n}")))).collect();
    let waiters: Vec<_> = (0..20).map(|n| w.acquire(1, Acquire::new(format!("{n}")))).collect();
    w.run_for(secs(1));
    let before = w.count(1, Kind::Look);
    w.run_for(secs(600));
    let looks = w.sent(1, Kind::Look).split_off(before);
    assert!((20 * 20..=20 * 27).contains(&looks.len()), "{}", looks.len());
    let times: std::collections::BTreeSet<_> = looks[looks.len() - 20..].iter().map(|(at, _)| *at).collect();
    assert!(times.len() > 15, "{times:?}");
    for (lock, waiter) in locks.into_iter().zip(waiters) {
        w.abandon(0, lock);
        w.abandon(1, waiter);
    }
    w.end();
}
