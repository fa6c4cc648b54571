//! One client waits for many names, and some of them cannot be waited for.

use lock_proto::{Acquire, Backoff, LockId};
use lock_sim::redis::User;
use lock_sim::{Builder, Keep, World};

use super::*;

/// Each wait covers at least this many names, for 50 ms. An idle server ends it 100 ms later.
const AT_ONCE: usize = 128;
const TURN: Duration = ms(150);

fn name(n: usize) -> String {
    format!("lock {n:04}")
}

fn signal(name: &str) -> String {
    format!("{name}:lock-proto:waiting:signal")
}

/// Two clients. Polling is too slow to help.
fn woken() -> Builder {
    World::redis(1).clients(2).config(|c| c.poll(Backoff::fixed(secs(1))))
}

/// The first client holds these names and the second one waits for them.
fn contend(w: &mut World, names: impl IntoIterator<Item = String>) -> Vec<(LockId, LockId)> {
    let wants: Vec<_> = names.into_iter().map(|name| Acquire::new(name).ttl(secs(36_000))).collect();
    let held: Vec<_> = wants.iter().map(|want| w.acquire(0, want.clone())).collect();
    w.expect(secs(1), "all are held", |w| held.iter().all(|lock| w.is_held(0, *lock)));
    let waiting: Vec<_> = wants.into_iter().map(|want| w.acquire(1, want)).collect();
    w.run_for(secs(3));
    held.into_iter().zip(waiting).collect()
}

fn hand_over(w: &mut World, (held, waiting): (LockId, LockId), within: Duration) {
    w.release(0, held);
    w.expect(within, "its waiter has it", |w| w.is_held(1, waiting));
}

/// The requests in ten seconds, while a client only waits for this many names.
fn requests_of_waiting(names: usize) -> u64 {
    let mut w = World::redis(1).clients(2).keep(Keep::Nothing).build();
    contend(&mut w, (0..names).map(name));
    let before = w.total_calls(0);
    w.run_for(secs(10));
    w.total_calls(0) - before
}

// A7
#[test]
fn catalogue_p9_name_waited_for_costs_as_little_among_many() {
    let few = requests_of_waiting(AT_ONCE);
    assert!(few < 10 * AT_ONCE as u64, "{few}");
    for names in [300, 1_000, 2_500] {
        let many = requests_of_waiting(names);
        // And twenty waits a second, if they take turns.
        assert!(many < few * names as u64 / AT_ONCE as u64 + 300, "{names} names: {many}, {AT_ONCE}: {few}");
    }
}

// A7
#[test]
fn catalogue_p9_release_wakes_any_of_many_names() {
    for names in [300, 1_100] {
        let mut w = woken().build();
        let locks = contend(&mut w, (0..names).map(name));
        let calm = if names > 1_024 { 2 * TURN } else { Duration::ZERO };
        for (n, lock) in locks.iter().enumerate().filter(|(n, _)| n % 97 == 96) {
            hand_over(&mut w, *lock, calm + ms(5));
            // Right behind it, while waits are short.
            hand_over(&mut w, locks[n - 50], TURN * names.div_ceil(AT_ONCE) as u32 + ms(5));
            w.run_for(4 * TURN);
        }
        let rest: Vec<_> = locks.into_iter().filter(|(held, _)| w.is_held(0, *held)).collect();
        // Nearly at once: one is reported in each round trip.
        for (held, _) in &rest {
            w.release(0, *held);
            w.run_for(us(500));
        }
        w.expect(secs(3), "all have been handed over", |w| rest.iter().all(|(_, waiting)| w.is_held(1, *waiting)));
    }
}

