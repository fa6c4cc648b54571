//! Clients that a world of Redis nodes can run.

use core::fmt::Debug;

use crate::lock::ByteClient;

/// A client of Redis: any [`ByteClient`] that implements `Clone` and `Debug`. See
/// [`Builder::machine`](super::Builder::machine) and
/// [`Plan::run_redis`](crate::sim::Plan::run_redis).
pub trait RedisClient: ByteClient + Clone + Debug {}

impl<C: ByteClient + Clone + Debug> RedisClient for C {}
