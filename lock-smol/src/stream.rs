//! A connection: TCP or a unix socket, of smol or of async-std.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use futures_io::{AsyncRead, AsyncWrite};
use lock_proto::driver::Address;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A TCP connection or a unix socket.
#[derive(Debug)]
pub struct Stream<T, U = T>(Kind<T, U>);

#[derive(Debug)]
enum Kind<T, U> {
    Tcp(T),
    #[cfg_attr(not(unix), expect(dead_code, reason = "there are unix sockets on unix only"))]
    Unix(U),
}

impl<T, U> Stream<T, U> {
    pub(crate) const fn tcp(stream: T) -> Self {
        Self(Kind::Tcp(stream))
    }

    #[cfg(unix)]
    pub(crate) const fn unix(stream: U) -> Self {
        Self(Kind::Unix(stream))
    }
}

pub(crate) fn unsupported(address: &Address) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("cannot connect to {address}"))
}

impl<T: AsyncRead + Unpin, U: AsyncRead + Unpin> AsyncRead for Stream<T, U> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Kind::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl<T: AsyncWrite + Unpin, U: AsyncWrite + Unpin> AsyncWrite for Stream<T, U> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_close(cx),
            Kind::Unix(stream) => Pin::new(stream).poll_close(cx),
        }
    }
}
