//! Commands on lists, and blocking clients.

use alloc::vec;
use alloc::vec::Vec;

use super::Node;
use super::command::{CommandContext, wrong_arity};
use super::connection::{BlockCause, BlockedCommand};
use super::keyspace::count;
use super::number;
use super::reply::RespReply;
use super::strings::NOT_AN_INTEGER;

const NOT_POSITIVE: RespReply = RespReply::error("ERR value is out of range, must be positive");

pub(super) fn llen(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match node.db(context).list(context.view, args[1]) {
        Ok(list) => count(list.map_or(0, |list| list.len())),
        Err(wrong) => wrong,
    }
}

pub(super) fn lrange(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let (Some(from), Some(to)) = (number::integer(args[2]), number::integer(args[3])) else { return NOT_AN_INTEGER };
    let list = match node.db(context).list(context.view, args[1]) {
        Ok(Some(list)) => list,
        Ok(None) => return RespReply::Array(Vec::new()),
        Err(wrong) => return wrong,
    };
    let len = i64::try_from(list.len()).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
    let from = usize::try_from(place(from).max(0)).unwrap_or(usize::MAX);
    let end = usize::try_from(place(to).saturating_add(1).clamp(0, len)).unwrap_or(0);
    RespReply::Array(list.iter().take(end).skip(from).map(RespReply::bulk).collect())
}

pub(super) fn rpush(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    push(node, context, args, false)
}

pub(super) fn lpush(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    push(node, context, args, true)
}

fn push(node: &mut Node, context: &CommandContext, args: &[&[u8]], front: bool) -> RespReply {
    let length = match node.db(context).push(context.view, args[1], &args[2..], front) {
        Ok(length) => length,
        Err(wrong) => return wrong,
    };
    if !node.waiting.is_empty() {
        let place = (context.db, args[1].to_vec());
        if node.waiting.contains_key(&place) && !node.ready.contains(&place) {
            node.ready.push_back(place);
        }
    }
    count(length)
}

pub(super) fn lpop(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let key = args[1];
    let count = match args {
        [_, _] => None,
        [_, _, count] => match number::integer(count).map(usize::try_from) {
            Some(Ok(n)) => Some(n),
            Some(Err(_)) | None => return NOT_POSITIVE,
        },
        _ => return wrong_arity("lpop"),
    };
    match (node.db(context).pop_front(context.view, key, count.unwrap_or(1)), count) {
        (Ok(Some(items)), Some(_)) => RespReply::Array(items.into_iter().map(RespReply::Bulk).collect()),
        (Ok(Some(items)), None) => items.into_iter().next().map_or(RespReply::Nil, RespReply::Bulk),
        (Ok(None), Some(_)) => RespReply::NilArray,
        (Ok(None), None) => RespReply::Nil,
        (Err(wrong), _) => wrong,
    }
}

pub(super) fn blpop(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let Some((timeout, keys)) = args[1..].split_last() else { return wrong_arity("blpop") };
    let until = match deadline(timeout, context.view.now) {
        Ok(until) => until,
        Err(refused) => return refused,
    };
    for key in keys {
        match node.db(context).pop_front(context.view, key, 1) {
            Ok(None) => {}
            Ok(Some(items)) => {
                node.propagate_instead(context, &[b"LPOP", key]);
                return popped(key, items);
            }
            Err(wrong) => return wrong,
        }
    }
    if context.in_transaction {
        return RespReply::NilArray;
    }
    let mut distinct: Vec<Vec<u8>> = Vec::with_capacity(keys.len());
    for key in keys {
        if !distinct.iter().any(|known| known == key) {
            distinct.push(key.to_vec());
        }
    }
    for key in &distinct {
        node.waiting.entry((context.db, key.clone())).or_default().push_back(context.conn);
    }
    node.block(context.conn, BlockedCommand { cause: BlockCause::Keys { db: context.db, keys: distinct }, until });
    RespReply::Later
}

