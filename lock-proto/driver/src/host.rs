//! What the driver needs of a runtime.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::ready;
use core::net::SocketAddr;
use core::pin::Pin;
use core::time::Duration;
use std::io;
use std::path::Path;

use futures_io::{AsyncRead, AsyncWrite};

use super::address::Address;
use crate::clock::Clock;
use crate::file::read_file;

/// The future of [`Host::read_file`].
pub(super) type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>>;

/// What the driver needs of a runtime.
///
/// Only the clock and the future of [`read_file`](Self::read_file) have to be [`Send`], and the
/// clock [`Sync`], so a runtime of one thread implements the rest with what it has.
/// The driver is `Send` if the host, its streams and its futures are. Executors that move tasks
/// between threads require that.
///
/// The futures are associated types, so that the driver holds them without a box. An `async` block
/// has no name and must be boxed.
///
/// Methods that are added later have a default, so a host keeps compiling. Credentials are not
/// asked of the host: their source is a part of the [settings](super::Settings).
pub trait Host: 'static {
    /// The clock.
    type Clock: Clock;
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;
    /// The future of [`resolve`](Self::resolve).
    type Resolve: Future<Output = io::Result<Vec<SocketAddr>>> + Unpin + 'static;
    /// The future of [`connect`](Self::connect).
    type Connect: Future<Output = io::Result<Self::Stream>> + Unpin + 'static;
    /// The future of [`sleep`](Self::sleep).
    type Sleep: Future<Output = ()> + Unpin + 'static;

    /// The clock, shared by the driver and all handles. May be called at any time: all clocks must
    /// have one origin.
    fn clock(&self) -> Self::Clock;

    /// Resolves a name, in the resolver's order. Must not cache: the driver asks before each
    /// attempt to connect, so that it follows a failover. If an attempt ends first, the next one
    /// continues to poll this future. All addresses must lead to one server. Called only while the
    /// driver is polled, and not for IP addresses or unix sockets.
    ///
    /// A lookup that blocks belongs on a thread: [`call_on_thread`](super::call_on_thread). A panic
    /// would end the driver, and all locks with it.
    fn resolve(&self, host: &str, port: u16) -> Self::Resolve;

    /// Connects to one address. Sets `TCP_NODELAY`. Needs no timeout: the driver tries the next
    /// address meanwhile, and drops the future when another attempt was faster, or when it has
    /// taken too long. Called while the driver is polled.
    ///
    /// For a kind of address that it does not know, it returns
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    fn connect(&self, address: &Address) -> Self::Connect;

    /// Completes after `time`, or a little later. Completing early does no harm: the driver
    /// compares the clock. Called while the driver is polled.
    fn sleep(&self, time: Duration) -> Self::Sleep;

    /// Panics if the calling thread runs async tasks, which it must not block. Called by the methods
    /// of the handles that block (`_blocking`, `_within`), on any thread. The default does nothing,
    /// for a runtime that cannot tell.
    fn assert_may_block()
    where
        Self: Sized,
    {
    }

    /// Reads a file, for certificates and passwords in files. The default blocks the task; a
    /// runtime that can have threads overrides it, and calls [`read_file`](super::read_file), which
    /// refuses large files and pipes, with [`call_on_thread`](super::call_on_thread). If an attempt to
    /// connect ends first, the next one continues to poll this future, so a file system that hangs
    /// occupies one thread.
    fn read_file(&self, path: &Path) -> Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>> {
        Box::pin(ready(read_file(path)))
    }
}
