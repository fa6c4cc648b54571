//! The script cache, and Rust equivalents of the known Lua scripts.

use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use super::command::{CommandContext, Running, STALE_DATA, lower};
use super::number;
use super::reply::RespReply;
use super::strings::NOT_AN_INTEGER;
use super::{MintedBlock, Node};
use lock_proto::redis::CLIENT_PART;
use lock_proto::redis::script;

const NOSCRIPT: RespReply = RespReply::error("NOSCRIPT No matching script. Please use EVAL.");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum KnownScript {
    Take,
    Extend,
    Release,
    Announce,
    ReleaseMany,
    TakeFree,
    ExtendMany,
}

const KNOWN: [(KnownScript, script::Script); 7] = [
    (KnownScript::Take, script::TAKE),
    (KnownScript::Extend, script::EXTEND),
    (KnownScript::Release, script::RELEASE),
    (KnownScript::Announce, script::ANNOUNCE),
    (KnownScript::ReleaseMany, script::RELEASE_MANY),
    (KnownScript::TakeFree, script::TAKE_FREE),
    (KnownScript::ExtendMany, script::EXTEND_MANY),
];

impl KnownScript {
    fn of(source: &[u8]) -> Option<(Self, script::Script)> {
        KNOWN.into_iter().find(|(_, script)| script.source.as_bytes() == source)
    }

    fn by_name(sha1: &[u8]) -> Option<Self> {
        KNOWN.iter().find(|(_, script)| script.sha1.as_bytes().eq_ignore_ascii_case(sha1)).map(|(known, _)| *known)
    }
}

pub(super) fn eval(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let (keys, argv) = match split(args) {
        Ok(split) => split,
        Err(refused) => return refused,
    };
    let Some((known, _)) = KnownScript::of(args[1]) else {
        return match node.load_own(args[1]) {
            Ok(_) if node.is_stale() => STALE_DATA,
            Ok((script, _)) => node.run_own(context, &script, keys, argv),
            Err(refused) => refused,
        };
    };
    node.scripts.insert(known);
    node.run_script(context, known, keys, argv)
}

pub(super) fn evalsha(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let (keys, argv) = match split(args) {
        Ok(split) => split,
        Err(refused) => return refused,
    };
    let Some(known) = node.cached(args[1]) else {
        return match node.own_source(args[1]).map(|source| node.load_own(&source)) {
            Some(Ok(_)) if node.is_stale() => STALE_DATA,
            Some(Ok((script, _))) => node.run_own(context, &script, keys, argv),
            Some(Err(refused)) => refused,
            None => NOSCRIPT,
        };
    };
    node.run_script(context, known, keys, argv)
}

type Split<'a, 'b> = (&'a [&'b [u8]], &'a [&'b [u8]]);

fn split<'a, 'b>(args: &'a [&'b [u8]]) -> Result<Split<'a, 'b>, RespReply> {
    let count = number::integer(args[2]).ok_or(NOT_AN_INTEGER)?;
    let rest = &args[3..];
    if count > i64::try_from(rest.len()).unwrap_or(i64::MAX) {
        return Err(RespReply::error("ERR Number of keys can't be greater than number of args"));
    }
    let count = usize::try_from(count).map_err(|_| RespReply::error("ERR Number of keys can't be negative"))?;
    Ok(rest.split_at(count))
}

pub(super) fn script_load(node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let Some((known, script)) = KnownScript::of(args[2]) else {
        return node.load_own(args[2]).map_or_else(|refused| refused, |(_, name)| RespReply::bulk(&*name));
    };
    node.scripts.insert(known);
    RespReply::bulk(script.sha1.as_bytes())
}

pub(super) fn script_exists(node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    RespReply::Array(args[2..].iter().map(|name| RespReply::Int(i64::from(node.is_cached(name)))).collect())
}

pub(super) fn script_flush(node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match args {
        [_, _] => {}
        [_, _, how] if matches!(lower(how).as_str(), "sync" | "async") => {}
        _ => return RespReply::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
    }
    node.flush_scripts();
    RespReply::Ok
}

/// Fencing tokens of one lock. `ahead` is the lead of the counter over the clock in µs.
struct MintedTokens {
    first: f64,
    count: f64,
    ahead: f64,
}

impl MintedTokens {
    fn answer(self) -> RespReply {
        answer(&[1.0, self.first, self.count, self.ahead])
    }
}

