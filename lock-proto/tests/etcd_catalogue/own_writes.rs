//! The last change of a holder's key: which one the client takes for its own.
// E6, E7

use lock_proto::Acquire;

use super::*;
use crate::world::{Kind, Outcome};

/// The put that adopts a key is the client's own write, and no reason for another one.
#[test]
fn adopted_key_is_not_written_again() {
    // E6, E7
    let mut w = World::new(1);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    let lock = w.hold(0, Acquire::new("a"));
    let guard = w.verb(0, |hub, now| hub.owner_guard(now, lock)).unwrap();
    w.run_for(secs(1));
    assert_eq!((w.count(0, Kind::Put), w.queue("a")[0].mod_revision), (1, guard.mod_revision), "{}", w.describe());
    w.end();
}

/// The same when the put follows a wait, in which another client wrote the key.
#[test]
fn key_adopted_during_wait_is_not_written_again() {
    // E6, E7
    let mut w = World::new(2);
    let first = w.hold(0, Acquire::new("a"));
    let lock = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(5));
    let (own, lease) = (w.queue("a")[1].key.clone(), w.lease(1));
    w.put_by_hand(core::str::from_utf8(&own).unwrap(), lease);
    w.run_for(ms(10));
    w.release(0, first);
    w.expect(ms(10), "it is held", |w| w.is_held(1, lock));
    w.run_for(secs(1));
    assert_eq!(w.count(1, Kind::Put), 1, "{}", w.describe());
    w.end();
}

#[test]
fn adopted_key_is_handed_over_at_once() {
    // E7
    let mut w = World::new(1);
    warm(&mut w, 0);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    let first = w.hold(0, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(5));
    w.release(0, first);
    assert!(w.is_held(0, second), "{}", w.describe());
    assert_eq!(w.count(0, Kind::Delete), 0, "{}", w.describe());
    w.end();
}

/// The cluster is restored from a snapshot in which the key had an earlier last change. A write
/// guarded by the later one fails, and its reply shows which one counts.
#[test]
fn key_restored_with_earlier_change_is_written() {
    // E6, E7
    let mut w = World::new(1);
    let leader = w.campaign(0, "board", "a");
    w.run_for(ms(10));
    let snapshot = w.store.clone();
    w.verb(0, |hub, now| hub.proclaim(now, leader, "b".into())).unwrap();
    w.run_for(ms(10));
    w.store.restore(&snapshot);
    w.verb(0, |hub, now| hub.proclaim(now, leader, "c".into())).unwrap();
    w.run_for(ms(10));
    assert_eq!((w.queue("board")[0].value.clone(), w.count(0, Kind::Put)), ("c".into(), 3));
    w.run_for(secs(10));
    assert_eq!((w.is_held(0, leader), w.count(0, Kind::Put)), (true, 3), "{}", w.describe());
    w.end();
}
