//! Black-box tests of `with-lock`: real processes and servers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod command;
mod etcd;
mod exclusion;
mod folder;
mod harness;
#[path = "../kit/mod.rs"]
mod kit;
#[cfg(target_os = "linux")]
mod limits;
mod loss;
mod queues;
mod quorum;
mod reasons;
mod refusals;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod registers;
#[cfg(target_os = "linux")]
mod stdout;
#[cfg(target_os = "linux")]
mod terminal;
mod tls;
mod unread;
mod wire;
mod zookeeper;
