//! A primary and its replicas (<https://redis.io/docs/latest/operate/oss_and_stack/management/replication/>).
//!
//! Replication is asynchronous: a primary answers first, and its [`Effect`]s reach the replica when the caller brings them. What a
//! promoted replica has not been brought is lost, locks included.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::command::{self, Context};
use super::connection::{Blocked, Cause};
use super::effect::{Effect, History, Snapshot, encode};
use super::number;
use super::reply::Reply;
use super::store::{Db, Expired, Look};
use super::strings::NOT_AN_INTEGER;
use super::{Node, sha1};
use crate::time::Instant;

/// A replica that was silent for longer does not count for `min-replicas-to-write` (`min-replicas-max-lag`).
const MAX_LAG: Duration = Duration::from_secs(10);

/// Where a server stands in a stream of writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Replication {
    role: Role,
    history: History,
    /// The history before the last promotion, and where it ended.
    before: Option<(History, u64)>,
    histories: u64,
    offset: u64,
    /// Somebody has asked for a copy, so writes are told.
    feeding: bool,
    /// The database that the stream stands in.
    selected: Option<u32>,
    /// What is executed now has changed this so far.
    unit: Vec<(u32, Vec<u8>)>,
    effects: VecDeque<Effect>,
    replicas: BTreeMap<u64, Ack>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Primary,
    Replica {
        /// The link to the primary is up.
        up: bool,
        /// Something was missed: only a new copy helps.
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
            role: Role::Primary,
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

    /// A restart: the stream goes on where it was if the data is still there.
    pub(super) fn restart(&mut self, run_id: &str, keep_data: bool) {
        self.unit.clear();
        self.effects.clear();
        self.replicas.clear();
        self.feeding = false;
        match &mut self.role {
            Role::Primary => self.begin_history(run_id),
            Role::Replica { up, gap, .. } => (*up, *gap) = (false, *gap || !keep_data),
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

/// Replication, for who drives it: take the effects of the primary, bring them to the replicas, late or never.
///
/// ```
/// use lock_proto::Instant;
/// use lock_proto::sim::redis::{Node, NodeConfig};
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
    /// The next thing to bring to every replica, in order. There are none before the first [`snapshot`](Self::snapshot); from then on
    /// they gather here until they are taken.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.replication.effects.pop_front()
    }

    /// A copy for a replica to begin with. Effects that have been polled before are in it, and those of the queue as well: to a replica
    /// that begins with it they are old, and harmless.
    pub fn snapshot(&mut self, now: Instant) -> Snapshot {
        self.advance(now);
        self.replication.feeding = true;
        if !self.is_replica() {
            // As Redis does, so that the new replica need not know.
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

    /// Becomes a replica, without a copy as yet: `REPLICAOF` of a primary that does not answer. It keeps its data, refuses writes,
    /// sends blocked clients away, and lets no key end by itself: those whose time has passed are only hidden.
    pub fn demote(&mut self, now: Instant) {
        self.advance(now);
        if self.is_replica() {
            return;
        }
        self.replication.role = Role::Replica { up: false, gap: false, port: 9 };
        self.replication.replicas.clear();
        self.send_blocked_away();
    }

    /// Becomes a replica of the server that `copy` is of, or is synchronised once more: `REPLICAOF` and a full synchronisation.
    pub fn replicate(&mut self, now: Instant, copy: &Snapshot) {
        self.demote(now);
        self.replication.role = Role::Replica { up: true, gap: false, port: copy.port };
        self.replication.history = copy.history;
        self.replication.offset = copy.offset;
        self.replication.selected = copy.selected;
        self.replication.before = None;
        self.replication.effects.clear();
        self.dbs.clone_from(&copy.dbs);
        // Replicas of this one have missed that.
        self.replication.replicas.clear();
    }

    /// Something that the primary has sent. A replica takes it if it comes next; what is old is dropped, and after a gap, or from
    /// another history, nothing is taken any more until a new copy comes (see [`needs_copy`](Self::needs_copy)). A primary drops all.
    pub fn handle_effect(&mut self, now: Instant, effect: &Effect) {
        self.advance(now);
        let Role::Replica { up, gap, .. } = &mut self.replication.role else { return };
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
            self.obey(&args);
        }
        self.replication.offset = effect.end();
        if self.replication.feeding {
            self.replication.effects.push_back(effect.clone());
        }
    }

    /// The connection to the primary is lost. An effect that comes next brings it back.
    pub fn handle_link_lost(&mut self, now: Instant) {
        self.advance(now);
        if let Role::Replica { up, .. } = &mut self.replication.role {
            *up = false;
        }
    }

    /// A replica has told the primary how far it is: its [`replication_offset`](Self::replication_offset). `replica` is a number of
    /// the caller's choice. `WAIT` and [`min_replicas`](super::NodeConfig::min_replicas) go by it.
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
                Cause::Acks { replicas, offset } => Some((*conn, replicas, self.replication.acknowledged(offset))),
                Cause::Keys { .. } => None,
            })
            .filter(|(_, replicas, count)| count >= replicas)
            .map(|(conn, _, count)| (conn, count))
            .collect();
        for (conn, count) in served {
            self.unblock(conn, &Reply::Int(count));
        }
        self.settle();
    }

    /// A replica has hung up.
    pub fn handle_replica_lost(&mut self, now: Instant, replica: u64) {
        self.advance(now);
        self.replication.replicas.remove(&replica);
    }

    /// A replica becomes a primary with what it has got: `REPLICAOF NO ONE`. Its run id stays, its replication id is new. Keys
    /// whose time has passed end now. It knows no scripts, unless clients brought them: effects are replicated, scripts are not.
    pub fn promote(&mut self, now: Instant) {
        self.advance(now);
        if !self.is_replica() {
            return;
        }
        self.replication.role = Role::Primary;
        self.replication.begin_history(&self.run_id);
    }

    /// Whether it is a replica.
    #[must_use]
    pub const fn is_replica(&self) -> bool {
        matches!(self.replication.role, Role::Replica { .. })
    }

    /// Whether this replica has missed something, so that only [`replicate`](Self::replicate) helps.
    #[must_use]
    pub const fn needs_copy(&self) -> bool {
        matches!(self.replication.role, Role::Replica { gap: true, .. })
    }

    /// How many bytes of the stream have been written, or, by a replica, applied: `master_repl_offset`. It does not move before the
    /// first [`snapshot`](Self::snapshot).
    #[must_use]
    pub const fn replication_offset(&self) -> u64 {
        self.replication.offset
    }

    /// The replication id, `master_replid`.
    #[must_use]
    pub fn replication_id(&self) -> &str {
        self.replication.history.as_str()
    }

    // ---- inside ----

    /// How a client looks at the data now.
    pub(super) fn look(&self) -> Look {
        let expired = if self.is_replica() { Expired::Hidden } else { Expired::Removed };
        Look { now: self.wall_ms(), expired }
    }

    /// Runs a command that the primary has sent.
    fn obey(&mut self, args: &[&[u8]]) {
        match args {
            [b"SELECT", db] => {
                self.replication.selected = number::integer(db).and_then(|db| u32::try_from(db).ok());
            }
            [b"MULTI" | b"EXEC" | b"PING"] | [b"REPLCONF", ..] => {}
            args => {
                let db = self.replication.selected.unwrap_or(0);
                let look = Look { now: self.wall_ms(), expired: Expired::Alive };
                command::obey(self, &mut Context::of_primary(db, look), args);
                if let Some(db) = self.dbs.get_mut(&db) {
                    db.dirty = false;
                }
            }
        }
    }

    /// Tells the replicas of a command. It goes out when the whole of what is executed now is done. A replica hands on what its
    /// primary sends, and nothing else.
    pub(super) fn replicate_command(&mut self, db: u32, args: &[&[u8]]) {
        if self.replication.feeding && !self.is_replica() {
            let mut bytes = Vec::new();
            encode(&mut bytes, args);
            self.replication.unit.push((db, bytes));
        }
    }

    /// What is executed is done: all that it has changed is one effect.
    pub(super) fn end_unit(&mut self) {
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

    /// Tells the replicas which keys this server has removed of its own accord, each by itself.
    pub(super) fn tell_removed(&mut self) {
        let feeding = self.replication.feeding;
        let mut told: Vec<(u32, Vec<u8>)> = Vec::new();
        for (number, db) in &mut self.dbs {
            let removed = db.removed.drain(..);
            if feeding {
                told.extend(removed.map(|key| (*number, key)));
            }
        }
        for (db, key) in told {
            self.replicate_command(db, &[b"DEL", &key]);
            self.end_unit();
        }
    }

    /// Removes what has expired, as Redis does in the background: only then do replicas hear of a key that nobody looks at.
    pub(super) fn collect_expired(&mut self, now: u64) {
        if self.is_replica() {
            return;
        }
        for db in self.dbs.values_mut() {
            db.collect(now);
        }
        self.tell_removed();
    }

    /// When something is to be collected for the replicas' sake.
    pub(super) fn next_collection(&self) -> Option<u64> {
        if !self.replication.feeding || self.is_replica() {
            return None;
        }
        self.dbs.values().filter_map(Db::soonest).min()
    }

    /// Too few replicas keep up: `NOREPLICAS`.
    pub(super) fn lacks_replicas(&self) -> bool {
        let wanted = self.config.min_replicas;
        let good = self.replication.replicas.values().filter(|ack| self.now.since(ack.at) <= MAX_LAG);
        wanted > 0 && !self.is_replica() && good.count() < wanted
    }

    /// It is a replica without a link, and may not show old data.
    pub(super) const fn is_stale(&self) -> bool {
        !self.config.serve_stale && matches!(self.replication.role, Role::Replica { up: false, .. })
    }

    /// What a client that waits for acknowledgements is answered now.
    pub(super) fn acknowledged(&self, offset: u64) -> Reply {
        Reply::Int(self.replication.acknowledged(offset))
    }

    pub(super) fn info_replication(&self) -> String {
        let stream = &self.replication;
        let role = match stream.role {
            Role::Primary => String::from("role:master\r\n"),
            Role::Replica { up, port, .. } => format!(
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

// ---- commands ----

pub(super) fn role(node: &mut Node, _context: &mut Context, _args: &[&[u8]]) -> Reply {
    let int = |n: u64| Reply::Int(i64::try_from(n).unwrap_or(i64::MAX));
    let stream = &node.replication;
    match stream.role {
        Role::Primary => {
            let replica = |(number, ack): (&u64, &Ack)| {
                let text = |n: u64| Reply::Bulk(n.to_string().into_bytes());
                Reply::Array(vec![Reply::bulk(b"127.0.0.1"), text(*number), text(ack.offset)])
            };
            let replicas = stream.replicas.iter().map(replica).collect();
            Reply::Array(vec![Reply::bulk(b"master"), int(stream.offset), Reply::Array(replicas)])
        }
        Role::Replica { up, port, .. } => Reply::Array(vec![
            Reply::bulk(b"slave"),
            Reply::bulk(b"127.0.0.1"),
            Reply::Int(port.into()),
            Reply::bulk(if up { b"connected" } else { b"connect" }),
            if up { int(stream.offset) } else { Reply::Int(-1) },
        ]),
    }
}

pub(super) fn wait(node: &mut Node, context: &mut Context, args: &[&[u8]]) -> Reply {
    if node.is_replica() {
        return Reply::error(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be \
             writable (which is not the default) writes to replicas are just local and are not propagated.",
        );
    }
    let Some(replicas) = number::integer(args[1]) else { return NOT_AN_INTEGER };
    let Some(timeout) = number::integer(args[2]) else {
        return Reply::error("ERR timeout is not an integer or out of range");
    };
    let Ok(timeout) = u64::try_from(timeout) else { return Reply::error("ERR timeout is negative") };
    let Some(connection) = node.connections.get(&context.conn) else { return Reply::Later };
    let offset = connection.written;
    let count = node.replication.acknowledged(offset);
    if count >= replicas {
        return Reply::Int(count);
    }
    // Replicas are asked how far they are, in the stream itself.
    if node.replication.feeding {
        let mut bytes = Vec::new();
        encode(&mut bytes, &[b"REPLCONF", b"GETACK", b"*"]);
        node.send(bytes);
    }
    let until = (timeout > 0).then(|| context.look.now.saturating_add(timeout));
    node.block(context.conn, Blocked { cause: Cause::Acks { replicas, offset }, until });
    Reply::Later
}
