//! What a primary sends to its replicas.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use super::input::{self, Limits, Parsed};
use super::reply::{blob, header};
use super::store::Db;

/// A history of writes: Redis' replication id, new with every start and promotion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct History([u8; 40]);

impl History {
    /// No server has this one.
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

/// What one command, script or expiry has changed on a primary, in the form in which Redis sends it to replicas: times are absolute,
/// scripts are their effects between `MULTI` and `EXEC`, a key that expired is a `DEL`.
///
/// It is applied as a whole or not at all, by [`Node::handle_effect`](super::Node::handle_effect) of a replica.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Effect {
    pub(super) history: History,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl Effect {
    /// Its place in the stream: how many bytes went before it.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The place of the next one. `primary` and `replica` agree when it is the replica's
    /// [`replication_offset`](super::Node::replication_offset).
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// The bytes that a real primary would send.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its commands with their arguments, also `SELECT`, `MULTI` and `EXEC`.
    pub fn commands(&self) -> impl Iterator<Item = Vec<&[u8]>> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let limits = Limits { max_bulk: usize::MAX / 2, authenticated: true };
            let mut args = Vec::new();
            match input::parse(&self.bytes[at..], limits, &mut args) {
                Parsed::Request { len } => at += len,
                Parsed::Incomplete | Parsed::Inline { .. } | Parsed::Broken(_) => return None,
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

/// A copy of a server's data and of its place in the stream: what a replica begins with (a full synchronisation).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    pub(super) history: History,
    pub(super) offset: u64,
    pub(super) selected: Option<u32>,
    pub(super) dbs: BTreeMap<u32, Db>,
    pub(super) port: u16,
}

/// Appends a command as clients and primaries write it.
pub(super) fn encode(out: &mut Vec<u8>, args: &[&[u8]]) {
    header(out, b'*', args.len());
    for arg in args {
        blob(out, arg);
    }
}
