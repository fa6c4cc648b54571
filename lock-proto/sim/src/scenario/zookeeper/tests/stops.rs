//! Leaders that are stopped, and servers that grant different session timeouts.

use core::time::Duration;

use super::MS;
use crate::direction::Direction;
use crate::scenario::{Plan, Scenario};
use crate::zookeeper::{EnsembleConfig, World};
use lock_proto::Acquire;

const TICK: Duration = Duration::from_millis(100);

fn world(seed: u64, ttl: Duration, ensemble: fn(EnsembleConfig) -> EnsembleConfig) -> World {
    let config =
        move |config: lock_proto::zookeeper::Config| config.tick(TICK).session_ttl(ttl).idle_timeout(60_000 * MS);
    let servers = move |config: EnsembleConfig| ensemble(config.tick(TICK).sync_limit(30));
    World::zookeeper(3).clients(2).ensemble(servers).config(config).seed(seed).build()
}

fn cut_off(w: &mut World, client: usize) {
    for member in 0..3 {
        Direction::BOTH.into_iter().for_each(|direction| w.cut(client, member, direction));
    }
}

/// Both clients have a session, which only pings keep.
fn idle(w: &mut World) {
    for client in 0..2 {
        let lock = w.acquire_for(client, Acquire::new(["x", "b"][client]), MS);
        w.expect(500 * MS, "it is over", |w| w.is_over(client, lock));
    }
    w.run_for(600 * MS);
}

/// The first client's request waits at a leader that is stopped, goes on, and may be stopped again.
/// The client is cut off once it holds the lock. Then the second one wants it.
fn contend(seed: u64, stops: &[u64], ensemble: fn(EnsembleConfig) -> EnsembleConfig) {
    let mut w = world(seed, 1_000 * MS, ensemble);
    idle(&mut w);
    let leader = w.ensemble().leader().unwrap();
    let mut first = None;
    for stop in stops {
        w.pause_member(leader);
        w.run_for(Duration::from_millis(stop - 60));
        let lock = *first.get_or_insert_with(|| w.acquire(0, Acquire::new("x")));
        w.run_for(60 * MS);
        w.resume_member(leader);
        if w.run_until(15 * MS, |w| w.is_held(0, lock)) {
            cut_off(&mut w, 0);
        }
    }
    let second = w.acquire(1, Acquire::new("x"));
    w.expect(10_000 * MS, "the other client holds it", |w| w.is_held(1, second));
}

/// Regression: the followers answered pings while their leader was stopped. When it went on, it
/// handled the request that lay in its socket, then ended the session, of which it had not heard
/// for long, and another client took the lock.
#[test]
fn leader_that_was_stopped_lets_no_second_holder_in() {
    // ZK1
    for seed in 0..8 {
        for stop in [900, 1_050, 1_200, 1_500] {
            contend(seed, &[stop], |ensemble| ensemble);
        }
    }
}

/// The leader is stopped again before it has asked the followers which sessions they have heard of.
#[test]
fn leader_that_is_stopped_again_at_once_lets_no_second_holder_in() {
    // ZK1
    for seed in 0..8 {
        for stops in [[500, 650], [600, 550], [600, 700], [700, 500]] {
            contend(seed, &stops, |ensemble| ensemble.wake(20 * MS..21 * MS));
        }
    }
}

/// Regression: the client pinged on while it waited until its connection was idle, and on a slow
/// network that never was.
#[test]
fn connection_with_pings_under_way_is_replaced() {
    // ZK1
    for seed in [19, 535] {
        let outcome = Plan::from_seed(Scenario::named("zookeeper-revalidate").unwrap(), seed).run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

/// Regression: on a slow network each write seemed to have waited at a stopped leader, so contacts did
/// not count, and holds were lost while the client replaced its connection.
#[test]
fn slow_network_loses_no_hold() {
    // ZK1
    for (scenario, seed) in [("zookeeper-pauses", 19), ("zookeeper-wakes", 19), ("zookeeper-drift", 23)] {
        let outcome = Plan::from_seed(Scenario::named(scenario).unwrap(), seed).run();
        assert!(outcome.violations.is_empty(), "{outcome}");
    }
}

/// Regression: the session was valid for the timeout of the second server, and a new leader gave it
/// that of the first one.
#[test]
fn session_is_valid_for_the_shortest_timeout_that_was_granted() {
    // ZK1
    let mut moved = 0;
    for seed in 0..16 {
        let mut w = world(seed, 2_000 * MS, |ensemble| ensemble.session_timeouts(1, 500 * MS..=500 * MS));
        let first = w.acquire(0, Acquire::new("x"));
        w.expect(500 * MS, "the first client holds it", |w| w.is_held(0, first));
        let second = w.acquire(1, Acquire::new("x"));
        if w.grant(0, first).unwrap().ttl != 500 * MS {
            continue;
        }
        moved += 1;
        w.drop_connections(0, 1);
        w.run_for(300 * MS);
        w.kill_member(w.ensemble().leader().unwrap());
        cut_off(&mut w, 0);
        w.expect(5_000 * MS, "the second client holds it", |w| w.is_held(1, second));
    }
    assert!(moved >= 3, "{moved}");
}
