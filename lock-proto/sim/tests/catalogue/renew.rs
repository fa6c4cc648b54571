//! Cases R: renewal and extension.

use lock_proto::{Acquire, Drift, Event, Invalid, LockClient, Loss, MIN_TTL, Machine, Misuse, Release, Renew};
use lock_sim::redis::Condition;
use lock_sim::{Direction, World};

use super::*;

// H1
#[test]
fn catalogue_r1_next_hold_is_renewed_after_loss() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        w.partition(0, 0);
        w.expect(secs(2), "it is lost", |w| lost(w, 0, first).is_some());
        w.heal_all();
        // With and without the old guard.
        if seed % 2 == 0 {
            w.abandon(0, first);
        }
        let second = w.acquire(0, Acquire::new("a").ttl(secs(2)));
        w.expect(secs(3), "it is held again", |w| w.is_held(0, second));
        w.run_for(secs(20));
        assert!(w.is_held(0, second), "seed {seed}\n{}", w.log());
        assert!(!w.is_held(0, first));
    }
}

// H1
#[test]
fn catalogue_r2_release_right_after_grant_prevents_renewal() {
    for (seed, claimed) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(1).seed(seed).build();
        w.auto_claim(claimed);
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(1)));
        w.expect(ms(50), "it is granted", |w| w.grant(0, lock).is_some());
        w.release(0, lock);
        assert!(w.try_verb(0, |machine, now| machine.claim(now, lock)).is_err(), "what is released cannot be claimed");
        w.expect(ms(10), "it is released", |w| w.is_over(0, lock));
        assert_eq!(released(&w, 0, lock), Some(Release::Released));
        assert_never_back(&mut w, 1, secs(10));
        assert_eq!(requests(&w, 0, "extend", "a"), 0, "seed {seed}\n{}", w.log());
        assert_eq!(w.machine(0).next_deadline(), None, "no timer is left");
    }
}

// H2
#[test]
fn catalogue_r3_renewal_stops_when_release_is_requested() {
    for (seed, condition) in (0..20).map(|seed| (seed, [Condition::ReadOnly, Condition::DiskError][seed as usize % 2]))
    {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(secs(5));
        let renewals = requests(&w, 0, "extend", "a");
        assert!(renewals >= 4);
        w.set_condition(0, condition, true);
        let start = w.now();
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Unknown, "seed {seed}\n{}", w.log());
        w.expect((start + secs(3)).since(w.now()), "the key ends at its TTL", |w| w.get(0, "a").is_none());
        w.set_condition(0, condition, false);
        assert_never_back(&mut w, 1, secs(30));
        assert_eq!(requests(&w, 0, "extend", "a"), renewals, "seed {seed}\n{}", w.log());
    }
}

// H1
#[test]
fn catalogue_r4_loss_of_one_lock_does_not_affect_others() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let locks: Vec<_> = ["a", "b", "c", "d"].map(|name| hold(&mut w, 0, Acquire::new(name).ttl(secs(1)))).into();
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        w.on_node(0, "SET b x", |node, now| node.insert(now, "b", "x", None));
        w.run_for(secs(1));
        assert_eq!((lost(&w, 0, locks[0]), lost(&w, 0, locks[1])), (Some(Loss::Gone), Some(Loss::Taken)));
        w.run_for(secs(10));
        assert!(w.is_held(0, locks[2]) && w.is_held(0, locks[3]), "seed {seed}\n{}", w.log());
    }
}

