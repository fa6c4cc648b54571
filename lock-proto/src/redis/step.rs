//! State machine of a single lock, without a hub or connections.
//!
//! Most users want [`Locks`](super::Locks), which runs this machine for any number of names. Use it
//! directly to verify it, by hand or with a model checker: [`RedisLock`] is a plain value that derives
//! `Clone`, `Eq` and `Hash`, so an explorer can branch at any step.
//!
//! Each step receives a [`RedisContext`]: time, settings, known state of the nodes, output queue.
//!
//! This example takes one lock on one node, renews it and releases it:
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::redis::step::{RedisContext, RedisLock, RedisWaiter, Ttl};
//! use lock_proto::redis::{Config, Key, LocksOutput, Reply, Request};
//! use lock_proto::{ClientId, Event, Instant, LockId, Release, Renew, Wait};
//!
//! let start = Instant::from_millis(1_000);
//! let config = Config::parse("redis://127.0.0.1:6379")?.fencing(false);
//! let ttl = Ttl::new(Duration::from_secs(10), Renew::Auto, &config)?;
//! let mut ctx = RedisContext::new(start, config, ClientId::from_bits(1), 7)?;
//!
//! let id = LockId::new(0, 0);
//! let mut lock = RedisLock::new(Key::new(b"", b"stock:42"));
//! let wait = Wait::Forever;
//! lock.acquire(&mut ctx, RedisWaiter { id, terms: ttl, renew: Renew::Auto, wait, since: start });
//!
//! // The lock sends a take request. The node grants it 2 ms later.
//! let output = ctx.poll_output().unwrap();
//! let LocksOutput::Send { call, request: Request::Take { .. } } = output else { panic!() };
//! ctx.advance(start + Duration::from_millis(2));
//! lock.reply(&mut ctx, call.serial(), &Reply::Granted { fence: None });
//! let output = ctx.poll_output().unwrap();
//! let LocksOutput::Event { event: Event::Granted(grant), .. } = output else { panic!() };
//! // The lease counts from the time of the request, less the clock drift.
//! assert!(grant.valid_until < start + Duration::from_secs(10));
//! lock.claim(&mut ctx, id)?;
//!
//! // The watchdog renews the lease after a third of the TTL.
//! let (due, why) = lock.deadline(&ctx).unwrap();
//! assert_eq!(why, "watchdog");
//! ctx.advance(due);
//! lock.timeout(&mut ctx);
//! let output = ctx.poll_output().unwrap();
//! let LocksOutput::Send { call, request: Request::Extend { .. } } = output else { panic!() };
//! lock.reply(&mut ctx, call.serial(), &Reply::Extended);
//! assert!(lock.valid_until(id, &ctx) > Some(grant.valid_until));
//! while ctx.poll_output().is_some() {}
//!
//! // Release the lock.
//! lock.release(&mut ctx, id)?;
//! let output = ctx.poll_output().unwrap();
//! let LocksOutput::Send { call, request: Request::Release { .. } } = output else { panic!() };
//! let deleted = Reply::Deleted { number: 1, awaited: false };
//! lock.reply(&mut ctx, call.serial(), &deleted);
//! let event = Event::Released(Release::Released);
//! assert_eq!(ctx.poll_output(), Some(LocksOutput::Event { lock: id, event }));
//! assert!(lock.is_over());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use super::lock::{Redis, RedisContext, RedisLock, RedisWaiter};
pub use super::validity::Ttl;
