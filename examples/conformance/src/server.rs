//! The settings of clients of a [`Server`].

use lock_proto::driver::{Lock, Settings};
use lock_proto::{etcd, zookeeper};
use lock_testkit::Server;

pub(crate) trait ServerSettings {
    /// Settings with which a lock [`with_short_ttl`](Self::with_short_ttl) outlives its holder by
    /// [`ttl`](Server::ttl).
    fn settings(&self) -> Settings;

    fn with_short_ttl(&self, lock: Lock) -> Lock;
}

impl ServerSettings for Server {
    fn settings(&self) -> Settings {
        let url = self.url();
        match self {
            Self::Redis(_) => Settings::parse([url]).unwrap(),
            Self::Etcd(_) => etcd::Config::parse(&url).unwrap().session_ttl(self.ttl()).into(),
            Self::ZooKeeper(_) => zookeeper::Config::parse(&url).unwrap().session_ttl(self.ttl()).into(),
        }
    }

    fn with_short_ttl(&self, lock: Lock) -> Lock {
        match self {
            Self::Redis(_) => lock.ttl(self.ttl()),
            // The session's TTL applies.
            Self::Etcd(_) | Self::ZooKeeper(_) => lock,
        }
    }
}
