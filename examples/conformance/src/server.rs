//! A server of either store, for scenarios that both share.

use core::net::SocketAddr;
use core::time::Duration;

use lock_proto::driver::{Lock, Settings};
use lock_proto::etcd;
use lock_testkit::{Authority, Etcd, Redis};

/// A real server.
#[derive(Debug)]
pub enum Server {
    Redis(Redis),
    Etcd(Etcd),
}

impl Server {
    #[must_use]
    pub fn redis() -> Self {
        Self::Redis(Redis::start())
    }

    #[must_use]
    pub fn etcd() -> Self {
        Self::Etcd(Etcd::start())
    }

    #[must_use]
    pub fn redis_over_tls() -> Self {
        Self::Redis(Redis::builder().tls(Authority::new().server()).start())
    }

    #[must_use]
    pub fn etcd_over_tls() -> Self {
        Self::Etcd(Etcd::builder().tls(Authority::new().server()).start())
    }

    /// Settings with which a lock [`with_short_ttl`](Self::with_short_ttl) outlives its holder by
    /// [`ttl`](Self::ttl).
    pub(crate) fn settings(&self) -> Settings {
        match self {
            Self::Redis(redis) => Settings::parse([redis.lock_url()]).unwrap(),
            Self::Etcd(etcd) => etcd::Config::parse(&etcd.lock_url()).unwrap().session_ttl(self.ttl()).into(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Redis(redis) => redis.address(),
            Self::Etcd(etcd) => etcd.address(),
        }
    }

    /// As short as possible without losing locks on a busy machine.
    pub(crate) const fn ttl(&self) -> Duration {
        match self {
            Self::Redis(_) => Duration::from_secs(1),
            // etcd counts in whole seconds, and grants at least two.
            Self::Etcd(_) => Duration::from_secs(2),
        }
    }

    pub(crate) const fn with_short_ttl(&self, lock: Lock) -> Lock {
        match self {
            Self::Redis(_) => lock.ttl(self.ttl()),
            // The session's TTL applies.
            Self::Etcd(_) => lock,
        }
    }

    /// Returns true if the server has a key of the lock's holder or of a waiter.
    pub(crate) fn has_key(&self, name: &str) -> bool {
        match self {
            Self::Redis(redis) => redis.cli(&["EXISTS", name]) == "1",
            Self::Etcd(etcd) => !etcd.keys_of(&format!("{name}/")).is_empty(),
        }
    }

    /// Number of lock keys.
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Redis(redis) => redis.keys().iter().filter(|key| !key.contains("lock-proto:")).count(),
            Self::Etcd(etcd) => etcd.keys().len(),
        }
    }

    /// Deletes the lock's key.
    pub(crate) fn delete_key(&self, name: &str) {
        match self {
            Self::Redis(redis) => assert_eq!(redis.cli(&["DEL", name]), "1"),
            Self::Etcd(etcd) => etcd.keys_of(&format!("{name}/")).iter().for_each(|key| assert!(etcd.delete(key))),
        }
    }

    /// Returns true if no lock has left anything behind. Redis keeps its fence counter.
    pub(crate) fn is_clean(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.keys().iter().all(|key| key == "lock-proto:fence"),
            Self::Etcd(etcd) => etcd.keys().is_empty() && etcd.leases().is_empty(),
        }
    }

    pub(crate) fn kill(&mut self) {
        match self {
            Self::Redis(redis) => redis.kill(),
            Self::Etcd(etcd) => etcd.kill(),
        }
    }

    /// Restarts the server after [`kill`](Self::kill).
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Redis(redis) => redis.restart(),
            Self::Etcd(etcd) => etcd.restart(),
        }
    }
}