// H2
#[test]
fn catalogue_r6_late_renewal_reply_is_ignored() {
    let mut under_way = 0;
    // The renewal is sent at a third of the TTL, less up to a tenth of that.
    for at in (890..1_030).step_by(5) {
        let mut w = World::redis(1).seed(at).build();
        warm(&mut w, 0);
        w.slow(0, 0, Direction::ToNode, ms(20)..ms(21));
        w.slow(0, 0, Direction::ToClient, ms(20)..ms(21));
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        let start = w.event_times(0, lock).first().copied().unwrap();
        w.run_for((start + ms(at - 40)).since(w.now()));
        let before = w.events(0, lock).len();
        w.release(0, lock);
        // The same name again, at once: the late reply does not belong to this hold either.
        let next = (at % 2 == 0).then(|| w.acquire(0, Acquire::new("a").ttl(secs(3))));
        w.expect(ms(200), "it is answered", |w| w.is_over(0, lock));
        let after = &w.events(0, lock)[before..];
        assert_eq!(after, [Event::Released(Release::Released)], "released at {at} ms\n{}", w.log());
        under_way += usize::from(requests(&w, 0, "extend", "a") > 0 && before == 1);
        match next {
            Some(next) => {
                w.run_for(secs(10));
                assert!(w.is_held(0, next) && lost(&w, 0, next).is_none(), "released at {at} ms\n{}", w.log());
            }
            None => {
                let renewals = requests(&w, 0, "extend", "a");
                assert_never_back(&mut w, 1, secs(10));
                assert_eq!(requests(&w, 0, "extend", "a"), renewals);
                assert_eq!(w.machine(0).next_deadline(), None, "no timer is left");
            }
        }
    }
    assert!(under_way >= 5, "in {under_way} runs the renewal was under way");
}

// H2
#[test]
fn catalogue_r8_renewal_is_retried_until_validity_ends() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).clock(0, secs(5), 0).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        let valid_until = w.grant(0, lock).unwrap().valid_until;
        w.run_for(ms(500));
        w.kill_node(0);
        if seed % 2 == 0 {
            // Back with most of a second to spare: the lock is kept.
            w.run_for(ms(1_200));
            w.restart_node(0, true);
            w.run_for(secs(20));
            assert!(w.is_held(0, lock) && lost(&w, 0, lock).is_none(), "seed {seed}\n{}", w.log());
            // The key belongs to another client now, which a single reply proves.
            w.on_node(0, "SET a other", |node, now| node.insert(now, "a", "other", Some(secs(60))));
            w.expect(ms(1_010), "the loss is reported by the next renewal", |w| lost(w, 0, lock).is_some());
            assert_eq!(lost(&w, 0, lock), Some(Loss::Taken));
        } else {
            w.expect(secs(3), "the loss is reported", |w| lost(w, 0, lock).is_some());
            assert_eq!(lost(&w, 0, lock), Some(Loss::Expired));
            assert_eq!(w.now() + secs(5), valid_until, "to the nanosecond");
            let tries = w.log().lines().filter(|line| line.ends_with(" connect")).count();
            assert!(tries > 5, "{tries} connections were tried\n{}", w.log());
        }
    }
}

// H3
#[test]
fn catalogue_r9_extension_preserves_handle() {
    let mut w = World::redis(1).build();
    let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
    let granted = *w.grant(0, lock).unwrap();
    for _ in 0..10 {
        w.run_for(secs(1));
        w.extend(0, lock);
        w.expect(ms(10), "it is extended", |w| matches!(w.events(0, lock).last(), Some(Event::Extended)));
    }
    assert!(w.is_held(0, lock));
    assert!(w.machine(0).valid_until(lock) > Some(granted.valid_until + secs(9)));
    assert_eq!(w.get(0, "a").unwrap(), granted.token.to_string().as_bytes());
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
}

// H1, H3
#[test]
fn catalogue_r10_extensions_do_not_accumulate() {
    let mut w = World::redis(1).build();
    let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
    for _ in 0..50 {
        w.extend(0, lock);
        w.run_for(ms(10));
        assert!(w.node(0).pttl(w.now(), "a").unwrap() <= secs(2));
    }
    assert!(requests(&w, 0, "extend", "a") >= 40);
    let bounded = hold(&mut w, 0, Acquire::new("b").ttl(secs(2)).renew(Renew::AtMost(secs(5))));
    let start = w.event_times(0, bounded)[0];
    w.expect(secs(6), "the maximal hold time ends", |w| lost(w, 0, bounded).is_some());
    assert_eq!(lost(&w, 0, bounded), Some(Loss::MaxHold));
    assert_eq!(w.now().since(start), secs(5));
}

// M5
#[test]
fn catalogue_r11_zero_ttl_is_refused() {
    let mut w = World::redis(1).build();
    for ttl in [Duration::ZERO, MIN_TTL - Duration::from_nanos(1)] {
        let refused = w.try_verb(0, |machine, now| machine.acquire(now, &Acquire::new("a").ttl(ttl)));
        assert!(matches!(refused, Err(Misuse::Invalid(Invalid::Ttl { given, .. })) if given == ttl), "{refused:?}");
    }
    let never = Acquire::new("a").renew(Renew::AtMost(Duration::ZERO));
    let refused = w.try_verb(0, |machine, now| machine.acquire(now, &never));
    assert_eq!(refused, Err(Misuse::Invalid(Invalid::MaxHold)));
    w.run_for(secs(1));
    assert_eq!(w.total_calls(0), 0);
}

