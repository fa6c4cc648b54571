//! Distributed locks as sans-IO state machines: events in, commands out.
//!
//! The machines do no I/O, read no clock and draw no random numbers: time and entropy are arguments, bytes go in and come out. So
//! they run on any executor or on none, and everything they do can be replayed, simulated and searched.
//!
//! ```
//! use lock_proto::redis::{Client, Config, Endpoint, Output};
//! use lock_proto::{Acquire, ByteClient, ClientId, Event, Instant, Machine, Release};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Instant::from_millis(1); // your clock
//! let id = ClientId::from_bits(0x5eed); // 128 random bits of yours
//! let node = Endpoint::parse("redis://127.0.0.1:6379")?;
//! let mut client = Client::new(now, Config::new([node]), id, 7)?;
//!
//! // A wish for a lock: the machine wants a connection.
//! let lock = client.acquire(now, &Acquire::new("invoice:42"))?;
//! let Some(Output::Connect { conn, .. }) = client.poll_output() else { unreachable!() };
//! client.handle_connected(now, conn);
//!
//! // It has bytes for the server. This is where a socket would write and read.
//! let written = client.outgoing(conn).len();
//! assert!(written > 0);
//! client.consume(conn, written);
//! client.handle_received(now, conn, b"*4\r\n:1\r\n:1700000000000001\r\n:1\r\n:0\r\n");
//!
//! // The lock is offered, with a fencing token. Claim it, work, give it back.
//! let Some(Output::Event { event: Event::Granted(grant), .. }) = client.poll_output() else { unreachable!() };
//! assert_eq!(grant.fence.map(|fence| fence.get()), Some(1_700_000_000_000_001));
//! client.claim(now, lock)?;
//! assert!(client.valid_until(lock).is_some_and(|end| now < end));
//! client.release(now, lock)?;
//!
//! let written = client.outgoing(conn).len();
//! client.consume(conn, written);
//! client.handle_received(now, conn, b":1\r\n"); // the number of the token that was deleted
//! assert_eq!(client.poll_output(), Some(Output::Event { lock, event: Event::Released(Release::Released) }));
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! Every seam is public. Take the highest that fits.
//!
//! ```text
//!  application        client.lock("invoice:42").acquire().await?        lock-tokio, lock-smol
//!    driver           Driver<H: Host>: one loop over sockets            feature `driver`
//!  ── pure from here down ──────────────────────────────────────────────────────────────────
//!    redis::Client    the hub and its connections: bytes in, bytes out
//!    redis::Locks     the hub: many locks, typed requests in and out    bring your own Redis client
//!    redis::Pipe      one connection: RESP, login, pipelining, reconnect
//!    etcd::Client     the hub and its channel: RPCs in, RPCs out        bring your own HTTP/2
//!    etcd::Locks      the hub: many locks and elections, typed requests bring your own etcd client
//!    etcd::Channel    one connection: login, calls, streams, failover
//! ```
//!
//! # The contract
//!
//! *Verbs* (`acquire`, `claim`, `extend`, `release`, `abandon`, `shutdown`) are called by the application; they fail only with [`Misuse`],
//! and then nothing has changed. *Facts* (`handle_*`) tell what the world did; they cannot fail, and stale, early, late or repeated ones are
//! harmless. *Drains* (`poll_output`, `outgoing`, `next_deadline`) tell what is to be done. `now` comes first in every call that changes
//! a machine. The numbered requirements behind all this are in `docs/spec` of the repository.
//!
//! # Features
//!
//! Features only add to each other.
//!
//! * `redis` (default): the machines for Redis and Valkey.
//! * `etcd`: the machines for etcd.
//! * `driver`: the async driver and its handles, for adapters to runtimes. Needs `std`. It serves the stores whose feature is on:
//!   `redis`, and with `grpc` etcd.
//! * `grpc`: gRPC over HTTP/2 for the driver, on any runtime. Implies `driver` and `etcd`.
//! * `sim`: simulated servers, networks and clocks, to test lock code with. Needs `std`.
//!
//! With `redis` and `etcd` alone the crate is `no_std` with `alloc`.
// No std, no unsafe code, no I/O (requirement D1).
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "redis", feature = "etcd")),
    allow(dead_code, unused_imports, reason = "each store uses its share of what they have in common")
)]

extern crate alloc;
#[cfg(any(feature = "driver", feature = "sim", test))]
extern crate std;

// Every seam is public (requirement D5).
mod collections;
#[cfg(feature = "driver")]
pub mod driver;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod fault;
mod id;
mod jitter;
#[expect(unnameable_types, reason = "parts of `Locks`, which applications need not name")]
pub mod lock;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sim")]
pub mod sim;
mod time;
mod url;

pub use error::{ConfigError, Invalid, Misuse};
pub use fault::{Breach, Fault};
pub use id::{CallId, ClientId, ConnId, LockId, NodeId, Role};
pub use lock::{
    Acquire, Answer, Backoff, Blocked, ByteClient, Cause, DEFAULT_TTL, Drift, ElectionEvent, Elections, ErrorClass,
    Event, Expiry, Failure, Fence, Grant, Leader, Loss, MAX_NAME, MAX_TTL, MIN_TTL, Machine, QueryId, Release, Renew,
    Report, ServerError, Token, Wait,
};
pub use time::Instant;
pub use url::{Secret, Target, UrlError};
