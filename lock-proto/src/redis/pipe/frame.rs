//! Decoding of RESP frames (<https://redis.io/docs/latest/develop/reference/protocol-spec/>). Size,
//! nesting and lengths are checked first, because the decoder recurses and trusts lengths. Streamed
//! aggregates and strings of RESP3 are refused: no server sends them.
// P3

use redis_protocol::{resp2, resp3};

use crate::fault::Breach;
use crate::redis::request::Value;
use crate::redis::url::Protocol;

/// The upper bound of [`Limits::depth`].
const MAX_DEPTH: usize = 8;
/// The longest line with a number or a length: a sign, 19 digits, and room for malformed ones.
const NUMBER_LINE: usize = 32;
/// The largest number of integers in a reply to our requests.
pub(super) const MAX_INTS: usize = 4;

/// Limits on what a server may send, and on what is sent to it. A server that exceeds them commits
/// a [`Breach`], and its connection is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Size of one frame, in bytes.
    pub frame: usize,
    /// Nesting of aggregates, at most 8.
    pub depth: usize,
    /// Total elements of all aggregates in a frame.
    pub elements: usize,
    /// Consecutive push messages without a reply (RESP3).
    pub pushes: u32,
    /// Encoded bytes that wait for the socket. May be exceeded by one command, and by a batch
    /// of each kind.
    pub outgoing: usize,
    /// Encoded requests without a reply. Further requests wait in the client, so that a slow server
    /// is not overloaded.
    pub in_flight: usize,
}

impl Default for Limits {
    /// 64 KiB per frame, 4 levels, 4 096 elements, 1 024 pushes, 64 KiB outgoing, 1 024 requests in
    /// flight.
    fn default() -> Self {
        Self { frame: 64 * 1024, depth: 4, elements: 4096, pushes: 1024, outgoing: 64 * 1024, in_flight: 1024 }
    }
}

/// Where a scan of one frame stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The frame is complete and has this many bytes.
    Complete(usize),
    /// At least this many bytes are missing.
    Missing(usize),
}

/// Finds the end of a frame, and rejects one that is too large, too deep or malformed. Resumable:
/// it scans each byte once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Scanner {
    at: usize,
    /// No line ends before this offset.
    searched: usize,
    /// End of the current blob including its CRLF, or 0.
    blob_end: usize,
    /// Number of missing elements of each open aggregate.
    open: [usize; MAX_DEPTH],
    depth: usize,
    elements: usize,
}

impl Scanner {
    /// Continues with the frame at the start of `buf`, which may have grown since the last call.
    pub(super) fn scan(&mut self, buf: &[u8], protocol: Protocol, limits: &Limits) -> Result<Scan, Breach> {
        loop {
            if self.blob_end > 0 {
                let Some(missing) = self.blob_end.checked_sub(buf.len()).filter(|missing| *missing > 0) else {
                    if !buf[..self.blob_end].ends_with(b"\r\n") {
                        return Err(Breach::Malformed);
                    }
                    self.at = self.blob_end;
                    self.blob_end = 0;
                    if self.close_element() {
                        return Ok(self.complete());
                    }
                    continue;
                };
                return Ok(Scan::Missing(missing));
            }
            let Some(&kind) = buf.get(self.at) else {
                return if self.at < limits.frame { Ok(Scan::Missing(1)) } else { Err(Breach::TooLong) };
            };
            let Some(kind) = FrameKind::of(kind, protocol) else {
                return Err(buf.get(self.at..).and_then(Breach::of_other_protocol).unwrap_or(Breach::Malformed));
            };
            let Some(line_end) = self.line_end(buf, kind, limits)? else {
                return Ok(Scan::Missing(1));
            };
            let line = buf[self.at + 1..line_end].strip_suffix(b"\r\n").ok_or(Breach::Malformed)?;
            if self.element(kind, line, line_end, protocol, limits)? {
                return Ok(self.complete());
            }
        }
    }

    fn complete(&mut self) -> Scan {
        let end = self.at;
        *self = Self::default();
        Scan::Complete(end)
    }

    /// Returns the end of the line at `at`, if it is complete.
    fn line_end(&mut self, buf: &[u8], kind: FrameKind, limits: &Limits) -> Result<Option<usize>, Breach> {
        let left = limits.frame.saturating_sub(self.at);
        let number = !matches!(kind, FrameKind::Line) && left > NUMBER_LINE;
        let (longest, breach) = if number { (NUMBER_LINE, Breach::Malformed) } else { (left, Breach::TooLong) };
        let from = self.searched.max(self.at);
        let until = buf.len().min(self.at + longest);
        match buf.get(from..until).and_then(|part| part.iter().position(|b| *b == b'\n')) {
            Some(found) => Ok(Some(from + found + 1)),
            None if buf.len() >= self.at + longest => Err(breach),
            None => {
                self.searched = until;
                Ok(None)
            }
        }
    }