// H1, Q3
#[test]
fn catalogue_r12_renewal_does_not_recreate_lost_key() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(secs(4));
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        assert_never_back(&mut w, 1, secs(10));
        assert_eq!(lost(&w, 0, lock), Some(Loss::Gone), "seed {seed}\n{}", w.log());

        let mut w = World::redis(3).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.run_for(secs(4));
        for node in 0..2 {
            w.on_node(node, "DEL a", |node, now| node.remove(now, "a"));
        }
        let back = w.run_until(secs(10), |w| (0..2).any(|node| w.get(node, "a").is_some()));
        assert!(!back, "seed {seed}\n{}", w.log());
        assert_eq!(lost(&w, 0, lock), Some(Loss::Gone), "seed {seed}\n{}", w.log());
    }
}

// Q4
#[test]
fn catalogue_r13_failed_extension_does_not_end_hold() {
    for seed in 0..10 {
        let mut w = World::redis(3).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
        w.set_condition(0, Condition::ReadOnly, true);
        w.run_for(secs(20));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
        assert!((1..3).all(|node| w.get(node, "a") == Some(&token(&w, 0, lock)[..])));
        // Without two of three nodes nothing is confirmed. The lock is held while it is valid.
        w.set_condition(1, Condition::ReadOnly, true);
        w.extend(0, lock);
        w.expect(ms(100), "the extension has failed", |w| {
            matches!(w.events(0, lock).last(), Some(Event::ExtendFailed(_)))
        });
        assert!(w.is_held(0, lock));
        w.expect(secs(3), "it is lost in the end", |w| lost(w, 0, lock).is_some());
        assert_eq!(lost(&w, 0, lock), Some(Loss::Expired));
        assert!(w.machine(0).valid_until(lock).is_none());
        assert_eq!(requests(&w, 0, "release", "a"), 0, "seed {seed}\n{}", w.log());
        assert!(w.get(2, "a").is_some(), "its time there is not over");
    }
}

// H1
#[test]
fn catalogue_r14_renewal_period_follows_from_ttl() {
    for ttl in [ms(200), secs(1), secs(14), secs(60), secs(3_600)] {
        let mut w = World::redis(1).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(ttl));
        w.expect(ttl / 3 + ms(2), "it is renewed", |w| was_renewed(w, 0, lock));
        w.run_for(10 * ttl);
        assert!(w.is_held(0, lock), "{ttl:?}\n{}", w.log());
        let renewals = requests(&w, 0, "extend", "a");
        assert!((28..40).contains(&renewals), "{renewals} renewals in ten TTLs of {ttl:?}");
    }
}

// M1
#[test]
fn catalogue_r15_shortest_ttl_works() {
    for seed in 0..5 {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(MIN_TTL));
        w.run_for(secs(5));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
    }
}

// H1
#[test]
fn catalogue_r16_several_renewal_tries_fit_validity() {
    for (seed, ttl) in [(1, ms(300)), (2, secs(3)), (3, secs(10)), (4, secs(60))] {
        let mut w = World::redis(1).seed(seed).build();
        let lock = hold(&mut w, 0, Acquire::new("a").ttl(ttl));
        w.set_condition(0, Condition::DiskError, true);
        w.expect(ttl / 3 + ms(1), "the first try", |w| requests(w, 0, "extend", "a") == 1);
        w.expect(ttl, "it is lost", |w| lost(w, 0, lock).is_some());
        let tries = requests(&w, 0, "extend", "a");
        assert!((6..15).contains(&tries), "{tries} tries within the validity of {ttl:?}\n{}", w.log());
    }
    let wide = Drift { divisor: 10, margin: secs(1) };
    let mut w = World::redis(1).config(move |c| c.drift(wide)).build();
    let refused = w.try_verb(0, |machine, now| machine.acquire(now, &Acquire::new("a").ttl(secs(2))));
    assert!(matches!(refused, Err(Misuse::Invalid(Invalid::Drift { .. }))), "{refused:?}");
}
