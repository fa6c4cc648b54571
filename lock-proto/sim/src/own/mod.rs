//! Locks of your own in the simulated world.
//!
//! Implement [`OwnLock`]: which commands take and release the lock, and what their replies mean.
//! The world supplies connections, RESP, logins, waits and events, and judges the lock like the
//! clients of this library: with the same faults, checkers, [scenarios](crate::scenarios),
//! [exhaustive search](search) and [pictures](crate::picture).
//!
//! ```
//! use core::time::Duration;
//! use lock_sim::own::{Call, Context, Lost, OwnLock, find};
//! use lock_sim::redis::RespReply;
//! use lock_sim::{Rule, World};
//! use lock_proto::{Acquire, Release};
//!
//! /// `SET key token NX PX ttl`, and a release that does not compare the token.
//! #[derive(Clone, Debug, Hash)]
//! struct Naive;
//!
//! const TAKE: u64 = 1;
//! const FREE: u64 = 2;
//!
//! impl OwnLock for Naive {
//!     fn acquire(&mut self, cx: &mut Context<'_>) {
//!         let ttl = cx.ttl().as_millis().to_string();
//!         cx.send(0, TAKE, &["SET", cx.name(), cx.token(), "NX", "PX", &ttl]);
//!     }
//!
//!     fn release(&mut self, cx: &mut Context<'_>) {
//!         cx.send(0, FREE, &["DEL", cx.name()]);
//!     }
//!
//!     fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
//!         match (call.tag, reply) {
//!             // Held for a TTL from the request, less what the clocks may drift apart.
//!             (TAKE, Ok(RespReply::Ok)) => cx.grant(call.sent + cx.ttl() * 98 / 100, None),
//!             (TAKE, _) => cx.retry(Duration::from_millis(20)),
//!             _ => cx.released(Release::Released),
//!         }
//!     }
//! }
//!
//! // By hand: a holder stands still, loses the lock, and then deletes the key of the next holder.
//! let mut w = World::redis(1).clients(3).own_lock(Naive).build();
//! w.expect_violation();
//! let second = Duration::from_secs(1);
//! let want = || Acquire::new("stock:42").ttl(2 * second);
//! let first = w.acquire(0, want());
//! w.expect(second, "the first holds", |w| w.is_held(0, first));
//! w.pause_client(0);
//! let next = w.acquire(1, want());
//! w.expect(4 * second, "the second holds", |w| w.is_held(1, next));
//! w.acquire(2, want());
//! w.resume_client(0);
//! w.release(0, first);
//! w.run_for(second);
//! assert_eq!(w.violations()[0].rule, Rule::MutualExclusion);
//!
//! // By a scenario: which seed breaks it, and what is the shortest way there?
//! let found = find(&Naive, "redis-pauses", 0..100, Rule::MutualExclusion).unwrap();
//! assert!(found.plan.len() <= 6, "{found}");
//! ```
// S12
#![allow(private_bounds, private_interfaces, reason = "the transports are those of this crate")]

mod client;
mod connections;
mod context;
pub mod etcd;
mod find;
mod lock;
pub mod search;
mod transport;
mod world;

pub use client::OwnClient;
pub use connections::Connections;
pub use context::Context;
pub use find::{Found, find};
pub use lock::{Call, Lost, OwnLock};