/// Parses a timeout. Returns the Unix time in ms at which it ends, or `None` for no timeout.
fn deadline(timeout: &[u8], now: u64) -> Result<Option<u64>, RespReply> {
    const OUT_OF_RANGE: RespReply = RespReply::error("ERR timeout is not a float or out of range");
    let seconds = number::float(timeout).ok_or(OUT_OF_RANGE)?;
    if seconds < 0.0 {
        return Err(RespReply::error("ERR timeout is negative"));
    }
    let millis = seconds * 1000.0;
    // Larger values would overflow a `u64` of milliseconds since 1970.
    if millis > 9.0e18 {
        return Err(RespReply::error("ERR timeout is out of range"));
    }
    // Non-negative and small enough, so the cast only drops the fraction, which is rounded up.
    let whole = millis as u64;
    let whole = whole + u64::from((whole as f64) < millis);
    Ok(if whole == 0 { None } else { Some(now.saturating_add(whole)) })
}

fn popped(key: &[u8], items: Vec<Vec<u8>>) -> RespReply {
    let item = items.into_iter().next().map_or(RespReply::Nil, RespReply::Bulk);
    RespReply::Array(vec![RespReply::bulk(key), item])
}

impl Node {
    /// Serves blocked clients in FIFO order after a command that may have filled a list.
    pub(super) fn serve_waiting(&mut self) {
        while let Some(place) = self.ready.pop_front() {
            let view = self.view();
            while let Some(conn) = self.waiting.get(&place).and_then(|queue| queue.front().copied()) {
                let (number, key) = &place;
                let db = self.dbs.entry(*number).or_default();
                match db.pop_front(view, key, 1) {
                    Ok(Some(items)) => {
                        db.dirty = false;
                        self.replicate_command(*number, &[b"LPOP", key]);
                        self.end_effect();
                        self.unblock(conn, &popped(key, items));
                    }
                    // Already taken, or of another type: they stay blocked.
                    Ok(None) | Err(_) => break,
                }
            }
            self.propagate_removed();
        }
    }

    pub(super) fn block(&mut self, conn: u64, blocked: BlockedCommand) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            self.timeouts.extend(blocked.until.map(|until| (until, conn)));
            connection.blocked = Some(blocked);
        }
    }

    pub(super) fn unblock(&mut self, conn: u64, reply: &RespReply) {
        self.stop_waiting(conn);
        self.answer(conn, reply);
        self.unblocked.push_back(conn);
    }

    /// Ends the waits that are over, and goes on with what their clients have sent.
    pub(super) fn time_out(&mut self) {
        let wall = self.wall_ms();
        while let Some((_, conn)) = self.timeouts.first().copied().filter(|(until, _)| wall > *until) {
            let blocked = self.connections.get(&conn).and_then(|connection| connection.blocked.as_ref());
            let Some(reply) = blocked.map(|blocked| self.timeout_reply(blocked)) else { break };
            self.unblock(conn, &reply);
        }
        self.resume_unblocked();
    }

    pub(super) fn timeout_reply(&self, blocked: &BlockedCommand) -> RespReply {
        match blocked.cause {
            BlockCause::Keys { .. } => RespReply::NilArray,
            BlockCause::Acks { offset, .. } => self.acknowledged(offset),
        }
    }

    /// Unblocks all clients with an error, because this server becomes a replica.
    pub(super) fn unblock_all(&mut self) {
        const AWAY: RespReply = RespReply::error(
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        );
        let blocked: Vec<u64> =
            self.connections.iter().filter(|(_, c)| c.blocked.is_some()).map(|(conn, _)| *conn).collect();
        for conn in blocked {
            self.unblock(conn, &AWAY);
            self.close_after_output(conn);
        }
    }

    pub(super) fn stop_waiting(&mut self, conn: u64) {
        let Some(blocked) = self.connections.get_mut(&conn).and_then(|connection| connection.blocked.take()) else {
            return;
        };
        if let Some(until) = blocked.until {
            self.timeouts.remove(&(until, conn));
        }
        let BlockCause::Keys { db, keys } = blocked.cause else { return };
        for key in keys {
            let place = (db, key);
            if let Some(queue) = self.waiting.get_mut(&place) {
                queue.retain(|other| *other != conn);
                if queue.is_empty() {
                    self.waiting.remove(&place);
                }
            }
        }
    }
}
