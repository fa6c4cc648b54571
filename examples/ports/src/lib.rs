//! lock-proto's driver on runtimes whose tasks stay on one thread: compio, monoio and embassy.
//!
//! Each module is a complete port. `tests` runs the conformance suite on each of them, with real
//! servers.

pub mod compio;
pub mod embassy;
pub mod monoio;

use core::pin::Pin;

/// A future without a name. Without `Send`: the tasks of these runtimes stay on one thread.
type LocalBoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A connection of any kind.
pub trait Socket: futures_io::AsyncRead + futures_io::AsyncWrite {}
impl<S: futures_io::AsyncRead + futures_io::AsyncWrite> Socket for S {}

/// What the hosts here connect with. `Pin` makes it `Unpin`.
pub type Stream = Pin<Box<dyn Socket>>;
