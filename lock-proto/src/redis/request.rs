//! Typed requests and replies, the interface between the hub and a Redis client.
//!
//! To use your own Redis client, send the arguments from [`Request::with_args`] and convert the
//! server's reply with [`Request::read`].

use core::time::Duration;

use super::key::{Key, KeyLayout};
use super::script::{self, Script};
use super::token::{CLIENT_PART, Retired};
use crate::id::ClientId;
use crate::lock::{Cause, ErrorClass, Expiry, ServerError, Token};

/// The parts of every command that identify a client: its id and its namespace's fence counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    client: ClientId,
    pub(super) client_part: [u8; CLIENT_PART],
    layout: KeyLayout,
    /// The namespace's fence counter.
    pub(super) counter: Key,
}

impl Identity {
    /// Creates the identity of `client` in the namespace `prefix`, whose keys have this layout.
    #[must_use]
    pub fn new(client: ClientId, layout: KeyLayout, prefix: &[u8]) -> Self {
        let mut client_part = [b':'; CLIENT_PART];
        for (i, digit) in client_part.iter_mut().take(CLIENT_PART - 1).enumerate() {
            let nibble = (client.bits() >> (124 - 4 * i)) as u8 & 0xf;
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        Self { client, client_part, layout, counter: layout.counter(prefix) }
    }

    /// Returns this client's token with `number`.
    pub const fn token(&self, number: u64) -> Token {
        Token { client: self.client, number }
    }

    /// Returns the key of the counter that mints the fencing tokens of the lock `key`.
    pub fn fence_key<'a>(&'a self, key: &'a Key) -> &'a [u8] {
        self.layout.fence_key(&self.counter, key)
    }
}

/// A request to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Takes the lock if it is free or holds a retired token of this client.
    Take {
        /// The lock.
        key: Key,
        /// Token number of the attempt.
        number: u64,
        /// Token numbers of this client that may be replaced.
        retired: Retired,
        /// TTL of the key in ms.
        ttl_ms: u64,
        /// Maximum number of fencing tokens to mint; 0 for none.
        fence_block: u32,
        /// No token of this client can be under the key, so that a plain `SET NX` suffices.
        clean: bool,
        /// TTL in ms of the marker that asks releases to wake a waiter; 0 to set no marker.
        waiting_ms: u64,
    },
    /// Extends the key's TTL to at least `ttl_ms` if it holds this token. May mint fencing tokens.
    Extend {
        /// The lock.
        key: Key,
        /// Token number of the holder.
        number: u64,
        /// TTL of the key in ms.
        ttl_ms: u64,
        /// Maximum number of fencing tokens to mint; 0 for none.
        fence_block: u32,
    },
    /// Deletes the key if it holds this or a retired token of this client, and wakes one waiter.
    Release {
        /// The lock.
        key: Key,
        /// The most likely token number. It must be retired.
        number: u64,
        /// Other token numbers of this client that may be deleted; `None` if no other can be there.
        retired: Option<Retired>,
        /// Whether to wake a waiter.
        announce: bool,
    },
    /// Wakes one waiter.
    Announce {
        /// The lock.
        key: Key,
    },
}

/// A block of fencing tokens minted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceBlock {
    /// The first token. The others follow consecutively.
    pub first: u64,
    /// Number of tokens, at least one.
    pub count: u32,
    /// Whole ms by which the counter is ahead of the server's clock, if that was set back.
    pub ahead_ms: u32,
}

