//! The step machine of one lock, alone: no hub, no connection, no other names.
//!
//! [`Locks`](super::Locks) is this machine for any number of names, and nearly everybody is better served by it. Alone it is for
//! those who check it: by hand, with a model checker, or in a simulation of their own. It is a plain value that derives `Clone`, `Eq`
//! and `Hash`, so that an explorer can branch at any step and knows where it has been.
//!
//! Its surroundings ([`Context`]: the time, the settings, what is known of the nodes, the queue of outputs) are a value of
//! their own, which every step is given.
//!
//! One lock, taken from one node, renewed, and released:
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::redis::step::{Context, Lock, Ttl, Waiter};
//! use lock_proto::redis::{Config, Endpoint, Event, Key, LocksOutput, Release, Renew, Reply, Request, Wait};
//! use lock_proto::{ClientId, Instant, LockId, NodeId};
//!
//! let start = Instant::from_millis(1_000);
//! let config = Config::new([Endpoint::parse("redis://127.0.0.1:6379")?]).fencing(false);
//! let ttl = Ttl::new(Duration::from_secs(10), Renew::Auto, &config)?;
//! let mut ctx = Context::new(start, config, ClientId::from_bits(1), 7)?;
//!
//! let id = LockId::new(0, 0);
//! let mut lock = Lock::new(Key::new(b"", b"stock:42"));
//! lock.acquire(&mut ctx, Waiter { id, terms: ttl, renew: Renew::Auto, wait: Wait::Forever, since: start });
//!
//! // It asks the node for the key, and is granted it two milliseconds later.
//! let Some(LocksOutput::Send { call, request: Request::Take { .. }, .. }) = ctx.poll_output() else { panic!() };
//! ctx.advance(start + Duration::from_millis(2));
//! lock.reply(&mut ctx, NodeId::new(0), call.serial(), &Reply::Granted { fence: None });
//! let Some(LocksOutput::Event { event: Event::Granted(grant), .. }) = ctx.poll_output() else { panic!() };
//! // It counts from the moment of the question, not of the answer, and not for the whole of the TTL.
//! assert!(grant.valid_until < start + Duration::from_secs(10));
//! lock.claim(&mut ctx, id)?;
//!
//! // A third of the TTL later it wants to renew.
//! let (due, why) = lock.deadline(&ctx).unwrap();
//! assert_eq!(why, "watchdog");
//! ctx.advance(due);
//! lock.timeout(&mut ctx);
//! let Some(LocksOutput::Send { call, request: Request::Extend { .. }, .. }) = ctx.poll_output() else { panic!() };
//! lock.reply(&mut ctx, NodeId::new(0), call.serial(), &Reply::Extended);
//! assert!(lock.valid_until(id, &ctx) > Some(grant.valid_until));
//! while ctx.poll_output().is_some() {}
//!
//! // And released.
//! lock.release(&mut ctx, id)?;
//! let Some(LocksOutput::Send { call, request: Request::Release { .. }, .. }) = ctx.poll_output() else { panic!() };
//! lock.reply(&mut ctx, NodeId::new(0), call.serial(), &Reply::Deleted { number: 1, awaited: false });
//! let Some(LocksOutput::Event { event: Event::Released(Release::Released), .. }) = ctx.poll_output() else { panic!() };
//! assert!(lock.is_over());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use super::lock::{Context, Lock, Redis, Waiter};
pub use super::validity::Ttl;
