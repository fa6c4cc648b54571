//! Settings of an etcd client, and their checks.

use alloc::vec::Vec;
use core::time::Duration;

use super::channel::ChannelConfig;
use super::url::{self, Endpoint};
use crate::error::{ConfigError, Invalid};
use crate::lock::{self, DAY, QueueSettings, check_targets};
use crate::url::{Login, UrlError};

/// Maximum number of endpoints of a client.
pub const MAX_ENDPOINTS: usize = 15;
/// Shortest TTL of a session. etcd counts whole seconds.
pub const MIN_SESSION_TTL: Duration = Duration::from_secs(1);

/// All settings of a client. [`Client::new`](super::Client::new) checks them.
pub type Config = lock::Config<QueueSettings<Settings>>;

/// Settings that only etcd has. See [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) sync_members: Option<Duration>,
    pub(crate) ping_timeout: Duration,
    pub(crate) watch_quiet: Duration,
}

impl Config {
    /// Creates the default settings for a cluster with 1 to 15 endpoints, which are tried by
    /// [priority](Endpoint::with_priority), then in turn.
    pub fn new(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        Self::of(endpoints.into_iter().collect(), Login::default())
    }

    fn of(endpoints: Vec<Endpoint>, login: Login) -> Self {
        let (ping_timeout, watch_quiet) = (Duration::from_secs(3), Duration::from_secs(10));
        let own = Settings { endpoints, sync_members: None, ping_timeout, watch_quiet };
        let store = QueueSettings::new(login, Duration::from_secs(10), own);
        Self::with(Duration::from_secs(1), Duration::from_secs(10), store)
    }

    /// Creates the default settings for the cluster and login in a URL:
    /// `etcd://[user:password@]host[:port][,host[:port]…]`.
    ///
    /// The scheme may also be `http`, as in the URLs that etcd itself writes. With TLS it is
    /// `etcds` or `https`, and the parameters `ca`, `cert`, `key` and `server_name` may follow, see
    /// [`Tls`](crate::Tls). The login may also be in the parameters `user`, `password` and
    /// `password_file`, see [`Login`]. The default port is 2379. IPv6 addresses are written in brackets.
    /// Special characters in user and password are percent-encoded. Anything that is not
    /// understood is an error.
    ///
    /// ```
    /// # use lock_proto::etcd;
    /// let config = etcd::Config::parse("etcd://app:s%40crt@etcd-1.example,etcd-2.example:2380")?;
    /// assert_eq!(config.endpoints()[0].target.to_string(), "etcd-1.example:2379");
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong and what is allowed instead.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (endpoints, login) = url::parse(url)?;
        Ok(Self::of(endpoints, login))
    }

    /// Sets how long the reply to a ping may take before the connection is closed. Default 3 s.
    pub const fn ping_timeout(mut self, timeout: Duration) -> Self {
        self.store.own.ping_timeout = timeout;
        self
    }

    /// Returns the interval of pings, and how long the reply may take.
    pub const fn pings(&self) -> (Duration, Duration) {
        (self.ping_after, self.store.own.ping_timeout)
    }

    /// Sets how long the watch stream may be silent before the client probes it. Default 10 s.
    pub const fn watch_quiet(mut self, silence: Duration) -> Self {
        self.store.own.watch_quiet = silence;
        self
    }

    /// Asks the cluster for its members at this interval, and for the first time with the first
    /// request. Members that are not in the settings are added, up to 15, and tried after all others.
    /// They must belong to the same cluster, and use TLS if the first endpoint does, with its
    /// certificates. Learners are not used. From 1 s to a day, 5 minutes is usual. Default: never.
    ///
    /// The members report the URLs in their `--advertise-client-urls`. They must let this client list
    /// the members without a login.
    // N22
    pub const fn sync_members(mut self, every: Duration) -> Self {
        self.store.own.sync_members = Some(every);
        self
    }

    /// Keeps the first endpoints.
    pub fn known_members(mut self, count: usize) -> Self {
        self.store.own.endpoints.truncate(count);
        self
    }

    /// Returns the endpoints in these settings.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.store.own.endpoints
    }

    /// Returns the settings that a [`Channel`](super::Channel) needs.
    pub fn channel(&self) -> ChannelConfig {
        ChannelConfig {
            endpoints: self.store.own.endpoints.clone(),
            sync_members: self.store.own.sync_members,
            login: self.store.login.clone(),
            request_credentials: self.request_credentials,
            connect_timeout: self.connect_timeout,
            idle_timeout: Some(self.idle_timeout),
            request_timeout: self.request_timeout,
            watch_quiet: self.store.own.watch_quiet,
            reconnect: self.reconnect,
            // A lock has few requests and watches at a time.
            limit: (self.max_locks as usize).saturating_mul(4).saturating_add(64),
        }
    }

    /// Rounds a TTL up to that of a lease, in whole seconds.
    ///
    /// # Errors
    ///
    /// [`Invalid::Drift`] if the validity is too short for renewals.
    pub(crate) fn lease_ttl(&self, ttl: Duration) -> Result<Duration, Invalid> {
        let ttl = seconds(ttl);
        let validity = self.drift.validity(ttl);
        if self.is_renewable(ttl, validity) { Ok(ttl) } else { Err(Invalid::Drift { ttl, validity }) }
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is out of range, with the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Settings { endpoints, sync_members, ping_timeout, watch_quiet } = &self.store.own;
        check_targets(endpoints.iter().take(MAX_ENDPOINTS).map(|endpoint| &endpoint.target))?;
        let least = Duration::from_millis(10);
        let durations = [
            ("ping_after", self.ping_after, Duration::from_secs(5), DAY),
            ("ping_timeout", *ping_timeout, least, DAY),
            ("sync_members", sync_members.unwrap_or(DAY), Duration::from_secs(1), DAY),
            ("watch_quiet", *watch_quiet, least, DAY),
        ];
        let count = ("the number of endpoints", endpoints.len() as u64, 1, MAX_ENDPOINTS as u64);
        self.check_queue(MIN_SESSION_TTL, durations, count)?;
        self.lease_ttl(self.store.session_ttl)?;
        Ok(())
    }
}