/// What aborts a script: an error that it returns, or one that Lua raises.
struct Stop(RespReply);

/// A Lua error, without the position in the script.
fn raise(what: &str) -> Stop {
    Stop(RespReply::Error(format!("ERR user_script: {what}").into()))
}

/// `tonumber`. Raises Lua's error for anything but a number.
fn number(argv: &[&[u8]], index: usize) -> Result<f64, Stop> {
    argv.get(index).and_then(|arg| number::lua(arg)).ok_or_else(|| raise("attempt to compare nil with number"))
}

fn arg<'a>(list: &[&'a [u8]], index: usize) -> Result<&'a [u8], Stop> {
    list.get(index).copied().ok_or_else(|| raise("attempt to get length of field '?' (a nil value)"))
}

impl Node {
    fn is_cached(&self, sha1: &[u8]) -> bool {
        self.cached(sha1).is_some() || self.own_source(sha1).is_some()
    }

    fn cached(&self, sha1: &[u8]) -> Option<KnownScript> {
        KnownScript::by_name(sha1).filter(|known| self.scripts.contains(known))
    }

    fn run_script(
        &mut self,
        context: &CommandContext,
        known: KnownScript,
        keys: &[&[u8]],
        argv: &[&[u8]],
    ) -> RespReply {
        if self.is_stale() {
            return STALE_DATA;
        }
        let mut inner = CommandContext { script: Some(Running::default()), ..context.clone() };
        let done = match known {
            KnownScript::Take => self.take(&mut inner, keys, argv),
            KnownScript::Extend => self.extend(&mut inner, keys, argv),
            KnownScript::Release => self.release(&mut inner, keys, argv),
            KnownScript::Announce => self.announce(&mut inner, keys),
            KnownScript::ReleaseMany => self.release_many(&mut inner, keys, argv),
            KnownScript::TakeFree => self.take_free(&mut inner, keys, argv),
            KnownScript::ExtendMany => self.extend_many(&mut inner, keys, argv),
        };
        match done {
            Ok(reply) | Err(Stop(reply)) => reply,
        }
    }

    /// `redis.pcall`; an error becomes the result of the script.
    fn call(&mut self, context: &mut CommandContext, args: &[&[u8]]) -> Result<RespReply, Stop> {
        let reply = self.run(context, args);
        if reply.is_error() { Err(Stop(reply)) } else { Ok(reply) }
    }

    fn call_get(&mut self, context: &mut CommandContext, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        let RespReply::Bulk(text) = self.call(context, &[b"GET", key])? else { return Ok(None) };
        Ok(Some(text))
    }

    fn call_pttl(&mut self, context: &mut CommandContext, key: &[u8]) -> Result<f64, Stop> {
        let RespReply::Int(n) = self.call(context, &[b"PTTL", key])? else {
            return Err(raise("attempt to compare number with boolean"));
        };
        // Lua numbers are doubles.
        Ok(n as f64)
    }

    fn take(&mut self, context: &mut CommandContext, keys: &[&[u8]], argv: &[&[u8]]) -> Result<RespReply, Stop> {
        let answer = self.take_answer(context, keys, argv)?;
        if let (Some(ttl), Some(marker)) = (argv.get(4), keys.last()) {
            // A `pcall` whose result is ignored.
            self.run(context, &[b"SET", marker, b"1", b"PX", ttl]);
        }
        Ok(answer)
    }

    fn take_answer(&mut self, context: &mut CommandContext, keys: &[&[u8]], argv: &[&[u8]]) -> Result<RespReply, Stop> {
        let (key, token, ttl_text) = (arg(keys, 0)?, arg(argv, 0)?, arg(argv, 2)?);
        let current = self.call_get(context, key)?;
        let mut left = None;
        if let Some(current) = &current {
            let pttl = self.call_pttl(context, key)?;
            if current == token {
                left = Some(pttl);
            } else if !retired(own_number(current, token), argv)? {
                if argv.get(4).is_none() {
                    self.refuse_on_replica(context, &[b"SET", key, token, b"NX", b"PX", b"1"])?;
                }
                return Ok(answer(&[0.0, pttl]));
            }
        }
        let minted = match argv.get(3) {
            Some(block) if *block != b"0" => Some(self.mint(context, arg(keys, 1)?, number(argv, 3)?, 1)?),
            Some(_) | None => None,
        };
        self.record_minted(key, token, minted.as_ref(), 0);
        match left {
            Some(left) if left < number(argv, 2)? => {
                self.call(context, &[b"PEXPIRE", key, ttl_text])?;
            }
            Some(_) => {}
            None => {
                self.call(context, &[b"SET", key, token, b"PX", ttl_text])?;
            }
        }
        Ok(minted.map_or_else(|| answer(&[1.0, 0.0]), MintedTokens::answer))
    }

