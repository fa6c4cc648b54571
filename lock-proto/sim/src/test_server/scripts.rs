//! Scripts that many lock libraries send, recognised by their text without spaces and quotes.

use crate::redis::{Interpreter, RespReply, ScriptCalls, ScriptFn};

/// Runs the scripts of common lock libraries. There is no Lua here: see docs/notes/lua.md.
#[derive(Debug)]
pub struct CommonScripts;

const KNOWN: &[(&str, ScriptFn)] = &[
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
        compare_and_delete,
    ),
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        compare_and_delete,
    ),
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
        compare_and_expire,
    ),
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0",
        compare_and_expire,
    ),
    // redis-py: release, reacquire, extend.
    (
        "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end \
         redis.call('del', KEYS[1]) return 1",
        compare_and_delete,
    ),
    (
        "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end \
         redis.call('pexpire', KEYS[1], ARGV[2]) return 1",
        compare_and_expire,
    ),
    (
        "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end \
         local expiration = redis.call('pttl', KEYS[1]) if not expiration then expiration = 0 end \
         if expiration < 0 then return 0 end local newttl = ARGV[2] \
         if ARGV[3] == '0' then newttl = ARGV[2] + expiration end \
         redis.call('pexpire', KEYS[1], newttl) return 1",
        extend,
    ),
];

fn normal(source: &[u8]) -> Vec<u8> {
    let kept = source.iter().filter(|byte| !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'\'' | b';'));
    kept.map(u8::to_ascii_lowercase).collect()
}

fn find(source: &[u8]) -> Option<ScriptFn> {
    let source = normal(source);
    KNOWN.iter().find(|(text, _)| normal(text.as_bytes()) == source).map(|(_, run)| *run)
}

impl Interpreter for CommonScripts {
    fn compile(&self, source: &[u8]) -> Result<(), String> {
        let unknown =
            "user_script:1: this server runs no Lua, and this script is not among those it knows: see docs/serving.md";
        find(source).map(drop).ok_or_else(|| unknown.into())
    }

    fn run(
        &self,
        source: &[u8],
        calls: &mut ScriptCalls<'_>,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<RespReply, RespReply> {
        let run = find(source).ok_or(RespReply::Nil)?;
        run(calls, keys, args)
    }
}

fn is_mine(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<bool, RespReply> {
    let (Some(key), Some(token)) = (keys.first(), args.first()) else { return Ok(false) };
    Ok(redis.call(&[b"GET", *key])?.bytes() == Some(token))
}

fn compare_and_delete(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    if is_mine(redis, keys, args)? { redis.call(&[b"DEL", keys[0]]) } else { Ok(RespReply::Int(0)) }
}

fn compare_and_expire(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    let Some(ttl) = args.get(1) else { return Ok(RespReply::Int(0)) };
    if is_mine(redis, keys, args)? { redis.call(&[b"PEXPIRE", keys[0], ttl]) } else { Ok(RespReply::Int(0)) }
}

fn extend(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    if !is_mine(redis, keys, args)? {
        return Ok(RespReply::Int(0));
    }
    let left = redis.call(&[b"PTTL", keys[0]])?.int().unwrap_or(0);
    if left < 0 {
        return Ok(RespReply::Int(0));
    }
    let text = |arg: Option<&&[u8]>| String::from_utf8_lossy(arg.copied().unwrap_or_default()).into_owned();
    let (given, replaces) = (text(args.get(1)), text(args.get(2)) != "0");
    let given: f64 = given.parse().unwrap_or(0.0);
    let ttl = if replaces { given } else { given + left as f64 };
    redis.call(&["PEXPIRE", &String::from_utf8_lossy(keys[0]), &format!("{ttl:.0}")])?;
    Ok(RespReply::Int(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_known_in_any_layout() {
        let other = b"if redis.call(\"GET\",KEYS[1]) == ARGV[1]\nthen\n  return redis.call(\"DEL\",KEYS[1])\nelse\n  return 0\nend";
        assert!(CommonScripts.compile(other).is_ok());
        assert!(CommonScripts.compile(b"return 1").is_err());
    }
}
