//! Servers as managed services and proxies present them: commands forbidden by the service's list,
//! `BLPOP` that is never woken, and connections that are cut when idle.
//!
//! The lists are those of the services' documentation, see `docs/access.md`. No service was used.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "etcd")]
mod etcd;
#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
#[path = "../integration/kit.rs"]
mod kit;
#[cfg(feature = "tls")]
mod proxies;
mod services;
mod silent_waits;
