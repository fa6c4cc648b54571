//! Locks and elections on real ZooKeeper servers: members that die, are paused or cut off,
//! operators, kazoo and Curator in the queue, permissions, and costs.
//!
//! Tests that do not disturb the server share one. The tests of `with-lock` cover paused client
//! processes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod alternation;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod crowd;
mod disturbance;
mod elections;
mod interop;
mod kit;
mod members;
mod operator;
mod sequence;
mod stops;