    /// Mints fencing tokens for `locks` locks. All scripts that mint share this part.
    fn mint(
        &mut self,
        context: &mut CommandContext,
        counter: &[u8],
        requested: f64,
        locks: usize,
    ) -> Result<MintedTokens, Stop> {
        let locks = locks as f64;
        let last = match self.call_get(context, counter)? {
            None => 0.0,
            Some(text) => counter_value(&text).ok_or(Stop(RespReply::error(NO_COUNTER)))?,
        };
        let RespReply::Array(time) = self.call(context, &[b"TIME"])? else { return Err(raise("no time")) };
        let part = |index: usize| match time.get(index) {
            Some(RespReply::Bulk(text)) => number::lua(text).unwrap_or_default(),
            _ => 0.0,
        };
        let now = part(0) * 1_000_000.0 + part(1);
        let count = if last > 0.0 { (requested.min(now - last) / locks).floor().max(1.0) } else { 1.0 };
        let first = last.max(now - (count * locks).min(requested)) + 1.0;
        #[cfg(test)]
        let (first, count) = if FIXED_BLOCKS.get() { (last.max(now) + 1.0, requested) } else { (first, count) };
        let next = first + count * locks - 1.0;
        self.call(context, &[b"SET", counter, format!("{next:.0}").as_bytes()])?;
        Ok(MintedTokens { first, count, ahead: (next - now).max(0.0) })
    }

    /// Records the block of the lock at this place of a script.
    fn record_minted(&mut self, key: &[u8], token: &[u8], minted: Option<&MintedTokens>, place: usize) {
        let Some(MintedTokens { first, count, .. }) = minted.filter(|_| self.config.record_mints) else { return };
        let first = first + count * place as f64;
        let (first, last) = (first as u64, (first + count) as u64 - 1);
        self.minted.push_back(MintedBlock { key: key.to_vec(), token: token.to_vec(), first, last });
    }

