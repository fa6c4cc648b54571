//! Cases A: acquiring a lock.

use lock_proto::{
    Acquire, Answer, Blocked, Drift, Event, Expiry, Failure, LockClient, Loss, Misuse, Release, Renew, Wait,
};
use lock_sim::{Direction, World};

use super::*;

// A3
#[test]
fn catalogue_a1_repeated_take_is_not_blocked_by_own_token() {
    for (seed, fencing) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(1).seed(seed).config(move |c| c.fencing(fencing)).build();
        warm(&mut w, 0);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(ms(5), "the server has executed it", |w| w.get(0, "a").is_some());
        let stale_token = w.get(0, "a").unwrap().to_vec();
        w.drop_connections(0, 0);
        w.expect(ms(200), "it is held, long before the late key expires", |w| w.is_held(0, lock));
        assert!(!was_blocked(&w, 0, lock, Blocked::Held), "seed {seed}\n{}", w.log());
        assert_ne!(token(&w, 0, lock), stale_token);
        assert_eq!(w.get(0, "a").unwrap(), token(&w, 0, lock));
        w.run_for(secs(30));
        assert!(w.is_held(0, lock), "the late delete does not affect it: seed {seed}\n{}", w.log());
        assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
        w.run_for(secs(30));
        assert_clean(&w);
    }
}

// A3, A4
#[test]
fn catalogue_a1_late_take_does_not_block_own_client() {
    for seed in 0..20 {
        let mut w = World::redis(1).seed(seed).build();
        warm(&mut w, 0);
        w.on_node(0, "SET a foreign", |node, now| node.insert(now, "a", "foreign", Some(secs(60))));
        w.slow(0, 0, Direction::ToNode, ms(3_000)..ms(3_001));
        let sent = w.now();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(10)));
        w.run_for(ms(1));
        w.slow(0, 0, Direction::ToNode, us(100)..us(200));
        w.run_for((sent + ms(2_999)).since(w.now()));
        assert!(was_blocked(&w, 0, lock, Blocked::Held), "{:?}", w.events(0, lock));
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        w.expect(ms(3), "the lost take lands", |w| w.get(0, "a").is_some());
        let stale_token = w.get(0, "a").unwrap().to_vec();
        w.expect(ms(2_020), "the next attempt has it", |w| w.is_held(0, lock));
        assert_ne!(token(&w, 0, lock), stale_token, "seed {seed}\n{}", w.log());
        w.run_for(secs(30));
        assert!(w.is_held(0, lock), "seed {seed}\n{}", w.log());
    }
}

