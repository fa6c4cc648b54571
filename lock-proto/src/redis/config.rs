//! The settings of a client, and the one place where they are checked.

use alloc::vec::Vec;
use core::time::Duration;

use super::MAX_NODES;
use super::url::Endpoint;
use crate::error::{ConfigError, Invalid};
use crate::id::NodeId;
use crate::lock::DEFAULT_TTL;
use crate::lock::{Drift, MAX_NAME, MAX_TTL, MIN_TTL, Poll};

/// The most fencing tokens that one script mints.
pub const MAX_FENCE_BLOCK: u32 = 1_000;

/// How waiters of other processes are woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wake {
    /// A release wakes one waiter, over a second connection that is open only while somebody waits. Polling stays the guarantee,
    /// ten times slower.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a Config does nothing until it is given to a client"]
pub struct Config {
    pub(crate) nodes: Vec<Endpoint>,
    pub(crate) prefix: Vec<u8>,
    pub(crate) fencing: bool,
    pub(crate) fence_block: u32,
    pub(crate) request_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) round_timeout: Option<Duration>,
    pub(crate) release_within: Duration,
    pub(crate) poll: Poll,
    pub(crate) wake: Wake,
    pub(crate) drift: Drift,
    pub(crate) at_risk: Option<Duration>,
    pub(crate) turn: Duration,
    pub(crate) turn_pause: Duration,
    pub(crate) quarantine: Duration,
    pub(crate) unknown_age: UnknownAge,
    pub(crate) reconnect: Poll,
    pub(crate) max_locks: u32,
}

