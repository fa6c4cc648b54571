//! Replies, in both versions of the protocol.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use bytes::BytesMut;
use redis_protocol::resp2;
use redis_protocol::resp2::types::BorrowedFrame as Frame2;
use redis_protocol::resp3;
use redis_protocol::resp3::types::{BorrowedFrame as Frame3, VerbatimStringFormat};

use crate::redis::Protocol;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    /// `+OK` and the like.
    Simple(&'static str),
    /// An error; the text starts with its code.
    Error(Cow<'static, str>),
    Int(i64),
    Bulk(Vec<u8>),
    /// Text for people: a bulk string to RESP2, a verbatim one to RESP3.
    Text(String),
    Nil,
    /// Nothing where an array is expected: RESP2 has a form of its own for it.
    NilArray,
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// What nobody asked for: an array to RESP2.
    Push(Vec<Self>),
    /// No reply now: the client blocks.
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

    /// Appends the reply to `out`.
    pub(super) fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        match self {
            Self::Later => {}
            Self::Array(items) => {
                header(out, '*', items.len());
                for item in items {
                    item.encode(protocol, out);
                }
            }
            // Written by hand, in order: the decoder's maps are hashed with a random seed.
            Self::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => header(out, '*', pairs.len() * 2),
                    Protocol::Resp3 => header(out, '%', pairs.len()),
                }
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
            Self::Push(items) => {
                match protocol {
                    Protocol::Resp2 => header(out, '*', items.len()),
                    Protocol::Resp3 => header(out, '>', items.len()),
                }
                for item in items {
                    item.encode(protocol, out);
                }
            }
            Self::NilArray if protocol == Protocol::Resp2 => out.extend_from_slice(b"*-1\r\n"),
            Self::Simple(_)
            | Self::Error(_)
            | Self::Int(_)
            | Self::Bulk(_)
            | Self::Text(_)
            | Self::Nil
            | Self::NilArray => match protocol {
                Protocol::Resp2 => self.encode_resp2(out),
                Protocol::Resp3 => self.encode_resp3(out),
            },
        }
    }

    fn encode_resp2(&self, out: &mut BytesMut) {
        let frame = match self {
            Self::Simple(text) => Frame2::SimpleString(text.as_bytes()),
            Self::Error(text) => Frame2::Error(text),
            Self::Int(n) => Frame2::Integer(*n),
            Self::Bulk(bytes) => Frame2::BulkString(bytes),
            Self::Text(text) => Frame2::BulkString(text.as_bytes()),
            Self::Nil | Self::NilArray | Self::Array(_) | Self::Map(_) | Self::Push(_) | Self::Later => Frame2::Null,
        };
        // The encoder fails only if the buffer is too small, and it extends the buffer itself.
        let done = resp2::encode::extend_encode_borrowed(out, &frame, false);
        debug_assert!(done.is_ok(), "a scalar reply can always be encoded");
    }

    fn encode_resp3(&self, out: &mut BytesMut) {
        let attributes = None;
        let frame = match self {
            Self::Simple(text) => Frame3::SimpleString { data: text.as_bytes(), attributes },
            Self::Error(text) => Frame3::SimpleError { data: text, attributes },
            Self::Int(n) => Frame3::Number { data: *n, attributes },
            Self::Bulk(bytes) => Frame3::BlobString { data: bytes, attributes },
            Self::Text(text) => {
                Frame3::VerbatimString { data: text.as_bytes(), format: VerbatimStringFormat::Text, attributes }
            }
            Self::Nil | Self::NilArray | Self::Array(_) | Self::Map(_) | Self::Push(_) | Self::Later => Frame3::Null,
        };
        let done = resp3::encode::complete::extend_encode_borrowed(out, &frame, false);
        debug_assert!(done.is_ok(), "a scalar reply can always be encoded");
    }
}

fn header(out: &mut BytesMut, kind: char, len: usize) {
    // Writing to a `BytesMut` grows it and cannot fail.
    let _ = write!(out, "{kind}{len}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn encoded(reply: &Reply, protocol: Protocol) -> String {
        let mut out = BytesMut::new();
        reply.encode(protocol, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn both_versions() {
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
