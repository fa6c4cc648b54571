//! Settings of a ZooKeeper client, and their checks.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::time::Duration;

use super::codec::Acl;
use super::path::Dialect;
use super::url;
use crate::error::{ConfigError, Invalid};
use crate::lock::{self, DAY, QueueSettings, ServerError, check_targets, refusal};
use crate::time::millis_up;
use crate::url::{Login, Target, UrlError};

/// Maximum number of servers of a client.
pub const MAX_SERVERS: usize = 15;
/// The ticks of a server that the shortest TTL has.
// ZK1
pub const MIN_TICKS: u32 = 5;
/// The ticks by which validity ends before the session does.
// ZK1
const LOST_TICKS: u32 = 2;

/// All settings of a client. [`Client::new`](super::Client::new) checks them.
pub type Config = lock::Config<QueueSettings<Settings>>;

/// Settings that only ZooKeeper has. See [`Config`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    pub(crate) servers: Vec<Target>,
    pub(crate) chroot: Box<str>,
    pub(crate) dialect: Dialect,
    /// Set by [`Config::tick`].
    pub tick: Duration,
    /// Set by [`Config::revalidate`].
    pub revalidate: bool,
    pub(crate) vacate_within: Duration,
}

impl Config {
    /// Creates the default settings for an ensemble with 1 to 15 servers.
    pub fn new(servers: impl IntoIterator<Item = Target>) -> Self {
        Self::of(servers.into_iter().collect(), Login::default(), "".into())
    }

    pub(super) fn of(servers: Vec<Target>, login: Login, chroot: Box<str>) -> Self {
        let (tick, vacate_within) = (Duration::from_secs(3), Duration::from_secs(10));
        let own = Settings { servers, chroot, dialect: Dialect::default(), tick, revalidate: false, vacate_within };
        let timeout = Duration::from_secs(2);
        Self::with(timeout, timeout, QueueSettings::new(login, tick * MIN_TICKS, own))
    }

