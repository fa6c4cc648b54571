//! Watches that are cached for the next wait.
// E5

use std::collections::VecDeque;

use lock_proto::Acquire;
use lock_proto::etcd::Config;
use lock_proto::etcd::message::KeyValue;

use super::*;
use crate::world::{Kind, Outcome};

/// Clients that acquire one lock in turn, each of them in the queue.
pub(super) fn in_line(clients: usize, change: impl Fn(Config) -> Config) -> (World, VecDeque<(usize, LockId)>) {
    let mut w = World::with(clients, change);
    let mut line = VecDeque::new();
    for client in 0..clients {
        line.push_back((client, w.acquire(client, Acquire::new("a"))));
        w.run_for(ms(10));
    }
    (w, line)
}

/// Releases the holder's lock and queues it again. Returns the next holder.
#[track_caller]
pub(super) fn release_and_requeue(w: &mut World, line: &mut VecDeque<(usize, LockId)>) -> usize {
    let (client, lock) = line.pop_front().unwrap();
    let _ = release_and_wait(w, client, lock);
    line.push_back((client, w.acquire(client, Acquire::new("a"))));
    let (next, lock) = line[0];
    w.expect(ms(5), "the next one has it", |w| w.is_held(next, lock));
    next
}

/// Client 0 holds, and client 1 has just released. It was behind client 0 before, so its watches
/// are cached.
pub(super) fn after_release() -> World {
    after_release_with(|config| config)
}

fn after_release_with(change: impl Fn(Config) -> Config) -> World {
    let (mut w, mut line) = in_line(2, change);
    assert_eq!((0..3).map(|_| release_and_requeue(&mut w, &mut line)).collect::<Vec<_>>(), [1, 0, 1]);
    w.run_for(ms(5));
    let (_, lock) = line.pop_front().unwrap();
    let _ = release_and_wait(&mut w, 1, lock);
    let (_, first) = line[0];
    w.expect(ms(5), "client 0 gets the lock", |w| w.is_held(0, first));
    assert_eq!(w.watched(1).len(), 2);
    w
}

fn holds(w: &World, client: usize) -> bool {
    w.all_events(client).iter().any(|(lock, _)| w.is_held(client, *lock))
}

fn held(w: &World, client: usize) -> LockId {
    w.all_events(client).iter().find(|(lock, _)| w.is_held(client, *lock)).unwrap().0
}

pub(super) fn release_held(w: &mut World, client: usize) {
    w.release(client, held(w, client));
}

/// Releases the lock of client 0 and expects client 1 to hold it within this time.
#[track_caller]
fn expect_next_holds(w: &mut World, lock: LockId, within: Duration) {
    release_held(w, 0);
    w.expect(within, "it gets the lock", |w| w.is_held(1, lock));
}

fn release_held_and_wait(w: &mut World, client: usize) {
    let lock = held(w, client);
    let _ = release_and_wait(w, client, lock);
}

#[test]
fn recurring_waiters_open_watches_only_once() {
    // E5
    for clients in [2, 3, 10] {
        let (mut w, mut line) = in_line(clients, |config| config);
        for _ in 0..2 * clients {
            release_and_requeue(&mut w, &mut line);
        }
        w.run_for(ms(5));
        let opened = |w: &World| w.clients.iter().map(|client| client.watches_opened.len()).sum::<usize>();
        let made = |w: &World| (0..clients).map(|client| w.requests(client)).sum::<usize>();
        let before = (opened(&w), made(&w));
        for _ in 0..5 * clients {
            release_and_requeue(&mut w, &mut line);
        }
        w.run_for(ms(5));
        // A delete, a read and a create for each.
        assert_eq!((opened(&w) - before.0, made(&w) - before.1), (0, 15 * clients), "{clients} clients");
        w.end();
    }
}

/// The next holder reads the queue at that moment. After a short hold there is no pause.
#[test]
fn next_attempt_waits_for_hand_over_unless_hold_was_short() {
    // E5
    for (hold, pauses) in [(0, false), (3, true)] {
        let (mut w, mut line) = in_line(3, |config| config);
        for _ in 0..3 {
            release_and_requeue(&mut w, &mut line);
        }
        w.run_for(ms(hold));
        let (client, lock) = line.pop_front().unwrap();
        let _ = release_and_wait(&mut w, client, lock);
        let before = w.requests(client);
        let lock = w.acquire(client, Acquire::new("a"));
        assert_eq!(w.requests(client) == before, pauses, "held for {hold} ms");
        w.run_for(ms(6));
        assert_eq!(w.requests(client), before + 1, "held for {hold} ms");
        line.push_back((client, lock));
        while let Some((client, lock)) = line.pop_front() {
            w.expect(ms(20), "it gets the lock", |w| w.is_held(client, lock));
            let _ = release_and_wait(&mut w, client, lock);
        }
        w.end();
    }
}

#[test]
fn retained_watches_are_closed_after_timeout() {
    // E5
    let mut w = after_release();
    w.run_for(ms(90));
    assert_eq!(w.watched(1).len(), 2);
    w.run_for(ms(20));
    assert!(w.watched(1).is_empty());
    // Also during the hold. The time restarts at its end.
    let lock = w.acquire(1, Acquire::new("a"));
    expect_next_holds(&mut w, lock, ms(10));
    w.run_for(ms(110));
    let own = w.queue("a")[0].key.clone();
    assert_eq!(w.watched(1), [own]);

    let mut w = after_release();
    let lock = w.acquire(1, Acquire::new("a"));
    expect_next_holds(&mut w, lock, ms(10));
    w.run_for(ms(80));
    w.release(1, lock);
    w.run_for(ms(90));
    assert_eq!(w.watched(1).len(), 2);
    w.run_for(ms(20));
    assert!(w.watched(1).is_empty());
    w.end();
}

