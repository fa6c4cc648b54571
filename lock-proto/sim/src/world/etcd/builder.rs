//! Builder of a world of etcd members.

use alloc::boxed::Box;
use alloc::format;
use core::time::Duration;

use super::{EtcdClient, EtcdServers};
use crate::etcd::ClusterConfig;
use crate::rng::Rng;
use crate::world::{Builder, IDLE_TIMEOUT};
use lock_proto::ClientId;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::etcd::{Config, Endpoint};

/// Longest delay between arrival and execution of a call on a healthy member.
pub(super) const LATE: Duration = Duration::from_millis(2);

/// Settings of the cluster. The clocks of its members keep true time.
pub(crate) struct EtcdSetup {
    members: usize,
    change: Box<dyn FnOnce(ClusterConfig) -> ClusterConfig>,
    seed: u64,
    pub(super) linger: Duration,
    pub(super) late: Duration,
}

impl EtcdSetup {
    pub(super) fn new(members: usize) -> Self {
        Self {
            members: members.max(1),
            change: Box::new(|config| config),
            seed: 0,
            linger: Duration::from_secs(1),
            late: LATE,
        }
    }

    /// Draws the cluster's seed. Returns the number of members and the default client settings.
    pub(super) fn plain(&mut self, rng: &mut Rng) -> (usize, Config) {
        self.seed = rng.next();
        let endpoint = |i| Endpoint::parse(&format!("member{i}"));
        let config = Config::new((0..self.members).filter_map(|i| endpoint(i).ok()));
        // In half of the worlds, sessions outlive the pauses between two locks.
        let idle = if self.seed.is_multiple_of(2) { IDLE_TIMEOUT } else { IDLE_TIMEOUT * 12 };
        (self.members, config.idle_timeout(idle))
    }

    pub(super) const fn members(&self) -> usize {
        self.members
    }

    pub(super) fn cluster(self) -> ClusterConfig {
        (self.change)(ClusterConfig::new(self.members, self.seed))
    }
}

impl<C: EtcdClient> Builder<EtcdServers<C>> {
    /// Sets how long a client's kernel tries to deliver data after the process closed the
    /// connection. Default: 1 s. A request that the client gave up may be executed when it arrives;
    /// a client watches for that for one TTL.
    // E3
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.setup.linger = linger;
        self
    }

    /// Sets the longest extra delay of a call, and that of its reply. Calls run concurrently in a
    /// member: one in four is executed late, even if its client has hung up. One reply or message of
    /// a watch stream in four is sent late (events by 100 ms at most), so that others overtake it.
    /// Default: 2 ms.
    pub const fn late(mut self, late: Duration) -> Self {
        self.setup.late = late;
        self
    }

    /// Changes the settings of the cluster.
    pub fn cluster(mut self, change: impl FnOnce(ClusterConfig) -> ClusterConfig + 'static) -> Self {
        self.setup.change = Box::new(change);
        self
    }

    /// Runs clients other than [`etcd::Client`](lock_proto::etcd::Client). `make` creates one from its
    /// local start time, settings, id and seed, and may interpret the settings as it likes.
    pub fn machine<D: EtcdClient>(
        self,
        make: impl Fn(Instant, Config, ClientId, u64) -> Result<D, ConfigError> + 'static,
    ) -> Builder<EtcdServers<D>> {
        self.with(make)
    }
}
