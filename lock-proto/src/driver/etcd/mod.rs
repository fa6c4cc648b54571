//! etcd: gRPC over HTTP/2 on any [`Host`].
//!
//! The handles are those of every store: [`Client`], [`Guard`](super::Guard) and the rest. This module adds
//! [`Guard::owner_guard`](super::Guard::owner_guard), for transactions on the same etcd.
//!
//! HTTP/2 is hyper's and gRPC's framing is tonic's, both without a runtime: the connection is polled by the [`Driver`].

mod acks;
mod alarm;
mod bound;
mod connection;
mod grpc;
mod outbox;
mod owner;
mod run;
#[cfg(test)]
mod tests;
mod wire;

use alloc::boxed::Box;
use core::pin::Pin;

pub use super::election::{Campaigning, Election, Leadership, ProclaimError};
pub use super::lead::{Led, Overran, Resigner, StopSignal};
pub use super::query::Observation;
pub use owner::OwnerError;
pub use run::Driver;

use super::clock::Clock as _;
use super::connect::{ConnectError, identity};
use super::handle::Client;
use super::host::Host;
use super::shared::Shared;
use crate::etcd::{self, Config};
use crate::id::ClientId;
use run::Etcd;

/// A task inside a connection. It touches the host's stream and timers by what it shares with the connection alone, so it is `Send`
/// whatever the host.
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A client of the cluster in `config`, and the driver that does its work.
///
/// The driver must be polled, normally by spawning it. Its id and seed are taken from the system's entropy.
///
/// # Errors
///
/// The settings are out of range, or the system has no entropy.
pub fn client<H: Host>(host: H, config: Config) -> Result<(Client, Driver<H>), ConnectError> {
    let (id, seed) = identity()?;
    with_identity(host, config, id, seed)
}

pub(super) fn with_identity<H: Host>(
    host: H,
    config: Config,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let endpoints = config.endpoints().to_vec();
    let clock = host.clock();
    let machine = etcd::Client::new(clock.now(), config, id, seed)?;
    let shared = Shared::new(id, Box::new(move || clock.now()), Etcd::new(machine));
    let handle = Client::new(shared.clone());
    Ok((handle, Driver::new(host, shared, endpoints)))
}
