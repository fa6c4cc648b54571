//! The settings of a client, and the one place where they are checked.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::channel::ChannelConfig;
use super::url::{self, Endpoint};
use crate::error::{ConfigError, Invalid};
use crate::id::NodeId;
use crate::lock::{Drift, MAX_NAME, Poll};
use crate::url::{Secret, UrlError};

/// The most endpoints that a client may have.
pub const MAX_ENDPOINTS: usize = 15;
/// The shortest TTL of a session: etcd counts whole seconds.
pub const MIN_SESSION_TTL: Duration = Duration::from_secs(1);
/// The longest TTL of a session.
pub const MAX_SESSION_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// All settings of a client. Checked as a whole by [`check`](Self::check).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a Config does nothing until it is given to a client"]
pub struct Config {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) user: Option<(Box<str>, Secret)>,
    pub(crate) prefix: Vec<u8>,
    pub(crate) session_ttl: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) release_within: Duration,
    pub(crate) drift: Drift,
    pub(crate) at_risk: Option<Duration>,
    pub(crate) turn: Duration,
    pub(crate) watch_own_after: Option<Duration>,
    pub(crate) watch_quiet: Duration,
    pub(crate) recheck: Duration,
    pub(crate) reconnect: Poll,
    pub(crate) max_locks: u32,
}

