//! A Redis server as a machine: RESP bytes in, RESP bytes out, no I/O.
//!
//! [`Node`] knows the commands that a lock client uses and some more, with the replies and error texts of Redis 7.0. It runs no
//! Lua: the scripts of [`redis::script`](crate::redis::script) are recognised by their text and done by the same steps in
//! Rust; other scripts are refused. `tests/node_model` compares it with a real server, command by command: replies, messages, and
//! what a primary sends to its replicas, to the byte.
//!
//! # What is modelled
//!
//! * Strings, lists and `BLPOP`, expiry by the server's own wall clock, channels, users with their commands, keys and channels,
//!   `CLIENT` as far as clients need it, `INFO`, `ROLE`, `WAIT`.
//! * A restart with or without data ([`Node::restart`]), a wall clock that drifts and is set.
//! * Asynchronous replication and promotion: [`Node::snapshot`], [`Node::replicate`], [`Node::poll_effect`],
//!   [`Node::handle_effect`], [`Node::promote`]. Whoever drives the nodes brings effects late, or not at all.
//! * A limit on memory: [`NodeConfig::max_memory`], with an [`Eviction`] that may take a lock. Sizes are approximate.
//! * States in which commands are refused: see [`Condition`], [`NodeConfig::min_replicas`] and
//!   [`NodeConfig::serve_stale_data`].
//!
//! # What is not
//!
//! Other types than strings and lists; `MULTI` of a client, `WATCH`, `MONITOR`, `CONFIG`, `ACL` and `REPLICAOF` as commands; other
//! scripts; Sentinel; of a cluster anything but one node of it, see [`NodeConfig::cluster`]; `SUBSCRIBE` for shards, `CLIENT LIST`, `CLIENT PAUSE` and client-side caching; persistence but for
//! [`Node::restart`]. A replica that has missed something is synchronised as a whole, never by the backlog. A script takes no time, so
//! there is no `BUSY`.

mod command;
mod config;
mod connection;
mod effect;
mod glob;
pub(super) mod input;
mod keyspace;
mod lists;
mod memory;
mod number;
mod outside;
mod pubsub;
mod replication;
mod reply;
mod script;
mod server;
mod sha1;
mod slot;
mod store;
mod strings;
mod users;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::clock::Clock;
use crate::time::Instant;
use command::{Context, Tell};
use connection::Connection;
use input::{Limits, Parsed};
use replication::Replication;
use reply::Reply;
use script::Known;
use store::Db;

#[cfg(test)]
pub(super) use script::FIXED_BLOCKS;

pub use config::{NodeConfig, Slots};
pub use effect::{Effect, Snapshot};
pub use memory::Eviction;
pub use users::User;

/// How long a command keeps the server busy.
const COMMAND_TAKES: Duration = Duration::from_micros(1);
/// A script that names more keys keeps it busy no longer.
const MOST_KEYS: u32 = 64;

/// A state of a server in which it refuses commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// Memory is used up, and nothing may be evicted: `OOM`. Whatever the data takes; see [`NodeConfig::max_memory`] for a limit.
    OutOfMemory,
    /// A replica whose primary is away: `READONLY`. The same as [`Node::demote`] and [`Node::promote`].
    ReadOnly,
    /// The last snapshot failed: `MISCONF`.
    DiskError,
    /// Just started, and not ready yet: `LOADING`.
    Loading,
}

/// A command that a client sent, as `MONITOR` would show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The connection that it came on.
    pub conn: u64,
    /// The command and its arguments.
    pub args: Vec<Vec<u8>>,
}

