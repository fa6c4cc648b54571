//! What a simulated server is like.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::time::Duration;

use super::memory::Eviction;
use super::sha1;
use super::users::User;
use crate::time::nanos;

/// The settings of a [`Node`](super::Node).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a NodeConfig does nothing until it is given to a Node"]
pub struct NodeConfig {
    pub(super) run_id: String,
    pub(super) version: (u8, u8, u8),
    pub(super) port: u16,
    pub(super) databases: u32,
    pub(super) unix_time: u64,
    pub(super) drift_ppm: i32,
    pub(super) uptime: Duration,
    pub(super) users: BTreeMap<String, User>,
    pub(super) max_bulk: usize,
    pub(super) max_input: usize,
    pub(super) max_output: usize,
    pub(super) max_memory: Option<usize>,
    pub(super) eviction: Eviction,
    pub(super) min_replicas: usize,
    pub(super) serve_stale: bool,
    pub(super) monitor: bool,
    pub(super) cluster: Option<Slots>,
}

/// Which slots a server in cluster mode serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slots {
    /// All of them: a cluster of one.
    All,
    /// None yet.
    None,
}

impl NodeConfig {
    /// A server without password, started just now, whose wall clock stands at the start of the year 2026. Servers with
    /// different `id`s have different run ids.
    pub fn new(id: u64) -> Self {
        Self {
            run_id: sha1::hex(&id.to_be_bytes()),
            version: (7, 0, 15),
            port: 6379,
            databases: 16,
            unix_time: 1_767_225_600_000_000_000,
            drift_ppm: 0,
            uptime: Duration::ZERO,
            users: [(String::from("default"), User::new("default"))].into(),
            max_bulk: 1 << 20,
            max_input: 4 << 20,
            max_output: 4 << 20,
            max_memory: None,
            eviction: Eviction::Never,
            min_replicas: 0,
            serve_stale: true,
            monitor: false,
            cluster: None,
        }
    }

    /// How long ago the server was started. A quorum does not count a node that is too young (requirement Q6).
    pub const fn uptime(mut self, uptime: Duration) -> Self {
        self.uptime = uptime;
        self
    }

    /// The version that it reports. What commands do is that of 7.0, but for `CLIENT SETINFO`, which came with 7.2.
    pub const fn version(mut self, major: u8, minor: u8, patch: u8) -> Self {
        self.version = (major, minor, patch);
        self
    }

    /// What its wall clock reads at the start, since the Unix epoch.
    pub fn unix_time(mut self, time: Duration) -> Self {
        self.unix_time = nanos(time);
        self
    }

    /// How much its wall clock gains (or loses, if negative), in µs a second.
    pub const fn drift_ppm(mut self, drift: i32) -> Self {
        self.drift_ppm = drift;
        self
    }

    /// The port that it reports.
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds a user, or replaces the one of this name. A connection starts as `default` if that one needs no password.
    pub fn user(mut self, user: User) -> Self {
        self.users.insert(user.name.clone(), user);
        self
    }

    /// The password of the user `default`, as `requirepass` sets it.
    pub fn password(self, password: &str) -> Self {
        self.user(User::new("default").password(password))
    }

    /// The most bytes of one argument, of all unread input and of all unread output of a connection. A connection that goes
    /// beyond is closed. Default: 1 MiB, 4 MiB and 4 MiB.
    pub const fn limits(mut self, bulk: usize, input: usize, output: usize) -> Self {
        (self.max_bulk, self.max_input, self.max_output) = (bulk, input, output);
        self
    }

    /// `maxmemory`, in bytes as [`Node::used_memory`](super::Node::used_memory) counts them, and what is done about it. Default: no
    /// limit.
    pub const fn max_memory(mut self, limit: usize, eviction: Eviction) -> Self {
        (self.max_memory, self.eviction) = (Some(limit), eviction);
        self
    }

    /// `min-replicas-to-write`: writes are refused with `NOREPLICAS` unless so many replicas have acknowledged anything within
    /// 10 s. Default: 0.
    pub const fn min_replicas(mut self, count: usize) -> Self {
        self.min_replicas = count;
        self
    }

    /// `replica-serve-stale-data`: whether a replica without a link to its primary answers reads. If not, it says `MASTERDOWN`.
    /// Default: yes.
    pub const fn serve_stale_data(mut self, on: bool) -> Self {
        self.serve_stale = on;
        self
    }

    /// Cluster mode: commands must name keys of one slot, and there is no database but 0. Other nodes of the cluster are not modelled.
    pub const fn cluster(mut self, slots: Slots) -> Self {
        self.cluster = Some(slots);
        self
    }

    /// Whether [`Node::poll_seen`](super::Node::poll_seen) tells every command of a client. Default: no.
    pub const fn monitor(mut self, on: bool) -> Self {
        self.monitor = on;
        self
    }
}
