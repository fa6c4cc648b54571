//! What a register holds: who has the lock, and what its successor needs to know.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use bytes::Bytes;

use crate::id::ClientId;
use crate::lock::{MAX_TTL, MAX_VALUE};

/// The longest label, in bytes.
pub const MAX_LABEL: usize = 256;

/// The longest revision, in bytes.
pub const MAX_REVISION: usize = 512;

/// The content of a register. It stays when the lock is released, with `held` false.
///
/// No two records are alike: the version grows with each write, and the writer is unique. So a store
/// whose revision is a hash of the content never shows the same revision twice.
// RG0
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// That of the record it replaced, plus one; the host's time of day in ms if there was none.
    pub version: u64,
    /// Who wrote it.
    pub writer: Writer,
    /// Whether the client that wrote it holds the lock.
    pub held: bool,
    /// The fence of the last grant, in ms: see [`Grant::fence`](crate::Grant::fence).
    pub fence: u64,
    /// The TTL in whole ms: how long another client must have seen this record before it may be
    /// replaced. Of a free record, that of its last holder.
    pub ttl: Duration,
    /// The holder, for people: host and process, for example. At most [`MAX_LABEL`] bytes, printable.
    pub label: Box<str>,
    /// The value of the leader, at most [`MAX_VALUE`] bytes. Empty for a lock.
    pub value: Bytes,
}

/// The write that a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writer {
    /// The client.
    pub client: ClientId,
    /// The number of the write. It grows with each write of the client.
    pub number: u64,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

/// A record as a store returns it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The content.
    pub record: Record,
    /// Its revision in the store. A write that expects it succeeds only if nothing was written since.
    pub revision: Revision,
    /// How long ago the record was written, if the store measures both times by one clock of its own.
    /// Never longer than that; `None` if it cannot tell.
    pub age: Option<Duration>,
}

impl Entry {
    /// Creates an entry of unknown age.
    #[must_use]
    pub const fn new(record: Record, revision: Revision) -> Self {
        Self { record, revision, age: None }
    }

    /// Sets how long ago the record was written.
    #[must_use]
    pub const fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}

/// The revision of a record in its store: an entity tag, a resource version, a number. Opaque; equal
/// revisions of a key mean the same record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(Bytes);

impl Revision {
    /// Creates a revision, of at most [`MAX_REVISION`] bytes.
    #[must_use]
    pub fn new(revision: impl AsRef<[u8]>) -> Self {
        Self(Bytes::copy_from_slice(revision.as_ref()))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the revision as text; `None` if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        core::str::from_utf8(&self.0).ok()
    }

    /// Returns the revision as a number; `None` if it is none.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_str()?.parse().ok()
    }
}

impl From<u64> for Revision {
    fn from(number: u64) -> Self {
        Self::new(format!("{number}"))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Revision({self})")
    }
}

/// Bytes that are not a record that this version can read.
///
/// Such a key is in use for something else, or by a later version of this library, and is never
/// overwritten.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NoRecord {
    /// The first line is another one.
    #[error("it does not start with `{FORMAT}`: the key is in use for something else, or by a later version")]
    Format,
    /// This line is missing, in another place, or has no valid value.
    #[error("its line `{0}` is missing or invalid")]
    Line(&'static str),
}

/// The first line of an encoded record.
const FORMAT: &str = "lock-record 1";