/// A simulated Redis server.
///
/// Feed it facts (`handle_*`), then send [`outgoing`](Self::outgoing) of every connection to its client, close what
/// [`poll_closed`](Self::poll_closed) names, and call [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline).
/// Connections are numbered by the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    config: NodeConfig,
    now: Instant,
    wall: Clock,
    /// What the wall clock read at the start, in ns; behind the clock if the server started earlier.
    started: i128,
    run_id: String,
    restarts: u64,
    conditions: BTreeSet<Condition>,
    dbs: BTreeMap<u32, Db>,
    scripts: BTreeSet<Known>,
    connections: BTreeMap<u64, Connection>,
    last_id: i64,
    /// Who waits for a key of a database, in the order in which they came.
    waiting: BTreeMap<(u32, Vec<u8>), VecDeque<u64>>,
    /// Keys that somebody waits for and that may have got an element.
    ready: VecDeque<(u32, Vec<u8>)>,
    /// Connections that wait no longer and may have unread requests.
    unblocked: VecDeque<u64>,
    /// When waits end: Unix time in ms, and the connection.
    timeouts: BTreeSet<(u64, u64)>,
    closed: VecDeque<u64>,
    /// By the place of the command in the table.
    calls: [u64; command::COUNT],
    evictions: u64,
    replication: Replication,
    seen: VecDeque<Seen>,
}

impl Node {
    /// A server without data.
    #[must_use]
    pub fn new(now: Instant, config: NodeConfig) -> Self {
        let wall = Clock::new(now, config.unix_time, config.drift_ppm);
        let started = i128::from(config.unix_time) - i128::from(crate::time::nanos(config.uptime));
        Self {
            now,
            wall,
            started,
            run_id: config.run_id.clone(),
            restarts: 0,
            conditions: BTreeSet::new(),
            dbs: BTreeMap::new(),
            scripts: BTreeSet::new(),
            connections: BTreeMap::new(),
            last_id: 0,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            unblocked: VecDeque::new(),
            timeouts: BTreeSet::new(),
            closed: VecDeque::new(),
            calls: [0; command::COUNT],
            evictions: 0,
            replication: Replication::new(&config.run_id),
            seen: VecDeque::new(),
            config,
        }
    }

    // ---- facts ----

    /// A client has connected. `conn` must not be in use.
    pub fn handle_connected(&mut self, now: Instant, conn: u64) {
        self.advance(now);
        self.last_id += 1;
        let user = self
            .config
            .users
            .get("default")
            .filter(|user| !user.needs_password())
            .map(|user| user.name.as_str().into());
        self.connections.insert(conn, Connection::new(self.last_id, user));
    }

    /// Bytes have arrived on `conn`. Dropped if it is not open.
    pub fn handle_received(&mut self, now: Instant, conn: u64, bytes: &[u8]) {
        self.advance(now);
        let Some(connection) = self.connections.get_mut(&conn).filter(|connection| !connection.closing) else { return };
        if connection.input.len() + bytes.len() > self.config.max_input {
            self.close(conn);
            return;
        }
        if connection.input.is_empty() && connection.blocked.is_none() {
            let mut used = 0;
            self.execute_all(conn, bytes, &mut used);
            if let Some(connection) = self.connections.get_mut(&conn).filter(|connection| !connection.closing) {
                connection.input.extend_from_slice(&bytes[used..]);
            }
        } else {
            connection.input.extend_from_slice(bytes);
            self.read(conn);
        }
        self.settle();
    }

    /// The client has hung up. What it sent before has been executed; if it was blocked, it is forgotten.
    pub fn handle_disconnected(&mut self, now: Instant, conn: u64) {
        self.advance(now);
        self.stop_waiting(conn);
        self.connections.remove(&conn);
    }

