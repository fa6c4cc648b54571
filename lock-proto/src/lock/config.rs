//! Settings common to the clients of all stores.

use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::backoff::Backoff;
use super::tuning::{Drift, MAX_NAME};
use crate::error::{ConfigError, Invalid};
use crate::id::NodeId;
use crate::url::Target;

/// All settings of a client. `T` are the settings of its store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a Config does nothing until it is given to a client"]
pub struct Config<T> {
    /// Set by [`Self::prefix`].
    pub prefix: Vec<u8>,
    /// Set by [`Self::request_timeout`].
    pub request_timeout: Duration,
    /// Set by [`Self::connect_timeout`].
    pub connect_timeout: Duration,
    pub(crate) release_within: Duration,
    pub(crate) drift: Drift,
    pub(crate) at_risk: Option<Duration>,
    pub(crate) handover_window: Duration,
    pub(crate) reconnect: Backoff,
    pub(crate) max_locks: u32,
    /// Set by [`Self::request_credentials`].
    pub request_credentials: bool,
    pub(crate) idle_timeout: Duration,
    pub(crate) ping_after: Duration,
    /// The settings of the store.
    pub store: T,
}

/// A setting's name, its value, and the allowed range.
pub(crate) type Range<V> = (&'static str, V, V, V);

/// Default upper bound of durations in the settings.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl<T> Config<T> {
    pub(crate) const fn with(request_timeout: Duration, ping_after: Duration, store: T) -> Self {
        Self {
            prefix: Vec::new(),
            request_timeout,
            connect_timeout: Duration::from_secs(2),
            release_within: Duration::from_secs(2),
            drift: Drift::DEFAULT,
            at_risk: None,
            handover_window: Duration::from_millis(100),
            reconnect: Backoff::exponential(Duration::from_millis(10), Duration::from_secs(1)),
            max_locks: 1_000_000,
            request_credentials: false,
            idle_timeout: Duration::from_secs(5 * 60),
            ping_after,
            store,
        }
    }

    /// The prefix of every key, at most 512 bytes. Empty by default, so that locks of the same name
    /// exclude each other across clients.
    ///
    /// On Redis, use the same prefix in all clients of a lock if you use its fencing tokens: they
    /// are counted for each prefix. A key that is split in another way, such as `job:` and `1`, or
    /// nothing and `job:1`, is the same lock with another counter.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// How long a server may be silent while requests are in flight before the client drops its
    /// connection. Default: 500 ms on Redis, 1 s on etcd; 2 s on ZooKeeper, and at most half of the
    /// validity. On a register, how long one request may take: 1 s, at most a fifth of the TTL for
    /// a renewal.
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a connection may take to open and log in. Default: 2 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a release may take before it is answered [`Unknown`](crate::Release::Unknown). Also
    /// how long a proclamation or a query for the leader is retried. Default: 2 s.
    pub const fn release_within(mut self, budget: Duration) -> Self {
        self.release_within = budget;
        self
    }

    /// How far the clocks of client and server may drift apart. Default: 1 % of the TTL and 2 ms.
    pub const fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How long before the end of validity [`Event::AtRisk`](crate::Event::AtRisk) is emitted, and
    /// `Observer::at_risk` of the driver returns. Times above half of the TTL count as half: a
    /// healthy lock is renewed after a third, and must not be warned about. Default: a quarter of
    /// the TTL. On ZooKeeper, both are fractions of the validity.
    pub const fn at_risk(mut self, before: Duration) -> Self {
        self.at_risk = Some(before);
        self
    }

    /// How long waiters of this client may hand a lock over among themselves before the client
    /// releases it to other processes. Default: 100 ms.
    pub const fn handover_window(mut self, window: Duration) -> Self {
        self.handover_window = window;
        self
    }

    /// The pause before a broken connection is reopened. Default: from 10 ms to 1 s, doubling.
    /// An acquisition that cannot wait that long, and a ping, end it once it has lasted as long as
    /// the first one.
    pub const fn reconnect(mut self, reconnect: Backoff) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// How many locks may be held or waited for at once, and how many operations may be open.
    /// Default: one million.
    pub const fn max_locks(mut self, limit: u32) -> Self {
        self.max_locks = limit;
        self
    }

    /// How long a client without locks, on ZooKeeper also without observers, keeps its session (on
    /// etcd a lease). Also how long it then keeps a connection that nothing needs. Both are
    /// opened again when needed. Default: 5 minutes.
    pub const fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// How long a connection may be silent before the client pings the server, while a lock is held
    /// or waited for. Set it below the idle timeouts of proxies and firewalls. Default: 60 s on
    /// Redis; 10 s on etcd, which disconnects clients that ping more often than every 5 s (its
    /// `--grpc-keepalive-min-time`); 2 s on ZooKeeper, and at most two thirds of a tick.
    pub const fn ping_after(mut self, silence: Duration) -> Self {
        self.ping_after = silence;
        self
    }

    /// Whether the client requests credentials from its host for each connection, instead of the
    /// password in its settings. Default: false. The driver sets this itself: to true if its
    /// settings have a source of credentials.
    pub const fn request_credentials(mut self, on: bool) -> Self {
        self.request_credentials = on;
        self
    }

    /// Returns true if the first renewal of a TTL and two tries fit into its validity.
    #[cfg(any(feature = "redis", feature = "etcd", feature = "register"))]
    pub(crate) fn is_renewable(&self, ttl: Duration, validity: Duration) -> bool {
        ttl / 3 + 2 * self.request_timeout.min(ttl / 5) <= validity
    }

    /// Checks the common settings and the ranges of the store's settings.
    pub(crate) fn check_ranges(
        &self,
        durations: impl IntoIterator<Item = Range<Duration>>,
        numbers: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<(), ConfigError> {
        if self.prefix.len() > MAX_NAME {
            return Err(Invalid::PrefixLength { len: self.prefix.len(), max: MAX_NAME }.into());
        }
        let ms = Duration::from_millis;
        let common = [
            ("request_timeout", self.request_timeout, ms(1), DAY),
            ("connect_timeout", self.connect_timeout, ms(1), DAY),
            ("release_within", self.release_within, ms(1), DAY),
            ("idle_timeout", self.idle_timeout, ms(1), DAY),
            ("ping_after", self.ping_after, ms(1), DAY),
            ("handover_window", self.handover_window, Duration::ZERO, DAY),
            ("drift.margin", self.drift.margin, Duration::ZERO, Duration::from_secs(60)),
            ("reconnect.every", self.reconnect.every, ms(1), DAY),
            ("reconnect.max", self.reconnect.max, self.reconnect.every, DAY),
        ];
        for (setting, given, min, max) in common.into_iter().chain(durations) {
            if given < min || given > max {
                return Err(ConfigError::Duration { setting, given, min, max });
            }
        }
        let common = [
            ("drift.divisor", u64::from(self.drift.divisor), 10, u64::from(u32::MAX)),
            ("max_locks", u64::from(self.max_locks), 1, 100_000_000),
        ];
        for (setting, given, min, max) in common.into_iter().chain(numbers) {
            if given < min || given > max {
                return Err(ConfigError::Number { setting, given, min, max });
            }
        }
        Ok(())
    }
}

/// Checks that all servers have different addresses.
pub(crate) fn check_targets<'a>(targets: impl Iterator<Item = &'a Target> + Clone) -> Result<(), ConfigError> {
    for (second, target) in targets.clone().enumerate() {
        if let Some(first) = targets.clone().take(second).position(|other| other.is_same_server(target)) {
            let [first, second] = [first, second].map(|place| NodeId::new(place as u16));
            return Err(ConfigError::EqualNodes(first, second, format!("{target}").into()));
        }
    }
    Ok(())
}
