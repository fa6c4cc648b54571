use core::num::NonZeroUsize;
use core::time::Duration;
use std::ffi::OsStr;
use std::process::Command;

use lock_proto::redis::Wake;
use lock_testkit::{Etcd, Redis, ZooKeeper, program_of};

use crate::contention::contender::{Peers, Store};
use crate::contention::job::{Job, Workload};
use crate::contention::{Failed, Outcome};

const QUORUM: usize = 5;
const FEW: NonZeroUsize = NonZeroUsize::new(5).unwrap();
/// Length of a hold in the scenarios with many clients.
const HOLD: Duration = Duration::from_millis(1);
/// That of ZooKeeper's sample `zoo.cfg`.
const TICK: Duration = Duration::from_secs(2);

pub(super) struct Servers {
    redis: Vec<Redis>,
    etcd: Etcd,
    zookeeper: ZooKeeper,
}

impl Servers {
    pub(super) fn programs() -> Result<[(&'static str, String); 3], Failed> {
        let redis = version(&program_of("REDIS_SERVER", "redis-server"))?;
        let etcd = version(&program_of("ETCD", "etcd"))?;
        let java = version(&program_of("JAVA", "java"))?;
        Ok([("Redis", redis), ("etcd", etcd), ("Java", java)])
    }

    pub(super) fn start() -> Self {
        let zookeeper = ZooKeeper::builder().tick(TICK).optimised().start();
        Self { redis: Redis::start_many(QUORUM), etcd: Etcd::start(), zookeeper }
    }

    /// ZooKeeper has no program that tells its version.
    pub(super) fn zookeeper_version(&self) -> String {
        let answer = self.zookeeper.ask("srvr").unwrap_or_default();
        answer.lines().next().unwrap_or_default().trim_start_matches("Zookeeper version: ").to_owned()
    }

    fn urls(&self, deployment: Deployment) -> Vec<String> {
        match deployment {
            Deployment::Redis => self.redis.iter().take(1).map(Redis::url).collect(),
            Deployment::Quorum => self.redis.iter().map(Redis::url).collect(),
            Deployment::Etcd => vec![self.etcd.url()],
            Deployment::ZooKeeper => vec![self.zookeeper.url()],
        }
    }
}

fn version(program: &OsStr) -> Result<String, Failed> {
    let output = Command::new(program).arg("--version").output().map_err(|error| {
        let program = program.display();
        Failed::unreachable(format_args!("{program} cannot be run ({error}): `make servers` installs it"))
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deployment {
    Redis,
    Quorum,
    Etcd,
    ZooKeeper,
}

impl Deployment {
    /// Position of the store in the report.
    pub(super) const fn store(self) -> u8 {
        match self {
            Self::Redis | Self::Quorum => 0,
            Self::Etcd => 1,
            Self::ZooKeeper => 2,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Method {
    /// A single word, for colours and look-ups.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    pub(super) about: String,
    pub(super) deployment: Deployment,
    pub(super) peer: Option<&'static str>,
    /// The largest number of clients that it is measured with.
    max_clients: Option<usize>,
    wake: Wake,
    /// Whether all tasks share one client.
    shared: bool,
}

impl Method {
    fn this_library(key: &'static str, title: &'static str, deployment: Deployment, about: &str) -> Self {
        Self {
            key,
            title,
            about: about.to_owned(),
            deployment,
            peer: None,
            max_clients: None,
            wake: Wake::Notify,
            shared: false,
        }
    }

    /// Returns true if the method is measured in a scenario.
    pub(super) fn fits(&self, scenario: &Scenario) -> bool {
        self.max_clients.is_none_or(|most| scenario.clients.get() <= most)
    }

    /// Returns the job for this method in a scenario.
    pub(super) fn job(&self, scenario: &Scenario, span: Duration, servers: &Servers) -> Job {
        let job = Job::new(Workload::Contended, servers.urls(self.deployment));
        Job {
            clients: scenario.clients,
            hold: scenario.hold,
            span: span * scenario.span_factor,
            wake: self.wake,
            per_connection: if self.shared { None } else { Some(NonZeroUsize::MIN) },
            peer: self.peer.map(str::to_owned),
            ..job
        }
    }
}

/// The number of clients, and how long they hold the lock.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) title: String,
    pub(super) about: &'static str,
    pub(super) clients: NonZeroUsize,
    pub(super) hold: Duration,
    /// Factor for the length of the run, so that every client is served.
    span_factor: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) methods: Vec<Method>,
    pub(super) scenarios: Vec<Scenario>,
}

/// Result of one method in one scenario, both by their index in the plan.
pub(super) struct Cell {
    pub(super) method: usize,
    pub(super) scenario: usize,
    pub(super) outcome: Result<Outcome, Failed>,
}

impl Plan {
    pub(super) fn new(clients: NonZeroUsize, peers: &dyn Peers) -> Self {
        let poll = "this library without wake-up: every client tries again about every 50 ms";
        let mut methods = vec![
            Method { wake: Wake::Poll, ..Method::this_library("polling", "polling", Deployment::Redis, poll) },
            Method::this_library(
                "wakeup",
                "wake-up",
                Deployment::Redis,
                "this library: a release wakes the longest waiter of all processes",
            ),
            Method {
                shared: true,
                ..Method::this_library(
                    "turns",
                    "local hand-over",
                    Deployment::Redis,
                    "this library, all tasks in one client, which hands the lock over locally",
                )
            },
            Method::this_library(
                "quorum",
                "quorum of five",
                Deployment::Quorum,
                "this library on five Redis servers, three of which must agree",
            ),
            Method::this_library(
                "etcd",
                "etcd",
                Deployment::Etcd,
                "this library on etcd, a session for each client: the next in the queue is notified",
            ),
            Method {
                shared: true,
                ..Method::this_library(
                    "etcdturns",
                    "etcd, local",
                    Deployment::Etcd,
                    "this library on etcd, all tasks in one client",
                )
            },
            Method::this_library(
                "zookeeper",
                "ZooKeeper",
                Deployment::ZooKeeper,
                "this library on ZooKeeper, a session for each client: the next in the queue is notified",
            ),
            Method {
                shared: true,
                ..Method::this_library(
                    "zookeeperturns",
                    "ZooKeeper, local",
                    Deployment::ZooKeeper,
                    "this library on ZooKeeper, all tasks in one client",
                )
            },
        ];
        methods.extend(peers.list().into_iter().map(|peer| Method {
            key: peer.name,
            title: peer.name,
            about: peer.about,
            deployment: match peer.store {
                Store::Redis { .. } => Deployment::Redis,
                Store::Etcd => Deployment::Etcd,
                Store::ZooKeeper => Deployment::ZooKeeper,
            },
            peer: Some(peer.name),
            max_clients: peer.max_clients,
            wake: Wake::Poll,
            shared: false,
        }));
        methods.sort_by_key(|method| method.deployment.store());
        let many = [1, 10, 100].map(|factor| {
            let clients = clients.saturating_mul(NonZeroUsize::new(factor).unwrap_or(NonZeroUsize::MIN));
            Scenario {
                title: if clients.get() == 1 { "1 client".to_owned() } else { format!("{clients} clients") },
                about: "each holds the lock for 1 ms and immediately requests it again",
                clients,
                hold: HOLD,
                span_factor: if factor == 100 { 4 } else { 1 },
            }
        });
        let few = Scenario {
            title: format!("{FEW} clients, no hold"),
            about: "each releases the lock immediately and requests it again",
            clients: FEW,
            hold: Duration::ZERO,
            span_factor: 1,
        };
        Self { methods, scenarios: core::iter::once(few).chain(many).collect() }
    }
}
