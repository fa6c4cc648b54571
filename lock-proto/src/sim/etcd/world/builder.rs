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

    /// How many client processes there are.
    pub const fn clients(mut self, count: usize) -> Self {
        self.clients = count;
        self
    }

    /// Where all chance comes from.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long a packet travels, in each direction.
    pub const fn latency(mut self, latency: Range<Duration>) -> Self {
        self.latency = latency;
        self
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

    /// Changes the settings of every client.
    pub fn config(mut self, change: impl Fn(Config) -> Config + 'static) -> Self {
        self.config = Box::new(change);
        self
    }

    /// Changes the settings of client `i`, after those of all.
    pub fn config_of(mut self, i: usize, change: impl Fn(Config) -> Config + 'static) -> Self {
        self.overrides.push((i, Box::new(change)));
        self
    }

    /// The clock of client `i` reads `offset` at the start and gains `drift_ppm` µs a second. Without this it reads another time in
    /// each process, and keeps true pace. The members' clocks keep true time.
    pub fn clock(mut self, i: usize, offset: Duration, drift_ppm: i32) -> Self {
        self.clocks.push((i, nanos(offset), drift_ppm));
        self
    }

    /// How much of the log is kept. Default: the last 100 000 lines.
    pub const fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Records everything for pictures, see [`World::take_trace`]. Default: no.
    pub const fn traced(mut self, on: bool) -> Self {
        self.traced = on;
        self
    }

    /// Makes the world, at time zero.
    ///
    /// # Panics
    ///
    /// If the clients' settings are refused.
    #[must_use]
    pub fn build(self) -> World {
        let mut rng = Rng::new(self.seed);
        let now = Instant::ZERO;
        let network = Network::new(self.latency, Rng::new(rng.next()));
        let cluster = Cluster::new(now, (self.cluster)(ClusterConfig::new(self.members, rng.next())));
        let endpoint = |i| Endpoint::parse(&format!("member{i}"));
        let endpoints: Vec<Endpoint> = (0..self.members).filter_map(|i| endpoint(i).ok()).collect();
        let mut clients = Vec::new();
        for i in 0..self.clients {
            let mut config = (self.config)(Config::new(endpoints.iter().cloned()));
            for (_, change) in self.overrides.iter().filter(|(which, _)| *which == i) {
                config = change(config);
            }
            let set = self.clocks.iter().rev().find(|(which, _, _)| *which == i);
            // Drawn in any case, so that setting one clock changes nothing else.
            let anywhere = rng.below(1 << 40);
            let (offset, drift) = set.map_or((anywhere, 0), |(_, offset, drift)| (*offset, *drift));
            let id = ClientId::from_bits(u128::from(rng.next()) << 64 | u128::from(rng.next()));
            match Client::new(Instant::from_nanos(offset), config, id, rng.next()) {
                Ok(machine) => clients.push(Process::new(machine, Clock::new(now, offset, drift), drift)),
                Err(error) => panic!("client {i} cannot be configured like this: {error}"),
            }
        }
        let mut world = World {
            seed: self.seed,
            now,
            rng,
            network,
            recorded: cluster.revision(),
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
            recorder: if self.traced { Recorder::on(clients.len(), self.members) } else { Recorder::default() },
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
