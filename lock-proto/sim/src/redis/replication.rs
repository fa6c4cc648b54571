//! Replication from a primary to replicas
//! (<https://redis.io/docs/latest/operate/oss_and_stack/management/replication/>).
//!
//! Replication is asynchronous: the primary replies first, and its [`Effect`]s reach a replica when
//! the caller delivers them. A promoted replica has lost everything that was not delivered,
//! including locks.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::command::{self, CommandContext};
use super::connection::{BlockCause, BlockedCommand};
use super::effect::{Effect, History, Snapshot, encode};
use super::number;
use super::reply::RespReply;
use super::store::{Db, Expired, View};
use super::strings::NOT_AN_INTEGER;
use super::{Node, sha1};
use lock_proto::Instant;

/// A replica that was silent for longer does not count for `min-replicas-to-write`
/// (`min-replicas-max-lag`).
const MAX_LAG: Duration = Duration::from_secs(10);

/// A server's replication role and position in the stream of writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Replication {
    role: ReplicationRole,
    history: History,
    /// The history before the last promotion, and its final offset.
    before: Option<(History, u64)>,
    histories: u64,
    offset: u64,
    /// A snapshot was requested, so writes are propagated.
    feeding: bool,
    /// The database selected in the stream.
    selected: Option<u32>,
    /// Changes of the current command or script.
    unit: Vec<(u32, Vec<u8>)>,
    effects: VecDeque<Effect>,
    replicas: BTreeMap<u64, Ack>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReplicationRole {
    Primary,
    Replica {
        /// The link to the primary is up.
        up: bool,
        /// An effect is missing; only a new copy helps.
        gap: bool,
        port: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ack {
    offset: u64,
    at: Instant,
}

impl Replication {
    pub(super) fn new(run_id: &str) -> Self {
        Self {
            role: ReplicationRole::Primary,
            history: new_history(run_id, 0),
            before: None,
            histories: 0,
            offset: 0,
            feeding: false,
            selected: None,
            unit: Vec::new(),
            effects: VecDeque::new(),
            replicas: BTreeMap::new(),
        }
    }

    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) const fn is_feeding(&self) -> bool {
        self.feeding
    }

    fn begin_history(&mut self, run_id: &str) {
        self.before = Some((self.history, self.offset + 1));
        self.histories += 1;
        self.history = new_history(run_id, self.histories);
        self.selected = None;
    }

    /// Restarts. The stream continues if the data was kept.
    pub(super) fn restart(&mut self, run_id: &str, keep_data: bool) {
        self.unit.clear();
        self.effects.clear();
        self.replicas.clear();
        self.feeding = false;
        match &mut self.role {
            ReplicationRole::Primary => self.begin_history(run_id),
            ReplicationRole::Replica { up, gap, .. } => (*up, *gap) = (false, *gap || !keep_data),
        }
        if !keep_data {
            (self.before, self.offset) = (None, 0);
        }
    }

    fn acknowledged(&self, offset: u64) -> i64 {
        i64::try_from(self.replicas.values().filter(|ack| ack.offset >= offset).count()).unwrap_or(i64::MAX)
    }
}

fn new_history(run_id: &str, number: u64) -> History {
    History::new(&sha1::hex(format!("{run_id} history {number}").as_bytes()))
}

/// Replication. The caller delivers the effects of the primary to the replicas, late or never.
///
/// ```
/// use lock_proto::Instant;
/// use lock_sim::redis::{Node, NodeConfig};
///
/// let now = Instant::from_millis(1);
/// let mut primary = Node::new(now, NodeConfig::new(1));
/// let mut replica = Node::new(now, NodeConfig::new(2));
/// replica.replicate(now, &primary.snapshot(now));
///
/// primary.insert(now, "lock:a", "token 1", None);
/// let first = primary.poll_effect().unwrap();
/// primary.insert(now, "lock:b", "token 2", None);
/// replica.handle_effect(now, &first);
///
/// // The primary dies, and the second lock with it.
/// replica.promote(now);
/// assert!(replica.exists(now, "lock:a") && !replica.exists(now, "lock:b"));
/// ```
impl Node {
    /// Returns the next effect to deliver to every replica, in order. Effects are queued from the
    /// first [`snapshot`](Self::snapshot) on.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.replication.effects.pop_front()
    }

    /// Returns a copy from which a replica can start. It includes all effects so far, even queued
    /// ones; the replica ignores those.
    pub fn snapshot(&mut self, now: Instant) -> Snapshot {
        self.advance(now);
        self.replication.feeding = true;
        if !self.is_replica() {
            // As in Redis, so that the new replica sees a `SELECT` first.
            self.replication.selected = None;
        }
        Snapshot {
            history: self.replication.history,
            offset: self.replication.offset,
            selected: self.replication.selected,
            dbs: self.dbs.clone(),
            port: self.config.port,
        }
    }

    /// Becomes a replica without a copy: `REPLICAOF` a primary that does not reply. Keeps its data,
    /// rejects writes, and unblocks blocked clients with an error. Expired keys are hidden, not
    /// removed.
    pub fn demote(&mut self, now: Instant) {
        self.advance(now);
        if self.is_replica() {
            return;
        }
        self.replication.role = ReplicationRole::Replica { up: false, gap: false, port: 9 };
        self.replication.replicas.clear();
        self.unblock_all();
    }

    /// Becomes a replica of the server that made `copy`, or resynchronises with it: `REPLICAOF`.
    pub fn replicate(&mut self, now: Instant, copy: &Snapshot) {
        self.demote(now);
        self.replication.role = ReplicationRole::Replica { up: true, gap: false, port: copy.port };
        self.replication.history = copy.history;
        self.replication.offset = copy.offset;
        self.replication.selected = copy.selected;
        self.replication.before = None;
        self.replication.effects.clear();
        self.dbs.clone_from(&copy.dbs);
        // Sub-replicas have missed this.
        self.replication.replicas.clear();
    }

    /// Handles an effect from the primary. A replica applies it if it comes next and ignores old
    /// ones. After a gap, or an effect of another history, it applies nothing until it gets a new
    /// copy (see [`needs_copy`](Self::needs_copy)). A primary ignores all effects.
    pub fn handle_effect(&mut self, now: Instant, effect: &Effect) {
        self.advance(now);
        let ReplicationRole::Replica { up, gap, .. } = &mut self.replication.role else { return };
        let ours = effect.history == self.replication.history;
        if ours && effect.end() <= self.replication.offset {
            return;
        }
        if *gap || !ours || effect.offset != self.replication.offset {
            (*up, *gap) = (false, true);
            return;
        }
        *up = true;
        for args in effect.commands() {
            self.apply_command(&args);
        }
        self.replication.offset = effect.end();
        if self.replication.feeding {
            self.replication.effects.push_back(effect.clone());
        }
    }

    /// The connection to the primary is lost. The next effect restores it.
    pub fn handle_link_lost(&mut self, now: Instant) {
        self.advance(now);
        if let ReplicationRole::Replica { up, .. } = &mut self.replication.role {
            *up = false;
        }
    }

    /// A replica has reported its [`replication_offset`](Self::replication_offset). The caller
    /// chooses the number `replica`. `WAIT` and [`min_replicas`](super::NodeConfig::min_replicas)
    /// use the offset.
    pub fn handle_ack(&mut self, now: Instant, replica: u64, offset: u64) {
        self.advance(now);
        if self.is_replica() {
            return;
        }
        let ack = self.replication.replicas.entry(replica).or_insert(Ack { offset, at: now });
        *ack = Ack { offset: ack.offset.max(offset), at: self.now };
        let served: Vec<(u64, i64)> = self
            .connections
            .iter()
            .filter_map(|(conn, connection)| match connection.blocked.as_ref()?.cause {
                BlockCause::Acks { replicas, offset } => Some((*conn, replicas, self.replication.acknowledged(offset))),
                BlockCause::Keys { .. } => None,
            })
            .filter(|(_, replicas, count)| count >= replicas)
            .map(|(conn, _, count)| (conn, count))
            .collect();
        for (conn, count) in served {
            self.unblock(conn, &RespReply::Int(count));
        }
        self.resume_unblocked();
    }

    /// A replica has disconnected.
    pub fn handle_replica_lost(&mut self, now: Instant, replica: u64) {
        self.advance(now);
        self.replication.replicas.remove(&replica);
    }

    /// Promotes a replica with the data that it has: `REPLICAOF NO ONE`. The run id stays; the
    /// replication id is new. Hidden expired keys are removed on access. It knows only scripts that
    /// clients loaded here, because effects are replicated, not scripts.
    pub fn promote(&mut self, now: Instant) {
        self.advance(now);
        if !self.is_replica() {
            return;
        }
        self.replication.role = ReplicationRole::Primary;
        self.replication.begin_history(&self.run_id);
    }

    /// Returns true if it is a replica.
    #[must_use]
    pub const fn is_replica(&self) -> bool {
        matches!(self.replication.role, ReplicationRole::Replica { .. })
    }

    /// Returns true if this replica has a gap, so that it needs [`replicate`](Self::replicate).
    #[must_use]
    pub const fn needs_copy(&self) -> bool {
        matches!(self.replication.role, ReplicationRole::Replica { gap: true, .. })
    }

    /// Returns `master_repl_offset`: the bytes of the stream that were written or, on a replica,
    /// applied. It is constant until the first [`snapshot`](Self::snapshot).
    #[must_use]
    pub const fn replication_offset(&self) -> u64 {
        self.replication.offset
    }

    /// Returns the replication id, `master_replid`.
    #[must_use]
    pub fn replication_id(&self) -> &str {
        self.replication.history.as_str()
    }

    pub(super) fn view(&self) -> View {
        let expired = if self.is_replica() { Expired::Hidden } else { Expired::Removed };
        View { now: self.wall_ms(), expired }
    }

    fn apply_command(&mut self, args: &[&[u8]]) {
        match args {
            [b"SELECT", db] => {
                self.replication.selected = number::integer(db).and_then(|db| u32::try_from(db).ok());
            }
            [b"MULTI" | b"EXEC" | b"PING"] | [b"REPLCONF", ..] => {}
            args => {
                let db = self.replication.selected.unwrap_or(0);
                let view = View { now: self.wall_ms(), expired: Expired::Alive };
                command::run_from_primary(self, &mut CommandContext::of_primary(db, view), args);
                if let Some(db) = self.dbs.get_mut(&db) {
                    db.dirty = false;
                }
            }
        }
    }

    /// Adds a command to the current effect. A replica only forwards the stream of its primary.
    pub(super) fn replicate_command(&mut self, db: u32, args: &[&[u8]]) {
        if self.replication.feeding && !self.is_replica() {
            let mut bytes = Vec::new();
            encode(&mut bytes, args);
            self.replication.unit.push((db, bytes));
        }
    }

    /// Ends the current command or script; all its changes become one effect.
    pub(super) fn end_effect(&mut self) {
        let stream = &mut self.replication;
        if stream.unit.is_empty() {
            return;
        }
        let mut bytes = Vec::new();
        let many = stream.unit.len() > 1;
        if many {
            encode(&mut bytes, &[b"MULTI"]);
        }
        for (db, command) in stream.unit.drain(..) {
            if stream.selected != Some(db) {
                stream.selected = Some(db);
                encode(&mut bytes, &[b"SELECT", db.to_string().as_bytes()]);
            }
            bytes.extend_from_slice(&command);
        }
        if many {
            encode(&mut bytes, &[b"EXEC"]);
        }
        self.send(bytes);
    }

    fn send(&mut self, bytes: Vec<u8>) {
        let stream = &mut self.replication;
        let effect = Effect { history: stream.history, offset: stream.offset, bytes };
        stream.offset = effect.end();
        stream.effects.push_back(effect);
    }

    /// Propagates the keys that this server removed by itself, each as a separate effect.
    pub(super) fn propagate_removed(&mut self) {
        let feeding = self.replication.feeding;
        let mut removed_keys: Vec<(u32, Vec<u8>)> = Vec::new();
        for (number, db) in &mut self.dbs {
            let removed = db.removed.drain(..);
            if feeding {
                removed_keys.extend(removed.map(|key| (*number, key)));
            }
        }
        for (db, key) in removed_keys {
            self.replicate_command(db, &[b"DEL", &key]);
            self.end_effect();
        }
    }

    /// Removes expired keys, as Redis does in the background, so that replicas drop them too.
    pub(super) fn collect_expired(&mut self, now: u64) {
        if self.is_replica() {
            return;
        }
        for db in self.dbs.values_mut() {
            db.collect(now);
        }
        self.propagate_removed();
    }

    /// Returns when keys expire that must be removed on replicas.
    pub(super) fn next_collection(&self) -> Option<u64> {
        if !self.replication.feeding || self.is_replica() {
            return None;
        }
        self.dbs.values().filter_map(Db::soonest).min()
    }

    /// Too few replicas keep up: `NOREPLICAS`.
    pub(super) fn below_min_replicas(&self) -> bool {
        let required = self.config.min_replicas;
        let good = self.replication.replicas.values().filter(|ack| self.now.since(ack.at) <= MAX_LAG);
        required > 0 && !self.is_replica() && good.count() < required
    }

    /// A replica without a link, which does not serve stale data.
    pub(super) const fn is_stale(&self) -> bool {
        !self.config.serve_stale && matches!(self.replication.role, ReplicationRole::Replica { up: false, .. })
    }

    /// The reply to a client that waits for acknowledgements.
    pub(super) fn acknowledged(&self, offset: u64) -> RespReply {
        RespReply::Int(self.replication.acknowledged(offset))
    }

    pub(super) fn info_replication(&self) -> String {
        let stream = &self.replication;
        let role = match stream.role {
            ReplicationRole::Primary => String::from("role:master\r\n"),
            ReplicationRole::Replica { up, port, .. } => format!(
                "role:slave\r\nmaster_host:127.0.0.1\r\nmaster_port:{port}\r\nmaster_link_status:{}\r\nslave_repl_offset:{}\r\n\
                 slave_read_only:1\r\n",
                if up { "up" } else { "down" },
                stream.offset,
            ),
        };
        let (before, end) = stream
            .before
            .map_or((History::NONE, -1), |(history, end)| (history, i64::try_from(end).unwrap_or(i64::MAX)));
        format!(
            "# Replication\r\n{role}connected_slaves:{}\r\nmaster_replid:{}\r\nmaster_replid2:{}\r\nmaster_repl_offset:{}\r\n\
             second_repl_offset:{end}\r\n",
            stream.replicas.len(),
            stream.history.as_str(),
            before.as_str(),
            stream.offset,
        )
    }
}

