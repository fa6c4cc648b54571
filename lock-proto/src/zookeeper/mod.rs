//! Locks and elections on ZooKeeper 3.5.4 or later, in one queue with Apache Curator; locks also
//! with kazoo.
//!
//! Each contender creates an ephemeral sequential node below the lock's path. The one with the
//! lowest number holds the lock; waiters watch the node ahead of theirs. A session, renewed by
//! writes, keeps all nodes of a client alive.
//!
//! [`Client`] is a sans-IO state machine over bytes: see [`ByteClient`](crate::ByteClient).
//! `docs/zookeeper.md` in the repository shows how it waits for, hands over and loses a lock.

#[expect(unnameable_types, reason = "a part of `Client`, which applications need not name")]
mod client;
pub mod codec;
#[expect(unnameable_types, reason = "a part of `Config`, which applications need not name")]
mod config;
#[expect(unnameable_types, reason = "parts of `Locks`, which applications need not name")]
mod lock;
mod locks;
mod output;
pub(crate) mod path;
#[expect(unnameable_types, reason = "parts of `Pipe`")]
mod pipe;
mod request;
#[cfg(test)]
mod tests;
mod url;

pub use crate::lock::{MAX_VALUE, Output, SessionId};
pub use client::Client;
pub use config::{Config, MAX_SERVERS, MIN_TICKS};
pub use lock::OwnerNode;
pub use locks::Locks;
pub use output::{LocksOutput, SessionOutput};
pub use path::{Dialect, Queue, is_exhausted};
#[doc(hidden)]
pub use pipe::Jute;
pub use pipe::{Limits, Pipe, PipeConfig, PipeOutput};
pub use request::{Reply, Request, SessionReport};
