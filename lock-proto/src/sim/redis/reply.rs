//! Replies in RESP2 and RESP3.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use crate::redis::Protocol;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    /// `+OK` and the like.
    Simple(&'static str),
    /// An error; the text starts with its code.
    Error(Cow<'static, str>),
    Int(i64),
    Bulk(Vec<u8>),
    /// Text for people: a bulk string in RESP2, a verbatim string in RESP3.
    Text(String),
    Nil,
    /// A null array, which RESP2 distinguishes from a null.
    NilArray,
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// An out-of-band message: an array in RESP2.
    Push(Vec<Self>),
    /// No reply yet: the client is blocked.
    Later,
}

impl Reply {
    pub(super) const OK: Self = Self::Simple("OK");

    pub(super) const fn error(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }

    pub(super) fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(bytes.to_vec())
    }

    pub(super) const fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    pub(super) fn encode(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match self {
            Self::Later => {}
            Self::Array(items) => {
                header(out, b'*', items.len());
                for item in items {
                    item.encode(protocol, out);
                }
            }
            // Written by hand to keep the order; the decoder's maps use a random hash seed.
            Self::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => header(out, b'*', pairs.len() * 2),
                    Protocol::Resp3 => header(out, b'%', pairs.len()),
                }
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Self::Push(items) => {
                match protocol {
                    Protocol::Resp2 => header(out, b'*', items.len()),
                    Protocol::Resp3 => header(out, b'>', items.len()),
                }
                for item in items {
                    item.encode(protocol, out);
                }
            }
            Self::Simple(text) => line(out, b'+', text.as_bytes()),
            Self::Error(text) => line(out, b'-', text.as_bytes()),
            Self::Int(n) => line(out, b':', itoa::Buffer::new().format(*n).as_bytes()),
            Self::Bulk(bytes) => blob(out, bytes),
            Self::Text(text) => match protocol {
                Protocol::Resp2 => blob(out, text.as_bytes()),
                Protocol::Resp3 => {
                    header(out, b'=', VERBATIM.len() + text.len());
                    for part in [VERBATIM, text.as_bytes(), b"\r\n"] {
                        out.extend_from_slice(part);
                    }
                }
            },
            Self::Nil | Self::NilArray => out.extend_from_slice(match (protocol, self) {
                (Protocol::Resp3, _) => b"_\r\n",
                (Protocol::Resp2, Self::NilArray) => b"*-1\r\n",
                (Protocol::Resp2, _) => b"$-1\r\n",
            }),
        }
    }
}

/// Prefix of a verbatim string: the kind of the text.
const VERBATIM: &[u8] = b"txt:";

pub(super) fn header(out: &mut Vec<u8>, kind: u8, len: usize) {
    line(out, kind, itoa::Buffer::new().format(len).as_bytes());
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn blob(out: &mut Vec<u8>, text: &[u8]) {
    header(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn encoded(reply: &Reply, protocol: Protocol) -> String {
        let mut out = Vec::new();
        reply.encode(protocol, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn replies_encode_in_resp2_and_resp3() {
        let map = Reply::Map(vec![(Reply::bulk(b"proto"), Reply::Int(3))]);
        for (reply, two, three) in [
            (Reply::OK, "+OK\r\n", "+OK\r\n"),
            (Reply::error("ERR x"), "-ERR x\r\n", "-ERR x\r\n"),
            (Reply::Int(-2), ":-2\r\n", ":-2\r\n"),
            (Reply::bulk(b"ab"), "$2\r\nab\r\n", "$2\r\nab\r\n"),
            (Reply::Nil, "$-1\r\n", "_\r\n"),
            (Reply::NilArray, "*-1\r\n", "_\r\n"),
            (Reply::Text("hi".into()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (Reply::Array(vec![Reply::Int(1), Reply::Nil]), "*2\r\n:1\r\n$-1\r\n", "*2\r\n:1\r\n_\r\n"),
            (Reply::Push(vec![Reply::Int(1)]), "*1\r\n:1\r\n", ">1\r\n:1\r\n"),
            (map, "*2\r\n$5\r\nproto\r\n:3\r\n", "%1\r\n$5\r\nproto\r\n:3\r\n"),
            (Reply::Later, "", ""),
        ] {
            assert_eq!(encoded(&reply, Protocol::Resp2), two);
            assert_eq!(encoded(&reply, Protocol::Resp3), three);
        }
    }
}