    fn take_free(&mut self, context: &mut CommandContext, keys: &[&[u8]], argv: &[&[u8]]) -> Result<RespReply, Stop> {
        let Some((tokens, [ttl, _])) = argv.split_last_chunk() else { return Err(raise("no TTL")) };
        let (count, requested) = (tokens.len(), number(argv, argv.len() - 1)?);
        let minted = if requested > 0.0 {
            self.mint(context, arg(keys, count)?, requested, count)?
        } else {
            MintedTokens { first: 0.0, count: 1.0, ahead: 0.0 }
        };
        let mut answers = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            answers.push(match self.take_if_free(context, arg(keys, i)?, token, ttl) {
                Ok(None) => {
                    self.record_minted(arg(keys, i)?, token, (requested > 0.0).then_some(&minted), i);
                    "g".into()
                }
                Ok(Some(left)) if count == 1 => return Ok(answer(&[0.0, left])),
                Ok(Some(left)) => format!("{left:.0}"),
                Err(stop) if i == 0 => return Err(stop),
                Err(_) => "x".into(),
            });
        }
        if answers.iter().all(|answer| answer == "g") {
            return Ok(minted.answer());
        }
        let MintedTokens { first, count, ahead } = minted;
        Ok(RespReply::bulk(format!("{first:.0} {count:.0} {ahead:.0} {}", answers.join(" ")).as_bytes()))
    }

    /// Takes the lock if it is free. Otherwise returns the holder's remaining TTL, if any.
    fn take_if_free(
        &mut self,
        context: &mut CommandContext,
        key: &[u8],
        token: &[u8],
        ttl: &[u8],
    ) -> Result<Option<f64>, Stop> {
        if self.call(context, &[b"SET", key, token, b"NX", b"PX", ttl])? == RespReply::Ok {
            return Ok(None);
        }
        self.call(context, &[b"GET", key])?;
        self.call_pttl(context, key).map(Some)
    }

    fn extend_many(&mut self, context: &mut CommandContext, keys: &[&[u8]], argv: &[&[u8]]) -> Result<RespReply, Stop> {
        let Some((ttl, tokens)) = argv.split_last() else { return Err(raise("no TTL")) };
        let values = self.call_mget(context, keys)?;
        let mut answers = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            let value = values.get(i).and_then(Option::as_deref);
            answers.push(match self.held_by(context, key, value, arg(tokens, i)?) {
                Some(true) => match self.extend_to(context, key, ttl) {
                    Ok(()) => "1",
                    Err(stop) if i == 0 => return Err(stop),
                    Err(_) => "x",
                },
                Some(false) if value.is_some() => "-1",
                Some(false) => "0",
                None => "x",
            });
        }
        if answers.iter().all(|answer| *answer == "1") {
            return Ok(RespReply::Int(1));
        }
        Ok(RespReply::bulk(answers.join(" ").as_bytes()))
    }

    fn extend_to(&mut self, context: &mut CommandContext, key: &[u8], ttl: &[u8]) -> Result<(), Stop> {
        if self.call_pttl(context, key)? < number(&[ttl], 0)? {
            self.call(context, &[b"PEXPIRE", key, ttl])?;
        }
        Ok(())
    }

    fn extend(&mut self, context: &mut CommandContext, keys: &[&[u8]], argv: &[&[u8]]) -> Result<RespReply, Stop> {
        let (key, token) = (arg(keys, 0)?, arg(argv, 0)?);
        match self.call_get(context, key)? {
            None => return Ok(RespReply::Int(0)),
            Some(current) if current != token => return Ok(RespReply::Int(-1)),
            Some(_) => {}
        }
        let left = self.call_pttl(context, key)?;
        let minted = match argv.get(2) {
            Some(_) => Some(self.mint(context, arg(keys, 1)?, number(argv, 2)?, 1)?),
            None => None,
        };
        self.record_minted(key, token, minted.as_ref(), 0);
        if left < number(argv, 1)? {
            self.call(context, &[b"PEXPIRE", key, arg(argv, 1)?])?;
        }
        Ok(minted.map_or(RespReply::Int(1), MintedTokens::answer))
    }

    fn release(&mut self, context: &mut CommandContext, keys: &[&[u8]], argv: &[&[u8]]) -> Result<RespReply, Stop> {
        let (key, token) = (arg(keys, 0)?, arg(argv, 0)?);
        let current = self.call_get(context, key)?;
        let mut mine = current.as_deref() == Some(token);
        let mut found = if mine {
            -2.0
        } else if current.is_some() {
            -1.0
        } else {
            0.0
        };
        let own = current.filter(|_| !mine && argv.len() > 1).and_then(|value| own_number(&value, token));
        if let Some(number) = own
            && retired(own, argv)?
        {
            (mine, found) = (true, number);
        }
        let marker = if keys.len() > 2 { Some(arg(keys, 1)?) } else { None };
        let gone: Vec<&[u8]> = mine.then_some(key).into_iter().chain(marker).collect();
        if gone.is_empty() {
            if found == 0.0 {
                self.refuse_on_replica(context, &[b"DEL", key])?;
            }
            return Ok(integer(found));
        }
        let count = self.call(context, &[&[&b"DEL"[..]], &gone[..]].concat())?;
        if count == RespReply::Int(1 + i64::from(mine)) && marker.is_some() {
            if found == -2.0 {
                found = -3.0;
            }
            self.wake(context, arg(keys, 2)?);
        }
        Ok(integer(found))
    }

    /// Runs a write that changes nothing. A replica refuses it; other errors are ignored.
    fn refuse_on_replica(&mut self, context: &mut CommandContext, write: &[&[u8]]) -> Result<(), Stop> {
        let reply = self.run(context, write);
        let refused = matches!(&reply, RespReply::Error(text) if text.starts_with("READONLY"));
        if refused { Err(Stop(reply)) } else { Ok(()) }
    }

    /// Wakes a waiter. Errors are ignored, like the result of a `pcall`.
    fn wake(&mut self, context: &mut CommandContext, signal: &[u8]) {
        if self.run(context, &[b"EXISTS", signal]) == RespReply::Int(0) {
            self.run(context, &[b"RPUSH", signal, b"1"]);
            self.end_signal(context, signal);
        }
    }

    fn release_many(
        &mut self,
        context: &mut CommandContext,
        keys: &[&[u8]],
        argv: &[&[u8]],
    ) -> Result<RespReply, Stop> {
        let count = argv.len();
        let values = self.call_mget(context, keys.get(..2 * count).unwrap_or(keys))?;
        let value = |place: usize| values.get(place).and_then(Option::as_deref);
        let (mut answers, mut gone, mut signals) = (Vec::new(), Vec::new(), Vec::new());
        for (i, token) in argv.iter().enumerate() {
            let found = self.held_by(context, arg(keys, i)?, value(i), token);
            answers.push(match found {
                Some(true) => {
                    gone.push(arg(keys, i)?);
                    if value(count + i).is_some() { "-3" } else { "-2" }
                }
                Some(false) if value(i).is_some() => "-1",
                Some(false) => {
                    gone.push(arg(keys, i)?);
                    "0"
                }
                None => "x",
            });
            if found.is_some() && value(count + i).is_some() {
                gone.push(arg(keys, count + i)?);
                signals.push(arg(keys, 2 * count + i)?);
            }
        }
        if !gone.is_empty() {
            self.call(context, &[&[&b"DEL"[..]], &gone[..]].concat())?;
        }
        signals.into_iter().for_each(|signal| self.wake(context, signal));
        if answers.iter().all(|answer| *answer == "-2") {
            return Ok(RespReply::Int(-2));
        }
        Ok(RespReply::bulk(answers.join(" ").as_bytes()))
    }

    fn call_mget(&mut self, context: &mut CommandContext, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Stop> {
        let RespReply::Array(values) = self.call(context, &[&[&b"MGET"[..]], keys].concat())? else {
            return Ok(Vec::new());
        };
        let text = |value| if let RespReply::Bulk(text) = value { Some(text) } else { None };
        Ok(values.into_iter().map(text).collect())
    }

    /// Returns whether the lock's value is this token, or `None` if the key holds another type.
    fn held_by(
        &mut self,
        context: &mut CommandContext,
        key: &[u8],
        value: Option<&[u8]>,
        token: &[u8],
    ) -> Option<bool> {
        match value {
            Some(value) => Some(value == token),
            None => (!self.run(context, &[b"GET", key]).is_error()).then_some(false),
        }
    }

    /// Sets the expiry of a signal, or deletes it if that fails.
    fn end_signal(&mut self, context: &mut CommandContext, signal: &[u8]) {
        let ttl = script::SIGNAL_TTL_MS.to_string();
        if self.run(context, &[b"PEXPIRE", signal, ttl.as_bytes()]).is_error() {
            self.run(context, &[b"DEL", signal]);
        }
    }

    fn announce(&mut self, context: &mut CommandContext, keys: &[&[u8]]) -> Result<RespReply, Stop> {
        let signal = arg(keys, 0)?;
        if self.call(context, &[b"EXISTS", signal])? == RespReply::Int(0) {
            self.call(context, &[b"RPUSH", signal, b"1"])?;
            self.end_signal(context, signal);
        }
        Ok(RespReply::Int(1))
    }
}

