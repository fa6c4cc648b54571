//! The Lua scripts. Everything that can be refused comes before the write of the lock key, announcements come
//! last and by `pcall` (requirement A1): a refusal then proves that nothing was written.
//!
//! `pcall` hands a command's error back as a value, which the script returns: the error code so arrives in front on
//! every server version (Redis before 7 wraps the error of `call` in an `ERR Error running script`).

use super::request::Form;

/// How long a signal lives that nobody takes, in ms. The scripts have it in their text: an argument would cost more.
pub const SIGNAL_LIFE_MS: u64 = 2000;

/// A script and the SHA-1 by which `EVALSHA` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Script {
    /// What it is called in traces.
    pub name: &'static str,
    /// The Lua source, sent with the first use on a connection.
    pub source: &'static str,
    /// SHA-1 of the source, lower-case hexadecimal.
    pub sha1: &'static str,
    pub(crate) index: u8,
}

impl Script {
    /// The first two arguments of a command that calls it.
    pub(super) const fn called(&self, form: Form) -> [&'static [u8]; 2] {
        match form {
            Form::Source => [b"EVAL", self.source.as_bytes()],
            Form::Sha1 => [b"EVALSHA", self.sha1.as_bytes()],
        }
    }
}

/// Mints fencing tokens from the counter `KEYS[2]`: the part of [`TAKE`] and [`EXTEND`] that comes before the write of the lock
/// key. `$wanted` is the argument that says how many tokens are wanted.
///
/// It sets `first`, `count` and `ahead`: the first token, how many there are, and by how many µs the counter is ahead of the server's
/// clock. The script mints no more tokens than µs have passed since the counter was last written, so that the counter stays behind
/// the clock. Without a counter it mints one: nobody knows how many were minted in the last µs. Numbers stay below 2^53, where Lua
/// is exact.
macro_rules! mint {
    // A9
    ($wanted:literal) => {
        concat!(
            "\
  local c = redis.pcall('GET', KEYS[2])
  if type(c) == 'table' then return c end
  if c and not (string.match(c, '^%d+$') and tonumber(c) < 9000000000000000) then
    return redis.error_reply('LOCKFENCE the fence counter holds no number, or one that leaves no room to count')
  end
  local t = redis.pcall('TIME')
  if t.err then return t end
  t = t[1] * 1000000 + t[2]
  c = tonumber(c or 0)
  if c > 0 then count = math.max(1, math.min(t - c, tonumber(",
            $wanted,
            "))) end
  first = math.max(c, t - count) + 1
  ahead = math.max(0, first + count - 1 - t)
  local e = redis.pcall('SET', KEYS[2], string.format('%.0f', first + count - 1))
  if e.err then return e end
"
        )
    };
}

/// Take the lock: if it is absent, or holds a spent token of this client (requirements A1, A3).
///
/// `KEYS`: the lock; the fence counter if a fence is wanted; the marker, if who asks will wait. `ARGV`: the token, the three numbers of
/// [`Spent`](super::Spent) in one text, TTL in ms; how many fencing tokens are wanted, 0 or nothing for none; the life of the
/// marker in ms, if it is named. (Each argument costs the server more than its parsing where it is needed.)
/// Answers `{1, 0}`, or `{1, first fencing token, how many, µs that the counter is ahead of the clock}` if fencing tokens are
/// wanted, or `{0, PTTL of the holder}`.
///
/// The lock may hold the very token of this attempt, if somebody on the way has repeated the command. It is granted again, with new
/// fencing tokens.
///
/// The marker is set whatever the answer is (requirement A7): who was woken and takes the lock leaves others behind who are not, and
/// the release that woke it has taken their marker away.
pub const TAKE: Script = Script {
    name: "take",
    index: 0,
    sha1: "91d5c71485f30ffba9083848a2e68746d970762d",
    source: concat!(
        "\
local function answer(...)
  if ARGV[5] then redis.pcall('SET', KEYS[#KEYS], '1', 'PX', ARGV[5]) end
  return {...}
end
local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then return v end
local p
if v then
  p = redis.pcall('PTTL', KEYS[1])
  if type(p) == 'table' then return p end
  if v ~= ARGV[1] then
    local n = string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) and tonumber(string.sub(v, 34))
    local a, b, c = string.match(ARGV[2], '(%d+) (%d+) (%d+)')
    if not n or not (n <= tonumber(a) or (n > tonumber(b) and n <= tonumber(c))) then return answer(0, p) end
  end
end
local first, count, ahead = 0, 1
if ARGV[4] and ARGV[4] ~= '0' then
",
        mint!("ARGV[4]"),
        "\
end
if v ~= ARGV[1] then
  local e = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
  if e.err then return e end
elseif p < tonumber(ARGV[3]) then
  local e = redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
  if type(e) == 'table' then return e end
end
if ahead then return answer(1, first, count, ahead) end
return answer(1, 0)
"
    ),
};

/// Set the expiry if the token matches, and never to an earlier time (requirement H1). Mint fencing tokens if they are wanted.
///
/// `KEYS`: the lock; the fence counter if fencing tokens are wanted. `ARGV`: the token, TTL in ms; how many fencing tokens are wanted,
/// nothing for none. Answers 1 done, 0 the key is gone, -1 it is another's. If fencing tokens are wanted, done is answered
/// like [`TAKE`]: `{1, first fencing token, how many, µs that the counter is ahead of the clock}`.
pub const EXTEND: Script = Script {
    name: "extend",
    index: 1,
    sha1: "073173f5ccd6791bc0176d0bf32cae66003d0e51",
    source: concat!(
        "\
local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then return v end
if not v then return 0 end
if v ~= ARGV[1] then return -1 end
local p = redis.pcall('PTTL', KEYS[1])
if type(p) == 'table' then return p end
local first, count, ahead = 0, 1
if ARGV[3] then
",
        mint!("ARGV[3]"),
        "\
end
if p < tonumber(ARGV[2]) then
  local e = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(e) == 'table' then return e end
end
if ahead then return {1, first, count, ahead} end
return 1
"
    ),
};

/// Delete the lock if it holds this token or a spent one of this client, then wake one waiter if any waits (requirements U1, A4, A7).
///
/// `KEYS`: the lock; the marker and the signal list if the release is to be announced. `ARGV`: the token that is most likely there; the
/// three numbers of [`Spent`](super::Spent) in one text if another may be there. Answers -2 if the token was deleted, -3 if it was and
/// somebody waits, the number of the one that was deleted in its place, 0 if the key is absent, -1 if it is another's.
///
/// Whether somebody waits costs no command of its own: the marker goes with the lock, and the count of deleted keys tells.
pub const RELEASE: Script = Script {
    name: "release",
    index: 2,
    sha1: "b337b604c91fece13e0729388741fd05dbf9acb2",
    source: "\
local v = redis.pcall('GET', KEYS[1])
local n = -2
if v ~= ARGV[1] then
  if type(v) == 'table' then return v end
  if not v then return 0 end
  n = ARGV[2] and string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) and tonumber(string.sub(v, 34))
  if not n then return -1 end
  local a, b, c = string.match(ARGV[2], '(%d+) (%d+) (%d+)')
  if not (n <= tonumber(a) or (n > tonumber(b) and n <= tonumber(c))) then return -1 end
end
local e
if KEYS[3] then
  e = redis.pcall('DEL', KEYS[1], KEYS[2])
else
  e = redis.pcall('DEL', KEYS[1])
end
if type(e) == 'table' then return e end
if e == 2 then
  if n == -2 then n = -3 end
  if redis.pcall('EXISTS', KEYS[3]) == 0 then
    redis.pcall('RPUSH', KEYS[3], '1')
    e = redis.pcall('PEXPIRE', KEYS[3], 2000)
    if type(e) == 'table' then redis.pcall('DEL', KEYS[3]) end
  end
end
return n
",
};

/// Wake one waiter: hand on a signal that reached a client that no longer waits (requirement A7).
///
/// `KEYS`: the signal list. Answers 1.
pub const ANNOUNCE: Script = Script {
    name: "announce",
    index: 3,
    sha1: "ae06e5725656e030b3c8fda72ac181d67807c6c8",
    source: "\
local e = redis.pcall('EXISTS', KEYS[1])
if type(e) == 'table' then return e end
if e == 0 then
  e = redis.pcall('RPUSH', KEYS[1], '1')
  if type(e) == 'table' then return e end
  e = redis.pcall('PEXPIRE', KEYS[1], 2000)
  if type(e) == 'table' then redis.pcall('DEL', KEYS[1]) end
end
return 1
",
};

/// What [`RELEASE`] does with the token that is most likely there, for several locks (requirement P4).
///
/// `KEYS`: the locks; if they are to be announced, their markers and then their signal lists. `ARGV`: as many tokens. Answers -2 if all were
/// deleted and nobody waits for any of them; else one text with what `RELEASE` would have answered for each, and blanks between. An `x` is
/// a lock for which the server refused a command; if that was the first, nothing was done, and the error is the answer.
pub const RELEASE_MANY: Script = Script {
    name: "release many",
    index: 4,
    sha1: "471880667ea6ef7cb1b952df3706a2efe112e355",
    source: "\
local answers, plain = {}, true
for i = 1, #ARGV do
  local v, waiting = redis.pcall('GET', KEYS[i]), KEYS[#ARGV + i]
  local n = -2
  if v ~= ARGV[i] then
    n = type(v) == 'table' and v or v and -1 or 0
  else
    local e
    if waiting then e = redis.pcall('DEL', KEYS[i], waiting) else e = redis.pcall('DEL', KEYS[i]) end
    if e == 2 then
      n = -3
      local signal = KEYS[2 * #ARGV + i]
      if redis.pcall('EXISTS', signal) == 0 then
        redis.pcall('RPUSH', signal, '1')
        e = redis.pcall('PEXPIRE', signal, 2000)
        if type(e) == 'table' then redis.pcall('DEL', signal) end
      end
    elseif e ~= 1 then
      n = e
    end
  end
  if type(n) == 'table' then
    if i == 1 then return n end
    n = 'x'
  end
  answers[i] = n
  if n ~= -2 then plain = false end
end
if plain then return -2 end
return table.concat(answers, ' ')
",
};

/// Every script, in the order of its index.
pub const ALL: [Script; 5] = [TAKE, EXTEND, RELEASE, ANNOUNCE, RELEASE_MANY];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn every_hash_is_that_of_its_source_and_every_index_its_place() {
        for (index, script) in ALL.iter().enumerate() {
            assert_eq!(script.sha1, sha1_smol::Sha1::from(script.source).digest().to_string(), "{}", script.name);
            assert_eq!(usize::from(script.index), index, "{}", script.name);
        }
    }

    #[test]
    fn the_life_of_a_signal_is_that_of_the_scripts() {
        for script in [RELEASE, ANNOUNCE, RELEASE_MANY] {
            let (_, args) = script.source.split_once("redis.pcall('PEXPIRE', ").unwrap_or_default();
            let (_, life) = args.split_once(", ").unwrap_or_default();
            assert_eq!(life.split(')').next(), Some(SIGNAL_LIFE_MS.to_string().as_str()), "{}", script.name);
        }
    }
}
