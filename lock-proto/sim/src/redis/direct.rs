//! Inspecting database 0, and changing it as another client would.

use alloc::vec::Vec;
use core::hash::{Hash as _, Hasher};
use core::time::Duration;

use super::Node;
use super::effect::encode;
use super::store::{Expired, RedisValue, View};
use lock_proto::Instant;

/// An uptime in seconds that counts as long.
const MOST_UPTIME: i128 = 3_600;

impl Node {
    /// Returns the string under `key`, or `None` if there is no string.
    #[must_use]
    pub fn get(&self, now: Instant, key: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.string(now, key.as_ref()).map(|(text, _)| text)
    }

    /// Returns the string under `key`, and its expiry as Unix time in ms.
    pub(crate) fn string(&self, now: Instant, key: &[u8]) -> Option<(&[u8], Option<u64>)> {
        let entry = self.dbs.get(&0)?.peek(self.wall_ms_at(now), key)?;
        match &entry.value {
            RedisValue::String(text) => Some((text, entry.expires())),
            RedisValue::List(_) => None,
        }
    }

    /// Returns true if the key exists.
    #[must_use]
    pub fn exists(&self, now: Instant, key: impl AsRef<[u8]>) -> bool {
        self.dbs.get(&0).is_some_and(|db| db.peek(self.wall_ms_at(now), key.as_ref()).is_some())
    }

    /// Returns the remaining TTL of `key` by the server's clock, if it has an expiry.
    #[must_use]
    pub fn pttl(&self, now: Instant, key: impl AsRef<[u8]>) -> Option<Duration> {
        let wall = self.wall_ms_at(now);
        let expires = self.dbs.get(&0)?.peek(wall, key.as_ref())?.expires()?;
        Some(Duration::from_millis(expires.saturating_sub(wall)))
    }

    /// Returns the Unix time in ms at which `key` expires, if it has an expiry.
    #[must_use]
    pub fn expires_at(&self, now: Instant, key: impl AsRef<[u8]>) -> Option<u64> {
        self.dbs.get(&0)?.peek(self.wall_ms_at(now), key.as_ref())?.expires()
    }

    /// Returns when the wall clock will show `unix_ms`, unless it is set.
    pub(crate) fn when(&self, unix_ms: u64) -> Instant {
        self.wall.when(unix_ms.saturating_mul(1_000_000))
    }

    /// Returns the server's wall clock in µs since the Unix epoch.
    pub(crate) fn unix_micros(&self, now: Instant) -> u64 {
        self.wall.read(now.max(self.now)) / 1_000
    }

    /// Returns every key, in order.
    #[must_use]
    pub fn keys(&self, now: Instant) -> Vec<Vec<u8>> {
        let wall = self.wall_ms_at(now);
        self.dbs.get(&0).into_iter().flat_map(|db| db.iter(wall)).map(|(key, _)| key.to_vec()).collect()
    }

    /// Writes a string, as another client with full permissions would.
    pub fn insert(&mut self, now: Instant, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Option<Duration>) {
        self.advance(now);
        let (key, value, view) = (key.as_ref(), value.as_ref(), self.own_view());
        let expires = ttl.map(|ttl| view.now.saturating_add(lock_proto::time::millis_up(ttl)));
        let db = self.dbs.entry(0).or_default();
        db.set(view, key, value, expires);
        db.dirty = false;
        match expires {
            None => self.replicate_command(0, &[b"SET", key, value]),
            Some(at) => {
                self.replicate_command(0, &[b"SET", key, value, b"PXAT", itoa::Buffer::new().format(at).as_bytes()]);
            }
        }
        self.end_effect();
    }

    /// Executes a command on a temporary connection without login, and returns the reply.
    pub fn command(&mut self, now: Instant, args: &[&[u8]]) -> Vec<u8> {
        const CONN: u64 = u64::MAX;
        let mut bytes = Vec::new();
        encode(&mut bytes, args);
        self.handle_connected(now, CONN);
        self.handle_received(now, CONN, &bytes);
        let answer = self.outgoing(CONN).to_vec();
        self.handle_disconnected(now, CONN);
        answer
    }

    /// Deletes a key, and returns whether it existed.
    pub fn remove(&mut self, now: Instant, key: impl AsRef<[u8]>) -> bool {
        self.advance(now);
        let (key, view) = (key.as_ref(), self.view());
        let seen = self.dbs.entry(0).or_default().get(view, key).is_some();
        self.propagate_removed();
        let own = self.own_view();
        let db = self.dbs.entry(0).or_default();
        if db.remove(own, key) {
            db.dirty = false;
            self.replicate_command(0, &[b"DEL", key]);
            self.end_effect();
        }
        seen
    }

    /// Drops every script, as `SCRIPT FLUSH` does.
    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
        self.own_scripts.clear();
    }

    /// Returns the run id, which is new after each start.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.values().filter(|connection| !connection.closing).count()
    }

    /// Returns the number of blocked clients.
    #[must_use]
    pub fn blocked_count(&self) -> usize {
        self.connections.values().filter(|connection| connection.blocked.is_some()).count()
    }

    /// Returns true if the client of this connection is blocked.
    #[must_use]
    pub fn is_blocked(&self, conn: u64) -> bool {
        self.connections.get(&conn).is_some_and(|connection| connection.blocked.is_some())
    }

    /// Hashes what a later command can see, apart from clocks and counters: for a search.
    pub(crate) fn hash_data(&self, now: Instant, state: &mut impl Hasher) {
        let wall = self.wall_ms_at(now);
        for (number, db) in &self.dbs {
            for (key, entry) in db.iter(wall) {
                (number, key, &entry.value, entry.expires().map(|at| at.saturating_sub(wall))).hash(state);
            }
        }
        for (conn, connection) in &self.connections {
            (conn, connection.db, &connection.input, &connection.output, &connection.transaction).hash(state);
            (connection.watched.state(), &connection.channels, &connection.patterns).hash(state);
            (connection.blocked.is_some(), connection.closing).hash(state);
        }
        (&self.scripts, &self.own_scripts, &self.waiting).hash(state);
        self.uptime(now.max(self.now)).min(MOST_UPTIME).hash(state);
    }

    /// Returns when the next key expires.
    pub(crate) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        let wall = self.wall_ms_at(now);
        let ends = self.dbs.values().flat_map(|db| db.iter(wall)).filter_map(|(_, entry)| entry.expires());
        ends.min().map(|at| self.wall.when(at.saturating_add(1).saturating_mul(1_000_000)))
    }

    /// The view of a direct change, which sees expired keys too.
    fn own_view(&self) -> View {
        View { now: self.wall_ms(), expired: Expired::Alive }
    }
}
