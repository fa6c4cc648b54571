//! Cases L: notification of a lost lock.

use lock_proto::{Acquire, Event, LockClient, Loss, Release, Renew};
use lock_sim::{Direction, World};

use super::*;

// T2
#[test]
fn catalogue_l1_partitioned_holder_is_notified_before_next_grant() {
    for (seed, drift) in (0..20).map(|seed| (seed, [-4_000, 0, 4_000][seed as usize % 3])) {
        let mut w = World::redis(1).clients(2).seed(seed).clock(0, secs(7), drift).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        let second = w.acquire(1, Acquire::new("a").ttl(secs(2)));
        w.run_for(secs(3));
        // Partitions in each direction. The network reports none of them.
        match seed % 3 {
            0 => w.partition(0, 0),
            1 => w.cut(0, 0, Direction::ToClient),
            _ => w.cut(0, 0, Direction::ToNode),
        }
        w.expect(secs(5), "the second holds", |w| w.is_held(1, second));
        let events = w.events(0, first).iter().zip(w.event_times(0, first));
        let lost_at = events.filter(|(event, _)| matches!(event, Event::Lost(_))).map(|(_, at)| *at).next();
        let granted_at = w.events(1, second).iter().zip(w.event_times(1, second));
        let granted_at = granted_at.filter(|(event, _)| matches!(event, Event::Granted(_))).map(|(_, at)| *at).next();
        assert!(lost_at.unwrap() < granted_at.unwrap(), "seed {seed}\n{}", w.log());
        assert!(w.events(0, first).iter().any(|event| matches!(event, Event::AtRisk { .. })), "there was a warning");
    }
}

// T2, T3
#[test]
fn catalogue_l2_clock_decides_whether_lock_is_held() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).clock(0, Duration::ZERO, 0).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        let until = w.machine(0).valid_until(lock).unwrap();
        w.run_for(ms(590));
        // From here on no timer of the process runs. The reply to the renewal is in its socket.
        w.cut(0, 0, Direction::ToClient);
        w.run_for(ms(210));
        w.pause_client(0);
        w.heal_all();
        w.run_for((until.back(Duration::from_nanos(1))).since(w.now()));
        assert!(w.is_held(0, lock));
        w.run_for(Duration::from_nanos(1));
        assert!(!w.is_held(0, lock), "no timer has run, and it is not held any more");
        w.resume_client(0);
        assert!(w.events(0, lock).contains(&Event::Lost(Loss::Expired)));
        let again = w.run_until(secs(10), |w| w.is_held(0, lock) || w.machine(0).valid_until(lock).is_some());
        assert!(!again, "seed {seed}\n{}", w.log());
        assert!(!was_renewed(&w, 0, lock));
    }
}

// H6, U1
#[test]
fn catalogue_l5_release_of_lost_lock_is_short() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
        w.expect(secs(3), "it is lost", |w| lost(w, 0, lock).is_some());
        w.run_for(secs(seed) + ms(50));
        assert_eq!(requests(&w, 0, "release", "a"), 0, "nothing is sent before the guard comes back");
        let start = w.now();
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Expired);
        assert!(w.now().since(start) < ms(5), "seed {seed}\n{}", w.log());
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
        w.partition(0, 0);
        w.expect(secs(3), "it is lost", |w| lost(w, 0, lock).is_some());
        let start = w.now();
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Unknown);
        assert_eq!(w.now().since(start), secs(2));
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
        w.run_for(secs(3));
        let _ = release_and_wait(&mut w, 0, lock);
        w.run_for(secs(30));
        assert_eq!(requests(&w, 0, "release", "a"), 1, "seed {seed}\n{}", w.log());
    }
}

// T2
#[test]
fn catalogue_l7_late_successful_renewal_is_no_loss() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(4)));
        w.run_for(secs(1));
        w.partition(0, 0);
        let at_risk = |event: &Event| matches!(event, Event::AtRisk { .. });
        w.expect(secs(3), "a warning", |w| w.events(0, lock).iter().any(at_risk));
        w.heal_all();
        w.drop_connections(0, 0);
        w.run_for(secs(20));
        assert!(w.is_held(0, lock) && lost(&w, 0, lock).is_none(), "seed {seed}\n{}", w.log());
        let events = w.events(0, lock);
        let warnings = events.iter().filter(|event| at_risk(event)).count();
        assert!(warnings == 1 && was_renewed(&w, 0, lock), "{events:?}");
    }
}

// T2
#[test]
fn catalogue_l8_lost_lock_is_never_reacquired_automatically() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        assert_never_back(&mut w, 1, secs(20));
        assert_eq!(lost(&w, 0, lock), Some(Loss::Gone));
        assert_eq!(requests(&w, 0, "take", "a"), 1, "seed {seed}\n{}", w.log());
        let events = w.events(0, lock).iter().filter(|event| matches!(event, Event::Lost(_))).count();
        assert_eq!(events, 1);
        assert!(!w.is_held(0, lock));
    }
}