impl Config {
    /// The default settings for the members of one cluster: 1 to 15 of them, tried in turn.
    pub fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            endpoints: endpoints.into_iter().collect(),
            user: None,
            prefix: Vec::new(),
            session_ttl: Duration::from_secs(10),
            request_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            release_within: Duration::from_secs(2),
            drift: Drift::default(),
            at_risk: None,
            turn: Duration::from_millis(100),
            watch_own_after: None,
            watch_quiet: Duration::from_secs(10),
            recheck: Duration::from_secs(30),
            reconnect: Poll::exponential(Duration::from_millis(10), Duration::from_secs(1)),
            max_locks: 1_000_000,
        }
    }

    /// The default settings for the cluster and the login of a URL: `etcd://[user:password@]host[:port][,host[:port]…]`.
    ///
    /// The port is 2379 unless given. An IPv6 address stands in brackets. In a user or password special characters are
    /// percent-encoded. Whatever is not understood is refused: a lock that is not where its owner believes is no lock.
    ///
    /// ```
    /// use lock_proto::etcd::Config;
    ///
    /// let config = Config::parse("etcd://app:s%40crt@etcd-1.example,etcd-2.example:2380")?;
    /// assert_eq!(config.endpoints()[0].target.to_string(), "etcd-1.example:2379");
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong, and what is allowed in its place.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (endpoints, user) = url::parse(url)?;
        Ok(Self { user, ..Self::new(endpoints) })
    }

    /// Who logs in. Default: nobody, for a cluster without authentication.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.into(), Secret::new(password)));
        self
    }

    /// What stands before every name in the store. Default: nothing, so that other clients' locks of the same name and these are in one
    /// queue. At most 512 bytes.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// How long the session that all locks share outlives the last sign of life of this client: the TTL of its lease. Whole seconds,
    /// rounded up; the cluster has a minimum of its own. From 1 s to 30 days, default 10 s.
    pub const fn session_ttl(mut self, ttl: Duration) -> Self {
        self.session_ttl = ttl;
        self
    }

    /// How long a member may leave a request unanswered before its connection is dropped. Default 1 s; less for locks with a TTL below 5 s: a
    /// fifth of it.
    pub const fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a connection may take to open and log in. Default 2 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a release goes on before it is answered `Unknown`. Default 2 s.
    pub const fn release_within(mut self, budget: Duration) -> Self {
        self.release_within = budget;
        self
    }

    /// How fast clocks may drift apart. Default: 1 % and 2 ms.
    pub const fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How long before the end of validity the holder is warned. Default: a quarter of the TTL.
    pub const fn at_risk(mut self, before: Duration) -> Self {
        self.at_risk = Some(before);
        self
    }

    /// How long waiters of this client may pass a lock on among themselves before other processes get their chance. Default: 100 ms.
    pub const fn turn(mut self, turn: Duration) -> Self {
        self.turn = turn;
        self
    }

    /// How long a hold may last before its own key is watched, so that a loss which the lease does not tell is noticed (requirement E9).
    /// Default: a third of the TTL, so that short holds cost no watch.
    pub const fn watch_own_after(mut self, held: Duration) -> Self {
        self.watch_own_after = Some(held);
        self
    }

    /// How long the watch stream may be silent before the member is asked for a sign of life on it. Default 10 s.
    pub const fn watch_quiet(mut self, silence: Duration) -> Self {
        self.watch_quiet = silence;
        self
    }

    /// How often a waiter reads its queue, and an observer its election, while their watches are open and report nothing. It bounds the
    /// wait after a change that the server did not report. Up to a quarter of it is taken off as jitter. From 10 ms to a day, default
    /// 30 s.
    pub const fn recheck(mut self, every: Duration) -> Self {
        self.recheck = every;
        self
    }

    /// How soon a connection is tried again once every endpoint has failed, and a stream that ended. Default: from 10 ms to 1 s, doubling.
    pub const fn reconnect(mut self, reconnect: Poll) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// How many locks may be held or waited for at once. Default one million.
    pub const fn max_locks(mut self, limit: u32) -> Self {
        self.max_locks = limit;
        self
    }

    /// The members.
    #[must_use]
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The part of the settings that a [`Channel`](super::Channel) needs.
    #[must_use]
    pub fn channel(&self) -> ChannelConfig {
        ChannelConfig {
            endpoints: self.endpoints.len() as u16,
            user: self.user.clone(),
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            watch_quiet: self.watch_quiet,
            reconnect: self.reconnect,
            // A lock has few requests and at most two watches at a time.
            limit: (self.max_locks as usize).saturating_mul(4).saturating_add(64),
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range, with its value and the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (i, a) in self.endpoints.iter().enumerate().take(MAX_ENDPOINTS) {
            if let Some(j) = self.endpoints.iter().take(i).position(|b| a.target == b.target) {
                let (first, second) = (NodeId::new(j as u16), NodeId::new(i as u16));
                return Err(ConfigError::EqualEndpoints(first, second, format!("{}", a.target).into()));
            }
        }
        if self.prefix.len() > MAX_NAME {
            return Err(Invalid::PrefixLength { len: self.prefix.len(), max: MAX_NAME }.into());
        }
        let day = Duration::from_secs(24 * 60 * 60);
        let ms = Duration::from_millis;
        for (setting, given, min, max) in [
            ("session_ttl", self.session_ttl, MIN_SESSION_TTL, MAX_SESSION_TTL),
            ("request_timeout", self.request_timeout, ms(1), day),
            ("connect_timeout", self.connect_timeout, ms(1), day),
            ("release_within", self.release_within, ms(1), day),
            ("turn", self.turn, Duration::ZERO, day),
            ("watch_own_after", self.watch_own_after.unwrap_or(Duration::ZERO), Duration::ZERO, MAX_SESSION_TTL),
            ("watch_quiet", self.watch_quiet, ms(10), day),
            ("recheck", self.recheck, ms(10), day),
            ("drift.margin", self.drift.margin, Duration::ZERO, Duration::from_secs(60)),
            ("reconnect.every", self.reconnect.every, ms(1), day),
            ("reconnect.max", self.reconnect.max, self.reconnect.every, day),
        ] {
            if given < min || given > max {
                return Err(ConfigError::Duration { setting, given, min, max });
            }
        }
        for (setting, given, min, max) in [
            ("the number of endpoints", self.endpoints.len() as u64, 1, MAX_ENDPOINTS as u64),
            ("drift.divisor", u64::from(self.drift.divisor), 10, u64::from(u32::MAX)),
            ("max_locks", u64::from(self.max_locks), 1, 100_000_000),
        ] {
            if given < min || given > max {
                return Err(ConfigError::Number { setting, given, min, max });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use alloc::string::ToString as _;

    fn config() -> Config {
        Config::parse("etcd://h").unwrap()
    }

    #[test]
    fn the_defaults_are_allowed() {
        assert_eq!(config().check(), Ok(()));
        assert_eq!(config().channel().endpoints, 1);
    }

    #[test]
    fn every_error_names_the_value_and_the_range() {
        let ms = Duration::from_millis;
        let many = (1..=16).map(|n| Endpoint::parse(&format!("h{n}")).unwrap());
        for (config, names) in [
            (Config::new([]), ["number of endpoints", "1 and 15", "it is 0"]),
            (Config::new(many), ["number of endpoints", "1 and 15", "it is 16"]),
            (Config::parse("etcd://a,b,A:2379").unwrap(), ["node 0 and node 2", "a:2379", "once"]),
            (config().prefix([b'x'; 513]), ["prefix", "512", "513"]),
            (config().session_ttl(ms(999)), ["session_ttl", "1s and 2592000s", "999ms"]),
            (config().session_ttl(MAX_SESSION_TTL + ms(1)), ["session_ttl", "1s and 2592000s", "2592000.001s"]),
            (config().request_timeout(Duration::ZERO), ["request_timeout", "1ms and 86400s", "0ns"]),
            (config().connect_timeout(Duration::ZERO), ["connect_timeout", "1ms and 86400s", "0ns"]),
            (config().release_within(Duration::ZERO), ["release_within", "1ms and 86400s", "0ns"]),
            (config().watch_quiet(ms(9)), ["watch_quiet", "10ms and 86400s", "9ms"]),
            (config().recheck(ms(9)), ["recheck", "10ms and 86400s", "9ms"]),
            (config().reconnect(Poll::exponential(ms(5), ms(4))), ["reconnect.max", "5ms and 86400s", "4ms"]),
            (config().drift(Drift { divisor: 9, margin: ms(2) }), ["drift.divisor", "10 and 4294967295", "9"]),
            (config().max_locks(0), ["max_locks", "1 and 100000000", "0"]),
        ] {
            let message = config.check().unwrap_err().to_string();
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let config = config().user("app", "sesame");
        assert!(!format!("{config:?} {:?}", config.channel()).contains("sesame"));
    }
}
