//! Locks and elections on real etcd servers: members that die or are paused, operators with
//! `etcdctl`, foreign clients in the queue, users and permissions, and costs.
//!
//! Every test starts its own servers. The tests of `with-lock` cover paused client processes, and
//! those of the driver hostile servers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod cleanup;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod credentials;
mod discovery;
mod interop;
mod kit;
mod members;
mod names;
mod operator;
mod order;
mod owner;
mod ping;
mod proxy;
