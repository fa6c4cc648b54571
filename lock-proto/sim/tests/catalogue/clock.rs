//! Cases K: clocks and pauses.

use lock_proto::{Acquire, Event, Instant, LockClient, Loss, Machine, Misuse, Release, Renew};
use lock_sim::{Direction, World};

use super::*;

// A9
#[test]
fn catalogue_k1_server_clock_step_breaks_exclusion_but_not_fencing() {
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        w.expect_violation();
        let first = hold(&mut w, 0, Acquire::new("a"));
        w.jump_node_clock_forward(0, secs(3_600));
        let second = hold(&mut w, 1, Acquire::new("a"));
        assert_eq!(w.overlaps(), 1, "this is what nobody can promise: {:?}", w.violations());
        assert!(w.grant(1, second).unwrap().fence > w.grant(0, first).unwrap().fence);
        // The clock jumps back: the counter keeps the greater time.
        w.jump_node_clock_back(0, secs(3_600));
        assert_eq!(release_and_wait(&mut w, 1, second), Release::Released);
        let third = hold(&mut w, 1, Acquire::new("a"));
        assert!(w.grant(1, third).unwrap().fence > w.grant(1, second).unwrap().fence);
    }
}

// T2
#[test]
fn catalogue_k2_reply_read_after_pause_grants_nothing() {
    for (seed, nodes) in (0..40).map(|seed| (seed, [1, 3][seed as usize % 2])) {
        let mut w = World::redis(nodes).clients(2).seed(seed).build();
        warm(&mut w, 0);
        (0..nodes).for_each(|node| w.slow(0, node, Direction::ToClient, ms(2)..ms(3)));
        let first = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        w.expect(ms(5), "it is executed", |w| (0..nodes).all(|node| w.get(node, "a").is_some()));
        w.pause_client(0);
        let second = w.acquire(1, Acquire::new("a").ttl(secs(2)));
        w.expect(secs(4), "the second holds", |w| w.is_held(1, second));
        w.resume_client(0);
        w.run_for(secs(5));
        assert!(w.grant(0, first).is_none() && w.is_held(1, second), "seed {seed}\n{}", w.log());
        let _ = release_and_wait(&mut w, 1, second);
        w.expect(secs(3), "the first holds", |w| w.is_held(0, first));
        w.expect(ms(700), "its renewal is executed", |w| requests(w, 0, "extend", "a") >= nodes);
        w.pause_client(0);
        let before = w.events(0, first).len();
        let third = w.acquire(1, Acquire::new("a").ttl(secs(2)));
        w.expect(secs(5), "the next one holds", |w| w.is_held(1, third));
        w.resume_client(0);
        let first_word = w.events(0, first).get(before);
        assert_eq!(first_word, Some(&Event::Lost(Loss::Expired)), "seed {seed}\n{}", w.log());
        w.run_for(secs(5));
        assert!(!w.is_held(0, first) && w.is_held(1, third));
    }
}

// M1
#[test]
fn catalogue_k3_time_of_day_has_no_effect() {
    let run = |offset: u64, unix: u64| {
        let mut w = World::redis(1)
            .seed(9)
            .clock(0, secs(offset), 0)
            .node(0, |c| c.unix_time(secs(unix)))
            .config(|c| c.fencing(false))
            .build();
        // Renewed manually, because the jitter of renewals is a hash of the clock reading.
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)).renew(Renew::Manual));
        for _ in 0..5 {
            w.run_for(secs(2));
            w.extend(0, lock);
        }
        w.expect(secs(4), "it is lost", |w| lost(w, 0, lock).is_some());
        let left = w.grant(0, lock).unwrap().valid_until.since(Instant::ZERO + secs(offset));
        (left, w.event_times(0, lock).to_vec())
    };
    let usual = run(1_000, 1_767_225_600);
    assert_eq!(run(0, 0), usual);
    assert_eq!(run(9_000_000_000, 4_000_000_000), usual);

    let mut w = World::redis(1).clients(2).build();
    let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
    w.run_for(ms(1_500));
    let until = w.machine(0).valid_until(lock);
    // The clock was set back. An extension counts from the latest time seen.
    w.try_verb(0, |machine, _| {
        machine.handle_timeout(Instant::ZERO);
        machine.extend(Instant::ZERO, lock)
    })
    .unwrap();
    w.expect(ms(5), "it is extended", |w| was_renewed(w, 0, lock));
    assert!(w.machine(0).valid_until(lock) > until);
    w.expect(secs(3), "it ends in time", |w| lost(w, 0, lock).is_some());
    let late = w.try_verb(0, |machine, _| machine.extend(Instant::ZERO, lock));
    assert_eq!(late, Err(Misuse::NotHeld(lock)), "no clock brings it back");
}

