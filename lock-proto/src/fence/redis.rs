//! A Redis command that runs only if its fencing token is not stale.

use alloc::borrow::Cow;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use crate::lock::Fence;

/// The Lua script of [`redis_eval`], for clients that send its SHA-1.
///
/// It compares digits, because Lua's numbers are exact only up to 2^53.
// F2
pub const REDIS_SCRIPT: &str = include_str!("redis.lua");

/// Builds an `EVAL` command that compares the token with the one in `fence_key`, stores it there,
/// and runs `command`: all in one step of the server.
///
/// `keys` are the keys that `command` uses. A cluster needs them, and all keys in one slot: for
/// example `{invoice:42}` and `{invoice:42}:fence`.
///
/// The reply is an array of an integer and a value:
///
/// - `1` and the reply of `command`;
/// - `0` and the greatest token seen, as text: the command did not run.
///
/// The token is stored before the command runs, and stays if the command fails. A command may
/// have some thousand arguments.
///
/// ```
/// use lock_proto::Fence;
/// use lock_proto::fence::redis_eval;
///
/// let set = [&b"SET"[..], b"{invoice:42}", b"paid"];
/// let args = redis_eval(b"{invoice:42}:fence", &[b"{invoice:42}"], Fence::new(33), &set);
/// assert_eq!(args.len(), 9);
/// ```
// F1
#[must_use]
pub fn redis_eval<'a>(
    fence_key: &'a [u8],
    keys: &[&'a [u8]],
    fence: Fence,
    command: &[&'a [u8]],
) -> Vec<Cow<'a, [u8]>> {
    let number = |number: u64| Cow::Owned(number.to_string().into_bytes());
    let mut args = Vec::with_capacity(5 + keys.len() + command.len());
    args.extend([Cow::Borrowed(&b"EVAL"[..]), Cow::Borrowed(REDIS_SCRIPT.as_bytes())]);
    args.extend([number(1 + keys.len() as u64), Cow::Borrowed(fence_key)]);
    args.extend(keys.iter().copied().map(Cow::Borrowed));
    args.push(number(fence.get()));
    args.extend(command.iter().copied().map(Cow::Borrowed));
    args
}
