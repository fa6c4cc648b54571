//! A client whose driver runs on smol.

use core::net::SocketAddr;
use core::ops::Deref;
use core::time::Duration;
use std::io;

use lock_proto::driver::{self, Address, BootClock, ConnectError, Host, Settings};
use smol::Timer;
use smol::net::TcpStream;
#[cfg(unix)]
use smol::net::unix::UnixStream;

use crate::stream::{BoxFuture, Stream, unsupported};

/// A client on smol. Cheap to clone; dereferences to [`driver::Client`], which makes the locks.
#[derive(Clone, Debug)]
pub struct Client(driver::Client);

impl Client {
    /// A client of one Redis server, `redis://user:password@host:port/database` or `redis+unix:///path/to/socket`, or of an etcd cluster,
    /// `etcd://user:password@host:port,host:port`.
    ///
    /// It connects in the background, as long as it takes: a server that is down shows when a lock is acquired.
    ///
    /// # Errors
    ///
    /// The URL is wrong.
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_quorum([url])
    }

    /// A client of a quorum: an odd number of independent Redis servers, three or more. (One is the single node of
    /// [`connect`](Self::connect).)
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

/// Smol as a [`Host`], to run a [`Driver`](driver::Driver) in a task or on an executor of your own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Smol {
    clock: BootClock,
}

impl Smol {
    /// Smol's reactor, and the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Host for Smol {
    type Clock = BootClock;
    #[cfg(unix)]
    type Stream = Stream<TcpStream, UnixStream>;
    #[cfg(not(unix))]
    type Stream = Stream<TcpStream>;
    type Resolve = BoxFuture<io::Result<Vec<SocketAddr>>>;
    type Connect = BoxFuture<io::Result<Self::Stream>>;
    type Sleep = BoxFuture<()>;

    fn clock(&self) -> BootClock {
        self.clock
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        let host = host.to_owned();
        Box::pin(async move { smol::net::resolve((host, port)).await })
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let address = address.clone();
        Box::pin(async move {
            match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(Stream::tcp(stream))
                }
                #[cfg(unix)]
                Address::Unix(path) => Ok(Stream::unix(UnixStream::connect(&*path).await?)),
                other => Err(unsupported(&other)),
            }
        })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        let timer = Timer::after(time);
        Box::pin(async move {
            timer.await;
        })
    }
}
