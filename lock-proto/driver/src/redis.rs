//! Redis: its URLs, and its machine over the transport for bytes.

use alloc::format;
use alloc::vec::Vec;

use super::bytes::{self, ByteLoop};
use super::client::Client;
use super::connect::ConnectError;
use super::host::Host;
use super::settings::HostSettings;
use crate::clock::Clock as _;
use lock_proto::ByteClient as _;
use lock_proto::Target;
use lock_proto::redis::{self, Config, Endpoint, scheme};
use lock_proto::{ClientId, NodeId};

pub(super) type Driver<H> = ByteLoop<H, redis::Client>;

/// One server, or an odd number of them.
pub(super) fn parse(urls: &[&str]) -> Result<Config, ConnectError> {
    let nodes = urls.iter().map(|url| Endpoint::parse(url)).collect::<Result<Vec<_>, _>>()?;
    Ok(Config::new(nodes))
}

pub(super) fn start<H: Host>(
    host: H,
    config: Config,
    settings: HostSettings,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let client = redis::Client::new(host.clock().now(), config, id, seed)?;
    let server = |target: &Target| format!("{}{target}", scheme(target)).into();
    let servers = (0..).map_while(|index| client.target(NodeId::new(index)).map(server)).collect();
    bytes::start(host, client, settings, id, servers, false)
}