impl Config {
    /// The default settings for these nodes: one, or an odd number from 3 on for a quorum.
    pub fn new(nodes: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            nodes: nodes.into_iter().collect(),
            prefix: Vec::new(),
            fencing: true,
            fence_block: MAX_FENCE_BLOCK,
            request_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(2),
            round_timeout: None,
            release_within: Duration::from_secs(2),
            poll: Poll::default(),
            wake: Wake::default(),
            drift: Drift::default(),
            at_risk: None,
            turn: Duration::from_millis(100),
            turn_pause: Duration::from_millis(5),
            quarantine: DEFAULT_TTL,
            unknown_age: UnknownAge::default(),
            reconnect: Poll::exponential(Duration::from_millis(10), Duration::from_secs(1)),
            max_locks: 1_000_000,
        }
    }

    /// What stands before every name in the store. Default: nothing, so that other clients' locks of the same name
    /// exclude these. At most 512 bytes.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Whether every grant carries a fencing token. Default: yes; a quorum never does.
    pub const fn fencing(mut self, on: bool) -> Self {
        self.fencing = on;
        self
    }

    /// How many fencing tokens one script mints at most. Waiters of this client that pass a lock on among themselves use one each,
    /// and mint more when they run out. After the promotion of a stale replica tokens keep growing if its clock has advanced
    /// by as many µs. From 1 to 1 000, default 1 000.
    pub const fn fence_block(mut self, size: u32) -> Self {
        self.fence_block = size;
        self
    }

    /// How long a node may leave a request unanswered before its connection is dropped. Default 500 ms; less for locks with a
    /// TTL below 2.5 s: a fifth of it.
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a connection may take to open and log in. Default 2 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a round of a quorum waits for its nodes. It stops the waiting only, and drops no connection. Default: a
    /// twentieth of the TTL, between 10 ms and 1 s. At most a quarter of the TTL.
    pub const fn round_timeout(mut self, timeout: Duration) -> Self {
        self.round_timeout = Some(timeout);
        self
    }

    /// How long a release goes on before it is answered `Unknown`. Default 2 s.
    pub const fn release_within(mut self, budget: Duration) -> Self {
        self.release_within = budget;
        self
    }

    /// How often a waiter tries. Default: every 50 ms.
    pub const fn poll(mut self, poll: Poll) -> Self {
        self.poll = poll;
        self
    }

    /// How waiters are woken. Default: [`Wake::Notify`].
    pub const fn wake(mut self, wake: Wake) -> Self {
        self.wake = wake;
        self
    }

    /// How fast clocks may drift apart. Default: 1 % and 2 ms.
    pub const fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How long before the end of validity [`Event::AtRisk`](super::Event::AtRisk) comes. Default: a quarter of the TTL.
    pub const fn at_risk(mut self, before: Duration) -> Self {
        self.at_risk = Some(before);
        self
    }

    /// How long waiters of this client may pass a lock on among themselves before other processes get their chance, and for
    /// how long this client then stays away. Default: 100 ms and 5 ms.
    pub const fn turn(mut self, turn: Duration, pause: Duration) -> Self {
        self.turn = turn;
        self.turn_pause = pause;
        self
    }

    /// How long a restarted node of a quorum does not count: the longest TTL that any client of it uses. Default 10 s; a lock
    /// with a longer TTL is refused.
    pub const fn quarantine(mut self, quarantine: Duration) -> Self {
        self.quarantine = quarantine;
        self
    }

    /// What a quorum does with a node whose age it may not read. Default: [`UnknownAge::Refuse`].
    pub const fn unknown_age(mut self, unknown_age: UnknownAge) -> Self {
        self.unknown_age = unknown_age;
        self
    }

    /// How soon a broken connection is opened again. Default: from 10 ms to 1 s, doubling.
    pub const fn reconnect(mut self, reconnect: Poll) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// How many locks may be held or waited for at once. Default one million.
    pub const fn max_locks(mut self, limit: u32) -> Self {
        self.max_locks = limit;
        self
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Endpoint] {
        &self.nodes
    }

    /// Whether several nodes vote.
    #[must_use]
    pub fn is_quorum(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range, with its value and the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let count = self.nodes.len();
        if count == 0 || count.is_multiple_of(2) || count > MAX_NODES {
            return Err(ConfigError::NodeCount { given: count, max: MAX_NODES });
        }
        for (i, a) in self.nodes.iter().enumerate() {
            if let Some(j) = self.nodes.iter().take(i).position(|b| a.target == b.target) {
                let (first, second) = (NodeId::new(j as u16), NodeId::new(i as u16));
                return Err(ConfigError::EqualNodes(first, second, alloc::format!("{}", a.target).into()));
            }
        }
        if self.prefix.len() > MAX_NAME {
            return Err(Invalid::PrefixLength { len: self.prefix.len(), max: MAX_NAME }.into());
        }
        let day = Duration::from_secs(24 * 60 * 60);
        let ms = Duration::from_millis;
        for (setting, given, min, max) in [
            ("request_timeout", self.request_timeout, ms(1), day),
            ("connect_timeout", self.connect_timeout, ms(1), day),
            ("round_timeout", self.round_timeout.unwrap_or_else(|| ms(1)), ms(1), day),
            ("release_within", self.release_within, ms(1), day),
            ("poll.every", self.poll.every, ms(1), day),
            ("poll.max", self.poll.max, self.poll.every, day),
            ("turn", self.turn, Duration::ZERO, day),
            ("turn pause", self.turn_pause, ms(1), day),
            ("drift.margin", self.drift.margin, Duration::ZERO, Duration::from_secs(60)),
            ("quarantine", self.quarantine, MIN_TTL, MAX_TTL),
            ("reconnect.every", self.reconnect.every, ms(1), day),
            ("reconnect.max", self.reconnect.max, self.reconnect.every, day),
        ] {
            if given < min || given > max {
                return Err(ConfigError::Duration { setting, given, min, max });
            }
        }
        for (setting, given, min, max) in [
            ("drift.divisor", u64::from(self.drift.divisor), 10, u64::from(u32::MAX)),
            ("fence_block", u64::from(self.fence_block), 1, MAX_FENCE_BLOCK.into()),
            ("max_locks", u64::from(self.max_locks), 1, 100_000_000),
        ] {
            if given < min || given > max {
                return Err(ConfigError::Number { setting, given, min, max });
            }
        }
        Ok(())
    }
}
