//! Configuration of a simulated server.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::memory::Eviction;
use super::own_script::{Interpreter, OwnScripts, ScriptFn};
use super::sha1;
use super::users::User;
use lock_proto::time::nanos;

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
    pub(super) record_mints: bool,
    pub(super) cluster: Option<ServedSlots>,
    pub(super) login_limit: Option<Duration>,
    pub(super) refused: BTreeMap<String, String>,
    pub(super) scripts: OwnScripts,
}

/// The slots that a server in cluster mode serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServedSlots {
    /// All of them: a cluster with one node.
    All,
    /// None yet.
    None,
}

impl NodeConfig {
    /// Creates the settings of a server without a password that has just started. Its wall clock
    /// starts at the beginning of 2026. Servers with different `id`s have different run ids.
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
            record_mints: false,
            cluster: None,
            login_limit: None,
            refused: BTreeMap::new(),
            scripts: OwnScripts::default(),
        }
    }

    /// Sets the uptime. A quorum ignores a node that has restarted recently.
    // Q6
    pub const fn uptime(mut self, uptime: Duration) -> Self {
        self.uptime = uptime;
        self
    }

    /// Sets the reported version. Commands behave as in 7.0; `CLIENT SETINFO` exists since 7.2.
    pub const fn version(mut self, major: u8, minor: u8, patch: u8) -> Self {
        self.version = (major, minor, patch);
        self
    }

    /// Sets the initial reading of the wall clock, since the Unix epoch.
    pub fn unix_time(mut self, time: Duration) -> Self {
        self.unix_time = nanos(time);
        self
    }

    /// Sets the drift of the wall clock in µs per second.
    pub const fn drift_ppm(mut self, drift: i32) -> Self {
        self.drift_ppm = drift;
        self
    }

    /// Sets the reported port.
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds or replaces a user. Connections start as `default` if that user needs no password.
    pub fn user(mut self, user: User) -> Self {
        self.users.insert(user.name.clone(), user);
        self
    }

    /// Sets the password of the user `default`, as `requirepass` does.
    pub fn password(self, password: &str) -> Self {
        self.user(User::new("default").password(password))
    }

    /// Closes a connection this long after its last login, as services do that take tokens for
    /// passwords. Default: never.
    pub const fn login_limit(mut self, limit: Option<Duration>) -> Self {
        self.login_limit = limit;
        self
    }

    /// Replies to a command with this error, as a server does that lacks it or hides it: `eval`, or
    /// `client|id` for one subcommand. The error starts with its code.
    pub fn refuse(mut self, command: &str, error: &str) -> Self {
        self.refused.insert(command.to_ascii_lowercase(), error.into());
        self
    }

    /// Limits the bytes of one argument, and of the unread input and output of a connection. A
    /// connection that exceeds a limit is closed. Default: 1 MiB, 4 MiB and 4 MiB.
    pub const fn limits(mut self, bulk: usize, input: usize, output: usize) -> Self {
        (self.max_bulk, self.max_input, self.max_output) = (bulk, input, output);
        self
    }

    /// Sets `maxmemory` in bytes, as counted by [`Node::used_memory`](super::Node::used_memory),
    /// and the eviction policy. Default: no limit.
    pub const fn max_memory(mut self, limit: usize, eviction: Eviction) -> Self {
        (self.max_memory, self.eviction) = (Some(limit), eviction);
        self
    }

    /// Sets `min-replicas-to-write`: writes fail with `NOREPLICAS` unless this many replicas have
    /// sent an acknowledgement within 10 s. Default: 0.
    pub const fn min_replicas(mut self, count: usize) -> Self {
        self.min_replicas = count;
        self
    }

    /// Sets `replica-serve-stale-data`: whether a replica without a link to its primary serves
    /// reads. Otherwise it replies `MASTERDOWN`. Default: yes.
    pub const fn serve_stale_data(mut self, on: bool) -> Self {
        self.serve_stale = on;
        self
    }

    /// Enables cluster mode: the keys of a command must belong to one slot, and there is only
    /// database 0. Other nodes of the cluster are not modelled.
    pub const fn cluster(mut self, slots: ServedSlots) -> Self {
        self.cluster = Some(slots);
        self
    }

    /// Runs a Rust function in place of the script with this text, by `EVAL`, and by `EVALSHA`
    /// after `SCRIPT LOAD` or `EVAL`.
    ///
    /// ```
    /// use lock_proto::Instant;
    /// use lock_sim::redis::{Node, NodeConfig, RespReply, ScriptCalls};
    ///
    /// const FREE: &str = r#"
    /// if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
    /// return 0"#;
    ///
    /// fn free(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    ///     if redis.call(&[b"GET", keys[0]])?.bytes() == Some(args[0]) {
    ///         return redis.call(&[b"DEL", keys[0]]);
    ///     }
    ///     Ok(RespReply::Int(0))
    /// }
    ///
    /// let now = Instant::from_millis(1);
    /// let mut node = Node::new(now, NodeConfig::new(1).script(FREE, free));
    /// node.command(now, &[b"SET", b"stock", b"me"]);
    /// let free = |token| [b"EVAL".as_slice(), FREE.as_bytes(), b"1", b"stock", token];
    /// assert_eq!(node.command(now, &free(b"you")), b":0\r\n");
    /// assert_eq!(node.command(now, &free(b"me")), b":1\r\n");
    /// ```
    pub fn script(mut self, source: &str, run: ScriptFn) -> Self {
        self.scripts.add(source, run);
        self
    }

    /// Runs all other scripts by an interpreter.
    pub fn interpreter(mut self, interpreter: Arc<dyn Interpreter>) -> Self {
        self.scripts.set_interpreter(interpreter);
        self
    }

    /// Enables [`Node::poll_minted`](super::Node::poll_minted). Default: no.
    pub(crate) const fn record_mints(mut self) -> Self {
        self.record_mints = true;
        self
    }

    /// Enables [`Node::poll_executed`](super::Node::poll_executed). Default: no.
    pub const fn monitor(mut self, on: bool) -> Self {
        self.monitor = on;
        self
    }
}
