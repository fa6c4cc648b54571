//! How a world of etcd members is made.

use alloc::boxed::Box;
use alloc::format;
use core::time::Duration;

use super::{Etcd, EtcdClient};
use crate::error::ConfigError;
use crate::etcd::{Config, Endpoint};
use crate::id::ClientId;
use crate::sim::etcd::ClusterConfig;
use crate::sim::rng::Rng;
use crate::sim::world::Builder;
use crate::time::Instant;

/// How much later than it comes a healthy member looks at a call.
pub(super) const LATE: Duration = Duration::from_millis(2);

/// The cluster of a world to be. Its members' clocks keep true time.
pub(crate) struct Setup {
    members: usize,
    change: Box<dyn FnOnce(ClusterConfig) -> ClusterConfig>,
    seed: u64,
    pub(super) linger: Duration,
    pub(super) late: Duration,
}

impl Setup {
    pub(super) fn new(members: usize) -> Self {
        Self {
            members: members.max(1),
            change: Box::new(|config| config),
            seed: 0,
            linger: Duration::from_secs(1),
            late: LATE,
        }
    }

    /// Draws the cluster's seed. The number of members, and the settings of a client.
    pub(super) fn plain(&mut self, rng: &mut Rng) -> (usize, Config) {
        self.seed = rng.next();
        let endpoint = |i| Endpoint::parse(&format!("member{i}"));
        (self.members, Config::new((0..self.members).filter_map(|i| endpoint(i).ok())))
    }

    pub(super) const fn members(&self) -> usize {
        self.members
    }

    pub(super) fn cluster(self) -> ClusterConfig {
        (self.change)(ClusterConfig::new(self.members, self.seed))
    }
}

impl<C: EtcdClient> Builder<Etcd<C>> {
    /// How long the kernel of a client goes on trying to deliver what was sent over a connection
    /// that the client has closed since. Default: 1 s. What a lock has sent and given up may be
    /// executed when it arrives; a client looks out for that for one TTL.
    // E3
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.setup.linger = linger;
        self
    }

    /// Calls run side by side in a member: one in four is executed up to so much later than it
    /// came, even if its client has hung up meanwhile. Default: 2 ms.
    pub const fn late(mut self, late: Duration) -> Self {
        self.setup.late = late;
        self
    }

    /// Changes the settings of the cluster.
    pub fn cluster(mut self, change: impl FnOnce(ClusterConfig) -> ClusterConfig + 'static) -> Self {
        self.setup.change = Box::new(change);
        self
    }

    /// Runs other clients than [`etcd::Client`](crate::etcd::Client): what `make` gives for a
    /// client's first time, settings, id and seed. What it makes of the settings is its own
    /// business.
    pub fn machine<D: EtcdClient>(
        self,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<D, ConfigError> + 'static,
    ) -> Builder<Etcd<D>> {
        self.with(make)
    }
}
