//! Locks on real Redis servers that die, are paused, reject requests, run out of memory, change
//! their role, or are replaced.
//!
//! Every test starts its own servers. Most locks have a TTL beyond the timeout of the tests, so
//! that a lock that ends in time was released and did not expire.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod batched_releases;
#[path = "../common/mod.rs"]
mod common;
mod credentials;
mod disturbance;
mod fencing;
mod foreign_data;
mod hostile;
mod interop;
mod kit;
mod paused;
mod peer;
mod ping;
mod plain;
mod quorum;
mod restart;
mod wake;
mod workers;
