//! Commands on strings.

use alloc::vec::Vec;

use super::Node;
use super::command::{CommandContext, LONGEST, lower_word};
use super::number;
use super::reply::RespReply;
use super::store::Db;

pub(super) const SYNTAX: RespReply = RespReply::error("ERR syntax error");
pub(super) const NOT_AN_INTEGER: RespReply = RespReply::error("ERR value is not an integer or out of range");

impl Node {
    pub(super) fn db(&mut self, context: &CommandContext) -> &mut Db {
        self.dbs.entry(context.db).or_default()
    }
}

pub(super) fn get(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match node.db(context).string(context.view, args[1]) {
        Ok(Some(text)) => RespReply::bulk(text),
        Ok(None) => RespReply::Nil,
        Err(wrong) => wrong,
    }
}

pub(super) fn mget(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let (view, db) = (context.view, node.db(context));
    let value = |key: &&[u8]| db.string(view, key).ok().flatten().map_or(RespReply::Nil, RespReply::bulk);
    RespReply::Array(args.iter().skip(1).map(value).collect())
}

pub(super) fn getdel(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let reply = get(node, context, args);
    if !reply.is_error() && node.db(context).remove(context.view, args[1]) {
        node.propagate_instead(context, &[b"DEL", args[1]]);
    }
    reply
}

pub(super) fn setnx(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let db = node.db(context);
    if db.get(context.view, args[1]).is_some() {
        return RespReply::Int(0);
    }
    db.set(context.view, args[1], args[2], None);
    RespReply::Int(1)
}

pub(super) fn incr(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    add(node, context, args[1], 1)
}

pub(super) fn incrby(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match number::integer(args[2]) {
        Some(by) => add(node, context, args[1], by),
        None => NOT_AN_INTEGER,
    }
}

fn add(node: &mut Node, context: &CommandContext, key: &[u8], by: i64) -> RespReply {
    let db = node.db(context);
    let old = match db.string(context.view, key) {
        Ok(None) => 0,
        Ok(Some(text)) => match number::integer(text) {
            Some(n) => n,
            None => return NOT_AN_INTEGER,
        },
        Err(wrong) => return wrong,
    };
    let Some(new) = old.checked_add(by) else { return RespReply::error("ERR increment or decrement would overflow") };
    let expires = db.get(context.view, key).and_then(|entry| entry.expires());
    db.set(context.view, key, itoa::Buffer::new().format(new).as_bytes(), expires);
    RespReply::Int(new)
}

#[derive(Default)]
struct Options<'a> {
    if_absent: bool,
    if_present: bool,
    answer_old: bool,
    keep_ttl: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) seconds: bool,
    pub(super) absolute: bool,
}

impl Unit {
    /// Converts `given` to Unix time in ms, or returns `None` on overflow.
    pub(super) fn resolve(self, now: u64, given: i64) -> Option<i64> {
        let millis = if self.seconds { given.checked_mul(1000)? } else { given };
        if self.absolute { Some(millis) } else { millis.checked_add(i64::try_from(now).ok()?) }
    }
}

fn options<'a>(args: &[&'a [u8]]) -> Option<Options<'a>> {
    let mut options = Options::default();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        let unit = match lower_word(word, &mut [0; LONGEST]) {
            b"nx" if !options.if_present => {
                options.if_absent = true;
                continue;
            }
            b"xx" if !options.if_absent => {
                options.if_present = true;
                continue;
            }
            b"get" => {
                options.answer_old = true;
                continue;
            }
            b"keepttl" if options.expiry.is_none() => {
                options.keep_ttl = true;
                continue;
            }
            b"ex" => Unit { seconds: true, absolute: false },
            b"px" => Unit { seconds: false, absolute: false },
            b"exat" => Unit { seconds: true, absolute: true },
            b"pxat" => Unit { seconds: false, absolute: true },
            _ => return None,
        };
        // The same unit may be repeated; the last value counts.
        if options.keep_ttl || options.expiry.is_some_and(|(other, _)| other != unit) {
            return None;
        }
        options.expiry = Some((unit, rest.next()?));
    }
    Some(options)
}

pub(super) fn set(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let (key, text, view) = (args[1], args[2], context.view);
    let Some(options) = options(&args[3..]) else { return SYNTAX };
    let expires = match options.expiry {
        None => None,
        Some((unit, given)) => {
            let Some(given) = number::integer(given) else { return NOT_AN_INTEGER };
            let at = if given > 0 { unit.resolve(view.now, given) } else { None };
            match at.and_then(|at| u64::try_from(at).ok()) {
                Some(at) => Some(at),
                None => return RespReply::error("ERR invalid expire time in 'set' command"),
            }
        }
    };
    let db = node.db(context);
    let old = match (options.answer_old, db.string(view, key)) {
        (true, Ok(text)) => Some(text.map_or(RespReply::Nil, RespReply::bulk)),
        (true, Err(wrong)) => return wrong,
        (false, Ok(_) | Err(_)) => None,
    };
    let entry = db.get(view, key);
    let present = entry.is_some();
    if (options.if_absent && present) || (options.if_present && !present) {
        return old.unwrap_or(RespReply::Nil);
    }
    let old_expiry = entry.and_then(|entry| entry.expires()).filter(|_| options.keep_ttl);
    db.set(view, key, text, expires.or(old_expiry));
    if node.replication.is_feeding() {
        propagate_set(node, context, args, &options, expires);
    }
    old.unwrap_or(RespReply::Ok)
}

/// Propagates a `SET` with an absolute expiry, or without the option `GET`.
fn propagate_set(
    node: &Node,
    context: &mut CommandContext,
    args: &[&[u8]],
    options: &Options<'_>,
    expires: Option<u64>,
) {
    const AT: Unit = Unit { seconds: false, absolute: true };
    match (expires, options.expiry) {
        (Some(at), Some((unit, _))) if unit != AT => {
            let mut digits = itoa::Buffer::new();
            node.propagate_instead(context, &[b"SET", args[1], args[2], b"PXAT", digits.format(at).as_bytes()]);
        }
        _ if options.answer_old && expires.is_none() => {
            let rest = args.iter().enumerate().filter(|(i, word)| *i < 3 || !word.eq_ignore_ascii_case(b"get"));
            let rest: Vec<&[u8]> = rest.map(|(_, word)| *word).collect();
            node.propagate_instead(context, &rest);
        }
        _ => {}
    }
}
