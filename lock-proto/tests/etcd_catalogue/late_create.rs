//! A create that may be executed late, and the lease that it would use.
// E1, E3, E5

use lock_proto::Acquire;

use super::*;
use crate::world::{Kind, Outcome};

/// A client whose shared lease is retired: the delete of a key of it was refused. Another lock
/// still needs the lease.
fn with_retired_lease(w: &mut World, denied_name: LockId) {
    w.every(0, Kind::Delete, Some(Outcome::Answer(denied())));
    w.release(0, denied_name);
    w.run_for(ms(5));
}

/// No other lock uses the lease. It is revoked at once, which refuses a late create.
#[test]
fn lease_of_one_lock_ends_with_it_despite_late_create() {
    // E1, E3
    let want = || Acquire::new("a").ttl(secs(3_600));
    let mut w = World::new(1);
    w.set_outcome(0, Kind::Create, Outcome::Reset);
    let lock = w.hold(0, want());
    let _ = release_and_wait(&mut w, 0, lock);
    w.run_for(secs(1));
    assert!(w.store.leases().is_empty() && w.watched(0).is_empty(), "{}", w.describe());

    w.set_outcome(0, Kind::Create, Outcome::Late(secs(4)));
    let lock = w.acquire(0, want());
    w.run_for(ms(5));
    w.abandon(0, lock);
    w.run_for(secs(2));
    assert!(w.store.leases().is_empty() && w.watched(0).is_empty(), "{}", w.describe());
    w.run_for(secs(4));
    assert!(w.queue("a").is_empty(), "{}", w.describe());
    w.end();
}

/// The hold was lost, and its guard is not back: the lease lives on. The late key is deleted.
#[test]
fn late_key_on_lease_of_unreturned_guard_is_deleted() {
    // E3, H6
    let mut w = World::with(1, |config| config.watch_own_after(Duration::ZERO));
    w.set_outcome(0, Kind::Create, Outcome::Late(secs(8)));
    let lock = w.acquire(0, Acquire::new("a").ttl(secs(60)));
    w.expect(secs(2), "it is held", |w| w.is_held(0, lock));
    w.run_for(secs(1));
    let key = w.queue("a")[0].key.clone();
    w.delete_by_hand(&key);
    w.run_for(secs(7));
    assert_eq!((lost(&w, 0, lock), w.count(0, Kind::Delete)), (Some(Loss::Gone), 1), "{}", w.describe());
    assert!(w.queue("a").is_empty() && w.store.leases().len() == 1, "{}", w.describe());
    w.release(0, lock);
    w.run_for(ms(10));
    assert!(w.store.leases().is_empty(), "{}", w.describe());
    w.end();
}

/// The late create lands between the delete and the watch of the cleanup. A waiter that would adopt
/// the key pauses before that, and leaves.
#[test]
fn cleanup_goes_on_after_waiter_leaves_in_pause() {
    // E3, E5
    const LATE: Duration = ms(1_300);
    let mut w = World::new(2);
    let holder = w.hold(0, Acquire::new("a"));
    warm(&mut w, 1);
    let landing = w.now + LATE;
    w.set_outcome(1, Kind::Create, Outcome::Late(LATE));
    let lock = w.acquire(1, Acquire::new("a"));
    w.run_for(LATE - ms(20));
    w.release(0, holder);
    w.run_for(ms(18));
    assert!(w.is_held(1, lock), "{}", w.describe());
    w.set_outcome(1, Kind::Delete, Outcome::Slow(Duration::from_micros(500), Duration::from_micros(4_500)));
    w.release(1, lock);
    w.run_for(ms(4));
    assert!(w.now > landing && w.queue("a").len() == 1, "{}", w.describe());
    w.run_for(Duration::from_micros(2_500));
    // The cleanup reads the key.
    let looks = w.count(1, Kind::Look);
    let next = w.acquire(1, Acquire::new("a"));
    w.run_for(ms(1));
    assert_eq!((w.count(1, Kind::Look), w.count(1, Kind::Put)), (looks, 0), "a pause {}", w.describe());
    w.abandon(1, next);
    w.run_for(secs(30));
    assert!(w.queue("a").is_empty(), "{}", w.describe());
    w.end();
}

/// The key of a waiter on a retired lease is deleted. The next one is created on another lease.
#[test]
fn waiter_on_retired_lease_queues_again_on_another() {
    // E3
    let mut w = World::new(2);
    let locks = ["other", "denied"].map(|name| w.hold(0, Acquire::new(name)));
    let first = w.hold(1, Acquire::new("a"));
    let second = w.acquire(0, Acquire::new("a"));
    w.run_for(ms(5));
    with_retired_lease(&mut w, locks[1]);
    let own = w.queue("a")[1].clone();
    w.delete_by_hand(&own.key);
    w.run_for(ms(10));
    let line = w.queue("a");
    assert!(line.len() == 2 && line[1].lease != own.lease, "{}", w.describe());
    w.every(0, Kind::Delete, None);
    w.release(1, first);
    w.expect(ms(10), "it is held", |w| w.is_held(0, second));
    assert!(w.is_held(0, locks[0]));
    w.end();
}

/// The same while the create is repeated. Cleanup deletes the key if the first one made it.
#[test]
fn create_is_not_repeated_on_retired_lease() {
    // E3
    for outcome in [Outcome::Reset, Outcome::Lost, Outcome::Late(secs(3))] {
        let mut w = World::new(1);
        let locks = ["other", "denied"].map(|name| w.hold(0, Acquire::new(name)));
        let lease = w.lease(0);
        w.set_outcome(0, Kind::Create, outcome.clone());
        let lock = w.acquire(0, Acquire::new("a"));
        with_retired_lease(&mut w, locks[1]);
        w.every(0, Kind::Delete, None);
        w.expect(secs(3), "it is held", |w| w.is_held(0, lock));
        w.run_for(secs(4));
        let line = w.queue("a");
        assert!(line.len() == 1 && line[0].lease != lease, "{outcome:?} {}", w.describe());
        assert!(w.is_held(0, lock) && w.is_held(0, locks[0]));
        w.end();
    }
}
