//! The same on async-std.
//!
//! async-std is discontinued ([RUSTSEC-2025-0052](https://rustsec.org/advisories/RUSTSEC-2025-0052.html)). This is for programs that
//! still have to run on it; the handles are those of every other runtime, so a later move changes one line.
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

use core::net::SocketAddr;
use core::ops::Deref;
use core::time::Duration;
use std::io;

use ::async_std::net::{TcpStream, ToSocketAddrs as _};
#[cfg(unix)]
use ::async_std::os::unix::net::UnixStream;
use ::async_std::task;
use lock_proto::driver::{self, Address, BootClock, ConnectError, Host, Settings};

use crate::stream::{BoxFuture, Stream, unsupported};

/// A client on async-std. Cheap to clone; dereferences to [`driver::Client`], which makes the locks.
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

/// async-std as a [`Host`], to run a [`Driver`](driver::Driver) in a task of your own.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsyncStd {
    clock: BootClock,
}

impl AsyncStd {
    /// async-std's reactor, and the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Host for AsyncStd {
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
        Box::pin(async move { Ok((&*host, port).to_socket_addrs().await?.collect()) })
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
        Box::pin(task::sleep(time))
    }
}
