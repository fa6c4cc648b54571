//! The driver on [monoio](https://docs.rs/monoio), with io_uring or epoll.
//!
//! Needs monoio's features `poll-io` and `sync`: the driver is woken by handles on other threads.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::net::ToSocketAddrs as _;

use lock_driver::{Address, BootClock, Client, ConnectError, Host, Settings};
use monoio::io::IntoPollIo as _;
use monoio::net::{TcpStream, UnixStream};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::{LocalBoxFuture, Stream};

/// The runtime of the current thread. It needs timers, and a pool of threads that resolves names.
#[derive(Default)]
pub struct Monoio(BootClock);

impl Host for Monoio {
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
        let resolving = monoio::spawn_blocking(move || Ok((host, port).to_socket_addrs()?.collect()));
        Box::pin(async { resolving.await.map_err(|_| io::ErrorKind::Interrupted)? })
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let address = address.clone();
        Box::pin(async move {
            match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect_addr(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(Box::pin(stream.into_poll_io()?.compat()) as Stream)
                }
                Address::Unix(path) => {
                    Ok(Box::pin(UnixStream::connect(&*path).await?.into_poll_io()?.compat()) as Stream)
                }
                _ => Err(io::ErrorKind::Unsupported.into()),
            }
        })
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        Box::pin(monoio::time::sleep(time))
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
/// Called outside a runtime of monoio.
pub fn connect(settings: impl Into<Settings>) -> Result<Client, ConnectError> {
    let (client, driver) = lock_driver::connect(Monoio::default(), settings)?;
    drop(monoio::spawn(driver));
    Ok(client)
}
