//! Distributed locks as sans-IO state machines: events in, commands out.
//!
//! The machines do no I/O, read no clock and draw no random numbers. Time, entropy and incoming
//! bytes are arguments; outgoing bytes and events are results. So they run on any executor or on
//! none, and every run can be replayed, simulated and searched.
//!
//! Applications usually want `lock-tokio` or `lock-smol`, which run these machines over real
//! sockets with the crate `lock-driver`. The following program drives a client by hand: it takes a
//! lock and releases it. The bytes that a server would send are written out, so that the program
//! runs anywhere; the crate `lock-sim` has simulated servers.
//!
//! ```
//! # #[cfg(not(feature = "redis"))]
//! # fn main() {}
//! # #[cfg(feature = "redis")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lock_proto::redis::{Client, Config, Output};
//! use lock_proto::{Acquire, ByteClient, ClientId, ConnId, Event, Instant, LockClient, Machine, Release};
//!
//! /// Carries a request to the server, and its reply back. A real host writes and reads a socket.
//! fn exchange(now: Instant, client: &mut Client, conn: ConnId, reply: &[u8]) {
//!     let request = client.outgoing(conn).len();
//!     assert!(request > 0);
//!     client.consume(conn, request);
//!     client.handle_received(now, conn, reply);
//! }
//!
//! let now = Instant::from_millis(1); // from your clock
//! let id = ClientId::from_bits(0x5eed); // 128 random bits
//! let seed = 7; // 64 random bits, for jitter
//! let config = Config::parse("redis://127.0.0.1:6379")?;
//! let mut client = Client::new(now, config, id, seed)?;
//!
//! // Request the lock. The client asks its host for a connection.
//! let lock = client.acquire(now, &Acquire::new("invoice:42"))?;
//! let Some(Output::Connect { conn, .. }) = client.poll_output() else { unreachable!() };
//! client.handle_connected(now, conn);
//!
//! // The script that takes the lock answers: granted, and the first of one fencing token.
//! exchange(now, &mut client, conn, b"*4\r\n:1\r\n:1700000000000001\r\n:1\r\n:0\r\n");
//! let Some(Output::Event { event: Event::Granted(grant), .. }) = client.poll_output() else {
//!     unreachable!()
//! };
//! client.claim(now, lock)?;
//! assert!(grant.fence.is_some());
//! assert!(client.valid_until(lock) > Some(now));
//!
//! // Work under the lock, then release it. The script that deletes the key found it.
//! client.release(now, lock)?;
//! exchange(now, &mut client, conn, b":1\r\n");
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
//!    driver           Driver<H: Host>: one loop over sockets          lock-driver
//!  ── pure from here down: this crate ──────────────────────────────────────────────────────
//!    redis::Client    the hub and its connections: bytes in, bytes out
//!    redis::Locks     the hub: many locks, typed requests in and out  bring your own Redis client
//!    redis::Pipe      one connection: RESP, login, pipelining, reconnect
//!    etcd::Client     the hub and its channel: RPCs in, RPCs out      bring your own HTTP/2
//!    etcd::Locks      the hub: many locks and elections, typed calls  bring your own etcd client
//!    etcd::Channel    one connection: login, calls, streams, failover
//!    zookeeper::Client, Locks, Pipe    as for Redis: the hub exchanges requests, the others bytes
//!    register::Client the hub: typed requests in and out              bring your own store
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
//! What a host must carry out is exhaustive: a new kind of output is an incompatible change. What
//! describes the world is `#[non_exhaustive]`: reasons, failures, losses, faults, settings. A host
//! takes those that it does not know for the unfavourable case.
//!
//! The module [`fence`] has checks of fencing tokens for the resources that locks protect.
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
//! * `register`: the machine for any store with compare-and-set.
//!
//! The crate is `no_std` with `alloc`. Where `target_os` is not `none`, `redis` needs
//! `RUSTFLAGS="--cfg lock_bare_metal"` for that. The crate `lock-driver` has what a host takes from
//! the operating system: `BootClock`, `random_identity` and `read_file`.

// No std, no unsafe code, no I/O.
// D1
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "register")),
    allow(dead_code, unused_imports, reason = "each store uses its share of what they have in common")
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

// Every layer is public.
// D5
mod cluster_url;
mod collections;
#[doc(hidden)]
pub mod connection;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod fault;
pub mod fence;
mod id;
mod jitter;
pub mod lock;
mod parameters;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "register")]
pub mod register;
pub mod time;
mod tls;
pub mod url;
#[cfg(test)]
mod variants;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use error::{ConfigError, Invalid, Misuse};
pub use fault::{Breach, Fault};
pub use id::{CallId, ClientId, ConnId, LockId, NodeId, Role};
pub use lock::{
    Acquire, Answer, Backoff, Blocked, ByteClient, Cause, ClientInfo, Credentials, CredentialsRequest, DEFAULT_TTL,
    Drift, Elections, ErrorClass, Event, Expiry, Failure, Fence, Grant, Leader, LockClient, Loss, MAX_NAME, MAX_TTL,
    MIN_TTL, Machine, Note, Operation, OperationEvent, OperationId, Release, Renew, Report, ServerError, Token, Wait,
};
pub use time::Instant;
pub use tls::{Tls, TlsFault};
pub use url::{Login, Secret, Target, UrlError};
