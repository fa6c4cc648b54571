//! A server of any store, for scenarios that they share.

use core::net::SocketAddr;
use core::time::Duration;

use lock_proto::driver::{Lock, Settings};
use lock_proto::{etcd, zookeeper};
use lock_testkit::{Authority, Chroot, Etcd, Redis, ZooKeeper};

/// A real server.
#[derive(Debug)]
pub enum Server {
    Redis(Redis),
    Etcd(Etcd),
    ZooKeeper(Chroot),
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

    /// A path on a server that scenarios share: a JVM takes a second to start.
    #[must_use]
    pub fn zookeeper() -> Self {
        Self::ZooKeeper(Chroot::new())
    }

    #[must_use]
    pub fn zookeeper_over_tls() -> Self {
        Self::ZooKeeper(Chroot::over_tls())
    }

    /// The same kind of server for a scenario that kills it.
    #[must_use]
    pub fn for_killing(self) -> Self {
        match self {
            Self::ZooKeeper(chroot) if chroot.server().has_tls() => {
                Self::ZooKeeper(Chroot::alone(ZooKeeper::builder().tls(Authority::new().server()).start()))
            }
            Self::ZooKeeper(_) => Self::ZooKeeper(Chroot::alone(ZooKeeper::start())),
            other @ (Self::Redis(_) | Self::Etcd(_)) => other,
        }
    }

    /// Settings with which a lock [`with_short_ttl`](Self::with_short_ttl) outlives its holder by
    /// [`ttl`](Self::ttl).
    pub(crate) fn settings(&self) -> Settings {
        match self {
            Self::Redis(redis) => Settings::parse([redis.lock_url()]).unwrap(),
            Self::Etcd(etcd) => etcd::Config::parse(&etcd.lock_url()).unwrap().session_ttl(self.ttl()).into(),
            Self::ZooKeeper(chroot) => {
                zookeeper::Config::parse(&chroot.lock_url()).unwrap().session_ttl(self.ttl()).into()
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Redis(redis) => redis.address(),
            Self::Etcd(etcd) => etcd.address(),
            Self::ZooKeeper(chroot) => chroot.server().address(),
        }
    }

    /// As short as possible without losing locks on a busy machine.
    pub(crate) const fn ttl(&self) -> Duration {
        match self {
            Self::Redis(_) => Duration::from_secs(1),
            // etcd counts in whole seconds, and grants at least two.
            Self::Etcd(_) => Duration::from_secs(2),
            // Of which two ticks do not count.
            Self::ZooKeeper(_) => Duration::from_secs(2),
        }
    }

    pub(crate) const fn with_short_ttl(&self, lock: Lock) -> Lock {
        match self {
            Self::Redis(_) => lock.ttl(self.ttl()),
            // The session's TTL applies.
            Self::Etcd(_) | Self::ZooKeeper(_) => lock,
        }
    }

    /// Returns true if the server has a key of the lock's holder or of a waiter.
    pub(crate) fn has_key(&self, name: &str) -> bool {
        match self {
            Self::Redis(redis) => redis.cli(&["EXISTS", name]) == "1",
            Self::Etcd(etcd) => !etcd.keys_of(&format!("{name}/")).is_empty(),
            Self::ZooKeeper(chroot) => !chroot.nodes_of(name).is_empty(),
        }
    }

    /// Number of lock keys.
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Redis(redis) => redis.keys().iter().filter(|key| !key.contains("lock-proto:")).count(),
            Self::Etcd(etcd) => etcd.keys().len(),
            Self::ZooKeeper(chroot) => chroot.ephemerals().len(),
        }
    }

    /// Deletes the lock's key.
    pub(crate) fn delete_key(&self, name: &str) {
        match self {
            Self::Redis(redis) => assert_eq!(redis.cli(&["DEL", name]), "1"),
            Self::Etcd(etcd) => etcd.keys_of(&format!("{name}/")).iter().for_each(|key| assert!(etcd.delete(key))),
            Self::ZooKeeper(chroot) => chroot.nodes_of(name).iter().for_each(|node| assert!(chroot.delete(name, node))),
        }
    }

    /// Returns true if no lock has left anything behind. Redis keeps its fence counter, and
    /// ZooKeeper empty containers for a while.
    pub(crate) fn is_clean(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.keys().iter().all(|key| key == "lock-proto:fence"),
            Self::Etcd(etcd) => etcd.keys().is_empty() && etcd.leases().is_empty(),
            Self::ZooKeeper(chroot) => chroot.ephemerals().is_empty(),
        }
    }

    pub(crate) fn kill(&mut self) {
        match self {
            Self::Redis(redis) => redis.kill(),
            Self::Etcd(etcd) => etcd.kill(),
            Self::ZooKeeper(chroot) => chroot.server_mut().kill(),
        }
    }

    /// Restarts the server after [`kill`](Self::kill).
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Redis(redis) => redis.restart(),
            Self::Etcd(etcd) => etcd.restart(),
            Self::ZooKeeper(chroot) => chroot.server_mut().restart(),
        }
    }
}
