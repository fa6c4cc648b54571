//! The driver's host on tokio.

use core::net::SocketAddr;
use core::pin::Pin;
use core::time::Duration;
use std::io;
use std::net::ToSocketAddrs as _;
use std::path::Path;

use lock_driver::{Address, BootClock, Host, call_on_thread, read_file};

use tokio::sync::oneshot;

use crate::stream::Stream;

/// Tokio as a [`Host`], to run a [`Driver`](lock_driver::Driver) in a task of your own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokio {
    clock: BootClock,
}

impl Tokio {
    /// Creates a host with tokio's reactor and the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Host for Tokio {
    type Clock = BootClock;
    type Stream = Stream;
    type Resolve = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
    type Connect = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;
    type Sleep = Pin<Box<tokio::time::Sleep>>;

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
        Box::pin(tokio::time::sleep(time))
    }

    fn assert_may_block() {
        // tokio has no query for it. Nothing is waited for: the value is there.
        let (sender, receiver) = oneshot::channel();
        let _ = sender.send(());
        let _ = receiver.blocking_recv();
    }

    fn read_file(&self, path: &Path) -> Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>> {
        let path = path.to_owned();
        call_on_thread(move || read_file(path))
    }
}