    /// Processes an element whose first line is complete. Returns true if the frame ends with it.
    fn element(
        &mut self,
        kind: FrameKind,
        line: &[u8],
        line_end: usize,
        protocol: Protocol,
        limits: &Limits,
    ) -> Result<bool, Breach> {
        self.at = line_end;
        match kind {
            FrameKind::Line => Ok(self.close_element()),
            FrameKind::Integer => integer(line).map(|_| self.close_element()),
            FrameKind::Empty if line.is_empty() => Ok(self.close_element()),
            FrameKind::Empty => Err(Breach::Malformed),
            FrameKind::Blob { min } => {
                let Some(len) = length(line, protocol)? else { return Ok(self.close_element()) };
                if len < min {
                    return Err(Breach::Malformed);
                }
                let end = len.checked_add(line_end + 2).filter(|end| *end <= limits.frame).ok_or(Breach::TooLong)?;
                self.blob_end = end;
                Ok(false)
            }
            FrameKind::Aggregate { per_item, extra, top_only } => {
                if top_only && self.depth > 0 {
                    return Err(Breach::Malformed);
                }
                let Some(items) = length(line, protocol)? else { return Ok(self.close_element()) };
                let children = items.checked_mul(per_item).and_then(|n| n.checked_add(extra)).ok_or(Breach::TooLong)?;
                self.elements = self.elements.checked_add(children).ok_or(Breach::TooLong)?;
                if self.elements > limits.elements {
                    return Err(Breach::TooLong);
                }
                if self.depth >= limits.depth.min(MAX_DEPTH) {
                    return Err(Breach::TooDeep);
                }
                if children == 0 {
                    return Ok(self.close_element());
                }
                self.open[self.depth] = children;
                self.depth += 1;
                Ok(false)
            }
        }
    }

    /// Counts one element as read, and closes every aggregate that ends with it.
    fn close_element(&mut self) -> bool {
        while self.depth > 0 {
            let left = &mut self.open[self.depth - 1];
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.depth -= 1;
        }
        true
    }
}

/// What follows a type byte.
#[derive(Clone, Copy)]
enum FrameKind {
    Line,
    Integer,
    Empty,
    /// A length, followed by that many bytes.
    Blob {
        min: usize,
    },
    /// A count, followed by `count * per_item + extra` elements.
    Aggregate {
        per_item: usize,
        extra: usize,
        top_only: bool,
    },
}

impl FrameKind {
    fn of(byte: u8, protocol: Protocol) -> Option<Self> {
        let list = Self::Aggregate { per_item: 1, extra: 0, top_only: false };
        match (byte, protocol) {
            (b'+' | b'-', _) => Some(Self::Line),
            (b':', _) => Some(Self::Integer),
            (b'$', _) => Some(Self::Blob { min: 0 }),
            (b'*', _) => Some(list),
            (_, Protocol::Resp2) => None,
            (b'_', Protocol::Resp3) => Some(Self::Empty),
            (b'#' | b',' | b'(', Protocol::Resp3) => Some(Self::Line),
            (b'!', Protocol::Resp3) => Some(Self::Blob { min: 0 }),
            // The format as three letters, and a colon.
            (b'=', Protocol::Resp3) => Some(Self::Blob { min: 4 }),
            (b'~', Protocol::Resp3) => Some(list),
            (b'>', Protocol::Resp3) => Some(Self::Aggregate { per_item: 1, extra: 0, top_only: true }),
            (b'%', Protocol::Resp3) => Some(Self::Aggregate { per_item: 2, extra: 0, top_only: false }),
            // Attributes precede the element that they describe.
            (b'|', Protocol::Resp3) => Some(Self::Aggregate { per_item: 2, extra: 1, top_only: false }),
            (_, Protocol::Resp3) => None,
        }
    }
}

/// Parses a length; `None` for -1, which is null in RESP2.
fn length(line: &[u8], protocol: Protocol) -> Result<Option<usize>, Breach> {
    if line == b"-1" && protocol == Protocol::Resp2 {
        return Ok(None);
    }
    if !line.first().is_some_and(u8::is_ascii_digit) {
        return Err(Breach::Malformed);
    }
    // A number that does not fit a machine word exceeds any limit.
    let number = u64::try_from(integer(line)?).map_err(|_| Breach::Malformed)?;
    usize::try_from(number).map(Some).map_err(|_| Breach::TooLong)
}

