//! A client whose driver runs on smol.

use core::ops::Deref;

use lock_proto::driver::{self, ConnectError, Settings};

use crate::host::Smol;

/// A client on smol. Cheap to clone; dereferences to [`driver::Client`], which creates locks.
#[derive(Clone, Debug)]
pub struct Client(driver::Client);

impl Client {
    /// Creates a client of one Redis server or of an etcd cluster.
    ///
    /// The URL is `redis://user:password@host:port/database`, `redis+unix:///path/to/socket` or
    /// `etcd://user:password@host:port,host:port`. The client connects in the background and
    /// retries until it succeeds. An unreachable server shows when a lock is acquired.
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_quorum([url])
    }

    /// Creates a client of a quorum: an odd number of independent Redis servers, three or more. One
    /// server is a single node, as in [`connect`](Self::connect).
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
        let (client, driver) = driver::connect(Smol::new(), config)?;
        // The driver ends with the last handle.
        smol::spawn(driver).detach();
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
