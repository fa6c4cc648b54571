//! A client whose driver runs on smol.

use core::ops::Deref;

use lock_proto::driver::{self, ConnectError, Settings};

use crate::host::Smol;

/// A client on smol. Cheap to clone; dereferences to [`driver::Client`], which makes the locks.
#[derive(Clone, Debug)]
pub struct Client(driver::Client);

impl Client {
    /// A client of one Redis server, `redis://user:password@host:port/database` or
    /// `redis+unix:///path/to/socket`, or of an etcd cluster,
    /// `etcd://user:password@host:port,host:port`.
    ///
    /// It connects in the background, as long as it takes: a server that is down shows when a lock
    /// is acquired.
    ///
    /// # Errors
    ///
    /// The URL is wrong.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_quorum([url])
    }

    /// A client of a quorum: an odd number of independent Redis servers, three or more. (One is the
    /// single node of [`connect`](Self::connect).)
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
        let (client, driver) = driver::connect(Smol::new(), config)?;
        // The driver ends by itself, when the last handle is gone.
        smol::spawn(driver).detach();
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
