//! The settings of a client and their validation.

use alloc::vec::Vec;
use core::time::Duration;

use super::MAX_NODES;
use super::key::KeyLayout;
use super::url::Endpoint;
use crate::error::ConfigError;
use crate::lock::{self, Backoff, DAY, DEFAULT_TTL, MAX_TTL, MIN_TTL, check_targets};
use crate::url::UrlError;

/// Maximum number of fencing tokens that one script call mints.
pub const MAX_FENCE_BLOCK: u32 = 1_000;

/// How a release wakes the waiters of other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wake {
    /// A release wakes one waiter over a second connection, which is open only while there are
    /// waiters. A quorum uses one of its nodes for this. In case a wake-up is lost, waiters still
    /// poll, ten times slower, and up to forty times slower as they keep waiting: by default, one
    /// request every 2 s for each name that the client waits for.
    ///
    /// If a client waits for more than 128 names, they take turns, so a wake-up may come up to
    /// 0.15 s later for each 128 of them. A name whose wake-up keys the server refuses is polled.
    #[default]
    Notify,
    /// Polling only. There is no second connection, and no key besides the lock and the fence
    /// counter. Releases wake nobody, so use the same setting in all clients of a lock.
    Poll,
}

/// What a quorum does with a node whose `INFO` is forbidden, or lacks the run id or the uptime.
// Q6
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnknownAge {
    /// The node does not vote in new rounds, and the report gives the reason.
    #[default]
    Refuse,
    /// The node votes. Choose this if its data survives restarts.
    Trust,
}

/// All settings of a client. [`Client::new`](super::Client::new) validates them.
pub type Config = lock::Config<Settings>;

/// The settings specific to Redis. See [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub(crate) nodes: Vec<Endpoint>,
    pub(crate) layout: KeyLayout,
    pub(crate) fencing: bool,
    pub(crate) fence_block: u32,
    pub(crate) round_timeout: Option<Duration>,
    pub(crate) poll: Backoff,
    pub(crate) wake: Wake,
    pub(crate) handover_pause: Duration,
    /// Set by [`Config::quarantine`].
    pub quarantine: Duration,
    pub(crate) unknown_age: UnknownAge,
}

impl Config {
    /// Creates the default settings for one node, or for a quorum of an odd number of nodes.
    pub fn new(nodes: impl IntoIterator<Item = Endpoint>) -> Self {
        let store = Settings {
            nodes: nodes.into_iter().collect(),
            layout: KeyLayout::default(),
            fencing: true,
            fence_block: MAX_FENCE_BLOCK,
            round_timeout: None,
            poll: Backoff::default(),
            wake: Wake::default(),
            handover_pause: Duration::from_millis(5),
            quarantine: DEFAULT_TTL,
            unknown_age: UnknownAge::default(),
        };
        Self::with(Duration::from_millis(500), Duration::from_secs(60), store)
    }

    /// Creates the default settings for the server that a URL names, see [`Endpoint::parse`]. For a
    /// quorum, use [`new`](Self::new).
    ///
    /// ```
    /// # use lock_proto::redis;
    /// let config = redis::Config::parse("redis://cache.example/2")?;
    /// assert_eq!(config.nodes()[0].database, 2);
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong and what is allowed instead.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        Ok(Self::new([Endpoint::parse(url)?]))
    }

    /// Sets the password of the servers whose URL names none, such as one from the environment.
    pub fn default_password(mut self, password: &str) -> Self {
        for Endpoint { login, .. } in &mut self.store.nodes {
            login.default_password(password);
        }
        self
    }

    /// Whether every grant carries a fencing token. Default: true. A quorum never issues one.
    pub const fn fencing(mut self, on: bool) -> Self {
        self.store.fencing = on;
        self
    }

    /// Maximum number of fencing tokens that one script call mints, from 1 to 1 000 (default). A
    /// call that takes several locks, at most 16, shares them, and mints at least one for each.
    /// Each local hand-over uses one. After failover to a stale replica, tokens still grow if its
    /// clock has advanced by at least as many µs, and 16 more.
    pub const fn fence_block(mut self, size: u32) -> Self {
        self.store.fence_block = size;
        self
    }

    /// How long a round of a quorum waits for its nodes. Default: until the round's grants expire.
    /// An acquisition whose TTL is less than four times this value is refused. A single server
    /// ignores it. The end of a round closes no connection; a silent node's connection is closed
    /// after [`request_timeout`](Self::request_timeout).
    pub const fn round_timeout(mut self, timeout: Duration) -> Self {
        self.store.round_timeout = Some(timeout);
        self
    }

    /// Polling interval of a waiter. Default: 50 ms. While the server can wake waiters, they poll
    /// ten times slower, and up to forty times as they keep waiting, see [`Wake::Notify`]. They
    /// also poll ten times slower while too few nodes can be reached or vote: a new connection, or
    /// the end of a quarantine, causes an attempt anyway.
    pub const fn poll(mut self, poll: Backoff) -> Self {
        self.store.poll = poll;
        self
    }

    /// How waiters are woken. Default: [`Wake::Notify`].
    pub const fn wake(mut self, wake: Wake) -> Self {
        self.store.wake = wake;
        self
    }

    /// How long this client backs off after its [`handover_window`](Self::handover_window), to let
    /// others in. Default: 5 ms.
    pub const fn handover_pause(mut self, pause: Duration) -> Self {
        self.store.handover_pause = pause;
        self
    }

    /// How long a restarted node of a quorum does not vote. Set it to the longest TTL that any
    /// client of the quorum uses. Default 10 s; locks with a longer TTL are rejected.
    pub const fn quarantine(mut self, quarantine: Duration) -> Self {
        self.store.quarantine = quarantine;
        self
    }

    /// What a quorum does with a node whose uptime it cannot read. Default: [`UnknownAge::Refuse`].
    pub const fn unknown_age(mut self, unknown_age: UnknownAge) -> Self {
        self.store.unknown_age = unknown_age;
        self
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> &[Endpoint] {
        &self.store.nodes
    }

    /// Returns true if there are several nodes.
    pub fn is_quorum(&self) -> bool {
        self.store.nodes.len() > 1
    }

    /// Validates every setting.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range, with its value and the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Settings { nodes, round_timeout, poll, quarantine, .. } = &self.store;
        let count = nodes.len();
        if !self.request_credentials && nodes.iter().any(|node| node.login.lacks_password()) {
            return Err(UrlError::NoPassword.into());
        }
        if count == 0 || count.is_multiple_of(2) || count > MAX_NODES {
            return Err(ConfigError::NodeCount { given: count, max: MAX_NODES });
        }
        check_targets(nodes.iter().map(|node| &node.target))?;
        let ms = Duration::from_millis;
        let durations = [
            ("round_timeout", round_timeout.unwrap_or_else(|| ms(1)), ms(1), DAY),
            ("poll.every", poll.every, ms(1), DAY),
            ("poll.max", poll.max, poll.every, DAY),
            ("handover_pause", self.store.handover_pause, ms(1), DAY),
            ("quarantine", *quarantine, MIN_TTL, MAX_TTL),
        ];
        self.check_ranges(durations, [("fence_block", self.store.fence_block.into(), 1, MAX_FENCE_BLOCK.into())])
    }
}
