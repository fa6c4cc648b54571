//! Batches: one command for several locks. Calling a script costs a server as much as its work for
//! one lock.
// P4

use super::key::Key;
use super::request::{Form, Identity, Request, TokenText, Value};
use super::script::{EXTEND_MANY, RELEASE_MANY, Script, TAKE_FREE};

/// Maximum number of locks in a command. The server is blocked while it executes one.
pub(super) const MAX_LOCKS: usize = 16;
pub(super) const KINDS: usize = 3;
/// The index of renewals among the kinds.
pub(super) const RENEWALS: usize = 1;
/// Reply for a lock for which the server refused a command.
const REFUSED: &[u8] = b"x";
/// Reply for a lock that was taken.
const GRANTED: &[u8] = b"g";
/// Result for a lock of a batch for which nothing was done. The client sends its request alone to
/// learn the reason, or treats it as a transient error.
pub(super) const NOT_DONE: Value<'static> = Value::Error("LOCKALONE not done together with others");

/// The kind of a request. Requests of equal kinds can be batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A take of a key that cannot hold a token of this client.
    Take { ttl_ms: u64, fence_block: u32 },
    /// A renewal that does not mint fencing tokens.
    Extend { ttl_ms: u64 },
    /// A release of exactly one token. Searching for retired tokens takes work per lock.
    Release { announce: bool },
}

impl Kind {
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Take { .. } => 0,
            Self::Extend { .. } => RENEWALS,
            Self::Release { .. } => 2,
        }
    }

    pub(super) const fn script(self) -> Script {
        match self {
            Self::Take { .. } => TAKE_FREE,
            Self::Extend { .. } => EXTEND_MANY,
            Self::Release { .. } => RELEASE_MANY,
        }
    }
}

/// A request that can be batched with others of its kind.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a> {
    pub(super) key: &'a Key,
    number: u64,
    pub(super) kind: Kind,
}

impl<'a> Plain<'a> {
    #[inline]
    pub(super) const fn of(request: &'a Request) -> Option<Self> {
        let (key, number, kind) = match request {
            Request::Take { key, number, ttl_ms, fence_block, clean: true, waiting_ms: 0, .. } => {
                (key, *number, Kind::Take { ttl_ms: *ttl_ms, fence_block: *fence_block })
            }
            Request::Extend { key, number, ttl_ms, fence_block: 0 } => (key, *number, Kind::Extend { ttl_ms: *ttl_ms }),
            Request::Release { key, number, retired: None, announce } => {
                (key, *number, Kind::Release { announce: *announce })
            }
            Request::Take { .. } | Request::Extend { .. } | Request::Release { .. } | Request::Announce { .. } => {
                return None;
            }
        };
        Some(Self { key, number, kind })
    }
}

/// Calls `f` with the arguments of one command for all `requests`, which are of the same kind.
pub(super) fn with_args<'a, R>(
    kind: Kind,
    requests: impl Iterator<Item = Plain<'a>> + Clone,
    identity: &'a Identity,
    form: Form,
    f: impl FnOnce(&[&[u8]]) -> R,
) -> R {
    let mut tokens = [const { TokenText::EMPTY }; MAX_LOCKS];
    for (token, request) in tokens.iter_mut().zip(requests.clone()) {
        *token = TokenText::new(&identity.client_part, request.number);
    }
    let (mut count, mut first, mut second) = (itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new());
    let mut args = Args { list: [&[]; MAX_ARGS], len: 0 };
    args.extend(kind.script().called(form));
    // Placeholder for the number of keys.
    args.push(b"");
    args.extend(requests.clone().map(|request| request.key.lock()));
    match kind {
        Kind::Take { fence_block: 0, .. } | Kind::Extend { .. } | Kind::Release { announce: false } => {}
        Kind::Take { .. } => args.extend(requests.clone().next().map(|request| identity.fence_key(request.key))),
        Kind::Release { announce: true } => {
            args.extend(requests.clone().map(|request| request.key.waiting()));
            args.extend(requests.clone().map(|request| request.key.signal()));
        }
    }
    args.list[2] = count.format(args.len - 3).as_bytes();
    args.extend(tokens.iter().zip(requests).map(|(token, _)| token.as_bytes()));
    match kind {
        Kind::Take { ttl_ms, fence_block } => {
            args.extend([first.format(ttl_ms).as_bytes(), second.format(fence_block).as_bytes()]);
        }
        Kind::Extend { ttl_ms } => args.push(first.format(ttl_ms).as_bytes()),
        Kind::Release { .. } => {}
    }
    f(&args.list[..args.len])
}

