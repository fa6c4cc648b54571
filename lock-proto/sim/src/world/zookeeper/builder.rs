//! Builder of a world of ZooKeeper servers.

use alloc::boxed::Box;

use super::{Zookeeper, ZookeeperClient};
use crate::rng::Rng;
use crate::world::Builder;
use crate::zookeeper::EnsembleConfig;
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::zookeeper::Config;

/// Settings of the servers. Their clocks keep true time.
pub(crate) struct ZooKeeperSetup {
    pub(super) members: usize,
    change: Box<dyn FnOnce(EnsembleConfig) -> EnsembleConfig>,
    seed: u64,
}

impl ZooKeeperSetup {
    pub(super) fn new(members: usize) -> Self {
        Self { members: members.max(1), change: Box::new(|config| config), seed: 0 }
    }

    pub(super) const fn draw(&mut self, rng: &mut Rng) {
        self.seed = rng.next();
    }

    pub(super) fn ensemble(self) -> EnsembleConfig {
        (self.change)(EnsembleConfig::new(self.members, self.seed).monitor(true))
    }
}

impl<C: ZookeeperClient> Builder<Zookeeper<C>> {
    /// Changes the settings of the servers.
    pub fn ensemble(mut self, change: impl FnOnce(EnsembleConfig) -> EnsembleConfig + 'static) -> Self {
        self.setup.change = Box::new(change);
        self
    }

    /// Runs other clients. `make` creates one from its local start time, settings, id and seed, and
    /// may interpret the settings as it likes.
    pub fn machine<D: ZookeeperClient>(
        self,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<D, ConfigError> + 'static,
    ) -> Builder<Zookeeper<D>> {
        self.with(make)
    }
}
