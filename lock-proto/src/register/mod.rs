//! Locks and elections on anything with compare-and-set: a database, an object store, a file.
//!
//! A *register* is a key whose value has a revision. `read(key)` returns a [`Record`] and its
//! [`Revision`]; `write(key, record, expected)` succeeds only if the key still has the expected one.

mod client;
mod config;
mod lock;
mod output;
mod record;
mod request;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests")]
mod tests;

pub use client::{Client, Locks};
pub use config::{Config, RegisterSettings};
pub use lock::{Cas, RegisterLock, RegisterShared, Stake};
pub use output::Output;
pub use record::{Entry, MAX_LABEL, MAX_REVISION, NoRecord, Record, Revision, Writer};
pub use request::{Reply, Request};
