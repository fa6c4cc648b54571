//! A create that may be executed late, and the lease that it would use.
// E1, E3, E5

use lock_proto::redis::Acquire;

use super::*;
use crate::world::{Kind, Outcome};

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
