//! The settings of a client, and the one place where they are checked.

use alloc::vec::Vec;
use core::time::Duration;

use super::MAX_NODES;
use super::url::Endpoint;
use crate::error::ConfigError;
use crate::lock::{self, Backoff, DAY, DEFAULT_TTL, MAX_TTL, MIN_TTL, check_targets};

/// The most fencing tokens that one script mints.
pub const MAX_FENCE_BLOCK: u32 = 1_000;

/// How waiters of other processes are woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wake {
    /// A release wakes one waiter over a second connection, which is open only while somebody waits. In a quorum it leads
    /// to one of the nodes. Waiters still poll, in case a wake-up is lost: ten times slower, and up to
    /// forty times slower the longer they wait.
    #[default]
    Notify,
    /// Polling alone: no second connection, and no key beside the lock's and the fence counter. Releases wake nobody, so it is best
    /// set for all clients of a lock.
    Poll,
}

/// What a quorum does with a node whose age it may not read (`INFO` forbidden, requirement Q6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnknownAge {
    /// The node does not count for new rounds, and the report says why.
    #[default]
    Refuse,
    /// The node counts: you know that its data survives restarts.
    Trust,
}

/// All settings of a client. Checked as a whole by [`Client::new`](super::Client::new).
pub type Config = lock::Config<Settings>;

/// The settings that only Redis has. See [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub(crate) nodes: Vec<Endpoint>,
    pub(crate) fencing: bool,
    pub(crate) fence_block: u32,
    pub(crate) round_timeout: Option<Duration>,
    pub(crate) poll: Backoff,
    pub(crate) wake: Wake,
    pub(crate) turn_pause: Duration,
    pub(crate) quarantine: Duration,
    pub(crate) unknown_age: UnknownAge,
}

impl Config {
    /// The default settings for these nodes: one, or an odd number from 3 on for a quorum.
    pub fn new(nodes: impl IntoIterator<Item = Endpoint>) -> Self {
        let store = Settings {
            nodes: nodes.into_iter().collect(),
            fencing: true,
            fence_block: MAX_FENCE_BLOCK,
            round_timeout: None,
            poll: Backoff::default(),
            wake: Wake::default(),
            turn_pause: Duration::from_millis(5),
            quarantine: DEFAULT_TTL,
            unknown_age: UnknownAge::default(),
        };
        Self::with(Duration::from_millis(500), store)
    }

    /// Whether every grant carries a fencing token. Default: yes; a quorum never does.
    pub const fn fencing(mut self, on: bool) -> Self {
        self.store.fencing = on;
        self
    }

    /// How many fencing tokens one script mints at most. Waiters of this client that hand a lock over among themselves
    /// use one each, and mint more when they run out. After the promotion of a stale replica tokens keep growing if its
    /// clock has advanced by as many µs. From 1 to 1 000, default 1 000.
    pub const fn fence_block(mut self, size: u32) -> Self {
        self.store.fence_block = size;
        self
    }

    /// How long a round of a quorum waits for its nodes. It stops the waiting only, and drops no connection. At most a
    /// quarter of the TTL. Default: as long as the grants of the round count. A node that is silent is not waited for
    /// longer than [`request_timeout`](Self::request_timeout), which ends its connection.
    pub const fn round_timeout(mut self, timeout: Duration) -> Self {
        self.store.round_timeout = Some(timeout);
        self
    }

    /// How often a waiter tries. Default: every 50 ms.
    pub const fn poll(mut self, poll: Backoff) -> Self {
        self.store.poll = poll;
        self
    }

    /// How waiters are woken. Default: [`Wake::Notify`].
    pub const fn wake(mut self, wake: Wake) -> Self {
        self.store.wake = wake;
        self
    }

    /// For how long this client stays away after its [`turn`](Self::turn), so that other processes get the lock. Default:
    /// 5 ms.
    pub const fn turn_pause(mut self, pause: Duration) -> Self {
        self.store.turn_pause = pause;
        self
    }

    /// How long a restarted node of a quorum does not count: the longest TTL that any client of it uses. Default 10 s; a
    /// lock with a longer TTL is refused.
    pub const fn quarantine(mut self, quarantine: Duration) -> Self {
        self.store.quarantine = quarantine;
        self
    }

    /// What a quorum does with a node whose age it may not read. Default: [`UnknownAge::Refuse`].
    pub const fn unknown_age(mut self, unknown_age: UnknownAge) -> Self {
        self.store.unknown_age = unknown_age;
        self
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Endpoint] {
        &self.store.nodes
    }

    /// Whether several nodes vote.
    pub fn is_quorum(&self) -> bool {
        self.store.nodes.len() > 1
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range, with its value and the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Settings { nodes, round_timeout, poll, quarantine, .. } = &self.store;
        let count = nodes.len();
        if count == 0 || count.is_multiple_of(2) || count > MAX_NODES {
            return Err(ConfigError::NodeCount { given: count, max: MAX_NODES });
        }
        check_targets(nodes.iter().map(|node| &node.target))?;
        let ms = Duration::from_millis;
        let durations = [
            ("round_timeout", round_timeout.unwrap_or_else(|| ms(1)), ms(1), DAY),
            ("poll.every", poll.every, ms(1), DAY),
            ("poll.max", poll.max, poll.every, DAY),
            ("turn_pause", self.store.turn_pause, ms(1), DAY),
            ("quarantine", *quarantine, MIN_TTL, MAX_TTL),
        ];
        self.check_ranges(durations, [("fence_block", self.store.fence_block.into(), 1, MAX_FENCE_BLOCK.into())])
    }
}
