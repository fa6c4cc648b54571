//! Builder of a world of Redis nodes.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::{RedisClient, RedisServers};
use crate::redis::{NodeConfig, ScriptFn};
use crate::world::Builder;
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::Target;
use lock_proto::Tls;
use lock_proto::redis::{Config, Endpoint, Protocol};

#[derive(Debug)]
pub(crate) struct RedisSetup {
    pub(super) nodes: Vec<NodeConfig>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) gather: Duration,
}

impl RedisSetup {
    pub(super) fn new(nodes: usize) -> Self {
        // An hour of uptime is enough to count in a quorum.
        let hour = Duration::from_secs(3600);
        let config = |i: usize| NodeConfig::new(i as u64 + 1).uptime(hour).port(port(i));
        let endpoint = |i: usize| Endpoint {
            target: Target::Tcp { host: format!("node{i}").into(), port: port(i) },
            login: lock_proto::Login::default(),
            database: 0,
            client_name: None,
            protocol: Protocol::Resp2,
        };
        Self {
            nodes: (0..nodes).map(config).collect(),
            endpoints: (0..nodes).map(endpoint).collect(),
            gather: Duration::ZERO,
        }
    }

    pub(super) fn connect_by_tls(&mut self) {
        for (i, endpoint) in self.endpoints.iter_mut().enumerate() {
            endpoint.target = Target::Tls { host: format!("node{i}").into(), port: port(i), tls: Tls::default() };
        }
    }
}

fn port(i: usize) -> u16 {
    6379_u16.saturating_add(u16::try_from(i).unwrap_or(u16::MAX))
}

impl<C: RedisClient> Builder<RedisServers<C>> {
    /// Changes the settings of node `i`.
    pub fn node(mut self, i: usize, change: impl FnOnce(NodeConfig) -> NodeConfig) -> Self {
        if let Some(config) = self.setup.nodes.get_mut(i) {
            *config = change(config.clone());
        }
        self
    }

    /// Runs a Rust function in place of the script with this text on every node, see
    /// [`NodeConfig::script`].
    pub fn script(mut self, source: &str, run: ScriptFn) -> Self {
        for config in &mut self.setup.nodes {
            *config = config.clone().script(source, run);
        }
        self
    }

    /// Changes the address and login of node `i` for every client.
    pub fn endpoint(mut self, i: usize, change: impl FnOnce(&mut Endpoint)) -> Self {
        if let Some(endpoint) = self.setup.endpoints.get_mut(i) {
            change(endpoint);
        }
        self
    }

    /// Sets how long client hosts gather writes, as drivers do that let other tasks run first.
    /// Default: zero, they write at once.
    pub fn gather(mut self, span: Duration) -> Self {
        self.setup.gather = span;
        self
    }

    /// Runs clients other than [`redis::Client`](lock_proto::redis::Client). `make` creates one from its
    /// local start time, settings, id and seed, and may interpret the settings as it likes.
    pub fn machine<D: RedisClient>(
        self,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<D, ConfigError> + 'static,
    ) -> Builder<RedisServers<D>> {
        self.with(make)
    }
}