fn integer(line: &[u8]) -> Result<i64, Breach> {
    core::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(Breach::Malformed)
}

/// A decoded frame, in the detail that this library needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded<'a> {
    Nil,
    Int(i64),
    Text(&'a [u8]),
    Error(&'a str),
    Ints {
        values: [i64; MAX_INTS],
        len: usize,
    },
    /// An array that starts with a string, such as the reply to `BLPOP`.
    List(&'a [u8]),
    /// RESP3: the raw reply to `HELLO`. The order of the decoder's maps is random.
    Map(&'a [u8]),
    /// RESP3: a message that is not a reply.
    Push,
    Other,
}

impl<'a> Decoded<'a> {
    pub(super) fn decode(frame: &'a [u8], protocol: Protocol) -> Result<Self, Breach> {
        match protocol {
            Protocol::Resp2 => match resp2::decode::decode_range(frame) {
                Ok(Some((decoded, _))) => Ok(Self::from_resp2(frame, &decoded)),
                Ok(None) | Err(_) => Err(Breach::Malformed),
            },
            Protocol::Resp3 => match resp3::decode::complete::decode_range(frame) {
                Ok(Some((decoded, _))) => Ok(Self::from_resp3(frame, &decoded)),
                Ok(None) | Err(_) => Err(Breach::Malformed),
            },
        }
    }

    fn from_resp2(buf: &'a [u8], frame: &resp2::types::RangeFrame) -> Self {
        use resp2::types::RangeFrame as Frame;
        match frame {
            Frame::Null => Self::Nil,
            Frame::Integer(n) => Self::Int(*n),
            Frame::SimpleString(range) | Frame::BulkString(range) => Self::Text(slice(buf, *range)),
            Frame::Error(range) => Self::Error(text(slice(buf, *range))),
            Frame::Array(items) => Self::list(items.iter().map(|item| Self::from_resp2_leaf(buf, item))),
        }
    }

    fn from_resp2_leaf(buf: &'a [u8], frame: &resp2::types::RangeFrame) -> Self {
        if matches!(frame, resp2::types::RangeFrame::Array(_)) { Self::Other } else { Self::from_resp2(buf, frame) }
    }

    fn from_resp3(buf: &'a [u8], frame: &resp3::types::RangeFrame) -> Self {
        use resp3::types::RangeFrame as Frame;
        match frame {
            Frame::Null => Self::Nil,
            Frame::Number { data, .. } => Self::Int(*data),
            Frame::SimpleString { data, .. } | Frame::BlobString { data, .. } | Frame::VerbatimString { data, .. } => {
                Self::Text(slice(buf, *data))
            }
            Frame::SimpleError { data, .. } | Frame::BlobError { data, .. } => Self::Error(text(slice(buf, *data))),
            Frame::Array { data, .. } => Self::list(data.iter().map(|item| Self::from_resp3_leaf(buf, item))),
            Frame::Map { .. } => Self::Map(buf),
            Frame::Push { .. } => Self::Push,
            Frame::Boolean { .. }
            | Frame::Double { .. }
            | Frame::BigNumber { .. }
            | Frame::Set { .. }
            | Frame::Hello { .. }
            | Frame::ChunkedString(_) => Self::Other,
        }
    }

    fn from_resp3_leaf(buf: &'a [u8], frame: &resp3::types::RangeFrame) -> Self {
        if matches!(frame, resp3::types::RangeFrame::Array { .. }) { Self::Other } else { Self::from_resp3(buf, frame) }
    }

    fn list(items: impl Iterator<Item = Self>) -> Self {
        let mut values = [0; MAX_INTS];
        let mut len = 0;
        for (i, item) in items.enumerate() {
            if let (Self::Text(first), 0) = (item, i) {
                return Self::List(first);
            }
            let (Self::Int(n), 0..MAX_INTS) = (item, i) else { return Self::Other };
            values[i] = n;
            len = i + 1;
        }
        Self::Ints { values, len }
    }

    pub(super) fn value(&self) -> Value<'_> {
        match self {
            Self::Nil => Value::Nil,
            Self::Int(n) => Value::Int(*n),
            Self::Text(bytes) => Value::Text(bytes),
            Self::Error(text) => Value::Error(text),
            Self::Ints { values, len } => Value::Ints(&values[..*len]),
            Self::List(_) | Self::Map(_) | Self::Push | Self::Other => Value::Other,
        }
    }
}

fn slice(buf: &[u8], (start, end): (usize, usize)) -> &[u8] {
    buf.get(start..end).unwrap_or_default()
}

/// Returns the text of an error, up to the first byte that is not UTF-8.
fn text(bytes: &[u8]) -> &str {
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}
