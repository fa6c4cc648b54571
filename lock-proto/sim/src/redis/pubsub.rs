//! Publish/subscribe (<https://redis.io/docs/latest/develop/interact/pubsub/>).

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use super::command::{CommandContext, Propagate};
use super::connection::RedisPeer;
use super::keyspace::count;
use super::reply::RespReply;
use super::{Node, glob};
use lock_proto::redis::Protocol;

pub(super) fn subscribe(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    subscribe_all(node, context, b"subscribe", &args[1..], |connection| &mut connection.channels)
}

pub(super) fn psubscribe(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    subscribe_all(node, context, b"psubscribe", &args[1..], |connection| &mut connection.patterns)
}

pub(super) fn unsubscribe(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    unsubscribe_all(node, context, b"unsubscribe", &args[1..], |connection| &mut connection.channels)
}

pub(super) fn punsubscribe(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    unsubscribe_all(node, context, b"punsubscribe", &args[1..], |connection| &mut connection.patterns)
}

type ChannelNames = fn(&mut RedisPeer) -> &mut BTreeSet<Vec<u8>>;

/// Subscribes. Each name has a separate reply.
fn subscribe_all(
    node: &mut Node,
    context: &CommandContext,
    kind: &[u8],
    added: &[&[u8]],
    names: ChannelNames,
) -> RespReply {
    for name in added {
        let Some(connection) = node.connections.get_mut(&context.conn) else { break };
        names(connection).insert(name.to_vec());
        let left = count(connection.subscriptions());
        node.answer(context.conn, &RespReply::Push(vec![RespReply::bulk(kind), RespReply::bulk(name), left]));
    }
    RespReply::Later
}

/// Without names, unsubscribes from all. There is at least one reply.
fn unsubscribe_all(
    node: &mut Node,
    context: &CommandContext,
    kind: &[u8],
    named: &[&[u8]],
    names: ChannelNames,
) -> RespReply {
    let Some(connection) = node.connections.get_mut(&context.conn) else { return RespReply::Later };
    let mut left: Vec<Option<Vec<u8>>> = named.iter().map(|name| Some(name.to_vec())).collect();
    if named.is_empty() {
        left.extend(names(connection).iter().cloned().map(Some));
        if left.is_empty() {
            left.push(None);
        }
    }
    for name in left {
        let Some(connection) = node.connections.get_mut(&context.conn) else { break };
        if let Some(name) = &name {
            names(connection).remove(name);
        }
        let rest = count(connection.subscriptions());
        let name = name.map_or(RespReply::Nil, RespReply::Bulk);
        node.answer(context.conn, &RespReply::Push(vec![RespReply::bulk(kind), name, rest]));
    }
    RespReply::Later
}

pub(super) fn publish(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let (channel, text) = (args[1], args[2]);
    context.propagate = Propagate::Always;
    let mut messages: Vec<(u64, RespReply)> = Vec::new();
    for (conn, connection) in &node.connections {
        if connection.channels.contains(channel) {
            let message = vec![RespReply::bulk(b"message"), RespReply::bulk(channel), RespReply::bulk(text)];
            messages.push((*conn, RespReply::Push(message)));
        }
        for pattern in connection.patterns.iter().filter(|pattern| glob::matches(pattern, channel)) {
            let message = vec![
                RespReply::bulk(b"pmessage"),
                RespReply::bulk(pattern),
                RespReply::bulk(channel),
                RespReply::bulk(text),
            ];
            messages.push((*conn, RespReply::Push(message)));
        }
    }
    for (conn, message) in &messages {
        node.answer(*conn, message);
    }
    count(messages.len())
}

impl Node {
    /// Such a client may run few commands: RESP2 replies look like messages.
    pub(super) fn is_resp2_subscriber(&self, conn: u64) -> bool {
        self.connections
            .get(&conn)
            .is_some_and(|connection| connection.protocol == Protocol::Resp2 && connection.subscriptions() > 0)
    }
}
