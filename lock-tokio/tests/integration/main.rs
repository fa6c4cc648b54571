//! Locks on real Redis servers that die, are paused, reject requests, run out of memory, change
//! their role, or are replaced.
//!
//! Every test starts its own servers. Most locks have a TTL beyond the timeout of the tests, so
//! that a lock that ends in time was released and did not expire.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod crowd;
mod disturbance;
mod fencing;
mod hostile;
mod in_the_way;
mod interop;
mod kit;
mod peer;
mod plain;
mod quorum;
mod restart;
mod stopped;
mod together;
mod wake;