// A1, A10
#[test]
fn catalogue_a2_every_key_has_ttl() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(2).seed(seed).config(move |c| c.fencing(seed % 2 == 0)).build();
        w.acquire(0, Acquire::new("a").ttl(secs(1)));
        let eternal =
            w.run_until(ms(20 + seed * 30), |w| w.get(0, "a").is_some() && w.node(0).pttl(w.now(), "a").is_none());
        assert!(!eternal, "seed {seed}\n{}", w.log());
        w.kill_client(0);
        let next = w.acquire(1, Acquire::new("a").ttl(secs(1)));
        w.expect(ms(1_100), "the dead holder's key ends", |w| w.is_held(1, next));
    }
    let mut w = World::redis(1).build();
    w.on_node(0, "SET a somebody", |node, now| node.insert(now, "a", "somebody", None));
    let lock = w.acquire(0, Acquire::new("a"));
    w.run_for(secs(30));
    assert!(was_blocked(&w, 0, lock, Blocked::HeldWithoutExpiry), "{:?}", w.events(0, lock));
    w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
    w.expect(secs(1), "the wait continues and succeeds", |w| w.is_held(0, lock));
    // A single attempt says it, too.
    for (nodes, fencing) in [(1, true), (1, false), (3, false)] {
        let mut w = World::redis(nodes).config(move |c| c.fencing(fencing)).build();
        warm(&mut w, 0);
        for node in 0..nodes {
            w.on_node(node, "SET a somebody", |node, now| node.insert(now, "a", "somebody", None));
        }
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.expect(ms(50), "it has failed", |w| w.is_over(0, lock));
        let Some(Failure::TimedOut(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
        assert!(report.is_busy(), "{report}");
        let forever = report.nodes.iter().filter(|node| matches!(node, Answer::Taken(Expiry::Never))).count();
        assert!(forever > nodes / 2, "{nodes}: {report}");
    }
}

/// A waiter with a much longer TTL had the lock before.
#[test]
fn dead_holders_lock_is_free_after_its_own_ttl() {
    // A8
    for (seed, nodes) in (0..10).map(|seed| (seed, [1, 3][seed as usize % 2])) {
        let mut w = World::redis(nodes).clients(2).seed(seed).config(|c| c.quarantine(secs(1_000))).build();
        let long = hold(&mut w, 0, Acquire::new("a").ttl(secs(1_000)));
        let short = w.acquire(0, Acquire::new("a").ttl(secs(5)));
        w.release(0, long);
        w.expect(secs(1), "the second has it", |w| w.is_held(0, short));
        w.run_for(secs(1));
        w.kill_client(0);
        let next = w.acquire(1, Acquire::new("a").ttl(secs(5)));
        w.expect(ms(5_500), "the key ends", |w| w.is_held(1, next));
    }
}

// Q2
#[test]
fn catalogue_a3_grants_read_after_validity_do_not_count() {
    for (seed, nodes) in (0..20).map(|seed| (seed, [1, 3][seed as usize % 2])) {
        // With a drift of a tenth, the keys outlive the validity by a second.
        let drift = Drift { divisor: 10, margin: ms(2) };
        let mut w = World::redis(nodes).seed(seed).config(move |c| c.drift(drift)).build();
        warm(&mut w, 0);
        for node in 0..nodes {
            w.slow(0, node, Direction::ToClient, ms(2)..ms(3));
        }
        let start = w.now();
        let lock = w.acquire(0, Acquire::new("a").ttl(secs(10)).wait(Wait::Try));
        w.expect(ms(5), "all have executed it", |w| (0..nodes).all(|node| w.get(node, "a").is_some()));
        w.pause_client(0);
        w.run_for((start + ms(9_100)).since(w.now()));
        assert!((0..nodes).all(|node| w.get(node, "a").is_some()), "the keys are still there");
        w.resume_client(0);
        w.expect(ms(10), "the attempt is over", |w| w.is_over(0, lock));
        assert!(w.grant(0, lock).is_none(), "seed {seed}\n{}", w.log());
        assert!(matches!(failure(&w, 0, lock), Some(Failure::TimedOut(_))));
        w.expect(ms(200), "all keys are released", |w| (0..nodes).all(|node| w.get(node, "a").is_none()));
        w.run_for(secs(30));
        assert_clean(&w);
    }
}

// A4
#[test]
fn catalogue_a4_timed_out_round_leaves_no_keys() {
    for seed in 0..20 {
        let mut w = World::redis(3).seed(seed).config(|c| c.round_timeout(ms(50))).build();
        warm(&mut w, 0);
        for node in 1..3 {
            w.slow(0, node, Direction::ToClient, ms(200)..ms(250));
        }
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.expect(ms(5), "all have executed it", |w| (0..3).all(|node| w.get(node, "a").is_some()));
        w.expect(ms(60), "the round is over", |w| w.is_over(0, lock));
        assert!(matches!(failure(&w, 0, lock), Some(Failure::TimedOut(_))), "seed {seed}\n{}", w.log());
        w.expect(ms(10), "all keys are released", |w| (0..3).all(|node| w.get(node, "a").is_none()));
        assert_never_back(&mut w, 3, secs(30));
    }
}

// A5
#[test]
fn catalogue_a5_wait_timeout_is_error() {
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        hold(&mut w, 0, Acquire::new("a"));
        let start = w.now();
        let lock = w.acquire(1, Acquire::new("a").wait(Wait::For(secs(2))));
        w.expect(secs(3), "the wait is over", |w| w.is_over(1, lock));
        assert_eq!(w.now().since(start), secs(2));
        let Some(Failure::TimedOut(report)) = failure(&w, 1, lock) else { panic!("{:?}", w.events(1, lock)) };
        assert!(report.is_busy() && report.waited == secs(2), "{report}");
        assert!(w.grant(1, lock).is_none() && !w.is_held(1, lock));
        assert_eq!(w.try_verb(1, |machine, now| machine.claim(now, lock)), Err(Misuse::Stale(lock)));
    }
}

// M6
#[test]
fn catalogue_a6_abandoned_wait_never_holds() {
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a"));
        let lock = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(100 + seed * 7));
        let events = w.events(1, lock).len();
        w.abandon(1, lock);
        let _ = release_and_wait(&mut w, 0, first);
        w.run_for(secs(5));
        assert_eq!(w.events(1, lock).len(), events);
        assert_eq!(w.try_verb(1, |machine, now| machine.claim(now, lock)), Err(Misuse::Stale(lock)));
        w.run_for(secs(10));
        assert_clean(&w);
    }
}

