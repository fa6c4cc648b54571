//! ZooKeeper: its URLs, its machine over the transport for bytes, and transactions of the
//! application.

use super::address::cluster_name;
use super::bytes::{self, ByteEngine, ByteLoop};
use super::client::Client;
use super::connect::ConnectError;
use super::guard::Guard;
use super::host::Host;
use super::settings::HostSettings;
use crate::clock::Clock as _;
use lock_proto::ClientId;
use lock_proto::Loss;
use lock_proto::zookeeper::{self, Config, OwnerNode};

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
    let ensemble = cluster_name("zk", "zks", config.servers());
    let client = zookeeper::Client::new(host.clock().now(), config, id, seed)?;
    bytes::start(host, client, settings, id, [ensemble].into(), true)
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

type ZooKeeperEngine = ByteEngine<zookeeper::Client>;

impl OwnerNodeExt for Guard {
    fn owner_node(&self) -> Option<OwnerNode> {
        self.node(|engine: &mut ZooKeeperEngine| &mut engine.client)
    }

    fn owner_node_guard(&self) -> Result<OwnerNode, OwnerNodeError> {
        let node = self.guarded_node(|engine: &mut ZooKeeperEngine| &mut engine.client);
        node.map_err(OwnerNodeError::Lost)?.ok_or(OwnerNodeError::NoNode)
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
