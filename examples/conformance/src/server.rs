//! The settings of clients of a [`Server`].

use core::time::Duration;

use lock_driver::{Lock, Settings};
use lock_proto::{etcd, zookeeper};
use lock_testkit::Server;

pub(crate) trait ServerSettings {
    /// Settings with which a lock [`with_short_ttl`](Self::with_short_ttl) outlives its holder by
    /// [`ttl`](Server::ttl).
    fn settings(&self) -> Settings;

    /// Settings with this TTL of the shared session, which Redis does not have.
    fn settings_with(&self, session_ttl: Duration) -> Settings;

    fn with_short_ttl(&self, lock: Lock) -> Lock;
}

impl ServerSettings for Server {
    fn settings(&self) -> Settings {
        self.settings_with(self.ttl())
    }

    fn settings_with(&self, session_ttl: Duration) -> Settings {
        let url = self.url();
        match self {
            Self::Redis(_) => Settings::parse([url]).unwrap(),
            Self::Etcd(_) => etcd::Config::parse(&url).unwrap().session_ttl(session_ttl).into(),
            Self::ZooKeeper(_) => zookeeper::Config::parse(&url).unwrap().session_ttl(session_ttl).into(),
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
