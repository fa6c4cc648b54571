//! Releases that leave together: one command for several locks (requirement P4).
//!
//! To call a script costs a server as much as what the script does for a lock.

use alloc::vec::Vec;

use super::request::{Form, Identity, Key, Request, TokenText, Value};
use super::script::RELEASE_MANY;

/// The most locks in one command: the server does nothing else meanwhile.
pub(super) const MOST: usize = 16;
/// What the answer says for a lock for which the server refused a command.
const REFUSED: &[u8] = b"x";
/// For one of several locks: nothing was done. Asked for alone it is told why. (Where that cannot be now, this is an error that passes.)
pub(super) const NOT_DONE: Value<'static> = Value::Error("LOCKALONE not released together with others");

/// A release that can leave together with others: of one token and no other. What may have to look for more has work to do for each lock.
#[derive(Clone, Copy)]
pub(super) struct Plain<'a> {
    pub(super) key: &'a Key,
    number: u64,
    announce: bool,
}

impl<'a> Plain<'a> {
    pub(super) const fn of(request: &'a Request) -> Option<Self> {
        let Request::Release { key, number, spent: None, announce } = request else { return None };
        Some(Self { key, number: *number, announce: *announce })
    }

    /// Whether one command can do both.
    pub(super) const fn goes_with(self, other: Self) -> bool {
        self.announce == other.announce
    }
}

/// Calls `f` with the arguments of the command for all of these.
pub(super) fn with_args<'a, R>(
    releases: impl Iterator<Item = Plain<'a>>,
    identity: &Identity,
    form: Form,
    f: impl FnOnce(&[&[u8]]) -> R,
) -> R {
    let releases: Vec<_> = releases.collect();
    let tokens: Vec<_> = releases.iter().map(|release| TokenText::new(&identity.client_part, release.number)).collect();
    let announce = releases.iter().any(|release| release.announce);
    let mut keys = itoa::Buffer::new();
    let keys = keys.format(releases.len() * if announce { 3 } else { 1 });
    let mut args: Vec<&[u8]> = Vec::with_capacity(3 + 4 * MOST);
    args.extend(RELEASE_MANY.called(form));
    args.push(keys.as_bytes());
    args.extend(releases.iter().map(|release| release.key.lock()));
    if announce {
        args.extend(releases.iter().map(|release| release.key.waiting()));
        args.extend(releases.iter().map(|release| release.key.signal()));
    }
    args.extend(tokens.iter().map(TokenText::as_bytes));
    f(&args)
}

/// What `value`, the answer to `count` releases, says of the one at `place`.
pub(super) fn part(value: Value<'_>, count: usize, place: usize) -> Value<'_> {
    match value {
        Value::Int(-2) | Value::Error(_) => value,
        Value::Text(text) => {
            let parts = || text.split(|byte| *byte == b' ');
            match parts().nth(place).filter(|_| parts().count() == count) {
                Some(REFUSED) => NOT_DONE,
                Some(part) => {
                    let number = core::str::from_utf8(part).ok().and_then(|part| part.parse().ok());
                    number.map_or(Value::Other, Value::Int)
                }
                None => Value::Other,
            }
        }
        Value::Nil | Value::Int(_) | Value::Ints(_) | Value::Other => Value::Other,
    }
}
