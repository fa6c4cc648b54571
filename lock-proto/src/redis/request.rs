//! Typed requests and replies: the seam between the hub and whatever speaks to a Redis server.
//!
//! Bring your own Redis client here: [`Request::with_args`] gives the command's arguments, [`Request::read`] turns the answer
//! into a [`Reply`].

use alloc::sync::Arc;
use bytes::Bytes;
use core::time::Duration;

use super::script::{self, Script};
use super::token::{CLIENT_PART, Retired};
use crate::id::ClientId;
use crate::lock::{Cause, ErrorClass, Expiry, ServerError, Token};

/// What is appended to a lock's key to name the marker that says that somebody waits for it.
pub const WAITING_SUFFIX: &str = ":lock-proto:waiting";
/// What is appended to a lock's key to name the list that wakes its waiters.
pub const SIGNAL_SUFFIX: &str = ":lock-proto:waiting:signal";
/// What is appended to the namespace's prefix to name its fence counter.
pub const FENCE_NAME: &str = "lock-proto:fence";
/// No lock's key may contain this: keys with it are this library's own side keys.
pub const RESERVED: &str = "lock-proto:";

/// How long a key with its suffix may be to be put together without an allocation.
const SHORT_KEY: usize = 128;

/// The keys of one lock: cheap to clone, no allocation per request.
///
/// One text holds them all: each is the beginning of the next, longer one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The keys of the lock whose full key (prefix and name) is `key`.
    #[must_use]
    pub fn new(prefix: &[u8], name: &[u8]) -> Self {
        let parts = [prefix, name, SIGNAL_SUFFIX.as_bytes()];
        // Nearly every key fits here, and is then allocated once and not twice.
        let mut room = [0; SHORT_KEY];
        let mut len = 0;
        for part in parts {
            let Some(free) = room.get_mut(len..len + part.len()) else { return Self(parts.concat().into()) };
            free.copy_from_slice(part);
            len += part.len();
        }
        Self(room[..len].into())
    }

    /// The lock's key: prefix and name, byte for byte.
    pub fn lock(&self) -> &[u8] {
        &self.0[..self.0.len() - SIGNAL_SUFFIX.len()]
    }

    /// The marker that is there while somebody waits.
    pub fn waiting(&self) -> &[u8] {
        &self.0[..self.0.len() - (SIGNAL_SUFFIX.len() - WAITING_SUFFIX.len())]
    }

    /// The list on which its waiters block.
    pub fn signal(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Key({})", self.lock().escape_ascii())
    }
}

/// What a client writes into every command: its id, and the name of its namespace's fence counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    client: ClientId,
    pub(super) client_part: [u8; CLIENT_PART],
    fence: Bytes,
}

impl Identity {
    /// The identity of `client` in the namespace `prefix`.
    #[must_use]
    pub fn new(client: ClientId, prefix: &[u8]) -> Self {
        let mut client_part = [b':'; CLIENT_PART];
        for (i, digit) in client_part.iter_mut().take(CLIENT_PART - 1).enumerate() {
            let nibble = (client.bits() >> (124 - 4 * i)) as u8 & 0xf;
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        let fence = [prefix, FENCE_NAME.as_bytes()].concat();
        Self { client, client_part, fence: Bytes::from(fence) }
    }

    /// The token of this client with `number`.
    pub const fn token(&self, number: u64) -> Token {
        Token { client: self.client, number }
    }

    /// The key of the namespace's fence counter.
    pub fn fence_key(&self) -> &[u8] {
        &self.fence
    }
}

/// One request to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Take the lock if it is free, or holds a spent token of this client.
    Take {
        /// The lock.
        key: Key,
        /// The attempt's number.
        number: u64,
        /// Which of the client's own numbers may be replaced.
        retired: Retired,
        /// Life of the key, in ms.
        ttl_ms: u64,
        /// How many fencing tokens to mint at most; 0 for none.
        fence_block: u32,
        /// Nothing of this client can be under the key, so that a plain `SET NX` will do.
        clean: bool,
        /// Life of the marker that asks releases to wake a waiter, in ms; 0 to set none.
        waiting_ms: u64,
    },
    /// Let the key live for at least `ttl_ms` from now if it holds this token, and mint fencing tokens if they are wanted.
    Extend {
        /// The lock.
        key: Key,
        /// The holder's number.
        number: u64,
        /// Life of the key, in ms.
        ttl_ms: u64,
        /// How many fencing tokens to mint at most; 0 for none.
        fence_block: u32,
    },
    /// Delete the key if it holds this token or a spent one of this client, and wake one waiter if any waits.
    Release {
        /// The lock.
        key: Key,
        /// The number that is most likely there; it must be given back or never granted.
        number: u64,
        /// Which others of the client's own numbers may be deleted; `None` if no other can be there.
        retired: Option<Retired>,
        /// Whether to wake a waiter.
        announce: bool,
    },
    /// Wake one waiter.
    Announce {
        /// The lock.
        key: Key,
    },
}

/// Fencing tokens that were minted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceBlock {
    /// The first one; the others follow it.
    pub first: u64,
    /// How many there are, at least one.
    pub count: u32,
    /// By how many whole ms the counter is ahead of the server's clock: 0, unless that clock was set back.
    pub ahead_ms: u32,
}

