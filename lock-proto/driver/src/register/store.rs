//! The trait of a store.

use alloc::boxed::Box;
use alloc::string::String;
use core::any::type_name;
use core::future::{Future, pending};

use lock_proto::register::{Entry, Record, Revision};

/// A store with compare-and-set. Its two functions give locks with fencing, renewal, notice of a
/// loss, and elections.
///
/// The client makes one write a key at a time, and never repeats one whose outcome is unknown:
/// switch off the retries of a client library, which could take the success of the first try for a
/// conflict of the second.
pub trait Register: 'static {
    /// Reads the record of a key; `None` if there is none. A key has up to 1024 bytes of any value.
    ///
    /// The result may be stale: that costs time, never safety.
    fn read(&self, key: &[u8]) -> impl Future<Output = Result<Option<Entry>, RegisterError>>;

    /// Writes a record and returns its revision, if the key still has the expected one; with `None`,
    /// if the key is absent.
    ///
    /// A store whose revisions may repeat, such as a row that was deleted and made again, compares
    /// the record's version *and* writer.
    ///
    /// # Cancel safety
    ///
    /// The future is never dropped before it is complete, unless the client ends.
    fn write(
        &self,
        key: &[u8],
        record: &Record,
        expected: Option<&Entry>,
    ) -> impl Future<Output = Result<Revision, RegisterError>>;

    /// Completes when the key may have another revision than `seen`; at once if it has one already.
    /// A hint for waiters: they read again when it completes, and at intervals anyway. The default
    /// never completes.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when nobody waits for the key any more.
    fn changed(&self, key: &[u8], seen: Option<&Revision>) -> impl Future<Output = ()> {
        let _ = (key, seen);
        pending()
    }

    /// How errors and log lines name the store, such as its URL without a password. The default is
    /// the name of the type.
    fn name(&self) -> String {
        // Without the path and the parameters of the type.
        let name = type_name::<Self>().split('<').next().unwrap_or_default();
        name.rsplit("::").next().unwrap_or_default().into()
    }
}

/// Why a store did not read or write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Another record was proved to be there, or none where one was expected. Only a write may
    /// return it.
    #[error("another record is there")]
    Conflict,
    /// The store refuses, and a retry will not help before somebody changes something: a permission,
    /// a missing table, a key that is not a record. The text says what to do.
    #[error("{0}")]
    Refused(Box<str>),
    /// The request was not sent, or the store has rolled it back: a retry is safe.
    #[error("{0}")]
    NotSent(Box<str>),
    /// The request may or may not have been applied: the default for whatever is not known better.
    #[error("{0}")]
    Unknown(Box<str>),
}

impl RegisterError {
    /// Creates a [`Refused`](Self::Refused) from an error.
    pub fn refused(error: impl core::fmt::Display) -> Self {
        Self::Refused(alloc::format!("{error}").into())
    }

    /// Creates a [`NotSent`](Self::NotSent) from an error.
    pub fn not_sent(error: impl core::fmt::Display) -> Self {
        Self::NotSent(alloc::format!("{error}").into())
    }

    /// Creates an [`Unknown`](Self::Unknown) from an error.
    pub fn unknown(error: impl core::fmt::Display) -> Self {
        Self::Unknown(alloc::format!("{error}").into())
    }
}
