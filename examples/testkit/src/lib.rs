//! Real servers for tests: on free loopback ports, in temporary directories, stopped when dropped; and a [`Stopwatch`] that allows for
//! a busy machine.
//!
//! ```no_run
//! use lock_testkit::Redis;
//!
//! let mut redis = Redis::start();
//! redis.cli(&["SET", "greeting", "hello"]);
//! redis.kill();
//! redis.restart();
//! assert_eq!(redis.keys(), Vec::<String>::new(), "it keeps nothing unless told to");
//! ```
//!
//! Everything here panics with a clear message when it cannot do its work: a server that is missing or does not start is a failed
//! test, never a skipped one. A server dies with the test, also when the test panics, and on Linux also when the test's
//! process is killed.

mod dead;
mod etcd;
mod http;
mod monitor;
mod process;
mod redis;
mod resp;
mod spawn;
mod stopwatch;

use std::time::{Duration, Instant};

pub use dead::DeadAddress;
pub use etcd::{Etcd, EtcdBuilder, EtcdCluster};
pub use http::get as http_get;
pub use monitor::{Monitor, Seen};
pub use redis::{Redis, RedisBuilder};
pub use resp::{Connection, Value};
pub use stopwatch::Stopwatch;

/// How long a server may take to start, or to do anything else that takes milliseconds on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until `condition` holds, looking every few milliseconds; `false` if it does not within `limit`.
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
