//! Requests and replies of a connection, observed from outside.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::str::FromStr;

use crate::redis::input::{self, InputLimits, ParsedInput};
use lock_proto::redis::script::{self, Script};

#[derive(Clone, Debug, Default)]
pub(super) struct RedisTap {
    /// Sent bytes of an incomplete request.
    sent: Vec<u8>,
    /// Received bytes of an incomplete reply.
    received: Vec<u8>,
    pending: VecDeque<TappedRequest>,
    number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TappedRequest {
    /// Takes the locks under these keys. `waits` also marks that a client is waiting, as all
    /// attempts but the first do.
    Take {
        keys: Vec<Vec<u8>>,
        waits: bool,
    },
    /// Equal to any other request of this kind with the same arguments.
    Work(&'static str, Vec<u8>),
    /// Work that extends these locks: their keys and tokens.
    Extend {
        kind: &'static str,
        words: Vec<u8>,
        locks: Vec<(Vec<u8>, Vec<u8>)>,
    },
    Wait,
    /// A login with this password.
    Login(Vec<u8>),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// The reply to the request with this number.
    Reply(u64),
    /// The node does not have this token under this key. Precedes the reply that says so.
    Gone(Vec<u8>, Vec<u8>),
    /// The reply to a login with this password: accepted or not.
    Login(Vec<u8>, bool),
    /// A list element from this wake-up list.
    Signal(Vec<u8>),
}

impl RedisTap {
    /// Adds sent bytes. Returns the requests that are now complete, with their numbers.
    pub(super) fn sent(&mut self, bytes: &[u8]) -> Vec<(u64, TappedRequest)> {
        self.sent.extend_from_slice(bytes);
        let (mut at, mut found) = (0, Vec::new());
        loop {
            let limits = InputLimits { max_bulk: self.sent.len(), authenticated: true };
            let mut args = Vec::new();
            let ParsedInput::Request { len } = input::parse(&self.sent[at..], limits, &mut args) else { break };
            let request = classify(&args);
            self.number += 1;
            self.pending.push_back(request.clone());
            found.push((self.number, request));
            at += len;
        }
        self.sent.drain(..at);
        found
    }

    pub(super) fn received(&mut self, bytes: &[u8]) -> Vec<Response> {
        self.received.extend_from_slice(bytes);
        let (mut at, mut found) = (0, Vec::new());
        while let Some(len) = reply_len(&self.received[at..]) {
            let reply = &self.received[at..at + len];
            at += len;
            // A push message.
            if reply[0] == b'>' {
                continue;
            }
            let number = self.number + 1 - self.pending.len() as u64;
            match self.pending.pop_front() {
                Some(TappedRequest::Wait) => found.extend(list(reply).map(Response::Signal)),
                Some(TappedRequest::Login(password)) => {
                    found.push(Response::Login(password, !reply.starts_with(b"-WRONGPASS")))
                }
                Some(TappedRequest::Extend { locks, .. }) => {
                    found.extend(lost(reply, locks));
                    found.push(Response::Reply(number));
                }
                Some(TappedRequest::Take { .. } | TappedRequest::Work(..) | TappedRequest::Other) => {
                    found.push(Response::Reply(number))
                }
                None => {}
            }
        }
        self.received.drain(..at);
        found
    }
}

fn is(script: &Script, code: &[u8]) -> bool {
    code == script.sha1.as_bytes() || code == script.source.as_bytes()
}

fn classify(args: &[&[u8]]) -> TappedRequest {
    match args {
        [b"SET", key, ..] => TappedRequest::Take { keys: vec![key.to_vec()], waits: false },
        [b"BLPOP", ..] => TappedRequest::Wait,
        [b"EVAL" | b"EVALSHA", code, _, key, rest @ ..] if is(&script::TAKE, code) => {
            let waits = rest.iter().any(|arg| arg.strip_suffix(b":lock-proto:waiting") == Some(key));
            TappedRequest::Take { keys: vec![key.to_vec()], waits }
        }
        [b"EVAL" | b"EVALSHA", code, count, rest @ ..] if is(&script::TAKE_FREE, code) => {
            // The keys, one token for each, and two arguments. With fencing the counter is a key.
            let keys = number(count).unwrap_or(0);
            let tokens = rest.len().saturating_sub(keys + 2);
            TappedRequest::Take { keys: rest.iter().take(tokens).map(|key| key.to_vec()).collect(), waits: false }
        }
        [b"EVAL" | b"EVALSHA", code, count, rest @ ..] if is(&script::EXTEND, code) => {
            let (key, token) = (rest.first(), rest.get(number(count).unwrap_or(0)));
            let locks = key.zip(token).map(|(key, token)| (key.to_vec(), token.to_vec())).into_iter().collect();
            TappedRequest::Extend { kind: script::EXTEND.name, words: rest.join(&b' '), locks }
        }
        [b"EVAL" | b"EVALSHA", code, count, rest @ ..] if is(&script::EXTEND_MANY, code) => {
            let (keys, tokens) = rest.split_at(number(count).unwrap_or(0).min(rest.len()));
            let locks = keys.iter().zip(tokens).map(|(key, token)| (key.to_vec(), token.to_vec())).collect();
            TappedRequest::Extend { kind: script::EXTEND_MANY.name, words: rest.join(&b' '), locks }
        }
        [b"EVAL" | b"EVALSHA", code, rest @ ..] => {
            let known = script::ALL.iter().find(|script| is(script, code));
            known.map_or(TappedRequest::Other, |script| TappedRequest::Work(script.name, rest.join(&b' ')))
        }
        [b"AUTH", password] | [b"AUTH", _, password] | [b"HELLO", _, b"AUTH", _, password, ..] => {
            TappedRequest::Login(password.to_vec())
        }
        _ => TappedRequest::Other,
    }
}

/// Returns the locks that an extension did not find: one number for all, or one word for each.
fn lost(reply: &[u8], locks: Vec<(Vec<u8>, Vec<u8>)>) -> impl Iterator<Item = Response> {
    let words = match reply[0] {
        b':' => &reply[1..],
        b'$' => reply.splitn(2, |byte| *byte == b'\n').nth(1).unwrap_or_default(),
        _ => &[][..],
    };
    let is_lost = |word: &[u8]| matches!(word, b"0" | b"-1");
    let found: Vec<bool> = words.trim_ascii().split(|byte| *byte == b' ').map(is_lost).collect();
    locks.into_iter().zip(found).filter(|(_, lost)| *lost).map(|((key, token), _)| Response::Gone(key, token))
}

fn number<N: FromStr>(text: &[u8]) -> Option<N> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

fn list(reply: &[u8]) -> Option<Vec<u8>> {
    let mut lines = reply.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (first, _, name) = (lines.next()?, lines.next()?, lines.next()?);
    (first == b"*2" || first == b">2").then(|| name.to_vec())
}

pub(crate) fn reply_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = bytes.get(1..end - 2).and_then(number::<i64>);
    match (bytes[0], number) {
        (b'$' | b'=' | b'!', Some(len @ 0..)) => {
            Some(end + usize::try_from(len).ok()? + 2).filter(|all| *all <= bytes.len())
        }
        (b'*' | b'>' | b'~', Some(count)) => (0..count).try_fold(end, |at, _| Some(at + reply_len(bytes.get(at..)?)?)),
        (b'%', Some(count)) => (0..2 * count).try_fold(end, |at, _| Some(at + reply_len(bytes.get(at..)?)?)),
        _ => Some(end),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn request(args: &[&[u8]]) -> Vec<u8> {
        let mut bytes = alloc::format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend(alloc::format!("${}\r\n", arg.len()).into_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    #[test]
    fn requests_and_replies_are_recognized_in_any_fragmentation() {
        let mut tap = RedisTap::default();
        let sha = script::TAKE.sha1.as_bytes();
        let take = request(&[b"EVALSHA", sha, b"2", b"a", b"a:lock-proto:waiting", b"token"]);
        let set = request(&[b"SET", b"b", b"token", b"NX", b"PX", b"100"]);
        let all = [&take[..], &set[..], &request(&[b"BLPOP", b"l", b"0"])].concat();
        let (first, rest) = all.split_at(take.len() + 3);
        assert_eq!(tap.sent(first), [(1, TappedRequest::Take { keys: vec![b"a".to_vec()], waits: true })]);
        let taken =
            |keys: &[&[u8]]| TappedRequest::Take { keys: keys.iter().map(|key| key.to_vec()).collect(), waits: false };
        assert_eq!(tap.sent(rest), [(2, taken(&[b"b"])), (3, TappedRequest::Wait)]);
        let replies = b"*2\r\n:1\r\n$2\r\nab\r\n+OK\r\n*2\r\n$1\r\nl\r\n$1\r\n1\r\n";
        let responses: Vec<Response> = replies.iter().flat_map(|byte| tap.received(&[*byte])).collect();
        assert_eq!(responses, [Response::Reply(1), Response::Reply(2), Response::Signal(b"l".to_vec())]);
        // A wait that times out yields no signal.
        assert_eq!(tap.sent(&request(&[b"BLPOP", b"l", b"0"])), [(4, TappedRequest::Wait)]);
        assert_eq!(tap.received(b"*-1\r\n"), vec![]);
        assert!(tap.pending.is_empty() && tap.received.is_empty() && tap.sent.is_empty());
        // Several locks in one script, without and with fencing tokens.
        let free = script::TAKE_FREE.sha1.as_bytes();
        let plain = request(&[b"EVALSHA", free, b"2", b"a", b"b", b"t", b"u", b"100", b"0"]);
        let fenced = request(&[b"EVALSHA", free, b"3", b"a", b"b", b"fence", b"t", b"u", b"100", b"8"]);
        let one = request(&[b"EVALSHA", free, b"2", b"a", b"fence", b"t", b"100", b"8"]);
        assert_eq!(
            tap.sent(&[plain, fenced, one].concat()),
            [(5, taken(&[b"a", b"b"])), (6, taken(&[b"a", b"b"])), (7, taken(&[b"a"]))]
        );
    }
}
