//! Locks of your own on etcd.
//!
//! Like [locks on Redis](super), with calls, keep-alives and watches in place of commands:
//! implement [`OwnLock`]. The world judges the lock by the same rules, in the
//! [scenarios](crate::scenarios) of etcd.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::etcd::RpcReply;
//! use lock_proto::etcd::message::{LeaseGrantRequest, LeaseRevokeRequest};
//! use lock_sim::Rule;
//! use lock_sim::own::Call;
//! use lock_sim::own::etcd::{Context, Failed, OwnLock, Txn, find};
//! use lock_proto::{Instant, Release};
//!
//! /// A key that exists while the lock is held, with a lease.
//! #[derive(Clone, Debug, Hash)]
//! struct Leased {
//!     lease: i64,
//! }
//!
//! const LEASE: u64 = 1;
//! const TAKE: u64 = 2;
//! const FREE: u64 = 3;
//!
//! impl OwnLock for Leased {
//!     fn acquire(&mut self, cx: &mut Context<'_>) {
//!         if self.lease == 0 {
//!             return cx.call(LEASE, LeaseGrantRequest { ttl: cx.ttl().as_secs() as i64, id: 0 });
//!         }
//!         cx.call(TAKE, Txn::new().if_absent(cx.name()).put(cx.name(), cx.token(), self.lease));
//!     }
//!
//!     fn release(&mut self, cx: &mut Context<'_>) {
//!         cx.call(FREE, LeaseRevokeRequest { id: self.lease });
//!     }
//!
//!     fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RpcReply, Failed>) {
//!         match (call.tag, reply) {
//!             (LEASE, Ok(RpcReply::Grant(lease))) => {
//!                 self.lease = lease.id;
//!                 self.acquire(cx);
//!             }
//!             // Wrong: the lease is older than this call.
//!             (TAKE, Ok(RpcReply::Txn(txn))) if txn.succeeded => {
//!                 cx.grant(call.sent + cx.ttl() * 98 / 100, None);
//!             }
//!             (LEASE | TAKE, reply) => {
//!                 if reply.is_err() {
//!                     self.lease = 0;
//!                 }
//!                 cx.retry(Duration::from_millis(100));
//!             }
//!             (_, Ok(_)) => cx.released(Release::Released),
//!             (_, Err(_)) => cx.released(Release::Unknown),
//!         }
//!     }
//! }
//!
//! let found = find(&Leased { lease: 0 }, "etcd-pauses", 0..100, Rule::MutualExclusion).unwrap();
//! assert!(found.plan.len() <= 8, "{found}");
//! ```
// S12

mod calls;
mod client;
mod context;
mod lock;
mod txn;

pub use calls::Calls;
pub use client::OwnClient;
pub use context::Context;
pub use lock::{Failed, OwnLock, Watched};
pub use txn::Txn;

pub use super::find::find_etcd as find;
