//! Sockets of the executor. A thread opens each of them; reads and writes do not block.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use futures_io::{AsyncRead, AsyncWrite};
use lock_driver::{Address, call_on_thread};

use super::{Reactor, Sockets};

/// A TCP connection or a unix socket.
pub struct Stream {
    socket: Box<dyn Socket>,
    id: usize,
    reactor: Arc<Reactor>,
}

trait Socket: Read + Write + mio::event::Source + Send {}
impl<S: Read + Write + mio::event::Source + Send> Socket for S {}

impl Stream {
    pub(super) async fn connect(reactor: Arc<Reactor>, address: Address) -> io::Result<Self> {
        let mut socket = call_on_thread(move || open(&address)).await?;
        let id = reactor.next_id();
        reactor.state().sockets.insert(id, [None, None]);
        let interest = mio::Interest::READABLE | mio::Interest::WRITABLE;
        let registered = reactor.registry.register(&mut socket, mio::Token(id), interest);
        let stream = Self { socket, id, reactor };
        registered.map(|()| stream)
    }

    /// Attempts an operation. If it would block, registers the task for the next readiness event.
    fn attempt<T>(
        &mut self,
        side: usize,
        cx: &Context<'_>,
        attempt: impl FnOnce(&mut dyn Socket) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        // Register before the attempt: events are edge-triggered, so one in between would be lost.
        let replace_waker = |sockets: &mut Sockets| sockets.get_mut(&self.id)?[side].replace(cx.waker().clone());
        let _old = replace_waker(&mut self.reactor.state().sockets);
        match attempt(&mut *self.socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
            done => Poll::Ready(done),
        }
    }
}

fn open(address: &Address) -> io::Result<Box<dyn Socket>> {
    match address {
        Address::Tcp(address) => {
            let socket = std::net::TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            Ok(Box::new(mio::net::TcpStream::from_std(socket)))
        }
        Address::Unix(path) => {
            let socket = std::os::unix::net::UnixStream::connect(&**path)?;
            socket.set_nonblocking(true)?;
            Ok(Box::new(mio::net::UnixStream::from_std(socket)))
        }
        other => Err(io::Error::new(ErrorKind::Unsupported, format!("cannot connect to {other}"))),
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.attempt(0, cx, |socket| socket.read(buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.attempt(1, cx, |socket| socket.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    // Dropping the stream closes it, and no data is buffered.
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Fails only if it was never registered.
        let _ = self.reactor.registry.deregister(&mut *self.socket);
        let _wakers = self.reactor.state().sockets.remove(&self.id);
    }
}
