//! Stores of one's own, and locks in a folder.
//!
//! `docs/own-store.md` of the repository shows a store in 40 lines.

use core::fmt::Display;

use lock_driver::register::connect_on_thread;
pub use lock_driver::register::{
    Config, Entry, FileConfig, FileRegister, MAX_LABEL, MAX_REVISION, NoRecord, Record, Register, RegisterError,
    Revision, Writer,
};
use lock_driver::{Client, ConnectError};

use crate::connect::start_reactor;
use crate::host::Smol;

/// Returns a client on a store of one's own: anything with compare-and-set.
///
/// `make` creates the store on the driver's thread. The calling thread waits for it.
///
/// # Errors
///
/// `make` failed; or the system has no random numbers, or no thread or sockets for the driver.
pub fn connect_register<R: Register, E: Display>(
    make: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<Client, ConnectError> {
    connect_register_with(Config::new(), make)
}

/// As [`connect_register`], with settings.
///
/// # Errors
///
/// As [`connect_register`]; also if a setting is out of range.
pub fn connect_register_with<R: Register, E: Display>(
    config: Config,
    make: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<Client, ConnectError> {
    start_reactor()?;
    connect_on_thread(Smol::new(), config, make, smol::block_on)
}