impl FenceBlock {
    /// Parses a reply. Returns `None` if it cannot answer a request for `requested` tokens.
    fn read(first: i64, count: i64, ahead_us: i64, requested: u32) -> Option<Self> {
        let first = u64::try_from(first).ok().filter(|first| *first > 0)?;
        let count = u32::try_from(count).ok().filter(|count| (1..=requested).contains(count))?;
        let ahead_ms = u64::try_from(ahead_us).ok()? / 1_000;
        Some(Self { first, count, ahead_ms: u32::try_from(ahead_ms).unwrap_or(u32::MAX) })
    }
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reply {
    /// Take: granted. Extend with fencing tokens: extended, and the tokens were minted.
    Granted {
        /// The fencing tokens, if requested.
        fence: Option<FenceBlock>,
    },
    /// Take: another client holds the lock.
    Busy {
        /// When the holder's key expires.
        expires: Expiry,
    },
    /// Extend without fencing tokens: extended.
    Extended,
    /// Release: deleted.
    Deleted {
        /// Number of the deleted token.
        number: u64,
        /// The lock has waiters, and the release woke one.
        awaited: bool,
    },
    /// Extend, release: the key does not exist.
    Absent,
    /// Extend, release: the key holds another client's value.
    Taken,
    /// Announce: done.
    Announced,
    /// Definitely not executed: the server's error proves that nothing was written.
    Rejected(ServerError),
    /// Definitely not executed: no byte of the request was sent, or the server refused a batch with
    /// it and the request was not sent again.
    NotSent(Cause),
    /// The request may have been executed, may still be executed, or may never be. Reported only
    /// after its connection was closed, or for a reply that proves nothing.
    // M8
    Unknown(Cause),
}

/// A server's reply, in types that every Redis client can produce. The scripts use no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Null.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple or bulk string.
    Text(&'a [u8]),
    /// An error. The text starts with its code.
    Error(&'a str),
    /// An array of integers.
    Ints(&'a [i64]),
    /// Anything else.
    Other,
}

/// How a command names its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// `EVAL` with the source, for the first call on a connection and after `NOSCRIPT`.
    Source,
    /// `EVALSHA` with the hash.
    Sha1,
}

impl Request {
    /// Returns the keys of the lock.
    pub const fn key(&self) -> &Key {
        match self {
            Self::Take { key, .. } | Self::Extend { key, .. } | Self::Release { key, .. } | Self::Announce { key } => {
                key
            }
        }
    }

    /// Returns true if this has the same effect after `other`, which was sent later: a take after a
    /// delete of earlier tokens.
    pub(super) fn may_follow(&self, other: &Self) -> bool {
        let (Self::Take { number, .. }, Self::Release { number: deleted, retired, .. }) = (self, other) else {
            return false;
        };
        deleted != number && !retired.is_some_and(|retired| retired.contains(*number))
    }

    /// Returns the TTL that a take or an extension gives to the key.
    pub(super) const fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Take { ttl_ms, .. } | Self::Extend { ttl_ms, .. } => Some(Duration::from_millis(*ttl_ms)),
            Self::Release { .. } | Self::Announce { .. } => None,
        }
    }

    /// Returns the script, or `None` for a plain command.
    pub const fn script(&self) -> Option<Script> {
        match self {
            Self::Take { clean: true, fence_block: 0, waiting_ms: 0, .. } => None,
            Self::Take { clean: true, waiting_ms: 0, .. } => Some(script::TAKE_FREE),
            Self::Take { .. } => Some(script::TAKE),
            Self::Extend { .. } => Some(script::EXTEND),
            Self::Release { .. } => Some(script::RELEASE),
            Self::Announce { .. } => Some(script::ANNOUNCE),
        }
    }

    /// Calls `f` with the arguments of the command, starting with its name.
    pub fn with_args<R>(&self, identity: &Identity, form: Form, f: impl FnOnce(&[&[u8]]) -> R) -> R {
        let [verb, code]: [&[u8]; 2] = self.script().map_or([b"SET", b""], |script| script.called(form));
        let client = &identity.client_part;
        let (mut first, mut second, mut third) = (itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new());
        match self {
            Self::Take { key, number, ttl_ms, fence_block: 0, clean: true, waiting_ms: 0, .. } => {
                let token = TokenText::new(client, *number);
                let ttl = first.format(*ttl_ms).as_bytes();
                f(&[verb, key.lock(), token.as_bytes(), b"NX", b"PX", ttl])
            }
            Self::Take { key, number, ttl_ms, fence_block, clean: true, waiting_ms: 0, .. } => {
                let token = TokenText::new(client, *number);
                let (token, ttl) = (token.as_bytes(), first.format(*ttl_ms).as_bytes());
                let block = second.format(*fence_block).as_bytes();
                f(&[verb, code, b"2", key.lock(), identity.fence_key(key), token, ttl, block])
            }
            Self::Take { key, number, retired, ttl_ms, fence_block, clean: _, waiting_ms } => {
                let (token, retired) = (TokenText::new(client, *number), retired_text(*retired));
                let [token, retired] = [token.as_bytes(), retired.as_bytes()];
                let (lock, fence, waiting) = (key.lock(), identity.fence_key(key), key.waiting());
                let ttl = first.format(*ttl_ms).as_bytes();
                let block = second.format(*fence_block).as_bytes();
                let marker_ttl = third.format(*waiting_ms).as_bytes();
                match (*fence_block, *waiting_ms) {
                    (0, 0) => f(&[verb, code, b"1", lock, token, retired, ttl]),
                    (_, 0) => f(&[verb, code, b"2", lock, fence, token, retired, ttl, block]),
                    (0, _) => f(&[verb, code, b"2", lock, waiting, token, retired, ttl, block, marker_ttl]),
                    (_, _) => f(&[verb, code, b"3", lock, fence, waiting, token, retired, ttl, block, marker_ttl]),
                }
            }
            Self::Extend { key, number, ttl_ms, fence_block } => {
                let token = TokenText::new(client, *number);
                let (lock, token, ttl) = (key.lock(), token.as_bytes(), first.format(*ttl_ms).as_bytes());
                if *fence_block == 0 {
                    return f(&[verb, code, b"1", lock, token, ttl]);
                }
                let block = second.format(*fence_block).as_bytes();
                f(&[verb, code, b"2", lock, identity.fence_key(key), token, ttl, block])
            }
            Self::Release { key, number, retired, announce } => {
                let (token, retired) = (TokenText::new(client, *number), retired.map(retired_text));
                let (token, retired) = (token.as_bytes(), retired.as_ref().map(Text::as_bytes));
                let (lock, waiting, signal) = (key.lock(), key.waiting(), key.signal());
                match (*announce, retired) {
                    (false, None) => f(&[verb, code, b"1", lock, token]),
                    (false, Some(retired)) => f(&[verb, code, b"1", lock, token, retired]),
                    (true, None) => f(&[verb, code, b"3", lock, waiting, signal, token]),
                    (true, Some(retired)) => f(&[verb, code, b"3", lock, waiting, signal, token, retired]),
                }
            }
            Self::Announce { key } => f(&[verb, code, b"1", key.signal()]),
        }
    }