/// Names that are handed over all the time do not keep others from being reported, in any order.
// A7
#[test]
fn busy_names_do_not_starve_others_of_wake_ups() {
    for busy_first in [true, false] {
        let mut w = woken().build();
        let (busy, calm) = if busy_first { (0..150, 150..300) } else { (150..300, 0..150) };
        let calm = contend(&mut w, calm.map(name));
        let mut busy: Vec<_> =
            busy.map(|n| [0, 1].map(|client| w.acquire(client, Acquire::new(name(n)).ttl(secs(36_000))))).collect();
        for (at, lock) in calm.iter().enumerate().filter(|(at, _)| at % 60 == 0) {
            w.release(0, lock.0);
            let end = w.now() + secs(1);
            while !w.is_held(1, lock.1) {
                assert!(w.now() < end, "name {at} waits, busy names first: {busy_first}");
                for (n, pair) in busy.iter_mut().enumerate() {
                    for client in [0, 1] {
                        if w.is_held(client, pair[client]) {
                            w.abandon(client, pair[client]);
                            let n = if busy_first { n } else { n + 150 };
                            pair[client] = w.acquire(client, Acquire::new(name(n)).ttl(secs(36_000)));
                        }
                    }
                }
                w.run_for(ms(1));
            }
        }
    }
}

// A7
#[test]
fn catalogue_p10_poisoned_signal_key_costs_only_its_own_name_the_wake_up() {
    for (poisoned, healthy) in [("a", "b"), ("b", "a")] {
        let mut w = woken().build();
        w.on_node(0, "SET", |node, now| node.insert(now, signal(poisoned), "x", None));
        let locks = contend(&mut w, [healthy.to_owned(), poisoned.to_owned()]);
        hand_over(&mut w, locks[0], ms(5));
        hand_over(&mut w, locks[1], ms(1_005));
    }
}

// A7
#[test]
fn several_poisoned_signal_keys_are_found_among_many() {
    for (names, every) in [(20, 3), (300, 40), (1_000, 150)] {
        let mut w = woken().build();
        let poisoned = |n: usize| n % every == every / 2;
        for n in (0..names).filter(|n| poisoned(*n)) {
            w.on_node(0, "SET", |node, now| node.insert(now, signal(&name(n)), "x", None));
        }
        let locks = contend(&mut w, (0..names).map(name));
        for (_, lock) in locks.iter().enumerate().filter(|(n, _)| !poisoned(*n)).step_by(names / 10) {
            hand_over(&mut w, *lock, ms(5));
            w.run_for(4 * TURN);
        }
        // They poll, and the search is over: the waits are as long as without them.
        let before = w.calls(0, "blpop");
        w.run_for(secs(10));
        let waits = w.calls(0, "blpop") - before;
        assert!(waits <= 3, "{names} names: {waits} waits in 10 s");
    }
}

// A7
#[test]
fn poisoned_signal_key_that_is_repaired_wakes_again() {
    let mut w = woken().build();
    w.on_node(0, "SET", |node, now| node.insert(now, signal("b"), "x", None));
    let locks = contend(&mut w, ["a", "b", "c"].map(str::to_owned));
    hand_over(&mut w, locks[2], ms(5));
    w.on_node(0, "DEL", |node, now| node.remove(now, signal("b")));
    w.run_for(secs(61));
    for lock in &locks[..2] {
        hand_over(&mut w, *lock, ms(5));
    }
}

/// A user who may use the side keys of some names only. Both clients are such users.
// A7, U1
#[test]
fn forbidden_side_keys_cost_only_their_own_names_the_wake_up() {
    let user = || User::new("default").keys(["good*", "bad?", "lock-proto:fence"]);
    let mut w = woken().node(0, |c| c.user(user())).build();
    let names = ["bad1", "bad2", "good1", "good2", "good3"];
    let locks = contend(&mut w, names.map(str::to_owned));
    hand_over(&mut w, locks[2], ms(5));
    // Its announcement is refused. Later ones of others are still made.
    hand_over(&mut w, locks[0], ms(1_005));
    hand_over(&mut w, locks[3], ms(5));
    // The permission is granted.
    w.on_node(0, "ACL SETUSER", |node, now| node.set_user(now, User::new("default")));
    w.run_for(secs(61));
    hand_over(&mut w, locks[1], ms(5));
    hand_over(&mut w, locks[4], ms(5));
}
