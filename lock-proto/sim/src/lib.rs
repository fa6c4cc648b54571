//! Simulated servers, network and clocks for testing lock code.
//!
//! To test a program that uses locks, start a [`TestServer`]: a simulated server on a loopback port,
//! in the process of the test.
//!
//! To test a lock, start with [`scenarios`]: named situations that generate a different run for every seed or byte
//! string, with checkers that watch the guarantees ([`scenario`]). The building blocks can be used
//! on their own:
//!
//! * [`redis::Node`] is a Redis server as a state machine that speaks RESP: bytes in, bytes out.
//!   Put it behind a socket, or feed it from a fuzzer.
//! * [`etcd::Cluster`] is an etcd cluster as a state machine: typed calls and stream messages in,
//!   replies out.
//! * [`zookeeper::Ensemble`] is a ZooKeeper ensemble as a state machine: bytes in, bytes out.
//! * [`World`] runs Redis nodes and [`Client`](lock_proto::redis::Client) machines over a simulated
//!   network, in virtual time, from one seed. It delays, cuts and resets connections, pauses and
//!   kills processes and servers, and skews clocks. Its checkers are always on. The same seed
//!   produces the same log, byte for byte.
//! * [`etcd::World`] does the same for an etcd cluster and [`etcd::Client`](lock_proto::etcd::Client)
//!   machines, [`zookeeper::World`] for ZooKeeper.
//! * All worlds accept other implementations: implement [`ByteClient`](lock_proto::ByteClient) or
//!   [`etcd::EtcdClient`], and pass it to [`world::Builder::machine`]. [`Plan::run_redis`],
//!   [`Plan::run_etcd`] and [`Plan::run_zookeeper`] run it through the scenarios.
//! * [`Checker`] implements the rules ([`Rule`]) and works with any world that reports its events.
//! * [`Chance`] draws decisions from a seed or a byte string, so that a fuzzer can search and
//!   minimise. [`Trace`] holds a run as data, for visualisation. [`Clock`] has an offset and a
//!   drift.
//!
//! * [`own`] runs a lock of your own, on Redis or etcd. You write only its requests, and what their
//!   replies mean.
//!
//! [`search`] explores every execution of a small model instead of sampling.
//!
//! # Controls
//!
//! The network, the faults and the agenda are parts of a world, and methods of
//! [`world::World`] control them. They are not types of their own, because they share the world's
//! time, seed, log and checkers.
//!
//! | what | methods |
//! |---|---|
//! | network | `cut`, `heal`, `partition`, `heal_all`, `slow`, `stall`, `drop_connections`, [`Builder::latency`](world::Builder::latency) |
//! | processes | `pause_client`, `suspend_client`, `resume_client`, `kill_client`, [`Builder::clock`](world::Builder::clock) |
//! | servers | Redis: `pause_node`, `kill_node`, `restart_node`, `promote`; etcd, ZooKeeper: `pause_member`, `kill_member` |
//! | agenda | `run_for`, `run_until`, `expect`, `acquire_for`; a [`Plan`] is a list of timed actions |
//! | checkers | [`Checker`] works with any world; `expect_violation`, `violations` |
//! | timeline | `log`, `take_trace`, [`Trace`], [`picture`] |
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::{Acquire, Event, Release};
//! use lock_sim::World;
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
//! // After it resumes, it learns of the loss, and its late release does not affect the second.
//! w.resume_client(0);
//! assert!(matches!(w.events(0, first).last(), Some(Event::Lost(_))));
//! w.release(0, first);
//! w.run_for(Duration::from_secs(1));
//! assert_eq!(w.events(0, first).last(), Some(&Event::Released(Release::Taken)));
//! assert!(w.is_held(1, second));
//!
//! // The log has one line for each thing that happened.
//! assert!(w.log().contains("EVAL <take>"));
//! ```
//!
//! # What is simulated
//!
//! A message takes a random time and may arrive in pieces, but a connection keeps its order, as TCP
//! does. A cut holds bytes back; they arrive when it heals, even on a connection that its client
//! has abandoned. While a server process is paused, its kernel still accepts connections and bytes;
//! the server processes them all when it resumes. Expiry follows the server's wall clock, which can
//! be set. A client's clock has its own offset and drift. Client deadlines are exact to the
//! nanosecond, not rounded to a tick.
//!
//! The resource that a lock protects is simulated too. Applications write to it while they believe
//! they hold the lock. It rejects a write whose fencing token is older than one it has seen.
//!
//! In a [`World`], a replica follows its node instantly or not at all ([`World::stop_replication`],
//! [`World::promote`]). A standalone [`redis::Node`] replicates as Redis does, and supports a
//! memory limit with eviction. Not simulated: Lua scripts other than this library's.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

// S1, S5

mod agenda;
mod chance;
pub mod check;
mod clock;
mod direction;
pub mod etcd;
mod fingerprint;
mod journal;
mod model;
mod network;
pub mod own;
pub mod picture;
mod record;
pub mod redis;
pub mod register;
mod rng;
pub mod scenario;
pub mod search;
pub mod test_server;
pub mod trace;
pub mod world;
pub mod zookeeper;

pub use chance::Chance;
pub use check::{Checker, Rule, Violation};
pub use clock::Clock;
pub use direction::Direction;
pub use journal::Keep;
pub use rng::Rng;
pub use scenario::{Outcome, Plan, Scenario, scenarios};
pub use test_server::TestServer;
pub use trace::Trace;
pub use world::Handovers;
pub use world::redis::{Builder, RedisClient, World};
