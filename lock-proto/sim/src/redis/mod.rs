//! A Redis server as a state machine: RESP bytes in, RESP bytes out, no I/O.
//!
//! [`Node`] supports the commands that a lock client uses and some more, with the replies and error
//! texts of Redis 7.0. It does not run Lua: it recognises the scripts of
//! [`redis::script`](lock_proto::redis::script) by their text and executes the same steps in Rust. For
//! other scripts, register a Rust function ([`NodeConfig::script`]), or attach an interpreter
//! ([`NodeConfig::interpreter`]). `tests/node_model` compares it with a real server, command by
//! command: replies, messages, and the replication stream, to the byte.
//!
//! # What is modelled
//!
//! * Strings, lists and `BLPOP`, channels, expiry by the server's own wall clock.
//! * Users with permissions for commands, keys and channels.
//! * `INFO`, `ROLE`, `WAIT`, and the parts of `CLIENT` that clients need.
//! * Restarts with or without data ([`Node::restart`]), and a wall clock that drifts or is set.
//! * Asynchronous replication and promotion: [`Node::snapshot`], [`Node::replicate`],
//!   [`Node::poll_effect`], [`Node::handle_effect`], [`Node::promote`]. The caller may deliver
//!   effects late, or not at all.
//! * A memory limit: [`NodeConfig::max_memory`], with an [`Eviction`] policy that may evict a lock.
//!   Sizes are approximate.
//! * States in which commands are rejected: see [`Condition`], [`NodeConfig::min_replicas`] and
//!   [`NodeConfig::serve_stale_data`].
//!
//! # What is not modelled
//!
//! * Other types than strings and lists.
//! * `MONITOR`, `CONFIG`, `ACL`, `REPLICAOF`, `CLIENT LIST`,
//!   `CLIENT PAUSE`, client-side caching, and `SUBSCRIBE` for shards.
//! * Sentinel, and all but one node of a cluster (see [`NodeConfig::cluster`]).
//! * Persistence other than [`Node::restart`], and partial resynchronisation: a replica with a gap
//!   always needs a full copy.
//! * The duration of scripts, so there is no `BUSY`.

mod command;
mod config;
mod connection;
mod direct;
pub(super) mod effect;
mod glob;
pub(super) mod input;
mod keyspace;
mod lists;
mod memory;
mod number;
mod own_script;
mod pubsub;
mod replication;
mod reply;
mod script;
mod server;
pub(crate) mod sha1;
mod slot;
mod store;
mod strings;
mod transaction;
mod users;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::clock::Clock;
use command::{CommandContext, Propagate};
use connection::RedisPeer;
use input::{InputLimits, ParsedInput};
use lock_proto::Instant;
use replication::Replication;
use script::KnownScript;
use store::Db;

#[cfg(test)]
pub(super) use script::FIXED_BLOCKS;

pub use config::{NodeConfig, ServedSlots};
pub use effect::{Effect, Snapshot};
pub use memory::Eviction;
pub use own_script::{Interpreter, ScriptCalls, ScriptFn};
pub use reply::RespReply;
pub use users::User;

/// How long a command occupies the server.
const COMMAND_TAKES: Duration = Duration::from_micros(1);
/// Limit on the keys that count towards the duration of a script.
const MOST_KEYS: u32 = 64;
/// The interval in ms at which an idle server ends waits that are over: the default `hz` is 10. A
/// busy server ends them after each request.
const CRON: u64 = 100;

/// A state in which a server rejects commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// Memory is exhausted and nothing may be evicted: `OOM`, regardless of the size of the data.
    /// See [`NodeConfig::max_memory`] for a real limit.
    OutOfMemory,
    /// A replica: `READONLY`. The same as [`Node::demote`] and [`Node::promote`].
    ReadOnly,
    /// The last snapshot failed: `MISCONF`.
    DiskError,
    /// The server is still loading its data: `LOADING`.
    Loading,
}

/// A command from a client, as `MONITOR` would show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExecutedCommand {
    /// The connection on which it arrived.
    pub conn: u64,
    /// The command and its arguments.
    pub args: Vec<Vec<u8>>,
}

/// Fencing tokens that a script minted for one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MintedBlock {
    pub(crate) key: Vec<u8>,
    /// The value for which the lock was taken or extended.
    pub(crate) token: Vec<u8>,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// A simulated Redis server.