    /// Converts the reply to this request, or returns `None` if it cannot be one.
    pub fn read(&self, value: Value<'_>) -> Option<Reply> {
        if let Value::Error(text) = value {
            return Some(self.read_error(text));
        }
        Some(match (self, value) {
            (Self::Take { clean: true, fence_block: 0, waiting_ms: 0, .. }, Value::Text(b"OK")) => {
                Reply::Granted { fence: None }
            }
            (Self::Take { clean: true, fence_block: 0, waiting_ms: 0, .. }, Value::Nil) => {
                Reply::Busy { expires: Expiry::Unknown }
            }
            // Only a take without fencing tokens is granted without any in the reply.
            (Self::Take { fence_block: 0, .. }, Value::Ints(&[1, 0])) => Reply::Granted { fence: None },
            (
                Self::Take { fence_block, .. } | Self::Extend { fence_block, .. },
                Value::Ints(&[1, first, count, ahead]),
            ) => Reply::Granted { fence: Some(FenceBlock::read(first, count, ahead, *fence_block)?) },
            (Self::Take { .. }, Value::Ints(&[0, pttl])) => Reply::Busy { expires: expiry(pttl) },
            (Self::Extend { fence_block: 0, .. }, Value::Int(1)) => Reply::Extended,
            (Self::Extend { .. } | Self::Release { .. }, Value::Int(0)) => Reply::Absent,
            (Self::Extend { .. } | Self::Release { .. }, Value::Int(-1)) => Reply::Taken,
            (Self::Release { number, .. }, Value::Int(-2)) => Reply::Deleted { number: *number, awaited: false },
            (Self::Release { number, announce: true, .. }, Value::Int(-3)) => {
                Reply::Deleted { number: *number, awaited: true }
            }
            (Self::Release { .. }, Value::Int(n)) if n > 0 => {
                Reply::Deleted { number: n.unsigned_abs(), awaited: false }
            }
            (Self::Announce { .. }, Value::Int(1)) => Reply::Announced,
            (_, _) => return None,
        })
    }

    fn read_error(&self, text: &str) -> Reply {
        let error = ServerError::classify(text);
        match (self, error.class) {
            // A key of another type is not our lock. With two keys, it may be the fence counter.
            (Self::Extend { fence_block: 0, .. } | Self::Release { .. }, ErrorClass::KeyInUse) => Reply::Taken,
            (_, ErrorClass::Unclear) => Reply::Unknown(error.into()),
            (_, _) => Reply::Rejected(error),
        }
    }
}

fn expiry(pttl: i64) -> Expiry {
    match pttl {
        -1 => Expiry::Never,
        0.. => Expiry::In(Duration::from_millis(pttl.unsigned_abs())),
        _ => Expiry::Unknown,
    }
}

/// A string of at most `N` bytes that needs no allocation.
pub(super) struct Text<const N: usize> {
    text: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(super) const EMPTY: Self = Self { text: [0; N], len: 0 };

    fn push(&mut self, part: &[u8]) {
        self.text[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

/// The text of a token.
pub(super) type TokenText = Text<{ CLIENT_PART + 20 }>;

impl TokenText {
    pub(super) fn new(client_part: &[u8; CLIENT_PART], number: u64) -> Self {
        let mut text = Self::EMPTY;
        text.push(client_part);
        text.push(itoa::Buffer::new().format(number).as_bytes());
        text
    }
}

/// Formats the three numbers of a [`Retired`], separated by spaces.
fn retired_text(retired: Retired) -> Text<62> {
    let mut text = Text::EMPTY;
    for (blank, number) in [("", retired.upto), (" ", retired.after), (" ", retired.last)] {
        text.push(blank.as_bytes());
        text.push(itoa::Buffer::new().format(number).as_bytes());
    }
    text
}

#[cfg(test)]
mod tests;
