//! A server of any store, for tests that several stores share.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{Authority, Chroot, Etcd, Redis, ZooKeeper};

/// A real server of one of the stores.
#[derive(Debug)]
pub enum Server {
    /// Redis.
    Redis(Redis),
    /// A cluster of one etcd.
    Etcd(Etcd),
    /// A path on a ZooKeeper server.
    ZooKeeper(Chroot),
}

impl Server {
    /// Starts a Redis server.
    #[must_use]
    pub fn redis() -> Self {
        Self::Redis(Redis::start())
    }

    /// Starts an etcd server.
    #[must_use]
    pub fn etcd() -> Self {
        Self::Etcd(Etcd::start())
    }

    /// Starts a Redis server with TLS.
    #[must_use]
    pub fn redis_over_tls() -> Self {
        Self::Redis(Redis::builder().tls(Authority::new().server()).start())
    }

    /// Starts an etcd server with TLS.
    #[must_use]
    pub fn etcd_over_tls() -> Self {
        Self::Etcd(Etcd::builder().tls(Authority::new().server()).start())
    }

    /// Creates a path on a server that tests share: a JVM takes a second to start.
    #[must_use]
    pub fn zookeeper() -> Self {
        Self::ZooKeeper(Chroot::new())
    }

    /// Creates a path on a shared server with TLS.
    #[must_use]
    pub fn zookeeper_over_tls() -> Self {
        Self::ZooKeeper(Chroot::over_tls())
    }

    /// Returns the same kind of server for a test that kills it.
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

    /// The address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Redis(redis) => redis.address(),
            Self::Etcd(etcd) => etcd.address(),
            Self::ZooKeeper(chroot) => chroot.server().address(),
        }
    }

    /// A TTL as short as possible without losing locks on a busy machine.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        match self {
            Self::Redis(_) => Duration::from_secs(1),
            // etcd counts in whole seconds, and grants at least two.
            Self::Etcd(_) => Duration::from_secs(2),
            // Of which two ticks do not count.
            Self::ZooKeeper(_) => Duration::from_secs(2),
        }
    }

    /// A short TTL of a lock with a session of its own.
    #[must_use]
    pub const fn own_ttl(&self) -> Duration {
        match self {
            Self::Redis(_) | Self::Etcd(_) => Duration::from_secs(1),
            Self::ZooKeeper(_) => self.ttl(),
        }
    }

    /// The URL, with TLS if the server has it.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Redis(redis) => redis.lock_url(),
            Self::Etcd(etcd) => etcd.lock_url(),
            Self::ZooKeeper(chroot) => chroot.lock_url(),
        }
    }

    /// A URL of this store with another address.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        match self {
            Self::Redis(_) => format!("redis://{address}"),
            Self::Etcd(_) => format!("etcd://{address}"),
            Self::ZooKeeper(_) => format!("zk://{address}?tick_ms=200"),
        }
    }

    /// The keys or nodes of the lock's holder and of waiters.
    #[must_use]
    pub fn keys_of(&self, name: &str) -> Vec<String> {
        match self {
            Self::Redis(redis) => redis.keys().into_iter().filter(|key| key == name).collect(),
            Self::Etcd(etcd) => etcd.keys_of(&format!("{name}/")),
            Self::ZooKeeper(chroot) => chroot.nodes_of(name),
        }
    }

    /// Returns true if the server has a key of the lock's holder or of a waiter.
    #[must_use]
    pub fn has_key(&self, name: &str) -> bool {
        !self.keys_of(name).is_empty()
    }

    /// The number of keys of holders and waiters of all locks.
    #[must_use]
    pub fn held(&self) -> usize {
        match self {
            Self::Redis(redis) => redis.keys().iter().filter(|key| !key.contains("lock-proto:")).count(),
            Self::Etcd(etcd) => etcd.keys().len(),
            Self::ZooKeeper(chroot) => chroot.ephemerals().len(),
        }
    }

    /// Deletes the keys of a lock.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn delete_key(&self, name: &str) {
        let keys = self.keys_of(name);
        assert!(!keys.is_empty(), "{name} has no key");
        for key in keys {
            match self {
                Self::Redis(redis) => assert_eq!(redis.cli(&["DEL", &key]), "1"),
                Self::Etcd(etcd) => assert!(etcd.delete(&key)),
                Self::ZooKeeper(chroot) => assert!(chroot.delete(name, &key)),
            }
        }
    }

    /// Ends the only session, on the server.
    ///
    /// # Panics
    ///
    /// On Redis, and if there is another number of sessions.
    pub fn end_session(&self) {
        match self {
            Self::Redis(_) => panic!("Redis has no sessions"),
            Self::Etcd(etcd) => {
                let leases = etcd.leases();
                let [lease] = &leases[..] else { panic!("{leases:?}") };
                etcd.revoke(lease);
            }
            Self::ZooKeeper(chroot) => {
                let nodes = chroot.ephemerals();
                let [node] = &nodes[..] else { panic!("{nodes:?}") };
                let stat = chroot.server().stat(&format!("{}{node}", chroot.path())).expect("it exists");
                chroot.server().expire(stat.ephemeral_owner);
            }
        }
    }

    /// Stops the server with SIGSTOP: it keeps its connections but does not reply.
    pub fn pause(&self) {
        match self {
            Self::Redis(redis) => redis.pause(),
            Self::Etcd(etcd) => etcd.pause(),
            Self::ZooKeeper(chroot) => chroot.server().pause(),
        }
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        match self {
            Self::Redis(redis) => redis.resume(),
            Self::Etcd(etcd) => etcd.resume(),
            Self::ZooKeeper(chroot) => chroot.server().resume(),
        }
    }

    /// Returns true if no lock has left anything behind. Redis keeps its fence counter, and
    /// ZooKeeper empty containers for a while.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.keys().iter().all(|key| key == "lock-proto:fence"),
            Self::Etcd(etcd) => etcd.keys().is_empty() && etcd.leases().is_empty(),
            Self::ZooKeeper(chroot) => chroot.ephemerals().is_empty(),
        }
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        match self {
            Self::Redis(redis) => redis.kill(),
            Self::Etcd(etcd) => etcd.kill(),
            Self::ZooKeeper(chroot) => chroot.server_mut().kill(),
        }
    }

    /// Restarts the server. Kills it first if it runs.
    pub fn restart(&mut self) {
        match self {
            Self::Redis(redis) => redis.restart(),
            Self::Etcd(etcd) => etcd.restart(),
            Self::ZooKeeper(chroot) => chroot.server_mut().restart(),
        }
    }
}
