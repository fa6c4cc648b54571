//! Real servers for tests, on free loopback ports and in temporary directories, stopped on drop.
//! Plus a [`Stopwatch`] that tolerates a busy machine.
//!
//! ```no_run
//! use lock_testkit::Redis;
//!
//! let mut redis = Redis::start();
//! redis.cli(&["SET", "greeting", "hello"]);
//! redis.kill();
//! redis.restart();
//! assert_eq!(redis.keys(), Vec::<String>::new(), "nothing is stored yet");
//! ```
//!
//! Everything here panics with a clear message when it cannot do its work. A server that is missing
//! or does not start fails the test and never skips it. Servers stop with the test, also if it
//! panics, and on Linux also if its process is killed.
//!
//! Programs are found in the path. An environment variable names another one, for example to test
//! another version: `REDIS_SERVER`, `ETCD`, `ETCDCTL`, `HAPROXY`, `JAVA`. `ZOOKEEPER_CLASSPATH`
//! names the jar files of another ZooKeeper.

mod authority;
mod dead_address;
mod etcd;
mod folder;
mod grpc_proxy;
mod haproxy;
mod http;
mod monitor;
mod process;
mod proxy;
mod redis;
mod resp;
mod server;
#[cfg(target_os = "linux")]
mod sigpipe;
mod spawn;
mod stopwatch;
mod witness;
mod zookeeper;

use std::time::{Duration, Instant};

pub use authority::{Authority, Pair, ServerTls, Validity};
pub use dead_address::DeadAddress;
pub use etcd::{Etcd, EtcdBuilder, EtcdCluster};
pub use folder::{in_memory, temporary};
pub use grpc_proxy::GrpcProxy;
pub use haproxy::Haproxy;
pub use http::get as http_get;
pub use monitor::{Monitor, MonitoredCommand};
pub use process::{Process, free_port, launch_again, program_of, tail, wait_until_ready};
pub use proxy::{Proxy, Tamper};
pub use redis::{Redis, RedisBuilder};
pub use resp::{Connection, Value};
pub use server::Server;
#[cfg(target_os = "linux")]
pub use sigpipe::sigpipe_was_ignored;
pub use spawn::spawn;
pub use stopwatch::Stopwatch;
pub use witness::{Turn, Witness};
pub use zookeeper::{
    Chroot, Mode, Session, Stat, ZkError, ZooKeeper, ZooKeeperBuilder, ZooKeeperEnsemble, ZooKeeperPeer,
};

/// Time limit for a server to start, or for anything else that takes milliseconds on an idle
/// machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Polls `condition` every few milliseconds until it holds. Returns false if it does not within
/// `limit`.
#[must_use = "a condition that never came true must fail the test"]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}
