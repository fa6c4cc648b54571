//! `MULTI`, `EXEC`, `DISCARD`, `WATCH` and `UNWATCH`
//! (<https://redis.io/docs/latest/develop/using-commands/transactions/>).

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use super::Node;
use super::command::CommandContext;
use super::reply::RespReply;

/// The commands after `MULTI`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Transaction {
    pub(super) queue: Vec<Vec<Vec<u8>>>,
    /// A command could not be queued.
    broken: bool,
}

/// The keys that a connection watches, by database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct WatchedKeys {
    /// The version of each key, `None` for an absent one.
    keys: BTreeMap<(u32, Vec<u8>), Option<u64>>,
    /// One of them has changed.
    changed: bool,
}

const ABORTED: RespReply = RespReply::error("EXECABORT Transaction discarded because of previous errors.");

pub(super) fn multi(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    let Some(connection) = node.connections.get_mut(&context.conn) else { return RespReply::Later };
    if connection.transaction.is_some() {
        return RespReply::error("ERR MULTI calls can not be nested");
    }
    connection.transaction = Some(Transaction::default());
    RespReply::Ok
}

pub(super) fn discard(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    if node.transaction(context.conn).is_none() {
        return RespReply::error("ERR DISCARD without MULTI");
    }
    node.end_transaction(context.conn);
    RespReply::Ok
}

pub(super) fn exec(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    if node.transaction(context.conn).is_none() {
        return RespReply::error("ERR EXEC without MULTI");
    }
    node.note_changes();
    let changed = node.connections.get(&context.conn).is_some_and(|connection| connection.watched.changed);
    let Transaction { queue, broken } = node.end_transaction(context.conn);
    if broken {
        return ABORTED;
    }
    if changed {
        return RespReply::NilArray;
    }
    let mut replies = Vec::with_capacity(queue.len());
    for command in &queue {
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let mut inner = CommandContext { in_transaction: true, ..context.clone() };
        replies.push(node.run(&mut inner, &args));
        node.spend_time(&args);
        // A `SELECT` applies to the commands after it.
        (context.db, context.user) = (inner.db, inner.user);
    }
    RespReply::Array(replies)
}

pub(super) fn watch(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    if node.connections.get(&context.conn).is_some_and(|connection| connection.transaction.is_some()) {
        return RespReply::error("ERR WATCH inside MULTI is not allowed");
    }
    node.watching = true;
    for key in &args[1..] {
        let place = (context.db, key.to_vec());
        let version = node.key_version(&place);
        if let Some(connection) = node.connections.get_mut(&context.conn) {
            connection.watched.keys.entry(place).or_insert(version);
        }
    }
    RespReply::Ok
}

pub(super) fn unwatch(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    if let Some(connection) = node.connections.get_mut(&context.conn) {
        connection.watched = WatchedKeys::default();
    }
    RespReply::Ok
}

impl Node {
    /// Removes and returns the connection's transaction, and ends its watches.
    pub(super) fn end_transaction(&mut self, conn: u64) -> Transaction {
        let Some(connection) = self.connections.get_mut(&conn) else { return Transaction::default() };
        connection.watched = WatchedKeys::default();
        connection.transaction.take().unwrap_or_default()
    }

    pub(super) fn transaction(&mut self, conn: u64) -> Option<&mut Transaction> {
        self.connections.get_mut(&conn)?.transaction.as_mut()
    }

    fn key_version(&self, (db, key): &(u32, Vec<u8>)) -> Option<u64> {
        self.dbs.get(db)?.peek(self.wall_ms(), key).map(|entry| entry.version())
    }

    /// Compares all watched keys. Called after each command, so that no change is missed.
    pub(super) fn note_changes(&mut self) {
        if !self.watching {
            return;
        }
        let differs =
            |watched: &WatchedKeys| watched.keys.iter().any(|(place, version)| self.key_version(place) != *version);
        let watchers = self.connections.iter().filter(|(_, connection)| !connection.watched.changed);
        let changed: Vec<u64> =
            watchers.filter(|(_, connection)| differs(&connection.watched)).map(|(conn, _)| *conn).collect();
        for conn in changed {
            if let Some(connection) = self.connections.get_mut(&conn) {
                connection.watched.changed = true;
            }
        }
    }
}

impl WatchedKeys {
    /// The watched keys, and whether one has changed.
    pub(super) fn state(&self) -> (Vec<&(u32, Vec<u8>)>, bool) {
        (self.keys.keys().collect(), self.changed)
    }
}

impl Transaction {
    /// A command was refused before it could be queued.
    pub(super) const fn refuse(&mut self) {
        self.broken = true;
    }
}

/// The reply to `EXEC` if the server refuses it, or one of the queued commands.
pub(super) fn aborted(refused: &RespReply) -> RespReply {
    let RespReply::Error(text) = refused else { return ABORTED };
    let why = text.strip_prefix("ERR ").unwrap_or(text);
    RespReply::Error(format!("EXECABORT Transaction discarded because of: {why}").into())
}