impl FenceBlock {
    /// What the server answers; `None` if it cannot be an answer to a request for `wanted` tokens.
    fn read(first: i64, count: i64, ahead_us: i64, wanted: u32) -> Option<Self> {
        let first = u64::try_from(first).ok().filter(|first| *first > 0)?;
        let count = u32::try_from(count).ok().filter(|count| (1..=wanted).contains(count))?;
        let ahead_ms = u64::try_from(ahead_us).ok()? / 1_000;
        Some(Self { first, count, ahead_ms: u32::try_from(ahead_ms).unwrap_or(u32::MAX) })
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reply {
    /// Take: the lock is ours. Extend that asked for fencing tokens: it still is. With the fencing tokens, if they were asked for.
    Granted {
        /// The fencing tokens.
        fence: Option<FenceBlock>,
    },
    /// Take: somebody else has it.
    Busy {
        /// When it ends by itself.
        expires: Expiry,
    },
    /// Extend that asked for no fencing tokens: done.
    Extended,
    /// Release: done; this was the number of the token that was deleted.
    Deleted {
        /// The number of the deleted token.
        number: u64,
        /// Others wait for the lock, and one of them was woken.
        awaited: bool,
    },
    /// Extend, release: there is no such key.
    Absent,
    /// Extend, release: the key holds somebody else's value.
    Taken,
    /// Announce: done.
    Announced,
    /// A definite no: the server refused, and its answer proves that nothing was written.
    Rejected(ServerError),
    /// A definite no: not one byte of the request was sent, or the server refused a batch that contained it and the
    /// request was not sent again.
    NotSent(Cause),
    /// It may have been executed, it may be executed later, it may never be (requirement M8). Given only when the
    /// connection it was sent on is closed, or for an answer that proves nothing.
    Unknown(Cause),
}

/// An answer in the form that every Redis client can give: what scripts here answer has no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Null.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple or bulk string.
    Text(&'a [u8]),
    /// An error; the text starts with its code.
    Error(&'a str),
    /// An array of integers.
    Ints(&'a [i64]),
    /// Anything else.
    Other,
}

/// How a script is named in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// `EVAL` with the source: the first use on a connection, and after `NOSCRIPT`.
    Source,
    /// `EVALSHA` with the hash.
    Sha1,
}

impl Request {
    /// The lock that it is about.
    pub const fn key(&self) -> &Key {
        match self {
            Self::Take { key, .. } | Self::Extend { key, .. } | Self::Release { key, .. } | Self::Announce { key } => {
                key
            }
        }
    }

    /// The life that it gives the key, of a take or an extend.
    pub(super) const fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Take { ttl_ms, .. } | Self::Extend { ttl_ms, .. } => Some(Duration::from_millis(*ttl_ms)),
            Self::Release { .. } | Self::Announce { .. } => None,
        }
    }

    /// The script that it runs; `None` if it is a plain command.
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

    /// Calls `f` with the arguments of the command, the command's name first.
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
                f(&[verb, code, b"2", key.lock(), identity.fence_key(), token, ttl, block])
            }
            Self::Take { key, number, retired, ttl_ms, fence_block, clean: _, waiting_ms } => {
                let (token, retired) = (TokenText::new(client, *number), retired_text(*retired));
                let [token, retired] = [token.as_bytes(), retired.as_bytes()];
                let (lock, fence, waiting) = (key.lock(), identity.fence_key(), key.waiting());
                let ttl = first.format(*ttl_ms).as_bytes();
                let block = second.format(*fence_block).as_bytes();
                let life = third.format(*waiting_ms).as_bytes();
                match (*fence_block, *waiting_ms) {
                    (0, 0) => f(&[verb, code, b"1", lock, token, retired, ttl]),
                    (_, 0) => f(&[verb, code, b"2", lock, fence, token, retired, ttl, block]),
                    (0, _) => f(&[verb, code, b"2", lock, waiting, token, retired, ttl, block, life]),
                    (_, _) => f(&[verb, code, b"3", lock, fence, waiting, token, retired, ttl, block, life]),
                }
            }
            Self::Extend { key, number, ttl_ms, fence_block } => {
                let token = TokenText::new(client, *number);
                let (lock, token, ttl) = (key.lock(), token.as_bytes(), first.format(*ttl_ms).as_bytes());
                if *fence_block == 0 {
                    return f(&[verb, code, b"1", lock, token, ttl]);
                }
                let block = second.format(*fence_block).as_bytes();
                f(&[verb, code, b"2", lock, identity.fence_key(), token, ttl, block])
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

    /// What `value` answers to this request; `None` if it can be no answer to it.
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
            // A take that asked for fencing tokens has them in its answer.
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
            // A key of another type cannot be the lock we held. With two keys it may be the fence counter.
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

/// A text of at most `N` bytes, without an allocation.
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

/// A token's text.
pub(super) type TokenText = Text<{ CLIENT_PART + 20 }>;

impl TokenText {
    pub(super) fn new(client_part: &[u8; CLIENT_PART], number: u64) -> Self {
        let mut text = Self::EMPTY;
        text.push(client_part);
        text.push(itoa::Buffer::new().format(number).as_bytes());
        text
    }
}

/// The three numbers of a [`Retired`] with blanks between them.
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
