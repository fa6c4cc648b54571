//! The replication stream from a primary to its replicas.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use super::input::{self, InputLimits, ParsedInput};
use super::reply::{blob, header};
use super::store::Db;

/// Redis' replication id, which is new after every start and promotion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct History([u8; 40]);

impl History {
    /// Belongs to no server.
    pub(super) const NONE: Self = Self([b'0'; 40]);

    pub(super) fn new(hex: &str) -> Self {
        hex.as_bytes().try_into().map_or(Self::NONE, Self)
    }

    pub(super) fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The changes of one command, script or expiry on a primary, in the form that Redis sends to
/// replicas. Times are absolute, scripts are their effects between `MULTI` and `EXEC`, and an
/// expired key is a `DEL`.
///
/// A replica applies it atomically with [`Node::handle_effect`](super::Node::handle_effect).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Effect {
    pub(super) history: History,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl Effect {
    /// Returns its offset in the stream: the number of bytes before it.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the offset of the next effect. A replica is up to date with its primary if this is
    /// its [`replication_offset`](super::Node::replication_offset).
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Returns the bytes that a real primary would send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Iterates over its commands with their arguments, including `SELECT`, `MULTI` and `EXEC`.
    pub fn commands(&self) -> impl Iterator<Item = Vec<&[u8]>> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let limits = InputLimits { max_bulk: usize::MAX / 2, authenticated: true };
            let mut args = Vec::new();
            match input::parse(&self.bytes[at..], limits, &mut args) {
                ParsedInput::Request { len } => at += len,
                ParsedInput::Incomplete | ParsedInput::Inline { .. } | ParsedInput::Broken(_) => return None,
            }
            Some(args)
        })
    }
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.offset)?;
        for command in self.commands() {
            f.write_str(" [")?;
            for (i, arg) in command.iter().enumerate() {
                write!(f, "{}{}", if i > 0 { " " } else { "" }, arg.escape_ascii())?;
            }
            f.write_str("]")?;
        }
        Ok(())
    }
}

/// A copy of a server's data and offset, for a full synchronisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    pub(super) history: History,
    pub(super) offset: u64,
    pub(super) selected: Option<u32>,
    pub(super) dbs: BTreeMap<u32, Db>,
    pub(super) port: u16,
}

pub(crate) fn encode(out: &mut Vec<u8>, args: &[&[u8]]) {
    header(out, b'*', args.len());
    for arg in args {
        blob(out, arg);
    }
}
