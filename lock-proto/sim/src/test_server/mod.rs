//! Simulated servers on loopback ports, in the process of a test.

#[cfg(feature = "etcd-server")]
mod etcd;
mod redis;
mod scripts;
mod sockets;
mod zookeeper;

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use super::redis::NodeConfig;
use super::zookeeper::{Ensemble, EnsembleConfig};
use sockets::Served;

#[cfg(feature = "etcd-server")]
pub use etcd::EtcdServer;
pub use redis::RedisServer;
pub use scripts::CommonScripts;

/// How long a new Redis server has been running, so that a quorum counts it.
const UPTIME: Duration = Duration::from_secs(60 * 60);
/// Tick of a ZooKeeper server, and so the precision with which sessions expire.
const TICK: Duration = Duration::from_millis(50);
/// The longest session that a ZooKeeper server grants.
const MAX_SESSION: Duration = Duration::from_secs(60 * 60);

/// A simulated server on a loopback port, for tests of programs that use locks. It runs on threads
/// of this process, and needs nothing installed and no async runtime. Dropping it stops it.
///
/// It forgets nothing by itself, and serves any client that [`url`](Self::url) is given to. A test
/// takes locks away and stops the server, and sees what the program does.
///
/// ```
/// use lock_sim::TestServer;
///
/// let server = TestServer::redis();
/// let url = server.url(); // give it to the program under test
/// assert!(url.starts_with("redis://127.0.0.1:"));
///
/// server.pause(); // as by SIGSTOP: no more replies
/// server.resume();
/// server.kill(); // connections end, and new ones are refused
/// server.restart(); // with its data
/// ```
///
/// # Panics
///
/// The constructors and [`restart`](Self::restart) panic if the port cannot be opened or a thread
/// cannot be started.
pub struct TestServer {
    url: String,
    server: Server,
}

enum Server {
    Redis(RedisServer),
    #[cfg(feature = "etcd-server")]
    Etcd(EtcdServer),
    Zookeeper(Served<Ensemble>),
}

impl TestServer {
    /// Starts a Redis server. Several of them make a quorum.
    ///
    /// It answers as Redis 7.0 does, and knows the commands that locks use.
    #[must_use]
    pub fn redis() -> Self {
        let config = NodeConfig::new(next_id()).uptime(UPTIME).interpreter(Arc::new(CommonScripts));
        let server = started("Redis", RedisServer::start(config));
        Self { url: server.url(), server: Server::Redis(server) }
    }

    /// Starts an etcd server: a cluster of one member. It grants TTLs from 1 s.
    ///
    /// It answers as etcd 3.4 does, and serves what locks and elections use.
    #[cfg(feature = "etcd-server")]
    #[must_use]
    pub fn etcd() -> Self {
        let config = super::etcd::ClusterConfig::new(1, next_id()).min_ttl(1);
        let server = started("etcd", EtcdServer::start(1, config));
        Self { url: server.url(), server: Server::Etcd(server) }
    }

    /// Starts a ZooKeeper server: an ensemble of one member.
    ///
    /// Its tick is 50 ms. For TTLs shorter than 15 s, tell the client of a short tick: append
    /// `?tick_ms=200` to the [`url`](Self::url), and a TTL may be as short as five of these.
    #[must_use]
    pub fn zookeeper() -> Self {
        let config = EnsembleConfig::new(1, next_id()).tick(TICK).session_timeouts(0, TICK * 2..=MAX_SESSION);
        let server = started("ZooKeeper", zookeeper::start(config));
        Self { url: format!("zk://{}", server.address()), server: Server::Zookeeper(server) }
    }

    /// Returns the URL to connect to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Takes the lock or the leadership of this name away from its holder, as an administrator who
    /// deletes its key does. It is then free. `name` includes the prefix of the client's settings.
    ///
    /// On etcd and ZooKeeper the holder learns of it at once. On Redis it learns at its next
    /// renewal, after a third of the TTL: give the lock a short one, such as 300 ms.
    ///
    /// # Panics
    ///
    /// If nobody holds it. The message names the keys that exist.
    #[track_caller]
    pub fn lose(&self, name: impl AsRef<[u8]>) {
        let name = name.as_ref();
        let holder = self.holder(name);
        let removed = holder.as_ref().is_some_and(|key| self.remove(key));
        assert!(
            removed,
            "nobody holds `{}`; the server has these keys: {:?}",
            name.escape_ascii(),
            self.keys().iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>()
        );
    }