///
/// Feed it events (`handle_*`). Then send the [`outgoing`](Self::outgoing) bytes of every
/// connection to its client, close the connections that [`poll_closed`](Self::poll_closed) returns,
/// and call [`handle_timeout`](Self::handle_timeout) at [`next_deadline`](Self::next_deadline). The
/// caller numbers the connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    config: NodeConfig,
    now: Instant,
    wall: Clock,
    /// The wall clock's reading at the start, in ns. Earlier than the initial reading if the
    /// configured uptime is not zero.
    started: i128,
    run_id: String,
    restarts: u64,
    conditions: BTreeSet<Condition>,
    dbs: BTreeMap<u32, Db>,
    scripts: BTreeSet<KnownScript>,
    /// Cached scripts that are not this library's: the text by SHA1.
    own_scripts: BTreeMap<Box<str>, Arc<[u8]>>,
    connections: BTreeMap<u64, RedisPeer>,
    last_id: i64,
    /// Connections blocked on a key of a database, in FIFO order.
    waiting: BTreeMap<(u32, Vec<u8>), VecDeque<u64>>,
    /// Keys with blocked connections that may have received an element.
    ready: VecDeque<(u32, Vec<u8>)>,
    /// Connections that were unblocked and may have unread requests.
    unblocked: VecDeque<u64>,
    /// Timeouts of blocked connections: Unix time in ms, and the connection.
    timeouts: BTreeSet<(u64, u64)>,
    closed: VecDeque<u64>,
    /// Calls by index in the command table.
    calls: [u64; command::COUNT],
    evictions: u64,
    replication: Replication,
    seen: VecDeque<ExecutedCommand>,
    /// Fencing tokens for which nobody has asked yet, if they are recorded.
    minted: VecDeque<MintedBlock>,
    /// Some connection has used `WATCH`.
    watching: bool,
}

