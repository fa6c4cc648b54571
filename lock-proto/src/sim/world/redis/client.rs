//! What a world of Redis nodes can run.

use core::fmt::Debug;

use crate::lock::ByteClient;

/// A client that speaks to Redis nodes: any [`ByteClient`] that can be cloned and shown.
///
/// Implement that for a lock of your own, and a [`World`](super::World) runs it and judges it: see
/// [`Builder::machine`](super::Builder::machine) and
/// [`Plan::run_redis`](crate::sim::Plan::run_redis).
pub trait RedisClient: ByteClient + Clone + Debug {}

impl<C: ByteClient + Clone + Debug> RedisClient for C {}