/// Rounds up to whole seconds, as etcd counts them.
pub(crate) fn seconds(ttl: Duration) -> Duration {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    Duration::from_secs(seconds.max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use alloc::format;
    use alloc::string::ToString as _;

    use crate::lock::{Backoff, Drift, MAX_TTL};

    fn config() -> Config {
        Config::parse("etcd://h").unwrap()
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(config().check(), Ok(()));
        assert_eq!(config().channel().endpoints.len(), 1);
    }

    #[test]
    fn every_error_names_value_and_range() {
        let ms = Duration::from_millis;
        let many = (1..=16).map(|n| Endpoint::parse(&format!("h{n}")).unwrap());
        for (config, names) in [
            (Config::new([]), ["number of endpoints", "1 and 15", "it is 0"]),
            (Config::new(many), ["number of endpoints", "1 and 15", "it is 16"]),
            (Config::parse("etcd://a,b,A:2379").unwrap(), ["node 0 and node 2", "a:2379", "once"]),
            (config().prefix([b'x'; 513]), ["prefix", "512", "513"]),
            (config().session_ttl(ms(999)), ["session_ttl", "1s and 2592000s", "999ms"]),
            (config().session_ttl(MAX_TTL + ms(1)), ["session_ttl", "1s and 2592000s", "2592000.001s"]),
            (config().request_timeout(Duration::ZERO), ["request_timeout", "1ms and 86400s", "0ns"]),
            (config().connect_timeout(Duration::ZERO), ["connect_timeout", "1ms and 86400s", "0ns"]),
            (config().release_within(Duration::ZERO), ["release_within", "1ms and 86400s", "0ns"]),
            (config().sync_members(ms(999)), ["sync_members", "1s and 86400s", "999ms"]),
            (config().watch_quiet(ms(9)), ["watch_quiet", "10ms and 86400s", "9ms"]),
            (config().recheck(ms(9)), ["recheck", "10ms and 86400s", "9ms"]),
            (config().reconnect(Backoff::exponential(ms(5), ms(4))), ["reconnect.max", "5ms and 86400s", "4ms"]),
            (config().drift(Drift { divisor: 9, margin: ms(2) }), ["drift.divisor", "10 and 4294967295", "9"]),
            (config().drift(Drift { divisor: 100, margin: ms(7_000) }), ["TTL of 10s", "2.9s", "drift"]),
            (config().max_locks(0), ["max_locks", "1 and 100000000", "0"]),
        ] {
            let message = config.check().unwrap_err().to_string();
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }

    #[test]
    fn ttl_is_rounded_up_to_whole_seconds_and_never_zero() {
        let given = [0, 1, 999, 1_000, 1_001, 2_000].map(|ms| seconds(Duration::from_millis(ms)).as_secs());
        assert_eq!(given, [1, 1, 1, 1, 2, 2]);
        assert_eq!(seconds(Duration::from_nanos(3_000_000_001)), Duration::from_secs(4));
    }

    #[test]
    fn debug_hides_password() {
        let config = config().user("app", "sesame");
        assert!(!format!("{config:?} {:?}", config.channel()).contains("sesame"));
    }
}
