//! Commands on keys of any type.

use super::Node;
use super::command::{CommandContext, Propagate, lower};
use super::glob;
use super::number;
use super::reply::RespReply;
use super::store::{Expired, RedisValue};
use super::strings::{NOT_AN_INTEGER, SYNTAX, Unit};
use alloc::format;

pub(super) fn del(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let db = node.db(context);
    count(args[1..].iter().filter(|key| db.remove(context.view, key)).count())
}

pub(super) fn exists(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let db = node.db(context);
    count(args[1..].iter().filter(|key| db.get(context.view, key).is_some()).count())
}

pub(super) fn type_(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    RespReply::simple(match node.db(context).get(context.view, args[1]).map(|entry| &entry.value) {
        None => "none",
        Some(RedisValue::String(_)) => "string",
        Some(RedisValue::List(_)) => "list",
    })
}

pub(super) fn dbsize(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    count(node.db(context).len(context.view))
}

pub(super) fn keys(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let found = node.db(context).iter(context.view.now).map(|(key, _)| key).filter(|key| glob::matches(args[1], key));
    RespReply::Array(found.map(RespReply::bulk).collect())
}

pub(super) fn flushdb(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    if let Err(refused) = flush_option(args) {
        return refused;
    }
    node.db(context).clear();
    context.propagate = Propagate::Always;
    RespReply::Ok
}

pub(super) fn flushall(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    if let Err(refused) = flush_option(args) {
        return refused;
    }
    node.dbs.clear();
    context.propagate = Propagate::Always;
    RespReply::Ok
}

fn flush_option(args: &[&[u8]]) -> Result<(), RespReply> {
    match args {
        [_] => Ok(()),
        [_, how] if matches!(lower(how).as_str(), "sync" | "async") => Ok(()),
        _ => Err(SYNTAX),
    }
}

pub(super) fn pttl(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    RespReply::Int(remaining(node, context, args[1]))
}

pub(super) fn ttl(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let left = remaining(node, context, args[1]);
    RespReply::Int(if left < 0 { left } else { (left + 500) / 1000 })
}

fn remaining(node: &mut Node, context: &CommandContext, key: &[u8]) -> i64 {
    match node.db(context).get(context.view, key).map(|entry| entry.expires()) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => i64::try_from(at.saturating_sub(context.view.now)).unwrap_or(i64::MAX),
    }
}

pub(super) fn pexpiretime(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    RespReply::Int(deadline(node, context, args[1]))
}

pub(super) fn expiretime(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let at = deadline(node, context, args[1]);
    RespReply::Int(if at < 0 { at } else { (at + 500) / 1000 })
}

fn deadline(node: &mut Node, context: &CommandContext, key: &[u8]) -> i64 {
    match node.db(context).get(context.view, key).map(|entry| entry.expires()) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => i64::try_from(at).unwrap_or(i64::MAX),
    }
}

pub(super) fn persist(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let db = node.db(context);
    let ends = db.get(context.view, args[1]).is_some_and(|entry| entry.expires().is_some());
    if ends {
        db.set_expiry(context.view, args[1], None);
    }
    RespReply::Int(i64::from(ends))
}

pub(super) fn expire(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    set_expiry(node, context, args, "expire", Unit { seconds: true, absolute: false })
}

pub(super) fn pexpire(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    set_expiry(node, context, args, "pexpire", Unit { seconds: false, absolute: false })
}

pub(super) fn expireat(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    set_expiry(node, context, args, "expireat", Unit { seconds: true, absolute: true })
}

pub(super) fn pexpireat(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    set_expiry(node, context, args, "pexpireat", Unit { seconds: false, absolute: true })
}

/// The conditions under which `EXPIRE` applies.
#[derive(Default)]
struct Guards {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

fn guards(args: &[&[u8]]) -> Result<Guards, RespReply> {
    let mut guards = Guards::default();
    for word in args {
        match lower(word).as_str() {
            "nx" => guards.if_none = true,
            "xx" => guards.if_some = true,
            "gt" => guards.if_later = true,
            "lt" => guards.if_earlier = true,
            other => return Err(RespReply::Error(format!("ERR Unsupported option {other}").into())),
        }
    }
    if guards.if_none && (guards.if_some || guards.if_later || guards.if_earlier) {
        return Err(RespReply::error("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if guards.if_later && guards.if_earlier {
        return Err(RespReply::error("ERR GT and LT options at the same time are not compatible"));
    }
    Ok(guards)
}

fn set_expiry(node: &mut Node, context: &mut CommandContext, args: &[&[u8]], name: &str, unit: Unit) -> RespReply {
    let guards = match guards(&args[3..]) {
        Ok(guards) => guards,
        Err(refused) => return refused,
    };
    let Some(given) = number::integer(args[2]) else { return NOT_AN_INTEGER };
    let view = context.view;
    let Some(at) = unit.resolve(view.now, given) else {
        return RespReply::Error(format!("ERR invalid expire time in '{name}' command").into());
    };
    let db = node.db(context);
    let Some(expires) = db.get(view, args[1]).map(|entry| entry.expires()) else { return RespReply::Int(0) };
    let current = expires.map_or(i64::MAX, |at| i64::try_from(at).unwrap_or(i64::MAX));
    let has_expiry = expires.is_some();
    // No expiry counts as infinite.
    if (guards.if_none && has_expiry)
        || (guards.if_some && !has_expiry)
        || (guards.if_later && (at <= current || !has_expiry))
        || (guards.if_earlier && has_expiry && at >= current)
    {
        return RespReply::Int(0);
    }
    match u64::try_from(at) {
        // The primary sends a delete itself, so its commands may set a time in the past.
        Ok(at) if at > view.now || view.expired == Expired::Alive => {
            db.set_expiry(view, args[1], Some(at));
            if name != "pexpireat" && node.replication.is_feeding() {
                let mut digits = itoa::Buffer::new();
                let mut rewritten = args.to_vec();
                (rewritten[0], rewritten[2]) = (b"PEXPIREAT", digits.format(at).as_bytes());
                node.propagate_instead(context, &rewritten);
            }
        }
        // A time in the past deletes the key immediately.
        Ok(_) | Err(_) => {
            db.remove(view, args[1]);
            node.propagate_instead(context, &[b"DEL", args[1]]);
        }
    }
    RespReply::Int(1)
}

pub(super) fn count(n: usize) -> RespReply {
    RespReply::Int(i64::try_from(n).unwrap_or(i64::MAX))
}
