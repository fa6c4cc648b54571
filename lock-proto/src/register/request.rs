//! Typed requests to a store, and its replies.

use alloc::boxed::Box;

use bytes::Bytes;

use super::record::{Entry, Record, Revision};
use crate::lock::{Cause, ServerError};

/// A request to the store. The key is the full name of the lock, prefix included: any bytes, at most
/// twice [`MAX_NAME`](crate::MAX_NAME).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Read the record of a key. It may be stale: that costs time, never safety.
    // RG6
    Read {
        /// The key.
        key: Bytes,
    },
    /// Write a record, if the key is as expected. The host makes it once: it never repeats a write
    /// whose outcome it does not know.
    // RG4
    Write {
        /// The key.
        key: Bytes,
        /// The new record.
        record: Record,
        /// The record that it replaces; `None`: the key must be absent.
        expected: Option<Box<Entry>>,
    },
}

impl Request {
    /// Returns the key.
    pub const fn key(&self) -> &Bytes {
        match self {
            Self::Read { key } | Self::Write { key, .. } => key,
        }
    }
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The read found this record.
    Record(Entry),
    /// The read found none.
    Absent,
    /// The record was written, and has this revision.
    Written(Revision),
    /// Another record was proved to be there, or none where one was expected. The write was not
    /// applied by this call.
    Conflict,
    /// The store refused. The write was not applied.
    Rejected(ServerError),
    /// The request was not sent, or the store has rolled it back. The write was not applied.
    NotSent(Cause),
    /// The request was sent, and its outcome is unknown.
    Unknown(Cause),
}
