//! What a client's own waiters get when a hold or an offer before them is lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use core::time::Duration;

use lock_proto::{Acquire, Event, LockId, Loss, Renew};
use lock_sim::check::Stage;
use lock_sim::{World, etcd, zookeeper};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Runs `$body` with a world of each store: one client, whose locks are claimed by the test.
macro_rules! in_each_world {
    ($w:ident, $delete:ident, $body:block) => {{
        {
            // Without fencing tokens a hand-over needs no reply.
            let mut $w = World::redis(1).config(|config| config.fencing(false)).build();
            let $delete = |w: &mut World| w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
            $body
        }
        {
            let config = |config: lock_proto::etcd::Config| config.watch_own_after(Duration::ZERO);
            let mut $w = etcd::World::cluster(1).config(config).build();
            let $delete = |w: &mut etcd::World| assert!(w.delete_key("a", true));
            $body
        }
        {
            let config = |config: lock_proto::zookeeper::Config| config.watch_own_after(Duration::ZERO);
            let mut $w = zookeeper::World::zookeeper(1).config(config).build();
            let $delete = |w: &mut zookeeper::World| assert!(w.delete_node("a", true));
            $body
        }
    }};
}

fn was_granted(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Granted(_)))
}

/// A lost offer is not handed over, unlike one that was withdrawn: the next waiter of the client
/// takes the lock anew.
#[test]
fn lost_offer_does_not_go_to_next_local_waiter() {
    // H5, T2
    in_each_world!(w, delete, {
        w.auto_claim(false);
        let locks: [LockId; 3] = core::array::from_fn(|_| w.acquire(0, Acquire::new("a")));
        w.expect(secs(2), "the first is offered", |w| w.is_offered(0, locks[0]));
        w.claim(0, locks[0]);
        w.run_for(ms(20));
        // On Redis only the reply to this tells the client of the deletion.
        w.extend(0, locks[0]);
        delete(&mut w);
        w.release(0, locks[0]);
        w.expect(secs(2), "an end", |w| w.is_over(0, locks[1]) || w.is_offered(0, locks[2]));
        let lost = w.events(0, locks[1]).last() == Some(&Event::Withdrawn);
        let next = if lost { locks[2] } else { locks[1] };
        w.expect(secs(2), "the next one is offered", |w| w.is_offered(0, next));
        let (old, new) = (w.grant(0, locks[0]).unwrap(), w.grant(0, next).unwrap());
        let node = |fence: Option<lock_proto::Fence>| fence.map(|fence| fence.get() >> 16);
        assert!(old.token != new.token && node(old.fence) <= node(new.fence), "{old:?}, then {new:?}\n{}", w.log());
        w.claim(0, next);
        w.run_for(secs(10));
        assert!(w.is_held(0, next), "{}", w.log());
    });
}

/// The key of a hold whose maximal time is over stays until its guard is returned, and the waiter
/// behind it is not told that it has the lock.
#[test]
fn hold_lost_at_its_maximal_time_does_not_go_to_next_local_waiter() {
    // H4, H6
    in_each_world!(w, _delete, {
        let want = Acquire::new("a");
        let first = w.acquire(0, want.clone().renew(Renew::AtMost(secs(1))));
        w.expect(secs(2), "it is held", |w| w.is_held(0, first));
        let next = w.acquire(0, want);
        w.expect(secs(2), "it is lost", |w| w.stage(0, first) == Some(Stage::Lost));
        assert!(w.events(0, first).contains(&Event::Lost(Loss::MaxHold)));
        // Less than the TTL.
        w.run_for(secs(1));
        assert!(!was_granted(w.events(0, next)), "the guard still exists\n{}", w.log());
        w.release(0, first);
        w.expect(secs(2), "the next one holds", |w| w.is_held(0, next));
        w.run_for(secs(10));
        assert!(w.is_held(0, next), "{}", w.log());
    });
}