impl Record {
    /// Returns the record as bytes, for a store that holds one value: lines of text, then the value
    /// after an empty line.
    ///
    /// ```text
    /// lock-record 1
    /// version 1764288000000
    /// writer 0000000000000000000000000000002a:7
    /// held yes
    /// fence 1764288000000
    /// ttl_ms 10000
    /// label host-1 4711
    ///
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { version, writer, held, fence, ttl, label, value } = self;
        let held = if *held { "yes" } else { "no" };
        let ttl = ttl.as_millis();
        let mut text: Vec<u8> = format!(
            "{FORMAT}\nversion {version}\nwriter {writer}\nheld {held}\nfence {fence}\nttl_ms {ttl}\nlabel {label}\n\n"
        )
        .into();
        text.extend_from_slice(value);
        text
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    ///
    /// [`NoRecord`]: the key must not be overwritten.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoRecord> {
        let mut lines = RecordLines(bytes);
        if lines.next() != Some(FORMAT) {
            return Err(NoRecord::Format);
        }
        let version = lines.number("version")?;
        let writer = Writer::parse(lines.field("writer")?).ok_or(NoRecord::Line("writer"))?;
        let held = match lines.field("held")? {
            "yes" => true,
            "no" => false,
            _ => return Err(NoRecord::Line("held")),
        };
        let fence = lines.number("fence")?;
        let ttl = Duration::from_millis(lines.number("ttl_ms")?);
        let label = lines.field("label")?;
        if ttl > MAX_TTL {
            return Err(NoRecord::Line("ttl_ms"));
        }
        if label.len() > MAX_LABEL {
            return Err(NoRecord::Line("label"));
        }
        if lines.next() != Some("") || lines.0.len() > MAX_VALUE {
            return Err(NoRecord::Line("value"));
        }
        let value = Bytes::copy_from_slice(lines.0);
        Ok(Self { version, writer, held, fence, ttl, label: label.into(), value })
    }

    /// Makes a text fit for [`label`](Self::label): cuts it, and replaces control characters.
    #[must_use]
    pub fn label_of(text: &str) -> Box<str> {
        let mut label = String::new();
        for c in text.trim().chars().map(|c| if c.is_control() { '?' } else { c }) {
            if label.len() + c.len_utf8() > MAX_LABEL {
                break;
            }
            label.push(c);
        }
        label.into()
    }
}

impl Writer {
    /// Reads what `Display` wrote; `None` if the text is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (client, number) = text.split_once(':')?;
        let is_hex = client.len() == 32 && client.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let bits = u128::from_str_radix(client, 16).ok().filter(|_| is_hex)?;
        Some(Self { client: ClientId::from_bits(bits), number: parse_number(number)? })
    }
}

/// Only digits: `u64::from_str` takes a sign, too.
fn parse_number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

/// The lines that are left.
struct RecordLines<'a>(&'a [u8]);

impl<'a> RecordLines<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|b| *b == b'\n')?;
        let line = core::str::from_utf8(&self.0[..end]).ok()?;
        self.0 = &self.0[end + 1..];
        Some(line)
    }

    fn field(&mut self, name: &'static str) -> Result<&'a str, NoRecord> {
        self.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' ')).ok_or(NoRecord::Line(name))
    }

    fn number(&mut self, name: &'static str) -> Result<u64, NoRecord> {
        parse_number(self.field(name)?).ok_or(NoRecord::Line(name))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use alloc::string::String;

    use super::*;

    fn record() -> Record {
        Record {
            version: 7,
            writer: Writer { client: ClientId::from_bits(42), number: 3 },
            held: true,
            fence: 1_764_288_000_000,
            ttl: Duration::from_secs(10),
            label: "host-1 4711".into(),
            value: Bytes::from_static(b"a\n\nb\xff"),
        }
    }

    #[test]
    fn records_survive_encoding() {
        // RG0
        for record in [
            record(),
            Record { held: false, label: "".into(), value: Bytes::new(), ..record() },
            Record { version: u64::MAX, ttl: MAX_TTL, ..record() },
        ] {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn other_formats_are_refused() {
        // RG0
        assert_eq!(Record::decode(b""), Err(NoRecord::Format));
        assert_eq!(Record::decode(b"lock-record 2\nversion 1\n"), Err(NoRecord::Format));
        let whole = record().encode();
        let text = String::from_utf8_lossy(&whole).into_owned();
        for (from, to, line) in [
            ("version 7", "version +7", "version"),
            ("version 7", "version 99999999999999999999", "version"),
            ("2a:3", "2A:3", "writer"),
            ("held yes", "held maybe", "held"),
            ("ttl_ms 10000", "ttl_ms 99999999999999", "ttl_ms"),
            ("ttl_ms 10000\n", "", "ttl_ms"),
            ("label host-1 4711\n\n", "label host-1 4711\nmore\n\n", "value"),
        ] {
            assert_eq!(Record::decode(text.replace(from, to).as_bytes()), Err(NoRecord::Line(line)), "{to}");
        }
        for end in 0..whole.len() - record().value.len() {
            assert!(Record::decode(&whole[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn labels_fit_one_line() {
        assert_eq!(&*Record::label_of(" a\nb "), "a?b");
        assert!(Record::label_of(&"ü".repeat(MAX_LABEL)).len() <= MAX_LABEL);
    }
}