/// Maximum number of arguments: 5 in all, and three keys and a token per lock.
const MAX_ARGS: usize = 5 + 4 * MAX_LOCKS;

/// A list of arguments that needs no allocation.
struct Args<'a> {
    list: [&'a [u8]; MAX_ARGS],
    len: usize,
}

impl<'a> Args<'a> {
    fn push(&mut self, arg: &'a [u8]) {
        if let Some(place) = self.list.get_mut(self.len) {
            *place = arg;
            self.len += 1;
        }
    }

    fn extend(&mut self, args: impl IntoIterator<Item = &'a [u8]>) {
        args.into_iter().for_each(|arg| self.push(arg));
    }
}

/// Extracts the result at `place` from `value`, the reply to a batch of `count`. `buf` stores
/// results that are not part of `value`.
pub(super) fn part<'v>(kind: Kind, value: Value<'v>, count: usize, place: usize, buf: &'v mut [i64; 4]) -> Value<'v> {
    match (kind, value) {
        (_, Value::Error(_)) | (Kind::Extend { .. }, Value::Int(1)) | (Kind::Release { .. }, Value::Int(-2)) => value,
        (Kind::Take { fence_block, .. }, Value::Ints(&[1, first, each, ahead])) => {
            granted(fence_block, [first, each, ahead], place, buf)
        }
        (Kind::Take { fence_block, .. }, Value::Text(text)) => {
            match (number(text, 0), number(text, 1), number(text, 2)) {
                (Some(first), Some(each), Some(ahead)) => match word(text, 3 + count, 3 + place) {
                    Some(GRANTED) => granted(fence_block, [first, each, ahead], place, buf),
                    Some(REFUSED) => NOT_DONE,
                    Some(left) => integer(left).map_or(Value::Other, |left| {
                        *buf = [0, left, 0, 0];
                        Value::Ints(&buf[..2])
                    }),
                    None => Value::Other,
                },
                _ => Value::Other,
            }
        }
        (Kind::Extend { .. } | Kind::Release { .. }, Value::Text(text)) => match word(text, count, place) {
            Some(REFUSED) => NOT_DONE,
            Some(part) => integer(part).map_or(Value::Other, Value::Int),
            None => Value::Other,
        },
        (_, Value::Nil | Value::Int(_) | Value::Ints(_) | Value::Other) => Value::Other,
    }
}

/// Returns the grant for the lock at `place`. Its fencing tokens are part of a common block.
fn granted(fence_block: u32, [first, each, ahead]: [i64; 3], place: usize, buf: &mut [i64; 4]) -> Value<'_> {
    if fence_block == 0 {
        *buf = [1, 0, 0, 0];
        return Value::Ints(&buf[..2]);
    }
    *buf = [1, first.saturating_add(each.saturating_mul(place as i64)), each, ahead];
    Value::Ints(buf)
}

/// Returns the word at `place` if the text has exactly `count` words.
fn word(text: &[u8], count: usize, place: usize) -> Option<&[u8]> {
    let words = || text.split(|byte| *byte == b' ');
    words().nth(place).filter(|_| words().count() == count)
}

fn number(text: &[u8], place: usize) -> Option<i64> {
    text.split(|byte| *byte == b' ').nth(place).and_then(integer)
}

fn integer(word: &[u8]) -> Option<i64> {
    core::str::from_utf8(word).ok()?.parse().ok()
}
