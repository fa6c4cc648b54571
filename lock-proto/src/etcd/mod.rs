//! Locks and elections on etcd 3.4 or later, compatible with `etcdctl` and Go's concurrency
//! package.
//!
//! Each contender creates a key `name/<lease id>`; the key that was created first holds the lock.
//! Waiters watch the key ahead instead of polling. One lease keeps all locks of a client alive.
//!
//! [`Client`] is a sans-IO state machine. The host brings the connections, HTTP/2 and gRPC:
//!
//! ```
//! use lock_proto::etcd::message::{LeaseGrantResponse, ResponseHeader};
//! use lock_proto::etcd::{Client, Config, Output, Rpc, RpcReply};
//! use lock_proto::{Acquire, ClientId, Instant, LockClient, Machine};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Instant::from_millis(1); // your clock
//! let id = ClientId::from_bits(0x5eed); // 128 random bits of yours
//! let mut client = Client::new(now, Config::parse("etcd://127.0.0.1:2379")?, id, 7)?;
//!
//! // Request a lock. The client needs a connection, then a lease.
//! let lock = client.acquire(now, &Acquire::new("invoice:42"))?;
//! let Some(Output::Connect { conn, .. }) = client.poll_output() else { unreachable!() };
//! client.handle_connected(now, conn);
//! let Some(Output::Call { rpc, request: Rpc::Grant(grant), .. }) = client.poll_output() else {
//!     unreachable!()
//! };
//!
//! // Your gRPC client makes the call here.
//! let header = Some(ResponseHeader { member_id: 1, revision: 1 });
//! let response = LeaseGrantResponse { header, id: grant.id, ttl: grant.ttl };
//! client.handle_reply(now, rpc, Ok(RpcReply::Grant(response)));
//!
//! // With a lease, the client enters the queue in one transaction.
//! assert!(matches!(client.poll_output(), Some(Output::Call { request: Rpc::Txn(_), .. })));
//! assert_eq!(client.valid_until(lock), None, "not held yet");
//! # Ok(())
//! # }
//! ```
//!
//! `docs/etcd.md` in the repository shows how the client waits for, hands over and loses a lock.

#[expect(unnameable_types, reason = "parts of `Channel`")]
mod channel;
mod client;
#[expect(unnameable_types, reason = "a part of `Config`, which applications need not name")]
mod config;
#[expect(unnameable_types, reason = "parts of `Locks`, which applications need not name")]
mod lock;
mod locks;
mod locks_output;
pub mod message;
mod output;
mod reading;
pub(crate) mod request;
mod rpc;
mod status;
mod url;

pub use crate::lock::{Leader, MAX_VALUE};
#[doc(hidden)]
pub use channel::Grpc;
pub use channel::{Channel, ChannelConfig, ChannelOutput};
pub use client::Client;
pub use config::{Config, MAX_ENDPOINTS, MIN_SESSION_TTL};
pub use lock::OwnerKey;
pub use locks::Locks;
pub use locks_output::{LocksOutput, WatchId, WatchOutput};
pub use output::Output;
pub use request::{Ahead, Found, LISTED, LeaseId, Older, Queue, Refusal, Reply, Request, SeenRevisions};
pub use rpc::{Code, Rpc, RpcId, RpcReply, Status, StreamId, StreamKind, StreamReceived, StreamSend};
pub use url::Endpoint;
