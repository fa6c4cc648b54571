//! Replies in RESP2 and RESP3.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use lock_proto::redis::Protocol;

/// A reply of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RespReply {
    /// `OK`.
    Ok,
    /// Another simple string, such as `PONG`.
    Simple(Cow<'static, str>),
    /// An error. The text starts with its code.
    Error(Cow<'static, str>),
    /// An integer.
    Int(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// Text for people: a bulk string in RESP2, a verbatim string in RESP3.
    Text(String),
    /// Null.
    Nil,
    /// A null array, which RESP2 distinguishes from a null.
    NilArray,
    /// An array.
    Array(Vec<Self>),
    /// Pairs: an array in RESP2.
    Map(Vec<(Self, Self)>),
    /// An out-of-band message: an array in RESP2.
    Push(Vec<Self>),
    /// No reply yet: the client is blocked. A client never receives this.
    Later,
}

impl RespReply {
    pub(super) const fn simple(text: &'static str) -> Self {
        Self::Simple(Cow::Borrowed(text))
    }

    pub(super) const fn error(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }

    /// Creates a string.
    #[must_use]
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// Returns true for an error.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Returns true for null of either form.
    #[must_use]
    pub const fn is_nil(&self) -> bool {
        matches!(self, Self::Nil | Self::NilArray)
    }

    /// Returns the integer, if the reply is one.
    #[must_use]
    pub const fn int(&self) -> Option<i64> {
        if let Self::Int(n) = self { Some(*n) } else { None }
    }

    /// Returns the bytes of a string, simple or not.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) => Some(bytes),
            Self::Ok => Some(b"OK"),
            Self::Simple(text) => Some(text.as_bytes()),
            Self::Text(text) => Some(text.as_bytes()),
            Self::Error(_)
            | Self::Int(_)
            | Self::Nil
            | Self::NilArray
            | Self::Array(_)
            | Self::Map(_)
            | Self::Push(_)
            | Self::Later => None,
        }
    }

    /// Returns the elements of an array; empty if the reply is none.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        if let Self::Array(items) | Self::Push(items) = self { items } else { &[] }
    }

    /// Reads one reply in RESP2 from the start of `bytes`. Returns its length, too, or `None` if it
    /// is not complete or not RESP2.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let (frame, len) = decode(bytes).ok()??;
        Some((Self::from_frame(frame), len))
    }

    fn from_frame(frame: OwnedFrame) -> Self {
        match frame {
            OwnedFrame::SimpleString(text) if text == b"OK" => Self::Ok,
            OwnedFrame::SimpleString(text) => Self::Simple(String::from_utf8_lossy(&text).into_owned().into()),
            OwnedFrame::Error(text) => Self::Error(text.into()),
            OwnedFrame::Integer(n) => Self::Int(n),
            OwnedFrame::BulkString(bytes) => Self::Bulk(bytes),
            OwnedFrame::Array(items) => Self::Array(items.into_iter().map(Self::from_frame).collect()),
            OwnedFrame::Null => Self::Nil,
        }
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
            Self::Ok => line(out, b'+', b"OK"),
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

    fn encoded(reply: &RespReply, protocol: Protocol) -> String {
        let mut out = Vec::new();
        reply.encode(protocol, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn replies_encode_in_resp2_and_resp3() {
        let map = RespReply::Map(vec![(RespReply::bulk(b"proto"), RespReply::Int(3))]);
        for (reply, two, three) in [
            (RespReply::Ok, "+OK\r\n", "+OK\r\n"),
            (RespReply::error("ERR x"), "-ERR x\r\n", "-ERR x\r\n"),
            (RespReply::Int(-2), ":-2\r\n", ":-2\r\n"),
            (RespReply::bulk(b"ab"), "$2\r\nab\r\n", "$2\r\nab\r\n"),
            (RespReply::Nil, "$-1\r\n", "_\r\n"),
            (RespReply::NilArray, "*-1\r\n", "_\r\n"),
            (RespReply::Text("hi".into()), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (RespReply::Array(vec![RespReply::Int(1), RespReply::Nil]), "*2\r\n:1\r\n$-1\r\n", "*2\r\n:1\r\n_\r\n"),
            (RespReply::Push(vec![RespReply::Int(1)]), "*1\r\n:1\r\n", ">1\r\n:1\r\n"),
            (map, "*2\r\n$5\r\nproto\r\n:3\r\n", "%1\r\n$5\r\nproto\r\n:3\r\n"),
            (RespReply::Later, "", ""),
        ] {
            assert_eq!(encoded(&reply, Protocol::Resp2), two);
            // A client of RESP2 cannot tell these apart.
            let read = match &reply {
                RespReply::NilArray => Some(RespReply::Nil),
                RespReply::Text(text) => Some(RespReply::bulk(text)),
                RespReply::Push(items) => Some(RespReply::Array(items.clone())),
                RespReply::Map(pairs) => {
                    Some(RespReply::Array(pairs.iter().cloned().flat_map(<[RespReply; 2]>::from).collect()))
                }
                RespReply::Later => None,
                other @ (RespReply::Ok
                | RespReply::Simple(_)
                | RespReply::Error(_)
                | RespReply::Int(_)
                | RespReply::Bulk(_)
                | RespReply::Nil
                | RespReply::Array(_)) => Some(other.clone()),
            };
            assert_eq!(RespReply::decode(two.as_bytes()), read.map(|read| (read, two.len())));
            assert_eq!(RespReply::decode(&two.as_bytes()[..two.len().saturating_sub(1)]), None);
            assert_eq!(encoded(&reply, Protocol::Resp3), three);
        }
    }
}
