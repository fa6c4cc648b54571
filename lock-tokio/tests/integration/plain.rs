//! Locks of other libraries: `SET key value NX PX ttl`, and a script that compares and deletes
//! (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>).

use std::time::Instant;

use lock_testkit::{Connection, Redis, Value};

use crate::kit::ms;

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub(crate) struct Plain {
    connection: Connection,
    value: String,
}

impl Plain {
    pub(crate) fn new(redis: &Redis, value: &str) -> Self {
        Self { connection: redis.connect(), value: value.to_owned() }
    }

    pub(crate) fn try_take(&mut self, name: &str, ttl_ms: u64) -> bool {
        let answer = self.connection.command(&["SET", name, &self.value, "NX", "PX", &ttl_ms.to_string()]).unwrap();
        answer == Value::Text(b"OK".to_vec())
    }

    pub(crate) fn release(&mut self, name: &str) -> bool {
        self.connection.command(&["EVAL", COMPARE_AND_DELETE, "1", name, &self.value]).unwrap() == Value::Int(1)
    }
}

/// A client of several servers: RedLock as documented.
pub(crate) struct Redlock(Vec<Plain>);

impl Redlock {
    pub(crate) fn new(servers: &[Redis], value: &str) -> Self {
        Self(servers.iter().map(|redis| Plain::new(redis, value)).collect())
    }

    pub(crate) fn try_take(&mut self, name: &str, ttl_ms: u64) -> bool {
        let begun = Instant::now();
        let votes = self.0.iter_mut().map(|node| node.try_take(name, ttl_ms)).filter(|taken| *taken).count();
        let won = votes > self.0.len() / 2 && begun.elapsed() < ms(ttl_ms - ttl_ms / 100 - 2);
        if !won {
            self.release(name);
        }
        won
    }

    /// Releases the lock and returns the number of nodes that had it.
    pub(crate) fn release(&mut self, name: &str) -> usize {
        self.0.iter_mut().map(|node| node.release(name)).filter(|deleted| *deleted).count()
    }
}
