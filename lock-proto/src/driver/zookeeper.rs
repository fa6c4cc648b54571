//! ZooKeeper: its URLs, its machine over the transport for bytes, and transactions of the
//! application.

use core::any::Any;

use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use super::bytes::{self, ByteEngine, ByteLoop};
use super::client::Client;
use super::connect::ConnectError;
use super::guard::{Guard, Hold, loss};
use super::host::Host;
use super::settings::HostSettings;
use super::shared::Core;
use crate::clock::Clock as _;
use crate::id::ClientId;
use crate::lock::Loss;
use crate::url::Target;
use crate::zookeeper::{self, Config, OwnerNode};

pub(super) type Driver<H> = ByteLoop<H, zookeeper::Client>;

/// An ensemble has one URL.
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
    // Reports name the ensemble, not its servers.
    let servers: Vec<_> = config.servers().iter().map(|server| server.to_string()).collect();
    let tls = config.servers().iter().any(|server| matches!(server, Target::Tls { .. }));
    let ensemble = format!("{}://{}", if tls { "zks" } else { "zk" }, servers.join(","));
    let client = zookeeper::Client::new(host.clock().now(), config, id, seed)?;
    bytes::start(host, client, settings, id, [ensemble.into()].into())
}

impl Core {
    /// The machine, if it is ZooKeeper's.
    fn zookeeper(&mut self) -> Option<&mut zookeeper::Client> {
        let engine: &mut dyn Any = &mut self.engine;
        engine.downcast_mut::<ByteEngine<zookeeper::Client>>().map(|engine| &mut engine.client)
    }
}

/// The node behind a lock on ZooKeeper, for a [`Guard`] or a [`Leadership`](super::Leadership).
pub trait OwnerNodeExt {
    /// The node of this hold. `None` on other stores, or if the lock is lost. A later holder within
    /// this client may have the same node (see [`owner_node_guard`](Self::owner_node_guard)).
    #[must_use]
    fn owner_node(&self) -> Option<OwnerNode>;

    /// The node of this hold, for transactions on the same ensemble: `multi` with a `check` of its
    /// path and version. A transaction then succeeds only while this guard holds the lock. From now
    /// on the version changes before the lock is handed over within the client.
    ///
    /// # Errors
    ///
    /// The lock is lost, or the store is not ZooKeeper.
    fn owner_node_guard(&self) -> Result<OwnerNode, OwnerNodeError>;
}

impl OwnerNodeExt for Guard {
    fn owner_node(&self) -> Option<OwnerNode> {
        let Hold { owner, ticket, .. } = &self.hold;
        if !self.is_held() {
            return None;
        }
        owner.shared.verb(|core, _, _| core.zookeeper().and_then(|client| client.owner(ticket.lock)))
    }

    fn owner_node_guard(&self) -> Result<OwnerNode, OwnerNodeError> {
        let Hold { owner, ticket, .. } = &self.hold;
        let node = owner.shared.verb(|core, now, _| {
            if core.is_closed() {
                return Err(OwnerNodeError::Lost(Loss::ShutDown));
            }
            let client = core.zookeeper().ok_or(OwnerNodeError::NoNode)?;
            client.owner_guard(now, ticket.lock).map_err(|_| OwnerNodeError::Lost(Loss::ShutDown))
        });
        loss(ticket, owner.shared.now()).map_or(node, |loss| Err(OwnerNodeError::Lost(loss)))
    }
}

/// Why a lock has no node to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerNodeError {
    /// The lock is lost.
    #[error("the lock is lost: {0}")]
    Lost(Loss),
    /// Only ZooKeeper's locks have a node whose version can be checked.
    #[error("only locks on ZooKeeper have a node whose version can be checked")]
    NoNode,
}
