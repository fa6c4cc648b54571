//! The failure catalogue of etcd and its requirements: the hub (`etcd::Locks`) with a store, in
//! virtual time. Whole clients, with connections and a cluster, are in `tests/etcd_world.rs`.
//!
//! Tests named `catalogue_…` contain the id of a case in `docs/failures.md`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

extern crate alloc;

mod acquire;
mod bounds;
mod cached_watches;
mod contract;
mod election;
mod elections;
#[path = "../common/etcd.rs"]
mod etcd;
mod hand_over;
mod hold;
mod hostile;
mod late_create;
mod long;
mod own_writes;
mod pending_cleanup;
mod queue;
mod rules;
mod session;
#[path = "../common/etcd_world/mod.rs"]
mod world;

use core::time::Duration;

use lock_proto::etcd::{Refusal, Reply};
use lock_proto::{Blocked, ErrorClass, Event, Failure, LockId, Loss, Release, ServerError};
use world::World;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn denied() -> Reply {
    let text = "etcdserver: permission denied".into();
    Reply::Refused(Refusal::Error(ServerError { class: ErrorClass::Refused, text }))
}

/// Creates the session, so that later requests need no lease.
#[track_caller]
fn warm(w: &mut World, client: usize) {
    let lock = w.hold(client, lock_proto::Acquire::new("warm-up"));
    let _ = release_and_wait(w, client, lock);
    w.clients[client].requests.retain(|(_, request)| world::Kind::of(request) == world::Kind::Grant);
}

#[track_caller]
fn release_and_wait(w: &mut World, client: usize, lock: LockId) -> Release {
    w.release(client, lock);
    w.expect(secs(3), "the release is answered", |w| released(w, client, lock).is_some());
    released(w, client, lock).unwrap()
}

fn lost(w: &World, client: usize, lock: LockId) -> Option<Loss> {
    w.events(client, lock).iter().find_map(|event| if let Event::Lost(loss) = event { Some(*loss) } else { None })
}

fn released(w: &World, client: usize, lock: LockId) -> Option<Release> {
    w.events(client, lock).iter().find_map(|event| if let Event::Released(how) = event { Some(*how) } else { None })
}

fn failure(w: &World, client: usize, lock: LockId) -> Option<Failure> {
    w.events(client, lock)
        .iter()
        .find_map(|event| if let Event::Failed(why) = event { Some(why.clone()) } else { None })
}

fn was_granted(w: &World, client: usize, lock: LockId) -> bool {
    w.events(client, lock).iter().any(|event| matches!(event, Event::Granted(_)))
}

fn was_blocked(w: &World, client: usize, lock: LockId, by: Blocked) -> bool {
    w.events(client, lock).contains(&Event::Blocked(by))
}
