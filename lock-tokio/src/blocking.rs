//! Clients for programs without async. The driver runs on a thread of its own, with a tokio runtime
//! that nothing else uses.
//!
//! The clients and their guards are those of async code, with methods that block the calling
//! thread: [`Lock::acquire_blocking`](crate::Lock::acquire_blocking),
//! [`Guard::release_blocking`](crate::Guard::release_blocking),
//! [`Guard::lost_within`](crate::Guard::lost_within),
//! [`Client::shutdown_blocking`](Client::shutdown_blocking) and so on.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = lock_tokio::blocking::connect("redis://127.0.0.1:6379")?;
//!     let guard = client.lock("invoice:42").ttl(Duration::from_secs(5)).acquire_blocking()?;
//!     println!("held, fencing token {:?}", guard.fence());
//!     // Between two steps of the work, before what must not happen twice.
//!     assert!(guard.is_held());
//!     println!("{:?}", guard.release_blocking());
//!     client.shutdown_blocking(Duration::from_secs(1));
//!     Ok(())
//! }
//! ```
//!
//! A thread cannot be stopped from outside, so [`Guard::protect`](crate::Guard::protect) has no
//! blocking form. Ask [`Guard::is_held`](crate::Guard::is_held) between the steps of the work, or
//! stop it from another thread, with [`Observer::lost_blocking`](crate::Observer::lost_blocking).

use std::thread;

use lock_proto::driver::{self, Client, ConnectError, Settings};
use tokio::runtime::Builder;

use crate::host::Tokio;

/// As [`crate::connect`], outside of any runtime.
///
/// # Errors
///
/// The URL is wrong, needs a feature that is not turned on, or names certificates that cannot be
/// used; the system has no random numbers, or no thread or sockets for the driver.
pub fn connect(url: &str) -> Result<Client, ConnectError> {
    connect_quorum([url])
}

/// As [`crate::connect_quorum`], outside of any runtime.
///
/// # Errors
///
/// As [`connect`]; also if the number is even, or two URLs name the same server.
pub fn connect_quorum<I>(urls: I) -> Result<Client, ConnectError>
where
    I: IntoIterator<Item: AsRef<str>>,
{
    connect_with(Settings::parse(urls)?)
}

/// As [`crate::connect_with`], outside of any runtime.
///
/// # Errors
///
/// A setting is out of range, certificates cannot be used, TLS is not compiled in, or the system
/// has no random numbers, no thread or no sockets for the driver.
pub fn connect_with(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let (client, driver) = driver::connect(Tokio::new(), settings)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(ConnectError::Thread)?;
    // The driver ends once the last handle is dropped, and the thread with it.
    let thread = thread::Builder::new().name("lock-driver".to_owned());
    thread.spawn(move || runtime.block_on(driver)).map_err(ConnectError::Thread)?;
    Ok(client)
}
