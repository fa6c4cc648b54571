//! Single attempts and pings during the pause after a failed connection, on each store.
//!
//! Another lock waits throughout, so that the pauses are as long as they get: up to a second.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use core::time::Duration;

use bytes::Bytes;
use lock_proto::{Acquire, LockClient as _, OperationEvent, TlsFault, Wait};
use lock_sim::world::Handshake;
use lock_sim::{World, etcd, zookeeper};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The time for a connection, a session and an attempt, one after the other with each server. Much
/// less than a pause.
const AT_ONCE: Duration = ms(60);

/// Runs `$check` on a world of each store.
macro_rules! on_each_store {
    ($check:ident) => {
        for nodes in [1, 3] {
            $check!(World::redis(nodes), nodes);
            $check!(etcd::World::cluster(nodes), nodes);
            $check!(zookeeper::World::zookeeper(nodes), nodes);
        }
    };
}

/// Builds a world of one client. Its connections end, and all later ones fail at once.
macro_rules! down {
    ($w:expr, $nodes:expr) => {{
        let mut w = $w.clients(1).latency(ms(1)..ms(2)).tls(Some(1)).build();
        let first = w.acquire(0, Acquire::new("a"));
        w.expect(secs(1), "a lock", |w| w.is_held(0, first));
        w.release(0, first);
        w.expect(secs(1), "its release", |w| w.is_over(0, first));
        for node in 0..$nodes {
            w.set_handshake(0, node, Handshake::Fails(TlsFault::Closed));
            w.drop_connections(0, node);
        }
        w
    }};
}

/// Connections succeed again.
macro_rules! repair {
    ($w:expr, $nodes:expr) => {
        (0..$nodes).for_each(|node| $w.set_handshake(0, node, Handshake::Trips(1)))
    };
}

macro_rules! attempt_connects {
    ($w:expr, $nodes:expr) => {{
        // The servers come back at different points of a pause.
        for at in 0..10 {
            let mut w = down!($w, $nodes);
            w.acquire(0, Acquire::new("waits"));
            w.run_for(secs(20) + at * ms(100));
            repair!(w, $nodes);
            // The last failure may be fresh.
            w.run_for(ms(11));
            let wait = [Wait::Try, Wait::For(AT_ONCE)][at as usize % 2];
            let once = w.acquire(0, Acquire::new("once").wait(wait));
            w.run_for(AT_ONCE);
            assert!(w.is_held(0, once), "{at}: {:?}\n{}", w.events(0, once), w.log_tail(60));
        }
    }};
}

/// It failed, for up to a second after the servers were back.
#[test]
fn single_attempt_ends_pause() {
    // P9
    on_each_store!(attempt_connects);
}

macro_rules! misuse_connects_nowhere {
    ($w:expr, $nodes:expr) => {{
        let mut w = down!($w, $nodes);
        w.acquire(0, Acquire::new("waits"));
        w.run_for(secs(20));
        let connects = |log: &str| log.lines().filter(|line| line.ends_with(" connect")).count();
        let before = connects(&w.log());
        for _ in 0..10 {
            let once = Acquire::new("").wait(Wait::Try);
            w.try_verb(0, |client, now| client.acquire(now, &once)).unwrap_err();
            w.run_for(ms(11));
            let campaigned = w.try_verb(0, |client, now| {
                client.elections().map(|elections| elections.campaign(now, &once, Bytes::new())).transpose()
            });
            assert!(!matches!(campaigned, Ok(Some(_))));
            w.run_for(ms(11));
        }
        // The pauses go on: each is longer than these attempts take.
        assert!(connects(&w.log()) - before <= $nodes, "{}", w.log_tail(60));
    }};
}

/// It ended the pause before it was checked.
#[test]
fn invalid_request_ends_no_pause() {
    // P9
    on_each_store!(misuse_connects_nowhere);
}

macro_rules! ping_connects {
    ($w:expr, $nodes:expr) => {{
        let mut w = down!($w, $nodes);
        w.acquire(0, Acquire::new("waits"));
        w.run_for(secs(20));
        repair!(w, $nodes);
        w.run_for(ms(11));
        let ping = w.ping(0);
        w.run_for(AT_ONCE);
        assert_eq!(w.observed(0, ping), [OperationEvent::Done], "{}", w.log_tail(60));
    }};
}

#[test]
fn ping_ends_pause() {
    // P9
    on_each_store!(ping_connects);
}

macro_rules! burst_is_limited {
    ($w:expr, $nodes:expr) => {{
        let mut w = down!($w, $nodes);
        let connects = |log: &str| log.lines().filter(|line| line.contains("connect")).count();
        let before = connects(&w.log());
        for n in 0..1_000 {
            w.acquire(0, Acquire::new(format!("once {n}")).wait(Wait::Try));
            w.run_for(ms(1));
        }
        let connects = connects(&w.log()) - before;
        // A pause is at least three quarters of 10 ms, besides the time of the attempts.
        assert!(connects <= $nodes * 1_000 * 4 / 30, "{connects}");
    }};
}

#[test]
fn burst_of_attempts_connects_once_each_pause() {
    // P9
    on_each_store!(burst_is_limited);
}
