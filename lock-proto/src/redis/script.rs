//! The Lua scripts, whose sources are in `script/`.
//!
//! Every command that can fail precedes the write of the lock key, and announcements come last, by
//! `pcall`. An error therefore proves that nothing was written. `pcall` returns errors as values,
//! so that the error code comes first on every server version. Before Redis 7, `call` wraps the
//! error in `ERR Error running script`.
//!
//! [`TAKE`] and [`EXTEND`] mint fencing tokens by the same lines, from the counter `KEYS[2]` and
//! before they write the lock key. `first` is the first token, `count` the number of tokens, and
//! `ahead` the µs by which the counter is ahead of the clock. To stay behind the clock, they mint
//! at most one token per µs since the last update of the counter. A missing counter yields one
//! token. Numbers stay below 2^53, where Lua is exact.
// A1, A9

use super::request::Form;

/// Lifetime in ms of a signal that nobody consumes. A literal in the scripts, to save an argument.
pub const SIGNAL_TTL_MS: u64 = 2000;

/// A script, and the SHA-1 by which `EVALSHA` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Script {
    /// Name shown in traces.
    pub name: &'static str,
    /// Lua source, sent with the first call on a connection.
    pub source: &'static str,
    /// SHA-1 of the source in lower-case hexadecimal.
    pub sha1: &'static str,
    pub(crate) index: u8,
}

impl Script {
    /// Returns the first two arguments of a command that calls the script.
    pub(super) const fn called(&self, form: Form) -> [&'static [u8]; 2] {
        match form {
            Form::Source => [b"EVAL", self.source.as_bytes()],
            Form::Sha1 => [b"EVALSHA", self.sha1.as_bytes()],
        }
    }
}

/// Takes the lock if the key is absent or holds a retired token of this client.
///
/// `KEYS`: the lock; the fence counter, to mint fencing tokens; the marker, if the client will
/// wait. `ARGV`: the token; the three numbers of [`Retired`](super::Retired) in one string; the TTL
/// in ms; the maximum number of fencing tokens, 0 or absent for none; the TTL of the marker in ms.
/// One string costs the server less than three arguments.
///
/// Replies `{1, 0}`, or `{1, first fencing token, count, µs by which the counter is ahead}` with
/// fencing tokens, or `{0, PTTL of the holder}`.
///
/// A server that refuses writes as a replica says so even if there is nothing to write: the key of
/// a holder is then set with `NX`, which changes nothing. With a marker, `BLPOP` shows it.
///
/// If a proxy repeated the command, the key holds this attempt's token and is granted again. The
/// script sets the marker whatever the reply: a woken client leaves other waiters behind, and the
/// release that woke it has deleted their marker.
// A1, A3, A7
pub const TAKE: Script = Script {
    name: "take",
    index: 0,
    sha1: "a08cf65ae3ef82c6fe60cc2f5bd0d5fa00ca3b4f",
    source: include_str!("script/take.lua"),
};

/// Extends the expiry if the token matches, never to an earlier time. May mint fencing tokens.
///
/// `KEYS`: the lock; the fence counter, to mint fencing tokens. `ARGV`: the token; the TTL in ms;
/// the maximum number of fencing tokens, absent for none. Replies 1 if extended, 0 if the key is
/// absent, -1 if it holds another value. With fencing tokens, success is `{1, first fencing token,
/// count, µs by which the counter is ahead}`, as for [`TAKE`].
// H1
pub const EXTEND: Script = Script {
    name: "extend",
    index: 1,
    sha1: "073173f5ccd6791bc0176d0bf32cae66003d0e51",
    source: include_str!("script/extend.lua"),
};

/// Deletes the lock if it holds this or a retired token of this client, and wakes one waiter.
///
/// `KEYS`: the lock; to announce the release, the marker and the signal list. `ARGV`: the most
/// likely token; the three numbers of [`Retired`](super::Retired) in one string, if another may be
/// there. Replies -2 if it deleted the token, or -3 if it also found waiters. Otherwise replies the
/// number of another token that it deleted, 0 if the key is absent, or -1 if it holds another
/// value.
///
/// The check for waiters needs no extra command: one `DEL` removes lock and marker, and its count
/// shows whether the marker existed. An absent key is deleted as well: what a replica lacks, its
/// primary may have.
// U1, A4, A7
pub const RELEASE: Script = Script {
    name: "release",
    index: 2,
    sha1: "1ce7f058e710a5804f56b95a14d517214c338636",
    source: include_str!("script/release.lua"),
};