    /// Lets the timeouts of blocked clients run out that are due. A primary with replicas removes the keys whose time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        let wall = self.wall_ms();
        while let Some((_, conn)) = self.timeouts.first().copied().filter(|(until, _)| wall > *until) {
            let blocked = self.connections.get(&conn).and_then(|connection| connection.blocked.as_ref());
            let Some(reply) = blocked.map(|blocked| self.waited_in_vain(blocked)) else { break };
            self.unblock(conn, &reply);
        }
        self.settle();
        if self.next_collection().is_some_and(|soonest| wall > soonest) {
            self.collect_expired(wall);
        }
    }

    // ---- drains ----

    /// What is to be sent to the client of `conn`. Empty if there is no such connection.
    #[must_use]
    pub fn outgoing(&self, conn: u64) -> &[u8] {
        self.connections.get(&conn).map_or(&[], |connection| &connection.output)
    }

    /// The first `n` bytes of [`outgoing`](Self::outgoing) have been sent.
    pub fn consume(&mut self, conn: u64, n: usize) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.output.drain(..n.min(connection.output.len()));
        }
    }

    /// A connection that the server closes: send what is left of its output, close it, and report
    /// [`handle_disconnected`](Self::handle_disconnected).
    pub fn poll_closed(&mut self) -> Option<u64> {
        self.closed.pop_front()
    }

    /// The next command that a client sent, if the configuration asks for it. What scripts call is not among them.
    pub fn poll_seen(&mut self) -> Option<Seen> {
        self.seen.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let timeout = self.timeouts.first().map(|(until, _)| *until);
        let until = timeout.into_iter().chain(self.next_collection()).min()?;
        Some(self.wall.when(until.saturating_add(1).saturating_mul(1_000_000)).max(self.now))
    }

    // ---- what happens to the server as a whole ----

    /// Stops and starts again: every connection is closed, scripts are forgotten, run id and uptime are new. Data stays as after
    /// a clean shutdown with a snapshot, or is gone.
    pub fn restart(&mut self, now: Instant, keep_data: bool) {
        self.advance(now);
        self.restarts += 1;
        self.run_id = sha1::hex(format!("{} {}", self.config.run_id, self.restarts).as_bytes());
        self.started = i128::from(self.wall.read(now));
        self.scripts.clear();
        self.last_id = 0;
        if !keep_data {
            self.dbs.clear();
        }
        let all: Vec<u64> = self.connections.keys().copied().collect();
        for conn in all {
            self.close(conn);
        }
        self.ready.clear();
        self.unblocked.clear();
        self.replication.restart(&self.run_id, keep_data);
    }

    /// Every connection has to log in again, as behind a proxy whose credentials have changed. Those of a user without a password are logged
    /// in again only by a new connection.
    pub fn log_out(&mut self, now: Instant) {
        self.advance(now);
        self.connections.values_mut().for_each(|connection| connection.user = None);
    }

    /// Adds a user, or replaces the one of this name, as `ACL SETUSER` does. Connections that are logged in stay so.
    pub fn set_user(&mut self, now: Instant, user: User) {
        self.advance(now);
        self.config.users.insert(user.name.clone(), user);
    }

    /// Reports from now on that it was started so long ago, as a replica does that was running before it took over.
    pub fn set_uptime(&mut self, now: Instant, uptime: Duration) {
        self.advance(now);
        self.started = i128::from(self.wall.read(now)) - i128::from(crate::time::nanos(uptime));
    }

    /// Enters or leaves a condition.
    pub fn set(&mut self, now: Instant, condition: Condition, on: bool) {
        match condition {
            Condition::ReadOnly if on => self.demote(now),
            Condition::ReadOnly => self.promote(now),
            Condition::OutOfMemory | Condition::DiskError | Condition::Loading => {
                self.advance(now);
                if on {
                    self.conditions.insert(condition)
                } else {
                    self.conditions.remove(&condition)
                };
            }
        }
    }

    /// The wall clock is set forward. Expiry is counted by it, as in Redis.
    pub fn jump_forward(&mut self, now: Instant, by: Duration) {
        self.advance(now);
        self.wall.jump_forward(now, by);
    }

    /// The wall clock is set back.
    pub fn jump_back(&mut self, now: Instant, by: Duration) {
        self.advance(now);
        self.wall.jump_back(now, by);
    }

    // ---- inside ----

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn wall_ms_at(&self, now: Instant) -> u64 {
        self.wall.read(now.max(self.now)) / 1_000_000
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms_at(self.now)
    }

    /// Executes the requests that `conn` has sent before.
    fn read(&mut self, conn: u64) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        // Nobody else writes here meanwhile: a command of one connection never adds to the input of another.
        let mut input = core::mem::take(&mut connection.input);
        let mut used = 0;
        self.execute_all(conn, &input, &mut used);
        if let Some(connection) = self.connections.get_mut(&conn).filter(|connection| !connection.closing) {
            input.drain(..used);
            connection.input = input;
        }
    }

    /// Executes requests until `conn` blocks, closes, or has sent no whole one, and counts the bytes in `used`.
    fn execute_all(&mut self, conn: u64, input: &[u8], used: &mut usize) {
        // Enough for what clients mostly ask.
        let mut args: Vec<&[u8]> = Vec::with_capacity(12);
        while *used < input.len() {
            let Some(connection) = self.connections.get(&conn) else { return };
            if connection.closing || connection.blocked.is_some() {
                return;
            }
            let limits = Limits { max_bulk: self.config.max_bulk, authenticated: connection.user.is_some() };
            args.clear();
            match input::parse(&input[*used..], limits, &mut args) {
                Parsed::Incomplete => return,
                Parsed::Request { len } => {
                    *used += len;
                    self.execute(conn, &args);
                }
                Parsed::Inline { len, words } => {
                    *used += len;
                    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    self.execute(conn, &words);
                }
                Parsed::Broken(text) => {
                    self.answer(conn, &Reply::Error(text));
                    self.close_after_output(conn);
                    return;
                }
            }
        }
    }

    fn execute(&mut self, conn: u64, args: &[&[u8]]) {
        if args.is_empty() {
            return;
        }
        if self.config.monitor {
            self.seen.push_back(Seen { conn, args: args.iter().map(|arg| arg.to_vec()).collect() });
        }
        let look = self.look();
        let full = !self.make_room(look.now);
        let Some(connection) = self.connections.get(&conn) else { return };
        let (db, user) = (connection.db, connection.user.clone());
        let mut context = Context { conn, db, user, script: None, look, full, tell: Tell::IfChanged };
        let reply = self.run(&mut context, args);
        self.end_unit();
        // No command is faster than this, and no script than this for each of its keys, so that no two see the same time (requirement A9).
        let keys = match args {
            [verb, _, keys, ..] if verb.starts_with(b"EVAL") => {
                number::integer(keys).and_then(|keys| u32::try_from(keys).ok())
            }
            _ => None,
        };
        self.now = self.now + COMMAND_TAKES * keys.unwrap_or(1).clamp(1, MOST_KEYS);
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.written = self.replication.offset();
        }
        self.answer(conn, &reply);
        self.serve_waiting();
    }

    fn answer(&mut self, conn: u64, reply: &Reply) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        reply.encode(connection.protocol, &mut connection.output);
        if connection.output.len() > self.config.max_output {
            self.close(conn);
        }
    }

    /// Lets those go on who were unblocked, until nobody can.
    fn settle(&mut self) {
        while let Some(conn) = self.unblocked.pop_front() {
            self.read(conn);
        }
    }

    /// Closes at once: nothing more is read or sent.
    fn close(&mut self, conn: u64) {
        self.stop_waiting(conn);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.input.clear();
        connection.output.clear();
        if !connection.closing {
            connection.closing = true;
            self.closed.push_back(conn);
        }
    }

    /// Reads nothing more, and closes when the output has been sent.
    fn close_after_output(&mut self, conn: u64) {
        self.stop_waiting(conn);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.input.clear();
        if !connection.closing {
            connection.closing = true;
            self.closed.push_back(conn);
        }
    }
}

#[cfg(test)]
mod tests;