// A10, U1
#[test]
fn catalogue_a7_data_key_is_reported_and_left_alone() {
    for nodes in [1, 3] {
        let mut w = World::redis(nodes).build();
        for node in 0..nodes {
            command(&mut w, node, &["RPUSH", "a", "x"]);
        }
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(ms(50), "it has failed", |w| w.is_over(0, lock));
        assert!(matches!(failure(&w, 0, lock), Some(Failure::KeyInUse(_))), "{:?}", w.events(0, lock));
        w.run_for(secs(30));
        assert!((0..nodes).all(|node| w.node(node).exists(w.now(), "a")), "the data is still there");
    }
    // Once a node has run a script, the first attempt is a plain `SET`, which does not tell what it
    // found. A wait that has time for no other attempt says it too, also among others.
    for (nodes, fencing) in [(1, true), (1, false), (3, false)] {
        let mut w = World::redis(nodes).config(move |c| c.fencing(fencing)).build();
        warm(&mut w, 0);
        for node in 0..nodes {
            command(&mut w, node, &["RPUSH", "a", "x"]);
        }
        for wait in [Wait::Try, Wait::For(ms(40))] {
            let lock = w.acquire(0, Acquire::new("a").wait(wait));
            w.expect(ms(50), "it has failed", |w| w.is_over(0, lock));
            assert!(matches!(failure(&w, 0, lock), Some(Failure::KeyInUse(_))), "{nodes}: {:?}", w.events(0, lock));
            let together = ["b", "a", "c"].map(|name| w.acquire(0, Acquire::new(name).wait(wait)));
            w.expect(ms(50), "they have ended", |w| {
                together.iter().all(|lock| w.is_over(0, *lock) || w.is_held(0, *lock))
            });
            let [b, a, c] = together;
            assert!(w.is_held(0, b) && w.is_held(0, c), "{nodes}\n{}", w.log());
            assert!(matches!(failure(&w, 0, a), Some(Failure::KeyInUse(_))), "{nodes}: {:?}", w.events(0, a));
            for lock in [b, c] {
                assert_eq!(release_and_wait(&mut w, 0, lock), Release::Released);
            }
        }
    }
    let mut w = World::redis(1).build();
    let lock = hold(&mut w, 0, Acquire::new("a").ttl(secs(3)));
    w.on_node(0, "SET a data", |node, now| node.insert(now, "a", "data", None));
    w.expect(ms(1_100), "the loss is reported by the next renewal", |w| lost(w, 0, lock).is_some());
    assert_eq!(lost(&w, 0, lock), Some(Loss::Taken));
    assert_eq!(release_and_wait(&mut w, 0, lock), Release::Taken);
    w.run_for(secs(30));
    assert_eq!(w.get(0, "a"), Some(&b"data"[..]));
}

// A5
#[test]
fn catalogue_a8_unreachable_and_busy_are_distinguished() {
    for (seed, nodes) in (0..20).map(|seed| (seed, [1, 3][seed as usize % 2])) {
        let mut w = World::redis(nodes).clients(2).seed(seed).build();
        hold(&mut w, 1, Acquire::new("taken"));
        let taken = w.acquire(0, Acquire::new("taken").wait(Wait::For(secs(1))));
        w.expect(ms(1_001), "the wait is over", |w| w.is_over(0, taken));
        let Some(Failure::TimedOut(report)) = failure(&w, 0, taken) else { panic!("{:?}", w.events(0, taken)) };
        assert!(report.is_busy(), "{report}");
        for node in 0..nodes {
            w.kill_node(node);
        }
        w.run_for(ms(5));
        let (limited, once) = (Wait::For(secs(1)), Wait::Try);
        for (wait, within) in [(limited, ms(1_001)), (once, ms(1_001))] {
            let lock = w.acquire(0, Acquire::new("a").wait(wait));
            w.expect(within, "the wait is over", |w| w.is_over(0, lock));
            let Some(Failure::TimedOut(report)) = failure(&w, 0, lock) else { panic!("{:?}", w.events(0, lock)) };
            assert!(!report.is_busy(), "seed {seed}: {report}");
            // A quorum round ends once a majority is unreachable.
            let unreachable = report.nodes.iter().filter(|node| matches!(node, Answer::Unreachable(_))).count();
            assert!(unreachable > nodes / 2, "seed {seed}: {report}");
        }
        let endless = w.acquire(0, Acquire::new("a"));
        w.run_for(secs(5));
        assert!(was_blocked(&w, 0, endless, Blocked::Unreachable), "{:?}", w.events(0, endless));
    }
}

