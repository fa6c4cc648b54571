//! The driver on [embassy's executor](https://docs.rs/embassy-executor) for `std`, without threads.
//!
//! embassy has no sockets for `std`; [`Runtime`] adds them and timers. Names are resolved by the
//! system, which blocks the thread: use addresses if that matters.

mod runtime;

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::future::{Ready, poll_fn, ready};
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs as _;
use std::rc::Rc;

use futures_io::{AsyncRead, AsyncWrite};
use lock_driver::{Address, BootClock, Host};
use mio::net::{TcpStream, UnixStream};

use crate::{LocalBoxFuture, Stream};
pub use runtime::Runtime;
use runtime::{Reactor, Registered, Sleep};

/// A runtime's sockets and timers.
pub struct Embassy(Rc<Reactor>);

impl Host for Embassy {
    type Clock = BootClock;
    type Stream = Stream;
    type Resolve = Ready<io::Result<Vec<SocketAddr>>>;
    type Connect = LocalBoxFuture<io::Result<Stream>>;
    type Sleep = Sleep;

    fn clock(&self) -> BootClock {
        self.0.clock
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolve {
        ready((host, port).to_socket_addrs().map(Iterator::collect))
    }

    fn connect(&self, address: &Address) -> Self::Connect {
        let (reactor, address) = (Rc::clone(&self.0), address.clone());
        Box::pin(async move {
            match address {
                Address::Tcp(address) => {
                    let mut stream = Registered::new(reactor, TcpStream::connect(address)?)?;
                    poll_fn(|cx| stream.attempt(cx, |socket| connected(socket))).await?;
                    Ok(Box::pin(stream) as Stream)
                }
                Address::Unix(path) => Ok(Box::pin(Registered::new(reactor, UnixStream::connect(&*path)?)?) as Stream),
                _ => Err(io::ErrorKind::Unsupported.into()),
            }
        })
    }

    fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(Rc::clone(&self.0), time)
    }
}

fn connected(socket: &TcpStream) -> io::Result<()> {
    match (socket.take_error()?, socket.peer_addr()) {
        (Some(error), _) => Err(error),
        (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Err(io::ErrorKind::WouldBlock.into()),
        (None, peer) => peer.and_then(|_| socket.set_nodelay(true)),
    }
}

impl<S: mio::event::Source + Read + Unpin> AsyncRead for Registered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.attempt(cx, |socket| socket.read(into))
    }
}

impl<S: mio::event::Source + Write + Unpin> AsyncWrite for Registered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.attempt(cx, |socket| socket.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
