//! How a world is made.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

use super::World;
use super::member::Member;
use super::process::Process;
use super::queue_log::QueueLog;
use super::record::Recorded;
use super::resource::Resource;
use crate::etcd::{Client, Config, Endpoint};
use crate::id::ClientId;
use crate::sim::agenda::Agenda;
use crate::sim::check::Checker;
use crate::sim::clock::Clock;
use crate::sim::common::settings;
use crate::sim::etcd::{Cluster, ClusterConfig};
use crate::sim::journal::{Journal, Keep};
use crate::sim::network::Network;
use crate::sim::rng::Rng;
use crate::sim::trace::Recorder;
use crate::time::{Instant, nanos};

/// How much later than it comes a healthy member looks at a call.
pub(super) const LATE: Duration = Duration::from_millis(2);

/// A change of the settings of one client, or of all.
type Change = Box<dyn Fn(Config) -> Config>;

/// A [`World`] to be. What is not said has a default: one client, latencies from 100 to 500 µs, clocks that agree.
/// The members' clocks keep true time.
#[must_use = "a Builder does nothing until `build`"]
pub struct Builder {
    seed: u64,
    members: usize,
    cluster: Box<dyn FnOnce(ClusterConfig) -> ClusterConfig>,
    clients: usize,
    latency: Range<Duration>,
    linger: Duration,
    late: Duration,
    config: Change,
    overrides: Vec<(usize, Change)>,
    clocks: Vec<(usize, u64, i32)>,
    keep: Keep,
    traced: bool,
}

impl Builder {
    pub(super) fn new(members: usize) -> Self {
        Self {
            seed: 0,
            members: members.max(1),
            cluster: Box::new(|config| config),
            clients: 1,
            latency: Duration::from_micros(100)..Duration::from_micros(500),
            linger: Duration::from_secs(1),
            late: LATE,
            config: Box::new(|config| config),
            overrides: Vec::new(),
            clocks: Vec::new(),
            keep: Keep::Lines(100_000),
            traced: false,
        }
    }

    /// How long the kernel of a client goes on trying to deliver what was sent over a connection that the client has closed since. Default: 1 s.
    /// What a lock has sent and given up may be executed when it arrives; a client looks out for that for one TTL (requirement E3).
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Calls run side by side in a member: one in four is executed up to so much later than it came, even if its client has hung up
    /// meanwhile. Default: 2 ms.
    pub const fn late(mut self, late: Duration) -> Self {
        self.late = late;
        self
    }

    /// Changes the settings of the cluster.
    pub fn cluster(mut self, change: impl FnOnce(ClusterConfig) -> ClusterConfig + 'static) -> Self {
        self.cluster = Box::new(change);
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
        let cluster = ClusterConfig::new(self.members, rng.next());
        let endpoint = |i| Endpoint::parse(&format!("member{i}"));
        let plain = Config::new((0..self.members).filter_map(|i| endpoint(i).ok()));
        let clients = self.processes(now, &mut rng, &plain);
        let recorder = self.recorder(self.members);
        let cluster = Cluster::new(now, (self.cluster)(cluster));
        let mut world = World {
            seed: self.seed,
            now,
            rng,
            network,
            recorded: cluster.revision(),
            cluster_due: cluster.next_deadline(),
            cluster,
            members: (0..self.members).map(|_| Member::new()).collect(),
            dawdling: BTreeMap::new(),
            lingering: BTreeMap::new(),
            linger: self.linger,
            late: self.late,
            hung_up: BTreeSet::new(),
            rpcs: BTreeMap::new(),
            streams: BTreeMap::new(),
            number: 0,
            recorder,
            told_of: Recorded::default(),
            clients,
            queue_log: QueueLog::default(),
            resource: Resource::default(),
            woken: BTreeMap::new(),
            checker: Checker::new(),
            journal: Journal::new(self.keep),
            auto_claim: true,
            expect_violation: false,
            violations: Vec::new(),
            agenda: Agenda::default(),
            spins: 0,
            steps: 0,
            halted: false,
        };
        world.record_cluster();
        world
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("seed", &self.seed).field("clients", &self.clients).finish_non_exhaustive()
    }
}
