//! How a world is made.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

use super::super::agenda::Agenda;
use super::super::check::Checker;
use super::super::clock::Clock;
use super::super::common::settings;
use super::super::journal::{Journal, Keep};
use super::super::network::Network;
use super::super::redis::{Node, NodeConfig};
use super::super::rng::Rng;
use super::super::trace::Recorder;
use super::World;
use super::process::Process;
use super::server::Server;
use crate::id::ClientId;
use crate::redis::{Client, Config, Endpoint, Identity, Protocol};
use crate::time::{Instant, nanos};
use crate::url::Target;

/// A change of the settings of one client, or of all.
type Change = Box<dyn Fn(Config) -> Config>;

/// A [`World`] to be. What is not said has a default: one client, latencies from 100 to 500 µs, clocks that agree.
#[must_use = "a Builder does nothing until `build`"]
pub struct Builder {
    seed: u64,
    clients: usize,
    latency: Range<Duration>,
    nodes: Vec<NodeConfig>,
    endpoints: Vec<Endpoint>,
    config: Change,
    overrides: Vec<(usize, Change)>,
    clocks: Vec<(usize, u64, i32)>,
    keep: Keep,
    traced: bool,
    gather: Duration,
}

impl Builder {
    pub(super) fn new(nodes: usize) -> Self {
        let port = |i: usize| 6379_u16.saturating_add(u16::try_from(i).unwrap_or(u16::MAX));
        // An hour ago: old enough to count in a quorum.
        let hour = Duration::from_secs(3600);
        let config = |i: usize| NodeConfig::new(i as u64 + 1).uptime(hour).port(port(i));
        let endpoint = |i: usize| Endpoint {
            target: Target::Tcp { host: format!("node{i}").into(), port: port(i) },
            username: None,
            password: None,
            database: 0,
            client_name: None,
            protocol: Protocol::Resp2,
        };
        Self {
            seed: 0,
            clients: 1,
            latency: Duration::from_micros(100)..Duration::from_micros(500),
            nodes: (0..nodes).map(config).collect(),
            endpoints: (0..nodes).map(endpoint).collect(),
            config: Box::new(|config| config),
            overrides: Vec::new(),
            clocks: Vec::new(),
            keep: Keep::Lines(100_000),
            traced: false,
            gather: Duration::ZERO,
        }
    }

    /// Changes the settings of node `i`.
    pub fn node(mut self, i: usize, change: impl FnOnce(NodeConfig) -> NodeConfig) -> Self {
        if let Some(config) = self.nodes.get_mut(i) {
            *config = change(config.clone());
        }
        self
    }

    /// Changes where and how every client logs in to node `i`.
    pub fn endpoint(mut self, i: usize, change: impl FnOnce(&mut Endpoint)) -> Self {
        if let Some(endpoint) = self.endpoints.get_mut(i) {
            change(endpoint);
        }
        self
    }

    /// How many lines of the log are kept; its digest counts all. Default 100 000.
    pub const fn log_limit(mut self, lines: usize) -> Self {
        self.keep = Keep::Lines(lines);
        self
    }

    /// How long the hosts of clients gather what is to be written, as drivers do that let other tasks run first. Default zero: they write
    /// at once.
    pub const fn gather(mut self, span: Duration) -> Self {
        self.gather = span;
        self
    }

    settings!();

    /// Makes the world, at time zero.
    ///
    /// # Panics
    ///
    /// If the clients' settings are refused.
    #[must_use]
    pub fn build(self) -> World {
        let mut rng = Rng::new(self.seed);
        let now = Instant::ZERO;
        let network = Network::new(self.latency.clone(), Rng::new(rng.next()));
        let clients = self.processes(now, &mut rng, &Config::new(self.endpoints.iter().cloned()));
        let recorder = self.recorder(self.nodes.len());
        let monitor = self.keep != Keep::Nothing;
        let node = |config: NodeConfig| Server::new(Node::new(now, config.monitor(monitor)));
        let nodes: Vec<Server> = self.nodes.into_iter().map(node).collect();
        let counter = |process: &Process| Identity::new(ClientId::from_bits(0), &process.machine.config().prefix);
        let counters = clients.iter().map(|process| counter(process).fence_key().to_vec()).collect();
        let mut world = World {
            seed: self.seed,
            now,
            rng,
            network,
            nodes,
            clients,
            checker: Checker::default(),
            journal: Journal::new(self.keep),
            auto_claim: true,
            expect_violation: false,
            violations: Vec::new(),
            recorder,
            names: BTreeSet::new(),
            counters,
            leads: BTreeMap::new(),
            agenda: Agenda::default(),
            spins: 0,
            steps: 0,
            halted: false,
            gather: self.gather,
        };
        for client in 0..world.clients.len() {
            world.pump_client(client);
        }
        world
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("seed", &self.seed).field("clients", &self.clients).finish_non_exhaustive()
    }
}
