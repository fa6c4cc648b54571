//! Sockets on smol.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use futures_io::{AsyncRead, AsyncWrite};
use lock_driver::Address;
use smol::net::TcpStream;
#[cfg(unix)]
use smol::net::unix::UnixStream;

/// A TCP connection or a unix socket.
#[derive(Debug)]
pub struct Stream(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    pub(crate) async fn connect(address: Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Self(Kind::Tcp(stream)))
            }
            #[cfg(unix)]
            Address::Unix(path) => Ok(Self(Kind::Unix(UnixStream::connect(&*path).await?))),
            other => Err(io::Error::new(io::ErrorKind::Unsupported, format!("cannot connect to {other}"))),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Tcp(stream) => Pin::new(stream).poll_close(cx),
            #[cfg(unix)]
            Kind::Unix(stream) => Pin::new(stream).poll_close(cx),
        }
    }
}