#[cfg(test)]
std::thread_local! {
    /// A planted flaw: servers of this thread mint all requested tokens and ignore the clock.
    pub(crate) static FIXED_BLOCKS: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

const NO_COUNTER: &str = "LOCKFENCE the fence counter holds no number, or one that leaves no room to count";

/// Parses the fencing counter: digits only, with room to count.
fn counter_value(text: &[u8]) -> Option<f64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    number::lua(text).filter(|n| digits && *n < 9_000_000_000_000_000.0)
}

/// Returns the number of a value that the client of `token` wrote.
fn own_number(value: &[u8], token: &[u8]) -> Option<f64> {
    let client = token.get(..CLIENT_PART)?;
    value.strip_prefix(client).and_then(number::lua)
}

/// Whether the number is in one of the two ranges of `argv[1]`.
fn retired(own: Option<f64>, argv: &[&[u8]]) -> Result<bool, Stop> {
    let Some(n) = own else { return Ok(false) };
    let numbers: Vec<f64> = arg(argv, 1)?.split(|byte| *byte == b' ').filter_map(number::lua).collect();
    let [upto, after, last] = numbers[..] else { return Err(raise("attempt to compare nil with number")) };
    Ok(n <= upto || (n > after && n <= last))
}

fn answer(numbers: &[f64]) -> RespReply {
    RespReply::Array(numbers.iter().map(|n| integer(*n)).collect())
}

/// Converts a Lua number to a reply. Redis drops the fraction.
fn integer(n: f64) -> RespReply {
    RespReply::Int(n as i64)
}