pub(super) fn role(node: &mut Node, _context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    let int = |n: u64| RespReply::Int(i64::try_from(n).unwrap_or(i64::MAX));
    let stream = &node.replication;
    match stream.role {
        ReplicationRole::Primary => {
            let replica = |(number, ack): (&u64, &Ack)| {
                let text = |n: u64| RespReply::Bulk(n.to_string().into_bytes());
                RespReply::Array(vec![RespReply::bulk(b"127.0.0.1"), text(*number), text(ack.offset)])
            };
            let replicas = stream.replicas.iter().map(replica).collect();
            RespReply::Array(vec![RespReply::bulk(b"master"), int(stream.offset), RespReply::Array(replicas)])
        }
        ReplicationRole::Replica { up, port, .. } => RespReply::Array(vec![
            RespReply::bulk(b"slave"),
            RespReply::bulk(b"127.0.0.1"),
            RespReply::Int(port.into()),
            RespReply::bulk(if up { "connected" } else { "connect" }),
            if up { int(stream.offset) } else { RespReply::Int(-1) },
        ]),
    }
}

pub(super) fn wait(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    if node.is_replica() {
        return RespReply::error(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be \
             writable (which is not the default) writes to replicas are just local and are not propagated.",
        );
    }
    let Some(replicas) = number::integer(args[1]) else { return NOT_AN_INTEGER };
    let Some(timeout) = number::integer(args[2]) else {
        return RespReply::error("ERR timeout is not an integer or out of range");
    };
    let Ok(timeout) = u64::try_from(timeout) else { return RespReply::error("ERR timeout is negative") };
    let Some(connection) = node.connections.get(&context.conn) else { return RespReply::Later };
    let offset = connection.written;
    let count = node.replication.acknowledged(offset);
    if count >= replicas || context.in_transaction {
        return RespReply::Int(count);
    }
    // The stream itself asks replicas for their offset.
    if node.replication.feeding {
        let mut bytes = Vec::new();
        encode(&mut bytes, &[b"REPLCONF", b"GETACK", b"*"]);
        node.send(bytes);
    }
    let until = (timeout > 0).then(|| context.view.now.saturating_add(timeout));
    node.block(context.conn, BlockedCommand { cause: BlockCause::Acks { replicas, offset }, until });
    RespReply::Later
}
