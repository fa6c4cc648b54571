//! Locks and elections on anything with compare-and-set: a database, an object store, a file.
//!
//! A *register* is a key whose value has a revision. `read(key)` returns a [`Record`] and its
//! [`Revision`]; `write(key, record, expected)` succeeds only if the key still has the expected one.

mod record;
mod request;

pub use record::{Entry, MAX_LABEL, MAX_REVISION, NoRecord, Record, Revision, Writer};
pub use request::{Reply, Request};