impl Node {
    /// Creates a server without data.
    #[must_use]
    pub fn new(now: Instant, config: NodeConfig) -> Self {
        let wall = Clock::new(now, config.unix_time, config.drift_ppm);
        let started = i128::from(config.unix_time) - i128::from(lock_proto::time::nanos(config.uptime));
        Self {
            now,
            wall,
            started,
            run_id: config.run_id.clone(),
            restarts: 0,
            conditions: BTreeSet::new(),
            dbs: BTreeMap::new(),
            scripts: BTreeSet::new(),
            own_scripts: BTreeMap::new(),
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
            minted: VecDeque::new(),
            watching: false,
            config,
        }
    }

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
        self.connections.insert(conn, RedisPeer::new(self.last_id, user));
    }

    /// Bytes have arrived on `conn`. They are dropped if it is not open.
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
        self.time_out();
    }

    /// The client has disconnected. Its requests have been executed, unless it was blocked.
    pub fn handle_disconnected(&mut self, now: Instant, conn: u64) {
        self.advance(now);
        self.stop_waiting(conn);
        self.connections.remove(&conn);
    }

    /// Times out blocked clients. A primary with replicas also removes expired keys.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        let wall = self.wall_ms();
        self.time_out();
        while let Some(conn) = self.ended_login() {
            self.close(conn);
        }
        if self.next_collection().is_some_and(|soonest| wall > soonest) {
            self.collect_expired(wall);
        }
    }

    /// Returns the bytes to send to the client of `conn`. Empty if there is no such connection.
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

    /// Returns a connection that the server closes. Send the rest of its output, close it, and call
    /// [`handle_disconnected`](Self::handle_disconnected).
    pub fn poll_closed(&mut self) -> Option<u64> {
        self.closed.pop_front()
    }

    /// Returns the next command from a client, if the configuration enables this. Commands called
    /// by scripts are not included.
    pub fn poll_executed(&mut self) -> Option<ExecutedCommand> {
        self.seen.pop_front()
    }

    /// Returns the time of the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let timeout = self.timeouts.first().map(|(until, _)| (until / CRON + 1).saturating_mul(CRON));
        let collection = self.next_collection().map(|until| until.saturating_add(1));
        let until = timeout.into_iter().chain(collection).min();
        let until = until.map(|until| self.wall.when(until.saturating_mul(1_000_000)));
        until.into_iter().chain(self.next_login_end()).min().map(|at| at.max(self.now))
    }

    /// Restarts the server: closes every connection, drops all scripts, and resets run id and
    /// uptime. Data is kept, as after a clean shutdown with a snapshot, or lost.
    pub fn restart(&mut self, now: Instant, keep_data: bool) {
        self.advance(now);
        self.restarts += 1;
        self.run_id = sha1::hex(format!("{} {}", self.config.run_id, self.restarts).as_bytes());
        self.started = i128::from(self.wall.read(now));
        self.flush_scripts();
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

    /// Makes later run ids differ from those of the server that this copy takes over from.
    pub(crate) fn succeed(&mut self, dead: &Self) {
        self.restarts = self.restarts.max(dead.restarts);
    }

    /// Logs every connection out, as a proxy whose credentials have changed. Users without a
    /// password are logged in only on new connections.
    pub fn log_out(&mut self, now: Instant) {
        self.advance(now);
        self.connections.values_mut().for_each(|connection| connection.user = None);
    }

    /// Adds or replaces a user, as `ACL SETUSER` does. Existing logins stay valid.
    pub fn set_user(&mut self, now: Instant, user: User) {
        self.advance(now);
        self.config.users.insert(user.name.clone(), user);
    }

    /// Adds or removes a password of a user, as `ACL SETUSER` does. Existing logins stay valid.
    pub fn set_password(&mut self, now: Instant, user: &str, password: &str, on: bool) {
        self.advance(now);
        if let Some(user) = self.config.users.get_mut(user) {
            user.set_password(password, on);
        }
    }

    /// Changes [`NodeConfig::login_limit`]. Earlier logins keep theirs unless there is none now.
    pub fn set_login_limit(&mut self, now: Instant, limit: Option<Duration>) {
        self.advance(now);
        self.config.login_limit = limit;
    }

    /// The reported uptime in seconds, as Redis computes it: from two times that are rounded down.
    fn uptime(&self, now: Instant) -> i128 {
        let second = |nanos: i128| nanos.div_euclid(1_000_000_000);
        (second(self.wall.read(now).into()) - second(self.started)).max(0)
    }

    /// Sets the reported uptime, as for a replica that was running before it took over.
    pub fn set_uptime(&mut self, now: Instant, uptime: Duration) {
        self.advance(now);
        self.started = i128::from(self.wall.read(now)) - i128::from(lock_proto::time::nanos(uptime));
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

    /// Sets the wall clock forward. Expiry follows it, as in Redis.
    pub fn jump_forward(&mut self, now: Instant, by: Duration) {
        self.advance(now);
        self.wall.jump_forward(now, by);
    }

    /// Sets the wall clock back.
    pub fn jump_back(&mut self, now: Instant, by: Duration) {
        self.advance(now);
        self.wall.jump_back(now, by);
    }

    /// Returns the next block of fencing tokens that was minted. Recorded only with
    /// [`NodeConfig::record_mints`].
    pub(crate) fn poll_minted(&mut self) -> Option<MintedBlock> {
        self.minted.pop_front()
    }

    /// Returns when the next connection is closed because its login is too old.
    fn next_login_end(&self) -> Option<Instant> {
        self.config.login_limit?;
        self.connections.values().filter(|connection| !connection.closing).filter_map(|each| each.login_until).min()
    }

    fn ended_login(&self) -> Option<u64> {
        self.config.login_limit?;
        let ended = |each: &RedisPeer| !each.closing && each.login_until.is_some_and(|until| until <= self.now);
        self.connections.iter().find(|(_, connection)| ended(connection)).map(|(conn, _)| *conn)
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn wall_ms_at(&self, now: Instant) -> u64 {
        self.wall.read(now.max(self.now)) / 1_000_000
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms_at(self.now)
    }

    fn read(&mut self, conn: u64) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        // Taking the input is safe: a command never adds to the input of another connection.
        let mut input = core::mem::take(&mut connection.input);
        let mut used = 0;
        self.execute_all(conn, &input, &mut used);
        if let Some(connection) = self.connections.get_mut(&conn).filter(|connection| !connection.closing) {
            input.drain(..used);
            connection.input = input;
        }
    }

    /// Executes requests until `conn` blocks, closes or has no complete one. `used` counts bytes.
    fn execute_all(&mut self, conn: u64, input: &[u8], used: &mut usize) {
        let mut args: Vec<&[u8]> = Vec::with_capacity(12);
        while *used < input.len() {
            let Some(connection) = self.connections.get(&conn) else { return };
            if connection.closing || connection.blocked.is_some() {
                return;
            }
            let limits = InputLimits { max_bulk: self.config.max_bulk, authenticated: connection.user.is_some() };
            args.clear();
            match input::parse(&input[*used..], limits, &mut args) {
                ParsedInput::Incomplete => return,
                ParsedInput::Request { len } => {
                    *used += len;
                    self.execute(conn, &args);
                }
                ParsedInput::Inline { len, words } => {
                    *used += len;
                    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                    self.execute(conn, &words);
                }
                ParsedInput::Broken(text) => {
                    self.answer(conn, &RespReply::Error(text));
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
            self.seen.push_back(ExecutedCommand { conn, args: args.iter().map(|arg| arg.to_vec()).collect() });
        }
        let view = self.view();
        let full = !self.make_room(view.now);
        let Some(connection) = self.connections.get(&conn) else { return };
        let (db, user) = (connection.db, connection.user.clone());
        let mut context = CommandContext {
            conn,
            db,
            user,
            script: None,
            in_transaction: false,
            view,
            full,
            propagate: Propagate::IfChanged,
        };
        let reply = self.run(&mut context, args);
        self.end_effect();
        self.note_changes();
        self.spend_time(args);
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.written = self.replication.offset();
        }
        self.answer(conn, &reply);
        self.serve_waiting();
    }

    /// Each command, and each key of a script, takes time, so that no two see the same clock.
    // A9
    fn spend_time(&mut self, args: &[&[u8]]) {
        let keys = match args {
            [verb, _, keys, ..] if verb.starts_with(b"EVAL") => {
                number::integer(keys).and_then(|keys| u32::try_from(keys).ok())
            }
            _ => None,
        };
        self.now = self.now + COMMAND_TAKES * keys.unwrap_or(1).clamp(1, MOST_KEYS);
    }

    fn answer(&mut self, conn: u64, reply: &RespReply) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        reply.encode(connection.protocol, &mut connection.output);
        if connection.output.len() > self.config.max_output {
            self.close(conn);
        }
    }

    fn resume_unblocked(&mut self) {
        while let Some(conn) = self.unblocked.pop_front() {
            self.read(conn);
        }
    }

    /// Closes immediately: nothing more is read or sent.
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

    /// Stops reading, and closes after the output has been sent.
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