/// Wakes one waiter: hands on a signal that reached a client that no longer waits.
///
/// `KEYS`: the signal list. Replies 1.
// A7
pub const ANNOUNCE: Script = Script {
    name: "announce",
    index: 3,
    sha1: "ae06e5725656e030b3c8fda72ac181d67807c6c8",
    source: include_str!("script/announce.lua"),
};

/// Releases several locks, each by its most likely token only, like [`RELEASE`].
///
/// `KEYS`: the locks; to announce the releases, their markers and then their signal lists. `ARGV`:
/// one token per lock. Replies -2 if all tokens were deleted and no lock has waiters. Otherwise
/// replies `RELEASE`'s results in one string, separated by spaces; `x` is a key of another type. If
/// the server refuses the one `DEL`, nothing was done and the reply is that error.
// P4
pub const RELEASE_MANY: Script = Script {
    name: "release-many",
    index: 4,
    sha1: "12790af9cbc2c7851ef39c0e06d637ef2c31f494",
    source: include_str!("script/release_many.lua"),
};

/// Takes several locks if they are free. No token of this client may be left under their keys.
///
/// `KEYS`: the locks; the fence counter, to mint fencing tokens. `ARGV`: one token per lock; the
/// TTL in ms; the maximum number of fencing tokens, 0 for none. If all locks were taken, replies
/// like [`TAKE`] with four numbers; the fencing tokens of each lock follow those of the lock before
/// it. If the only lock is held, replies `{0, PTTL of the holder}`. Otherwise replies one string,
/// separated by spaces: the last three of the four numbers, and a word for each lock. The word is
/// `g` if it was taken, the PTTL of its holder, or `x` if the server refused a command. If it
/// refused one for the first lock, nothing was taken and the reply is that error.
///
/// All locks share one reading of the clock, one update of the counter, and the maximum number of
/// tokens: otherwise the tokens of the first lock would be older than those of a lock taken alone.
/// Each lock gets at least one.
// A1, A9, P4
pub const TAKE_FREE: Script = Script {
    name: "take-free",
    index: 5,
    sha1: "4334b5b80500e63f8a47854e22d8e9fc7626a5b5",
    source: include_str!("script/take_free.lua"),
};

/// Extends several locks, like [`EXTEND`] without fencing tokens.
///
/// `KEYS`: the locks. `ARGV`: one token per lock; the TTL in ms. Replies 1 if all were extended.
/// Otherwise replies one string with the reply of `EXTEND` for each lock, separated by spaces; `x`
/// stands for a key of another type or a refused command. If the server refused one for the first
/// lock, nothing was done and the reply is that error.
// P4
pub const EXTEND_MANY: Script = Script {
    name: "extend-many",
    index: 6,
    sha1: "46501f5171bfe3a923e1d02fd23b43748a6bc522",
    source: include_str!("script/extend_many.lua"),
};

/// All scripts, ordered by index.
pub const ALL: [Script; 7] = [TAKE, EXTEND, RELEASE, ANNOUNCE, RELEASE_MANY, TAKE_FREE, EXTEND_MANY];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn hashes_match_sources_and_indices_match_positions() {
        for (index, script) in ALL.iter().enumerate() {
            assert_eq!(script.sha1, sha1_smol::Sha1::from(script.source).digest().to_string(), "{}", script.name);
            assert_eq!(usize::from(script.index), index, "{}", script.name);
        }
    }

    /// The minting code differs only in the argument with the maximum number of tokens.
    #[test]
    fn take_and_extend_scripts_share_minting_code() {
        // A9
        let mint = |script: Script| {
            let (_, part) = script.source.split_once("\nlocal c = redis").unwrap_or_default();
            part.split("\nend\n").next().unwrap_or_default().replace("ARGV[4]", "ARGV[3]")
        };
        assert_eq!(mint(TAKE), mint(EXTEND));
        assert!(mint(TAKE).contains("redis.pcall('SET', KEYS[2]"));
    }

    #[test]
    fn signal_lifetime_matches_scripts() {
        for script in [RELEASE, ANNOUNCE, RELEASE_MANY] {
            let (_, args) = script.source.split_once("call('PEXPIRE', ").unwrap_or_default();
            let (_, ttl) = args.split_once(", ").unwrap_or_default();
            assert_eq!(ttl.split(')').next(), Some(SIGNAL_TTL_MS.to_string().as_str()), "{}", script.name);
        }
    }
}
