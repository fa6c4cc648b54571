//! Cases P: wake-up of waiters.

use lock_proto::redis::Wake;
use lock_proto::{Acquire, Backoff, Release};
use lock_sim::redis::User;
use lock_sim::{Builder, Direction, World};

use super::*;

/// A world in which polling is too slow to help.
fn woken(clients: usize, seed: u64) -> Builder {
    World::redis(1).clients(clients).seed(seed).config(|c| c.poll(Backoff::fixed(secs(1))))
}

// A7
#[test]
fn catalogue_p1_no_release_is_missed_between_attempt_and_wait() {
    for step in 0..120 {
        let mut w = woken(2, step).build();
        let first = hold(&mut w, 0, Acquire::new("a"));
        if step % 2 == 0 {
            warm(&mut w, 1);
        }
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(us(50 * step));
        w.release(0, first);
        w.expect(ms(20), "the waiter has it", |w| w.is_held(1, second));
    }
    for seed in 0..10 {
        // A foreign client releases without a signal before the subscription: the retry finds that.
        let mut w = woken(1, seed).build();
        w.on_node(0, "SET a foreign", |node, now| node.insert(now, "a", "foreign", Some(secs(60))));
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(ms(5), "the first try", |w| requests(w, 0, "take", "a") == 1);
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        w.expect(ms(20), "the waiter has it", |w| w.is_held(0, lock));
    }
}

/// A client acquires again at the instant of its release.
// A7
#[test]
fn busy_client_does_not_starve_waiter_of_other_client() {
    for seed in 0..20 {
        for hold_for in [0, 1, 5] {
            let mut w = woken(2, seed).build();
            let mut lock = hold(&mut w, 0, Acquire::new("a"));
            let waiter = w.acquire(1, Acquire::new("a"));
            let end = w.now() + secs(1);
            while !w.is_held(1, waiter) {
                assert!(w.now() < end, "seed {seed}, holds of {hold_for} ms\n{}", w.log());
                if w.is_held(0, lock) {
                    w.run_for(ms(hold_for));
                    w.abandon(0, lock);
                    lock = w.acquire(0, Acquire::new("a"));
                }
                w.run_for(us(100));
            }
        }
    }
}

// A7
#[test]
fn catalogue_p2_lost_signal_only_delays_waiter() {
    for seed in 0..20 {
        let mut w = woken(2, seed).build();
        let first = hold(&mut w, 0, Acquire::new("a"));
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(100));
        assert_eq!(w.node(0).blocked_count(), 1);
        w.cut(1, 0, Direction::ToClient);
        let _ = release_and_wait(&mut w, 0, first);
        assert_eq!(w.node(0).blocked_count(), 0, "the signal has been given out");
        w.drop_connections(1, 0);
        w.heal_all();
        w.expect(secs(1), "the waiter has it", |w| w.is_held(1, second));

        // No signal at all: polling is the guarantee.
        let mut w = World::redis(1).seed(seed).build();
        w.on_node(0, "SET a foreign", |node, now| node.insert(now, "a", "foreign", Some(secs(60))));
        let lock = w.acquire(0, Acquire::new("a"));
        w.run_for(secs(5));
        w.on_node(0, "DEL a", |node, now| node.remove(now, "a"));
        w.expect(ms(2_020), "the waiter has it", |w| w.is_held(0, lock));
    }
}

// A7
#[test]
fn catalogue_p4_waiter_resubscribes_after_server_restart() {
    for seed in 0..20 {
        let mut w = woken(2, seed).build();
        let first = hold(&mut w, 0, Acquire::new("a"));
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(ms(200));
        w.restart_node(0, true);
        w.run_for(ms(800));
        assert!(w.is_held(0, first) && !w.is_held(1, second));
        assert_eq!(w.node(0).blocked_count(), 1, "seed {seed}\n{}", w.log());
        w.release(0, first);
        w.expect(ms(10), "the waiter has it", |w| w.is_held(1, second));
    }
}

// A7
#[test]
fn catalogue_p5_all_waiters_of_client_share_one_connection() {
    for seed in 0..3 {
        let mut w = woken(2, seed).build();
        let names: Vec<String> = (0..50).map(|n| format!("lock {n}")).collect();
        let held: Vec<_> = names.iter().map(|name| w.acquire(0, Acquire::new(name))).collect();
        w.expect(ms(100), "all are held", |w| held.iter().all(|lock| w.is_held(0, *lock)));
        let waiting: Vec<_> = names.iter().map(|name| w.acquire(1, Acquire::new(name))).collect();
        w.run_for(ms(500));
        assert!(w.node(0).connection_count() <= 4, "two a client: {}", w.node(0).connection_count());
        for (held, waiting) in held.into_iter().zip(waiting) {
            w.release(0, held);
            w.expect(ms(20), "its waiter has it", |w| w.is_held(1, waiting));
        }
    }
}

// A7
#[test]
fn catalogue_p6_polling_suffices_without_wake_up_commands() {
    const REFUSED: [&[&str]; 3] = [&["blpop"], &["client|unblock"], &["blpop", "client|unblock", "client|id"]];
    for (seed, refused) in (0..12).map(|seed| (seed, REFUSED[seed as usize % 3])) {
        let user = User::new("default").except(refused.iter().copied());
        let mut w = World::redis(1).clients(3).seed(seed).node(0, |c| c.user(user)).build();
        let locks: Vec<_> = (0..6).map(|i| (i % 3, w.acquire_for(i % 3, Acquire::new("a"), ms(30)))).collect();
        w.expect(secs(8), "all have had it", |w| locks.iter().all(|(client, lock)| w.is_over(*client, *lock)));
        for (client, lock) in locks {
            assert_eq!(released(&w, client, lock), Some(Release::Released), "seed {seed}");
        }
    }
    let mut w = World::redis(1).clients(2).config(|c| c.wake(Wake::Poll)).build();
    let first = hold(&mut w, 0, Acquire::new("a"));
    let second = w.acquire(1, Acquire::new("a"));
    w.run_for(secs(1));
    w.release(0, first);
    w.expect(ms(60), "polling finds it", |w| w.is_held(1, second));
    assert_eq!(w.calls(0, "blpop"), 0);
}

// A6
#[test]
fn catalogue_p7_expiry_of_dead_holders_key_needs_no_signal() {
    for seed in 0..20 {
        let mut w = woken(2, seed).build();
        let first = hold(&mut w, 0, Acquire::new("a").ttl(secs(4)));
        let second = w.acquire(1, Acquire::new("a"));
        w.run_for(secs(1));
        assert!(w.is_held(0, first));
        w.kill_client(0);
        w.expect(secs(5), "the key ends", |w| w.get(0, "a").is_none());
        // One moment after the expiry, plus jitter of 10 ms and the round trip.
        w.expect(ms(13), "the waiter has it", |w| w.is_held(1, second));
    }
}

// A7
#[test]
fn catalogue_p8_dead_waiter_does_not_block_others() {
    for (seed, silent) in (0..20).map(|seed| (seed, seed % 2 == 0)) {
        let mut w = World::redis(1).clients(3).seed(seed).build();
        let first = hold(&mut w, 0, Acquire::new("a"));
        w.acquire(1, Acquire::new("a"));
        w.run_for(ms(50));
        let third = w.acquire(2, Acquire::new("a"));
        w.run_for(ms(50));
        if silent {
            w.partition(1, 0);
        } else {
            w.kill_client(1);
        }
        w.run_for(ms(5));
        w.release(0, first);
        let within = if silent { ms(520) } else { ms(10) };
        w.expect(within, "the one behind has it", |w| w.is_held(2, third));
    }
}