    /// Returns true if somebody holds the lock or the leadership of this name, which includes the
    /// prefix of the client's settings.
    #[must_use]
    pub fn is_held(&self, name: impl AsRef<[u8]>) -> bool {
        self.holder(name.as_ref()).is_some()
    }

    /// The key of the holder.
    fn holder(&self, name: &[u8]) -> Option<Vec<u8>> {
        match &self.server {
            Server::Redis(server) => server.with_node(|node, now| node.exists(now, name)).then(|| name.to_vec()),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => server.with_cluster(|cluster, _| {
                let keys = cluster.keys();
                let queue = keys.iter().filter(|kv| contends(&kv.key, name));
                queue.min_by_key(|kv| kv.create_revision).map(|kv| kv.key.to_vec())
            }),
            Server::Zookeeper(server) => server.with(|ensemble, _| {
                let name = [b"/", name.strip_prefix(b"/").unwrap_or(name)].concat();
                let nodes = ensemble.nodes();
                // Contenders are ephemeral nodes. Queues below this one are not.
                let ephemeral = nodes.iter().filter(|(_, stat)| stat.ephemeral_owner > 0);
                let queue = ephemeral.filter(|(path, _)| contends(path.as_bytes(), &name));
                queue.min_by_key(|(_, stat)| stat.czxid).map(|(path, _)| path.clone().into_bytes())
            }),
        }
    }

    fn remove(&self, key: &[u8]) -> bool {
        match &self.server {
            Server::Redis(server) => server.with_node(|node, now| node.remove(now, key)),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => server.with_cluster(|cluster, now| cluster.delete(now, key)),
            Server::Zookeeper(server) => {
                server.with(|ensemble, now| ensemble.delete(now, &String::from_utf8_lossy(key)));
                true
            }
        }
    }

    fn keys(&self) -> Vec<Vec<u8>> {
        match &self.server {
            Server::Redis(server) => server.with_node(|node, now| node.keys(now)),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => {
                server.with_cluster(|cluster, _| cluster.keys().iter().map(|kv| kv.key.to_vec()).collect())
            }
            Server::Zookeeper(server) => {
                server.with(|ensemble, _| ensemble.nodes().into_iter().map(|(path, _)| path.into_bytes()).collect())
            }
        }
    }

    /// Stops the server as `SIGSTOP` does: connections stay open, but the server does not reply.
    pub fn pause(&self) {
        match &self.server {
            Server::Redis(server) => server.pause(),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => server.pause(),
            Server::Zookeeper(server) => server.pause(),
        }
    }

    /// Ends [`pause`](Self::pause). The server handles what it has received meanwhile.
    pub fn resume(&self) {
        match &self.server {
            Server::Redis(server) => server.resume(),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => server.resume(),
            Server::Zookeeper(server) => server.resume(),
        }
    }

    /// Kills the server: connections end, and new ones are refused.
    pub fn kill(&self) {
        match &self.server {
            Server::Redis(server) => server.kill(),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => server.kill(0),
            Server::Zookeeper(server) => server.kill(),
        }
    }

    /// Starts the server again on the same port, with its data; kills it first if it is up.
    ///
    /// A quorum of Redis servers does not count a server that has restarted recently.
    pub fn restart(&self) {
        let restarted = match &self.server {
            Server::Redis(server) => server.restart(true),
            #[cfg(feature = "etcd-server")]
            Server::Etcd(server) => server.restart(0),
            Server::Zookeeper(server) => server.restart(true),
        };
        started("the", restarted);
    }
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Numbers the servers of a process: those of a quorum must differ.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[track_caller]
fn started<T>(what: &str, result: Result<T, impl fmt::Display>) -> T {
    result.unwrap_or_else(|error| panic!("{what} server cannot be started on a port of 127.0.0.1: {error}"))
}

/// Returns true if a key is in the queue of a lock: one level below its name.
fn contends(key: &[u8], name: &[u8]) -> bool {
    let below = key.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"/"));
    below.is_some_and(|child| !child.is_empty() && !child.contains(&b'/'))
}