/// A holder that did not wait, but watches its key.
#[test]
fn holders_own_watch_does_not_replace_retained_watches() {
    // E5
    for want in [Acquire::new("a"), Acquire::new("a").ttl(secs(3))] {
        let mut w = after_release_with(|config| config.watch_own_after(Duration::ZERO));
        release_held_and_wait(&mut w, 0);
        let cached_watches = w.watched(1);
        let lock = w.hold(1, want);
        w.run_for(ms(5));
        assert_eq!(w.watched(1).len(), 3);
        let _ = release_and_wait(&mut w, 1, lock);
        assert_eq!(w.watched(1), cached_watches);
        w.run_for(ms(110));
        assert!(w.watched(1).is_empty());
        w.end();
    }
}

#[test]
fn release_reported_before_wait_is_not_missed() {
    // E5
    for us in (0..26_000).step_by(250) {
        let mut w = after_release();
        let opened = w.clients[1].watches_opened.len();
        w.set_outcome(1, Kind::Create, Outcome::Slow(ms(1), ms(20)));
        let lock = w.acquire(1, Acquire::new("a"));
        w.run_for(Duration::from_micros(us));
        expect_next_holds(&mut w, lock, ms(24));
        assert_eq!(w.clients[1].watches_opened.len(), opened, "after {us} µs");
        w.end();
    }
}

/// The same with the own key: the place in the queue is lost.
#[test]
fn own_key_deletion_reported_before_wait_is_not_missed() {
    // E5
    for wait in [2, 10, 19, 21, 25] {
        let mut w = after_release();
        w.set_outcome(1, Kind::Create, Outcome::Slow(ms(1), ms(20)));
        let lock = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(wait));
        let own = w.queue("a")[1].key.clone();
        w.delete_by_hand(&own);
        w.expect(ms(25), "it queues again", |w| w.queue("a").len() == 2);
        expect_next_holds(&mut w, lock, ms(5));
        w.end();
    }
}

/// A late event of an earlier wait.
#[test]
fn stale_event_of_earlier_wait_is_ignored() {
    // E5
    let mut w = after_release();
    let lock = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    let keys: Vec<_> = w.queue("a").into_iter().map(|kv| (kv.key, kv.create_revision)).collect();
    let before = w.count(1, Kind::Look);
    for (key, created) in keys {
        let watch = w.watch_on(1, &key);
        let gone = KeyValue { key, mod_revision: created - 1, ..KeyValue::default() };
        w.verb(1, |hub, now| hub.handle_changed(now, watch, created - 1, true, &gone));
    }
    w.run_for(ms(5));
    assert_eq!(w.count(1, Kind::Look), before);
    expect_next_holds(&mut w, lock, ms(5));
    w.end();
}

#[test]
fn broken_retained_watches_are_not_reused() {
    // E5
    let mut w = after_release();
    let opened = w.clients[1].watches_opened.len();
    w.break_watches(1);
    assert!(w.watched(1).is_empty());
    let lock = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    assert_eq!(w.clients[1].watches_opened.len(), opened + 2);
    expect_next_holds(&mut w, lock, ms(5));
    w.end();
}

/// A watch that is being reopened at the release has missed events.
#[test]
fn holders_watch_not_open_at_release_is_not_retained() {
    // E5
    let mut w = after_release();
    let lock = w.acquire(1, Acquire::new("a"));
    expect_next_holds(&mut w, lock, ms(10));
    let own = w.watch_on(1, &w.queue("a")[0].key);
    w.verb(1, |hub, now| hub.handle_unsubscribed(now, own));
    w.release(1, lock);
    assert_eq!(w.watched(1).len(), 1);
    w.hold(0, Acquire::new("a"));
    let opened = w.clients[1].watches_opened.len();
    w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    assert_eq!((w.clients[1].watches_opened.len(), w.watched(1).len()), (opened + 2, 2));
    w.end();
}

/// Behind another predecessor or with another lease, both watches are reopened. The own one is
/// last, to detect writes during the opening of the other.
#[test]
fn retained_watches_are_reused_only_for_same_keys() {
    // E5
    for own_lease in [false, true] {
        let mut w = after_release();
        if !own_lease {
            let third = w.add(world::config());
            w.acquire(third, Acquire::new("a"));
            w.run_for(ms(10));
        }
        let opened = w.clients[1].watches_opened.len();
        let want = if own_lease { Acquire::new("a").ttl(secs(3)) } else { Acquire::new("a") };
        w.acquire(1, want);
        w.run_for(ms(10));
        let line: Vec<_> = w.queue("a").into_iter().map(|kv| kv.key).collect();
        assert_eq!(w.clients[1].watches_opened[opened..], line[line.len() - 2..]);
        assert_eq!(w.watched(1).len(), 2, "the others are closed");
        assert!(!holds(&w, 1));
        w.end();
    }
}

#[test]
fn shutdown_closes_retained_watches() {
    // E5
    let mut w = after_release();
    w.shut_down(1, secs(1));
    assert!(w.watched(1).is_empty());
    w.end();
}
