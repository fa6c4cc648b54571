//! The same on async-std.
//!
//! async-std is discontinued
//! ([RUSTSEC-2025-0052](https://rustsec.org/advisories/RUSTSEC-2025-0052.html)). This is for
//! programs that still have to run on it; the handles are those of every other runtime, so a later
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

/// A client on async-std. Cheap to clone; dereferences to [`driver::Client`], which makes the
/// locks.
#[derive(Clone, Debug)]
pub struct Client(driver::Client);

impl Client {
    /// As [`crate::Client::connect`].
    ///
    /// # Errors
    ///
    /// The URL is wrong.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_quorum([url])
    }

    /// As [`crate::Client::connect_quorum`].
    ///
    /// # Errors
    ///
    /// A URL is wrong, the number is even, or two URLs name one server.
    pub fn connect_quorum<I>(urls: I) -> Result<Self, ConnectError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        Self::with_config(Settings::parse(urls)?)
    }

    /// A client with settings of your own: a `redis::Config` or an `etcd::Config`.
    ///
    /// # Errors
    ///
    /// A setting is out of range.
    pub fn with_config(config: impl Into<Settings>) -> Result<Self, ConnectError> {
        let (client, driver) = driver::connect(AsyncStd::new(), config)?;
        // The driver ends by itself, when the last handle is gone.
        drop(task::spawn(driver));
        Ok(Self(client))
    }

    /// The client without the name of its runtime, for code that should fit every runtime.
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

/// async-std as a [`Host`](driver::Host), to run a [`Driver`](driver::Driver) in a task of your
/// own. It has the reactor of smol, so the host is the same.
pub type AsyncStd = Smol;
