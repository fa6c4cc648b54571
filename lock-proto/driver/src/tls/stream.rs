//! A TLS session over a stream.

use alloc::boxed::Box;
use alloc::vec;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use futures_io::{AsyncRead, AsyncWrite};

use super::session::{Plaintext, TlsSession};

/// Size of the buffer for bytes of the peer: a record and its overhead.
const BUFFER: usize = 17 * 1024;
/// No more plaintext is taken while this much is still to be sent, in bytes.
const MAX_OUTGOING: usize = 64 * 1024;
/// Reads of the stream in one poll, so that records without content cannot hold up the driver.
const READS: usize = 16;

// N7
pub(in super::super) struct TlsStream<S> {
    stream: S,
    session: TlsSession,
    received: Box<[u8]>,
    /// The part of `received` that the session has not taken.
    from: usize,
    to: usize,
    /// The stream has taken bytes since its last flush.
    unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    pub(super) fn new(stream: S, session: TlsSession) -> Self {
        Self { stream, session, received: vec![0; BUFFER].into(), from: 0, to: 0, unflushed: false }
    }

    /// Resolves when the server is verified. Errors are [`TlsError`](super::TlsError)s inside.
    pub(super) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.session.is_verified() {
            ready!(self.poll_receive(cx))?;
        }
        // The end of the handshake leaves before the first request, or with it.
        Poll::Ready(self.send(cx))
    }

    /// Gives the session what the stream has.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.from == self.to {
            self.send(cx)?;
            let count = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut self.received))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            (self.from, self.to) = (0, count);
        }
        let bytes = self.received.get(self.from..self.to).unwrap_or_default();
        let taken = self.session.handle_received(bytes);
        // What the session has to say about it, an alert for example.
        let sent = self.send(cx);
        self.from += taken?;
        Poll::Ready(sent)
    }

    /// Sends what the stream takes now. It wakes the task when it takes more.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.poll_send(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.session.outgoing().is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, self.session.outgoing())) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.session.consume(count);
                    self.unflushed = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        for _ in 0..READS {
            match self.session.read(into) {
                Plaintext::Bytes(count) => return Poll::Ready(Ok(count)),
                Plaintext::Closed => return Poll::Ready(Ok(0)),
                Plaintext::Empty => ready!(self.poll_receive(cx))?,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.session.outgoing().len() >= MAX_OUTGOING {
            ready!(self.poll_send(cx))?;
        }
        Poll::Ready(Ok(self.session.write(bytes)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.close();
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
