//! What the driver needs of a runtime.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;
use std::io;

use futures_io::{AsyncRead, AsyncWrite};

use super::address::Address;
use super::clock::Clock;

/// What the driver needs of a runtime.
///
/// Nothing here has to be [`Send`] but the clock: a runtime of one thread implements it with what it has. The driver is `Send` if the
/// host, its streams and its futures are, which is what an executor asks for that moves tasks between threads.
///
/// The futures have names so that the driver can hold them without a box of its own; where they are `async` blocks, they are boxed.
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

    /// The clock. It is asked for once or twice, and shared by the driver and all handles.
    fn clock(&self) -> Self::Clock;

    /// The addresses of a name, in the resolver's order. Without a cache of its own: the driver asks before each attempt to connect, so that a
    /// failover is followed. All of them must lead to one server. Called while the driver is polled; not called for addresses.
    fn resolve(&self, host: &str, port: u16) -> Self::Resolve;

    /// Connects to one address. It needs no timeout: the driver tries the next address meanwhile, and drops the future when another one
    /// was faster or when it has taken too long. Called while the driver is polled.
    fn connect(&self, address: &Address) -> Self::Connect;

    /// Ends after `time`, or a little later. Ending early does no harm; the clock is compared. Called while the driver is polled.
    fn sleep(&self, time: Duration) -> Self::Sleep;
}