    /// Creates the default settings for the servers, login and chroot in a URL:
    /// `zk://[user:password@]host[:port][,host[:port]…][/chroot][?parameters]`.
    ///
    /// With TLS the scheme is `zks`, and the parameters `ca`, `cert`, `key` and `server_name` may
    /// follow, see [`Tls`](crate::Tls). The login may also be in the parameters `user`, `password`
    /// and `password_file`, see [`Login`]. `tick_ms` sets the [tick](Self::tick), and
    /// `revalidate=true` is [`revalidate`](Self::revalidate). The default port is 2181. IPv6 addresses are written in brackets. Special characters are percent-encoded.
    /// Anything that is not understood is an error.
    ///
    /// ```
    /// # use lock_proto::zookeeper;
    /// let config = zookeeper::Config::parse("zk://app:s%40crt@zk-1.example,zk-2.example:2182/billing?tick_ms=2000")?;
    /// assert_eq!(config.servers()[1].to_string(), "zk-2.example:2182");
    /// # Ok::<(), lock_proto::UrlError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UrlError`] names what is wrong and what is allowed instead.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        url::parse(url)
    }

    /// Sets the names of the nodes. All clients of a lock must use the same. Default: those of
    /// Apache Curator.
    // ZK7
    pub const fn dialect(mut self, dialect: Dialect) -> Self {
        self.store.own.dialect = dialect;
        self
    }

    /// Sets the longest `tickTime` of the servers. A client cannot ask for it. Validity ends two
    /// ticks before the session does, so that a server that is cut off from its leader cannot
    /// mislead a holder. Default 3 s, which is also the default of a server whose `zoo.cfg` sets
    /// none; the sample `zoo.cfg` sets 2 s.
    ///
    /// Sets the TTL of the session to five ticks if it was five of the former ticks, or is shorter.
    /// So call [`session_ttl`](Self::session_ttl) after this.
    // ZK1
    pub fn tick(mut self, tick: Duration) -> Self {
        let default = self.store.session_ttl == self.min_ttl();
        self.store.own.tick = tick;
        if default || self.store.session_ttl < self.min_ttl() {
            self.store.session_ttl = self.min_ttl();
        }
        self
    }

    /// Sets whether each renewal of a session continues it on a new connection, which the leader of
    /// the servers must confirm. Default: no. Then a renewal relies on a leader that was stopped to
    /// run for three quarters of a tick before it is stopped again. With this setting a lock is
    /// exclusive however often and however long servers are stopped. It costs a connection for each
    /// third of the validity, on which waiters read their queues again.
    // ZK1
    pub const fn revalidate(mut self, always: bool) -> Self {
        self.store.own.revalidate = always;
        self
    }

    /// Sets how long to wait for a queue with exhausted sequence numbers to become empty, before
    /// [`Failure::SequenceExhausted`](crate::Failure::SequenceExhausted). Default 10 s.
    // ZK5
    pub const fn vacate_within(mut self, time: Duration) -> Self {
        self.store.own.vacate_within = time;
        self
    }

    /// Returns the servers in these settings.
    pub fn servers(&self) -> &[Target] {
        &self.store.own.servers
    }

    /// The ACL of new nodes.
    pub(crate) fn acl(&self) -> Vec<Acl> {
        let user = self.request_credentials || self.store.login != Login::default();
        if user { Acl::creator() } else { Acl::open() }
    }

    /// Returns within which time a leader that runs hears of a session after its server has: half a
    /// tick, and a quarter for the work between.
    // ZK1
    pub(crate) fn report_within(&self) -> Duration {
        self.store.own.tick / 4 * 3
    }

    /// Returns the longest silence on a connection. Less than a tick, so that a late timer is early
    /// enough.
    // ZK1
    pub(crate) fn ping_interval(&self) -> Duration {
        self.ping_after.min(self.store.own.tick / 3 * 2)
    }

    /// Returns the shortest TTL of a session or a lock, which depends on the [tick](Self::tick).
    pub fn min_ttl(&self) -> Duration {
        self.store.own.tick.saturating_mul(MIN_TICKS)
    }

    /// Returns how long a lock is valid after the emission of a write of a session with this
    /// timeout.
    // ZK1, T1
    #[must_use]
    pub fn validity(&self, timeout: Duration) -> Duration {
        self.drift.validity(timeout).saturating_sub(self.store.own.tick.saturating_mul(LOST_TICKS))
    }

    /// Checks that a session with this timeout is long enough, and returns its validity.
    // ZK1
    pub(crate) fn check_session(&self, ttl: Duration) -> Result<Duration, Invalid> {
        let (least, tick, validity) = (self.min_ttl(), self.store.own.tick, self.validity(ttl));
        match ttl {
            given if given < least => Err(Invalid::TtlUnderTicks { given, least, tick }),
            ttl if validity < tick => Err(Invalid::Drift { ttl, validity }),
            _ => Ok(validity),
        }
    }

    /// Checks the timeout that a server has granted for the requested one, and returns the
    /// validity. Servers only raise a timeout to their `minSessionTimeout`. That is two of their
    /// ticks, unless `zoo.cfg` sets it. Five or more ticks were requested, so the client's tick is
    /// too small, or `minSessionTimeout` is set. Which one it is cannot be told.
    ///
    /// # Errors
    ///
    /// What is wrong with the timeout, and what to set.
    // ZK1
    pub(crate) fn check_granted(&self, requested: Duration, granted: Duration) -> Result<Duration, ServerError> {
        let too_short = |invalid| refusal(&format!("the session that it grants is too short: {invalid}"));
        let asked = Duration::from_millis(millis_up(requested));
        if granted <= asked {
            return self.check_session(granted).map_err(too_short);
        }
        let tick_ms = millis_up(granted / 2);
        Err(refusal(&format!(
            "it raised the session from {asked:?} to {granted:?}: its tickTime is {tick_ms} ms, so set tick_ms={tick_ms}; \
             or, if minSessionTimeout is set there, a TTL of {granted:?}"
        )))
    }

    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is out of range, with the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Settings { servers, tick, vacate_within, .. } = &self.store.own;
        check_targets(servers.iter().take(MAX_SERVERS))?;
        let durations = [
            ("tick", *tick, Duration::from_millis(10), Duration::from_secs(60 * 60)),
            ("vacate_within", *vacate_within, Duration::ZERO, DAY),
        ];
        let count = ("the number of servers", servers.len() as u64, 1, MAX_SERVERS as u64);
        self.check_queue(self.min_ttl(), durations, count)?;
        self.check_session(self.store.session_ttl)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use alloc::string::ToString as _;

    use crate::lock::Drift;

    fn config() -> Config {
        Config::parse("zk://h").unwrap()
    }

    #[test]
    fn defaults_are_valid_and_leave_three_ticks_less_drift() {
        // ZK1
        assert_eq!(config().check(), Ok(()));
        let ms = Duration::from_millis;
        assert_eq!(config().validity(ms(15_000)), ms(15_000 - 2 * 3_000 - 150 - 2));
        let small = Config::parse("zk://h?tick_ms=500").unwrap();
        assert_eq!((small.check(), small.store.session_ttl), (Ok(()), ms(2_500)));
        assert_eq!(config().session_ttl(ms(30_000)).tick(ms(2_000)).store.session_ttl, ms(30_000));
        assert_eq!(config().tick(ms(4_000)).store.session_ttl, ms(20_000));
    }

    #[test]
    fn every_error_names_value_and_range() {
        let ms = Duration::from_millis;
        let many = (1..=16).map(|n| url::parse_server(&format!("h{n}")).unwrap());
        for (config, names) in [
            (Config::new([]), ["number of servers", "1 and 15", "it is 0"]),
            (Config::new(many), ["number of servers", "1 and 15", "it is 16"]),
            (Config::parse("zk://a,b,A:2181").unwrap(), ["node 0 and node 2", "a:2181", "once"]),
            (config().session_ttl(ms(14_999)), ["session_ttl", "15s and 2592000s", "14.999s"]),
            (config().tick(Duration::MAX).tick(ms(9)), ["tick", "10ms and 3600s", "9ms"]),
            (config().recheck(ms(9)), ["recheck", "10ms and 86400s", "9ms"]),
            (config().drift(Drift { divisor: 10, margin: ms(5_000) }), ["drift", "15s", "2.5s"]),
        ] {
            let message = config.check().unwrap_err().to_string();
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }

    #[test]
    fn nodes_belong_to_user_if_there_is_one() {
        assert_eq!(config().acl(), Acl::open());
        assert_eq!(config().user("app", "sesame").acl(), Acl::creator());
        assert!(!format!("{:?}", config().user("app", "sesame")).contains("sesame"));
    }
}
