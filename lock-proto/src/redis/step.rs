//! The step machine of one lock, alone: no hub, no connection, no other names.
//!
//! [`Locks`](super::Locks) is this machine for any number of names, and nearly everybody is better served by it. Alone it is for
//! those who check it: by hand, with a model checker, or in a simulation of their own. It is a plain value that derives `Clone`, `Eq`
//! and `Hash`, so that an explorer can branch at any step and knows where it has been.
//!
//! It differs from the other machines in one thing: it keeps no surroundings. Time, settings, what is known of the nodes, and the
//! queues for what it says come with each step in a [`Context`]. After each step call [`Lock::tidy`].
//!
//! One lock, taken from one node, renewed, and given back:
//!
//! ```
//! use core::time::Duration;
//! use std::collections::VecDeque;
//! use lock_proto::redis::step::{Context, Lock, Node, NodeSet, Ttl, View, Waiter};
//! use lock_proto::redis::{Config, Endpoint, Event, Identity, Key, LocksOutput, Release, Renew, Reply, Request, Wait};
//! use lock_proto::{ClientId, Instant, LockId, NodeId};
//!
//! // The surroundings, kept by whoever drives the machine.
//! let config = Config::new([Endpoint::parse("redis://127.0.0.1:6379")?]).fencing(false);
//! let identity = Identity::new(ClientId::from_bits(1), b"");
//! let nodes = [Node::default()];
//! let (mut number, mut serial, mut quiet) = (0, 0, NodeSet::default());
//! let (mut out, mut ended) = (VecDeque::new(), Vec::new());
//! macro_rules! at {
//!     ($now:expr) => {
//!         &mut Context {
//!             now: $now, config: &config, identity: &identity, nodes: &nodes, quiet: &mut quiet, equal: None,
//!             stopping: false, seed: 7, name: 0, number: &mut number, serial: &mut serial, out: &mut out, ended: &mut ended,
//!         }
//!     };
//! }
//!
//! let start = Instant::from_millis(1_000);
//! let id = LockId::new(0, 0);
//! let ttl = Ttl::new(Duration::from_secs(10), Renew::Auto, &config)?;
//! let mut lock = Lock::new(Key::new(b"", b"stock:42"));
//! lock.acquire(at!(start), Waiter { id, terms: ttl, renew: Renew::Auto, wait: Wait::Forever, since: start });
//!
//! // It asks the node for the key, and is granted it two milliseconds later.
//! let Some(LocksOutput::Send { call, request: Request::Take { .. }, .. }) = out.pop_front() else { panic!() };
//! let now = start + Duration::from_millis(2);
//! lock.reply(at!(now), NodeId::new(0), call.serial(), &Reply::Granted { fence: None });
//! let Some(LocksOutput::Event { event: Event::Granted(grant), .. }) = out.pop_front() else { panic!() };
//! // It counts from the moment of the question, not of the answer, and not for the whole of the TTL.
//! assert!(grant.valid_until < start + Duration::from_secs(10));
//! lock.claim(at!(now), id)?;
//!
//! // A third of the TTL later it wants to renew.
//! let view = View { config: &config, quorum: 1 };
//! let (due, why) = lock.deadline(view).unwrap();
//! assert_eq!(why, "watchdog");
//! lock.timeout(at!(due));
//! let Some(LocksOutput::Send { call, request: Request::Extend { .. }, .. }) = out.pop_front() else { panic!() };
//! lock.reply(at!(due), NodeId::new(0), call.serial(), &Reply::Extended);
//! assert!(lock.valid_until(id, view) > Some(grant.valid_until));
//! out.clear();
//!
//! // And given back.
//! lock.release(at!(due), id)?;
//! let Some(LocksOutput::Send { call, request: Request::Release { .. }, .. }) = out.pop_front() else { panic!() };
//! lock.reply(at!(due), NodeId::new(0), call.serial(), &Reply::Deleted { number: 1, awaited: false });
//! let Some(LocksOutput::Event { event: Event::Released(Release::Released), .. }) = out.pop_front() else { panic!() };
//! lock.tidy();
//! assert!(lock.is_over());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use super::lock::{Context, Lock, Node, NodeSet, Redis, View, Waiter};
pub use super::validity::Ttl;