// A5
#[test]
fn catalogue_a9_wait_is_independent_of_ttl() {
    let mut w = World::redis(1).clients(2).build();
    hold(&mut w, 0, Acquire::new("a"));
    let lock = w.acquire(1, Acquire::new("a").ttl(ms(500)).wait(Wait::For(secs(4))));
    w.run_for(ms(3_999));
    assert!(!w.is_over(1, lock), "{:?}", w.events(1, lock));
    w.expect(ms(1), "the wait is over", |w| w.is_over(1, lock));
    let Some(Failure::TimedOut(report)) = failure(&w, 1, lock) else { panic!("{:?}", w.events(1, lock)) };
    let [Answer::Taken(Expiry::In(left))] = &*report.nodes else { panic!("{report}") };
    assert!(*left > secs(5) && *left <= secs(10), "{report}");
}

// A5
#[test]
fn catalogue_a10_try_makes_exactly_one_attempt() {
    for seed in 0..10 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        warm(&mut w, 0);
        warm(&mut w, 1);
        let lock = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        w.pause_client(0);
        w.run_for(ms(300));
        w.resume_client(0);
        w.expect(ms(1), "it is held", |w| w.is_held(0, lock));
        assert_eq!(requests(&w, 0, "take", "a"), 1);
        let busy = w.acquire(1, Acquire::new("a").wait(Wait::Try));
        w.expect(ms(5), "it has failed", |w| w.is_over(1, busy));
        w.run_for(secs(1));
        assert_eq!(requests(&w, 1, "take", "a"), 1, "{}", w.log());
        // A lock held by this client needs no request.
        let local = w.acquire(0, Acquire::new("a").wait(Wait::Try));
        assert!(w.is_over(0, local));
        w.run_for(secs(1));
        assert_eq!(requests(&w, 0, "take", "a"), 1);
    }
}

// T2, A9
#[test]
fn catalogue_a11_ended_hold_is_never_extended() {
    for seed in 0..20 {
        let mut w = World::redis(1).clients(2).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(1)).renew(Renew::Manual));
        w.run_for(ms(700));
        // The extension is in flight when the partition begins, and arrives when all is over.
        w.cut(0, 0, Direction::ToNode);
        w.extend(0, first);
        let second = w.acquire(1, Acquire::new("a").ttl(secs(1)));
        w.expect(secs(1), "the second holds", |w| w.is_held(1, second));
        assert_eq!(lost(&w, 0, first), Some(Loss::Expired), "seed {seed}\n{}", w.log());
        assert_eq!(release_and_wait(&mut w, 1, second), Release::Released);
        w.heal_all();
        w.expect(ms(100), "the extension arrives", |w| requests(w, 0, "extend", "a") == 1);
        assert_never_back(&mut w, 1, secs(2));
        assert!(!was_renewed(&w, 0, first) && !w.is_held(0, first), "seed {seed}\n{}", w.log());
        assert_eq!(w.try_verb(0, |machine, now| machine.extend(now, first)), Err(Misuse::NotHeld(first)));
        let again = hold(&mut w, 0, Acquire::new("a"));
        assert_ne!(again, first);
        assert!(w.grant(0, again).unwrap().fence > w.grant(1, second).unwrap().fence);
        assert!(!w.is_held(0, first));
    }
}

// H3, A8
#[test]
fn catalogue_a12_ttl_and_renewal_belong_to_one_acquisition() {
    for seed in 0..10 {
        let mut w = World::redis(1).seed(seed).build();
        let by_hand = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)).renew(Renew::Manual));
        let renewed = w.acquire(0, Acquire::new("a").ttl(secs(6)));
        w.expect(secs(3), "the first ends, not renewed by the request of the second", |w| {
            lost(w, 0, by_hand).is_some()
        });
        w.expect(ms(200), "the second holds", |w| w.is_held(0, renewed));
        assert_eq!(w.grant(0, renewed).unwrap().ttl, secs(6));
        w.run_for(secs(20));
        assert!(w.is_held(0, renewed), "the second is renewed, though the first was not: seed {seed}\n{}", w.log());
        let _ = release_and_wait(&mut w, 0, renewed);
        // On a local hand-over, a TTL longer than the key's is first requested from the server.
        let shorter = hold(&mut w, 0, Acquire::new("a").ttl(secs(2)));
        let takes = requests(&w, 0, "take", "a");
        let longer = w.acquire(0, Acquire::new("a").ttl(secs(9)).renew(Renew::Manual));
        w.run_for(ms(50));
        w.release(0, shorter);
        w.expect(ms(10), "the third holds", |w| w.is_held(0, longer));
        assert_eq!(requests(&w, 0, "take", "a"), takes, "it was passed on");
        assert!(w.node(0).pttl(w.now(), "a").unwrap() > ms(8_900), "seed {seed}\n{}", w.log());
        let events = w.events(0, longer).iter().filter(|event| matches!(event, Event::Granted(_))).count();
        assert_eq!(events, 1);
        w.expect(secs(9), "nobody renews the third", |w| lost(w, 0, longer).is_some());
    }
}
