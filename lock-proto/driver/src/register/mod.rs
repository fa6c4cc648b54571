//! Stores of one's own, and locks in a folder: anything with compare-and-set.
//!
//! A [`Register`] has two functions, and the client makes locks with fencing, renewal and notice of a
//! loss from them. `docs/own-store.md` of the repository shows one in 40 lines.

mod calls;
mod connect;
mod file;
mod file_config;
mod own;
mod store;
mod woken;

pub use connect::{connect, connect_on_thread};
pub use file::FileRegister;
pub use file_config::FileConfig;
pub use lock_proto::register::{Config, Entry, MAX_LABEL, MAX_REVISION, NoRecord, Record, Revision, Writer};
pub use store::{Register, RegisterError};

pub(super) use file_config::{Driver, parse, start};
