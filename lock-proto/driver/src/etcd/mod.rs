//! etcd: gRPC over HTTP/2 on any [`Host`].
//!
//! The handles are those of every store. This module adds [`OwnerKeyExt`], for transactions on the
//! same etcd.
//!
//! HTTP/2 is hyper's and gRPC's framing is tonic's, both without a runtime: the connection is
//! polled by the [`Driver`](super::Driver).

mod acks;
mod alarm;
mod bound;
mod calls;
mod connection;
mod grpc;
mod outbox;
mod owner;
#[cfg(test)]
mod tests;
mod wire;

use alloc::boxed::Box;
use core::pin::Pin;

pub use owner::{OwnerKeyError, OwnerKeyExt};

use super::client::Client;
use super::connect::ConnectError;
use super::event_loop::EventLoop;
use super::host::Host;
use super::settings::HostSettings;
use crate::clock::Clock as _;
use calls::EtcdConnections;
use lock_proto::ClientId;
use lock_proto::etcd::{self, Config};

/// A task of a connection. It reaches the host's stream and timers only through state shared with
/// the connection, so it is `Send` for any host.
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(super) type Driver<H> = EventLoop<H, EtcdConnections<H>>;

/// A cluster has one URL.
pub(super) fn parse(urls: &[&str]) -> Result<Config, ConnectError> {
    let [url] = urls else { return Err(ConnectError::SeveralUrls) };
    Ok(Config::parse(url)?)
}

pub(super) fn start<H: Host>(
    host: H,
    config: Config,
    settings: HostSettings,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let endpoints = config.endpoints().to_vec();
    let client = etcd::Client::new(host.clock().now(), config, id, seed)?;
    calls::start(host, client, settings, id, &endpoints)
}
