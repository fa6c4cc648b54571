//! Simulated servers, network and clocks, to test lock code with.
//!
//! Whoever wants to see the locks under attack starts with [`scenarios`]: named situations, of
//! which every seed and every byte string makes another run, with checkers that watch what is
//! promised ([`scenario`]). What they are made of can be used on its own:
//!
//! * [`redis::Node`] is a Redis server as a machine that speaks RESP: bytes in, bytes out. Put it
//!   behind a socket, or feed it from a fuzzer.
//! * [`etcd::Cluster`] is an etcd cluster as a machine: typed calls and stream messages in, replies
//!   out.
//! * [`World`] runs Redis nodes and [`Client`](crate::redis::Client) machines over a simulated
//!   network, in virtual time and from one seed. It delays, cuts and resets connections, stops and
//!   kills processes and servers, and sets clocks wrong. Its checkers are always on (see
//!   [`World`]). An hour of a quiet lock takes a blink; the same seed gives the same log, byte for
//!   byte.
//! * [`etcd::World`] does the same for an etcd cluster and [`etcd::Client`](crate::etcd::Client)
//!   machines.
//! * A lock of your own fits into both: implement [`ByteClient`](crate::ByteClient) or
//!   [`etcd::EtcdClient`] for it, and hand it to [`world::Builder::machine`].
//!   [`Plan::run_redis`] and [`Plan::run_etcd`] run it through the scenarios.
//! * [`Checker`] knows the promises ([`Rule`]) and watches any world that tells it what happens,
//!   also one of yours.
//! * [`Chance`] draws decisions from a seed or from a byte string, so that a fuzzer can search and
//!   minimise; [`Trace`] is a run as data, for pictures; [`Clock`] runs at a pace of its own.
//!
//! And where chance is not enough, [`search`] tries every way in which a small model can go.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::redis::{Acquire, Event, Release};
//! use lock_proto::sim::World;
//!
//! let mut w = World::redis(1).clients(2).seed(7).build();
//!
//! // The first client gets the lock, the second one waits.
//! let first = w.acquire(0, Acquire::new("stock:42").ttl(Duration::from_secs(2)));
//! w.expect(Duration::from_millis(10), "the first holds", |w| w.is_held(0, first));
//! let second = w.acquire(1, Acquire::new("stock:42").ttl(Duration::from_secs(2)));
//! w.run_for(Duration::from_secs(60));
//! assert!(w.is_held(0, first) && !w.is_held(1, second));
//!
//! // The process of the first stands still for longer than its TTL.
//! w.pause_client(0);
//! w.expect(Duration::from_secs(3), "the second holds", |w| w.is_held(1, second));
//! assert!(w.grant(1, second).unwrap().fence > w.grant(0, first).unwrap().fence);
//!
//! // When it goes on, it is told; and what it gives back late takes nothing from the second.
//! w.resume_client(0);
//! assert!(matches!(w.events(0, first).last(), Some(Event::Lost(_))));
//! w.release(0, first);
//! w.run_for(Duration::from_secs(1));
//! assert_eq!(w.events(0, first).last(), Some(&Event::Released(Release::Taken)));
//! assert!(w.is_held(1, second));
//!
//! // Everything that happened, line by line.
//! assert!(w.log().contains("EVAL <take>"));
//! ```
//!
//! # What is simulated
//!
//! A message is delayed by chance and may come in pieces, but a connection keeps its order, as TCP
//! does. A cut holds bytes back; they arrive when it is healed, even on a connection that its
//! client has given up. A stopped server's kernel goes on accepting connections and bytes, and all
//! of it is executed when the server goes on. Expiry follows the server's wall clock, which can be
//! set. A client's clock has its own offset and pace; its deadlines are kept to the nanosecond,
//! never rounded to a tick.
//!
//! What a lock protects is there as well: applications write to it while they believe to hold the
//! lock, and it refuses a write whose fencing token is older than one it has seen.
//!
//! A replica of a node in a [`World`] follows at once or not at all ([`World::stop_replication`],
//! [`World::promote`]); [`redis::Node`] by itself replicates as Redis does, and has a limit on
//! memory with eviction. Not simulated: Lua other than this library's scripts.

// requirements S1 and S5

mod agenda;
mod chance;
pub mod check;
mod clock;
mod direction;
pub mod etcd;
mod fingerprint;
mod journal;
mod network;
mod record;
pub mod redis;
mod rng;
pub mod scenario;
pub mod search;
pub mod trace;
pub mod world;

pub use chance::Chance;
pub use check::{Checker, Rule, Violation};
pub use clock::Clock;
pub use direction::Direction;
pub use journal::Keep;
pub use rng::Rng;
pub use scenario::{Outcome, Plan, Scenario, scenarios};
pub use trace::Trace;
pub use world::Handovers;
pub use world::redis::{Builder, RedisClient, World};
