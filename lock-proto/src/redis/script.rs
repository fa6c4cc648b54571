//! The Lua scripts. Everything that can be refused comes before the write of the lock key, announcements come
//! last and by `pcall` (requirement A1): a refusal then proves that nothing was written.
//!
//! `pcall` hands a command's error back as a value, which the script returns: the error code so arrives in front on
//! every server version (Redis before 7 wraps the error of `call` in an `ERR Error running script`).
//!
//! The sources are in `script/`. [`TAKE`] and [`EXTEND`] mint fencing tokens from the counter `KEYS[2]` by the same lines, before they
//! write the lock's key (requirement A9). Those set `first`, `count` and `ahead`: the first token, how many there are, and by how many µs
//! the counter is ahead of the server's clock. They mint no more tokens than µs have passed since the counter was last written, so that
//! the counter stays behind the clock. Without a counter they mint one: nobody knows how many were minted in the last µs. Numbers stay
//! below 2^53, where Lua is exact.

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

/// Take the lock: if it is absent, or holds a spent token of this client (requirements A1, A3).
///
/// `KEYS`: the lock; the fence counter if a fence is wanted; the marker, if who asks will wait. `ARGV`: the token, the three numbers of
/// [`Retired`](super::Retired) in one text, TTL in ms; how many fencing tokens are wanted, 0 or nothing for none; the life of the
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
    source: include_str!("script/take.lua"),
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
    source: include_str!("script/extend.lua"),
};

/// Delete the lock if it holds this token or a spent one of this client, then wake one waiter if any waits (requirements U1, A4, A7).
///
/// `KEYS`: the lock; the marker and the signal list if the release is to be announced. `ARGV`: the token that is most likely there; the
/// three numbers of [`Retired`](super::Retired) in one text if another may be there. Answers -2 if the token was deleted, -3 if it was and
/// somebody waits, the number of the one that was deleted in its place, 0 if the key is absent, -1 if it is another's.
///
/// Whether somebody waits costs no command of its own: the marker goes with the lock, and the count of deleted keys tells.
pub const RELEASE: Script = Script {
    name: "release",
    index: 2,
    sha1: "06d9f79722561638ecbc26ec7445f4693853eed6",
    source: include_str!("script/release.lua"),
};

/// Wake one waiter: hand on a signal that reached a client that no longer waits (requirement A7).
///
/// `KEYS`: the signal list. Answers 1.
pub const ANNOUNCE: Script = Script {
    name: "announce",
    index: 3,
    sha1: "ae06e5725656e030b3c8fda72ac181d67807c6c8",
    source: include_str!("script/announce.lua"),
};

/// What [`RELEASE`] does with the token that is most likely there, for several locks (requirement P4).
///
/// `KEYS`: the locks; if they are to be announced, their markers and then their signal lists. `ARGV`: as many tokens. Answers -2 if all were
/// deleted and nobody waits for any of them; else one text with what `RELEASE` would have answered for each, and blanks between. An `x` is
/// a lock whose key holds something else. All are deleted by one command: if the server refuses that, nothing was done, and the error is the
/// answer.
pub const RELEASE_MANY: Script = Script {
    name: "release-many",
    index: 4,
    sha1: "a0e203e368c627c2408c1951b9bb6d61663555a3",
    source: include_str!("script/release_many.lua"),
};

/// Take locks of which nothing of this client can be left, if they are free (requirements A1, A9, P4).
///
/// `KEYS`: the locks; the fence counter if fencing tokens are wanted. `ARGV`: as many tokens, the TTL in ms, how many fencing tokens are
/// wanted for each, 0 for none. Answers like [`TAKE`] with four numbers if all were taken: the fencing tokens of the first lock are followed by as many for the next, and
/// so on. Of one lock that was not taken, `{0, PTTL of the holder}`. Of several, one text with the last three of these numbers and then
/// a word for each lock, with blanks between: `g` if it was taken, the PTTL of its holder, or `x` if the server refused a command; if that was the first, nothing
/// was taken, and the error is the answer.
///
/// One look at the clock and one update of the counter serve all. The locks share the gap between counter and clock.
pub const TAKE_FREE: Script = Script {
    name: "take-free",
    index: 5,
    sha1: "166be925e7f1093657648ebe707fb3dd65a57719",
    source: include_str!("script/take_free.lua"),
};

/// What [`EXTEND`] does without fencing tokens, for several locks (requirement P4).
///
/// `KEYS`: the locks. `ARGV`: as many tokens, and the TTL in ms. Answers 1 if all were extended; else one text with what `EXTEND` would have
/// answered for each, and blanks between. An `x` is a lock whose key holds something else, or for which the server refused a command; if that was
/// the first, nothing was done, and the error is the answer.
pub const EXTEND_MANY: Script = Script {
    name: "extend-many",
    index: 6,
    sha1: "46501f5171bfe3a923e1d02fd23b43748a6bc522",
    source: include_str!("script/extend_many.lua"),
};

/// Every script, in the order of its index.
pub const ALL: [Script; 7] = [TAKE, EXTEND, RELEASE, ANNOUNCE, RELEASE_MANY, TAKE_FREE, EXTEND_MANY];

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

    /// They differ in nothing but the argument that says how many are wanted.
    #[test]
    fn a9_both_scripts_mint_by_the_same_lines() {
        let mint = |script: Script| {
            let (_, part) = script.source.split_once("\nlocal c = redis").unwrap_or_default();
            part.split("\nend\n").next().unwrap_or_default().replace("ARGV[4]", "ARGV[3]")
        };
        assert_eq!(mint(TAKE), mint(EXTEND));
        assert!(mint(TAKE).contains("redis.pcall('SET', KEYS[2]"));
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
