//! Whole clients on clusters with defects that versions of etcd have, see `docs/server-defects.md`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use core::time::Duration;

use lock_proto::{Acquire, Event, Loss};
use lock_sim::Direction;
use lock_sim::etcd::{Condition, World};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Pauses the leader until another one leads.
fn replace_leader(seed: u64) -> World {
    let mut w = World::cluster(3).clients(2).seed(seed).config(|config| config.watch_own_after(ms(0))).build();
    w.set_condition(Condition::StaleReads, true);
    w.pause_member(0);
    w.run_for(secs(2));
    w
}

/// The old leader runs again, and clients come back to it.
fn return_to_old_leader(w: &mut World, client: usize) {
    w.resume_member(0);
    for member in 0..3 {
        w.drop_connections(client, member);
    }
}

/// A read of the old state shows that the key of the hold does not exist, since it was created later.
#[test]
fn hold_survives_stale_reads() {
    // E9, E14
    for seed in 0..60 {
        let mut w = replace_leader(seed);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(10), "held", |w| w.is_held(0, lock));
        w.run_for(ms(500));
        return_to_old_leader(&mut w, 0);
        w.run_for(secs(3));
        assert!(w.is_held(0, lock), "seed {seed}: {:?}", w.events(0, lock));
    }
}

/// The keep-alive of a holder arrives just before its lease expires. The server answers that the
/// lease lives, after it has revoked it and another client holds the lock.
#[test]
fn keep_alive_of_revoked_lease_prolongs_nothing() {
    // E14
    for seed in 0..20 {
        let config = |config: lock_proto::etcd::Config| config.session_ttl(secs(3)).request_timeout(secs(5));
        let mut w = World::cluster(1).clients(2).seed(seed).config(config).build();
        w.set_condition(Condition::RevokedKeepAlives, true);
        let lock = w.acquire(0, Acquire::new("a"));
        w.expect(secs(1), "held", |w| w.is_held(0, lock));
        let next = w.acquire(1, Acquire::new("a"));
        w.slow(0, 0, Direction::ToNode, ms(1_850)..ms(1_900));
        w.expect(secs(6), "the next client holds", |w| w.is_held(1, next));
        w.run_for(secs(2));
        assert!(w.events(0, lock).contains(&Event::Lost(Loss::Expired)), "{:?}", w.events(0, lock));
    }
}
