//! The driver on [compio](https://docs.rs/compio), with io_uring or polling.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;

use compio::io::compat::AsyncStream;
use compio::net::{TcpStream, ToSocketAddrsAsync as _, UnixStream};
use lock_driver::{Address, BootClock, Client, ConnectError, Host, Settings};

use crate::{LocalBoxFuture, Stream};

/// The runtime of the current thread.
#[derive(Default)]
pub struct Compio(BootClock);

impl Host for Compio {
    type Clock = BootClock;
    type Stream = Stream;
    type Resolve = LocalBoxFuture<io::Result<Vec<SocketAddr>>>;
    type Connect = LocalBoxFuture<io::Result<Stream>>;
    type Sleep = LocalBoxFuture<()>;

    fn clock(&self) -> BootClock {
        self.0
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        let host = host.to_owned();
        Box::pin(async move { Ok((host.as_str(), port).to_socket_addrs_async().await?.collect()) })
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let address = address.clone();
        Box::pin(async move {
            match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(Box::pin(AsyncStream::new(stream)) as Stream)
                }
                Address::Unix(path) => Ok(Box::pin(AsyncStream::new(UnixStream::connect(&*path).await?)) as Stream),
                _ => Err(io::ErrorKind::Unsupported.into()),
            }
        })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        Box::pin(compio::time::sleep(time))
    }
}

/// A client whose driver runs on the runtime of this thread.
///
/// # Errors
///
/// The settings are out of range.
///
/// # Panics
///
/// Called outside a runtime of compio.
pub fn connect(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let (client, driver) = lock_driver::connect(Compio::default(), settings)?;
    compio::runtime::spawn(driver).detach();
    Ok(client)
}
