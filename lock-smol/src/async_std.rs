//! Clients on async-std.
//!
//! async-std is discontinued
//! ([RUSTSEC-2025-0052](https://rustsec.org/advisories/RUSTSEC-2025-0052.html)). This module is for
//! programs that still have to run on it. The handles are the same on every runtime, so a later
//! move changes one line.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! async_std::task::block_on(async {
//!     let client = lock_smol::async_std::connect("redis://127.0.0.1:6379")?;
//!     let guard = client.lock("invoice:42").acquire().await?;
//!     println!("held, fencing token {:?}", guard.fence());
//!     println!("{:?}", guard.release().await);
//!     Ok(())
//! })
//! # }
//! ```

use ::async_std::task;
use lock_driver::{Client, ConnectError, Settings, start_or_error};

use crate::connect::start_reactor;
pub use crate::connect::{connect, connect_quorum, connect_with};
use crate::host::Smol;
#[cfg(feature = "register")]
pub use crate::register::{connect_register, connect_register_with};

/// As [`connect_with`], with the driver as a task of async-std's executor instead of a thread.
///
/// As [`crate::connect_on_runtime`]: locks are lost if the tasks of the executor compute or block
/// for long.
///
/// # Errors
///
/// As [`connect_with`]. The first call starts the executor's threads; if that fails, no later one
/// can start them.
pub fn connect_on_runtime(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    start_reactor()?;
    let (client, driver) = lock_driver::connect(AsyncStd::new(), settings)?;
    // The driver ends once the last handle is dropped.
    start_or_error(|| drop(task::spawn(driver))).map_err(ConnectError::Thread)?;
    Ok(client)
}

/// async-std as a [`Host`](lock_driver::Host), to run a [`Driver`](lock_driver::Driver) in your own task.
/// async-std uses the reactor of smol, so the host is the same.
pub type AsyncStd = Smol;