// T1
#[test]
fn catalogue_k4_renewed_validity_counts_from_request() {
    for (seed, manual) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(1).seed(seed).clock(0, Duration::ZERO, 0).build();
        let renew = if manual { Renew::Manual } else { Renew::Auto };
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(9)).renew(renew));
        w.run_for(secs(1));
        w.slow(0, 0, Direction::ToClient, ms(400)..ms(401));
        if manual {
            w.extend(0, lock);
        }
        w.expect(secs(3), "it is renewed", |w| was_renewed(w, 0, lock));
        let reported_at = w.now();
        let renewed =
            |event: &Event| if let Event::Renewed { valid_until } = event { Some(*valid_until) } else { None };
        let valid_until = w.events(0, lock).iter().rev().find_map(renewed).unwrap();
        let validity = secs(9) - ms(92);
        assert!(
            valid_until <= reported_at.back(ms(400)) + validity,
            "seed {seed}: {valid_until}, reported at {reported_at}\n{}",
            w.log()
        );
        // The key outlives the client's validity.
        let key_ends = w.now() + w.node(0).pttl(w.now(), "a").unwrap();
        assert!(valid_until + ms(90) <= key_ends, "seed {seed}: {valid_until} and {key_ends}");
    }
}

// T2, T4
#[test]
fn catalogue_k5_loss_is_first_event_of_every_hold_after_suspend() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let locks: Vec<_> = ["a", "b", "c"].map(|name| hold(&mut w, 0, Acquire::new(name).ttl(secs(2)))).into();
        w.run_for(secs(seed));
        w.pause_client(0);
        let before: Vec<_> = locks.iter().map(|lock| w.events(0, *lock).len()).collect();
        w.run_for(secs(3_600));
        let next = hold(&mut w, 1, Acquire::new("a").ttl(secs(2)));
        let renewals = requests(&w, 0, "extend", "b");
        w.resume_client(0);
        for (lock, before) in locks.iter().zip(before) {
            assert_eq!(w.events(0, *lock).get(before), Some(&Event::Lost(Loss::Expired)), "seed {seed}\n{}", w.log());
        }
        w.run_for(secs(5));
        assert_eq!(requests(&w, 0, "extend", "b"), renewals);
        assert!(w.is_held(1, next) && locks.iter().all(|lock| !w.is_held(0, *lock)));
    }
}

// M7, H2
#[test]
fn catalogue_k6_late_timer_does_not_lose_valid_locks() {
    for seed in 0..3 {
        let mut w = World::redis(1).seed(seed).build();
        let locks: Vec<_> = (0..100).map(|n| w.acquire(0, Acquire::new(format!("lock {n}")).ttl(secs(3)))).collect();
        w.expect(ms(100), "all are held", |w| locks.iter().all(|lock| w.is_held(0, *lock)));
        for _ in 0..5 {
            w.pause_client(0);
            w.run_for(ms(2_800));
            w.resume_client(0);
            w.run_for(ms(100));
        }
        let lost = locks.iter().filter(|lock| !w.is_held(0, **lock)).count();
        assert_eq!(lost, 0, "seed {seed}");
    }
}
