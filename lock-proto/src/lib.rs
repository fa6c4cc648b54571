//! Distributed locks as sans-IO state machines: events in, commands out.
//!
//! The machines do no I/O, read no clock and draw no random numbers. Time, entropy and incoming
//! bytes are arguments; outgoing bytes and events are results. So they run on any executor or on
//! none, and every run can be replayed, simulated and searched.
//!
//! Applications usually want `lock-tokio` or `lock-smol`, which run these machines over real
//! sockets. The following program drives a client by hand: it takes a lock and releases it. Its
//! server is the simulated one of the feature `sim`, so that the program runs anywhere.
//!
//! ```
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lock_proto::redis::{Client, Config, Output};
//! use lock_proto::sim::redis::{Node, NodeConfig};
//! use lock_proto::{Acquire, ByteClient, ClientId, ConnId, Event, Instant, Machine, Release};
//!
//! /// Carries bytes until both sides are idle. A real host reads and writes a socket here.
//! fn exchange(now: Instant, client: &mut Client, conn: ConnId, server: &mut Node) {
//!     while client.has_outgoing(conn) {
//!         let request = client.outgoing(conn).to_vec();
//!         client.consume(conn, request.len());
//!         server.handle_received(now, 1, &request);
//!
//!         let reply = server.outgoing(1).to_vec();
//!         server.consume(1, reply.len());
//!         client.handle_received(now, conn, &reply);
//!     }
//! }
//!
//! let now = Instant::from_millis(1); // from your clock
//! let id = ClientId::from_bits(0x5eed); // 128 random bits
//! let seed = 7; // 64 random bits, for jitter
//! let config = Config::parse("redis://127.0.0.1:6379")?;
//! let mut client = Client::new(now, config, id, seed)?;
//! let mut server = Node::new(now, NodeConfig::new(1));
//!
//! // Request the lock. The client asks its host for a connection.
//! let lock = client.acquire(now, &Acquire::new("invoice:42"))?;
//! let Some(Output::Connect { conn, .. }) = client.poll_output() else { unreachable!() };
//! server.handle_connected(now, 1);
//! client.handle_connected(now, conn);
//! exchange(now, &mut client, conn, &mut server);
//!
//! // The server granted it, with a fencing token. Claim it.
//! let Some(Output::Event { event: Event::Granted(grant), .. }) = client.poll_output() else {
//!     unreachable!()
//! };
//! client.claim(now, lock)?;
//! assert!(grant.fence.is_some());
//! assert!(client.valid_until(lock) > Some(now));
//!
//! // Work under the lock, then release it.
//! client.release(now, lock)?;
//! exchange(now, &mut client, conn, &mut server);
//! let released = Event::Released(Release::Released);
//! assert_eq!(client.poll_output(), Some(Output::Event { lock, event: released }));
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! Every layer is public. Use the highest one that fits.
//!
//! ```text
//!  application        client.lock("invoice:42").acquire().await?      lock-tokio, lock-smol
//!    driver           Driver<H: Host>: one loop over sockets          feature `driver`
//!  ── pure from here down ──────────────────────────────────────────────────────────────────
//!    redis::Client    the hub and its connections: bytes in, bytes out
//!    redis::Locks     the hub: many locks, typed requests in and out  bring your own Redis client
//!    redis::Pipe      one connection: RESP, login, pipelining, reconnect
//!    etcd::Client     the hub and its channel: RPCs in, RPCs out      bring your own HTTP/2
//!    etcd::Locks      the hub: many locks and elections, typed calls  bring your own etcd client
//!    etcd::Channel    one connection: login, calls, streams, failover
//!    zookeeper::Client, Locks, Pipe    as for Redis: the hub exchanges requests, the others bytes
//! ```
//!
//! # The contract
//!
//! There are three kinds of methods. Verbs and facts take the current time, `now`, first.
//!
//! * *Verbs* (`acquire`, `claim`, `extend`, `release`, `abandon`, `shutdown`) are what the
//!   application requests. They fail only with [`Misuse`], and then nothing has changed.
//! * *Facts* (`handle_*`) report what happened. They cannot fail. Stale, early, late and repeated
//!   facts are harmless.
//! * *Drains* (`poll_output`, `outgoing`, `next_deadline`) return what the host has to do next.
//!
//! At `next_deadline`, call `expire`, then report what has arrived, and then call `handle_timeout`.
//!
//! The requirements that the machines meet are in `docs/spec` of the repository.
//!
//! # Features
//!
//! Features are additive.
//!
//! * `redis` (default): the machines for Redis and Valkey.
//! * `etcd`: the machines for etcd.
//! * `zookeeper`: the machines for ZooKeeper.
//! * `std`: [`BootClock`](https://docs.rs/lock-proto/latest/lock_proto/struct.BootClock.html),
//!   `random_identity` and `read_file`, for programs that embed a machine.
//! * `driver`: the async driver and its handles, for runtime adapters. Implies `std`. It supports
//!   Redis with the feature `redis`, etcd with the feature `grpc`, and ZooKeeper with `zookeeper`.
//! * `grpc`: gRPC over HTTP/2 for the driver, on any runtime. Implies `driver` and `etcd`.
//! * `tls-ring`, `tls-aws-lc-rs`: TLS by rustls for the driver, with that cryptography. `tls` is the
//!   part that both share, and `tls-platform-roots` adds the platform's trust store.
//! * `sim`: simulated servers, networks and clocks, to test lock code with. Needs the standard
//!   library. Implies `redis`, `etcd` and `zookeeper`.
//!
//! With the features of stores alone the crate is `no_std` with `alloc`. Where `target_os` is not
//! `none`, `redis` needs `RUSTFLAGS="--cfg lock_bare_metal"` for that.

// No std, no unsafe code, no I/O.
// D1
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "redis", feature = "etcd", feature = "zookeeper")),
    allow(dead_code, unused_imports, reason = "each store uses its share of what they have in common")
)]

extern crate alloc;
#[cfg(any(feature = "std", feature = "sim", test))]
extern crate std;

// Every layer is public.
// D5
#[cfg(feature = "std")]
mod clock;
mod cluster_url;
mod collections;
#[cfg(feature = "driver")]
pub mod driver;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod fault;
#[cfg(feature = "std")]
mod file;
mod id;
mod jitter;
#[expect(unnameable_types, reason = "parts of `Locks`, which applications need not name")]
pub mod lock;
mod parameters;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sim")]
pub mod sim;
mod time;
mod tls;
mod url;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

#[cfg(feature = "std")]
pub use clock::{BootClock, Clock, random_identity};
pub use error::{ConfigError, Invalid, Misuse};
pub use fault::{Breach, Fault};
#[cfg(feature = "std")]
pub use file::read_file;
pub use id::{CallId, ClientId, ConnId, LockId, NodeId, Role};
pub use lock::{
    Acquire, Answer, Backoff, Blocked, ByteClient, Cause, Credentials, CredentialsRequest, DEFAULT_TTL, Drift,
    ElectionEvent, Elections, ErrorClass, Event, Expiry, Failure, Fence, Grant, Leader, Loss, MAX_NAME, MAX_TTL,
    MIN_TTL, Machine, QueryId, Release, Renew, Report, ServerError, Token, Wait,
};
pub use time::Instant;
pub use tls::{Tls, TlsFault};
pub use url::{Login, Secret, Target, UrlError};
