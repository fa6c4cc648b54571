//! Clients on async-std.
//!
//! async-std is discontinued
//! ([RUSTSEC-2025-0052](https://rustsec.org/advisories/RUSTSEC-2025-0052.html)). This module is for
//! programs that still have to run on it. The handles are the same on every runtime, so a later
//! move changes one line.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lock_smol::async_std::Client;
//!
//! async_std::task::block_on(async {
//!     let client = Client::connect("redis://127.0.0.1:6379")?;
//!     let guard = client.lock("invoice:42").acquire().await?;
//!     println!("held, fencing token {:?}", guard.fence());
//!     guard.release().await;
//!     Ok(())
//! })
//! # }
//! ```

use core::ops::Deref;

use ::async_std::task;
use lock_proto::driver::{self, ConnectError, Settings};

use crate::host::Smol;

/// A client on async-std. Cheap to clone; dereferences to [`driver::Client`], which creates locks.
#[derive(Clone, Debug)]
pub struct Client(driver::Client);

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_quorum([url])
    }

    /// See [`crate::Client::connect_quorum`].
    ///
    /// # Errors
    ///
    /// If a URL is invalid, the number is even, or two URLs name the same server.
    pub fn connect_quorum<I>(urls: I) -> Result<Self, ConnectError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        Self::with_config(Settings::parse(urls)?)
    }

    /// Creates a client with custom settings: a `redis::Config` or an `etcd::Config`.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub fn with_config(config: impl Into<Settings>) -> Result<Self, ConnectError> {
        let (client, driver) = driver::connect(AsyncStd::new(), config)?;
        // The driver ends with the last handle.
        drop(task::spawn(driver));
        Ok(Self(client))
    }

    /// Returns the runtime-independent client, for code that works on every runtime.
    #[must_use]
    pub fn into_inner(self) -> driver::Client {
        self.0
    }
}

impl Deref for Client {
    type Target = driver::Client;

    fn deref(&self) -> &driver::Client {
        &self.0
    }
}

/// async-std as a [`Host`](driver::Host), to run a [`Driver`](driver::Driver) in your own task.
/// async-std uses the reactor of smol, so the host is the same.
pub type AsyncStd = Smol;
