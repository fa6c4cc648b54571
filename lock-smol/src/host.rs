//! The driver's host on smol.

use core::net::SocketAddr;
use core::pin::Pin;
use core::time::Duration;
use std::io;
use std::net::ToSocketAddrs as _;
use std::path::Path;

use lock_driver::{Address, BootClock, Host, call_on_thread, read_file};
use smol::Timer;

use crate::stream::Stream;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Smol as a [`Host`], to run a [`Driver`](lock_driver::Driver) in your own task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Smol {
    clock: BootClock,
}

impl Smol {
    /// Creates a host with smol's reactor and the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Host for Smol {
    type Clock = BootClock;
    type Stream = Stream;
    type Resolve = BoxFuture<io::Result<Vec<SocketAddr>>>;
    type Connect = BoxFuture<io::Result<Stream>>;
    type Sleep = BoxFuture<()>;

    fn clock(&self) -> BootClock {
        self.clock
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        let host = host.to_owned();
        call_on_thread(move || Ok((&*host, port).to_socket_addrs()?.collect()))
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        Box::pin(Stream::connect(address.clone()))
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        let timer = Timer::after(time);
        Box::pin(async move {
            timer.await;
        })
    }

    fn read_file(&self, path: &Path) -> BoxFuture<io::Result<Vec<u8>>> {
        let path = path.to_owned();
        call_on_thread(move || read_file(path))
    }
}
