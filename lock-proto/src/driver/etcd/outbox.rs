//! What hyper writes, until it leaves.
//!
//! A call is several frames, and hyper writes and flushes each of them when the turn of the task that has it comes. Carried out like that, a call
//! would be several system calls here, and as many wake-ups of the server, which cost it more than the call itself. So what is written
//! waits until all tasks had their turn, and leaves together.

use alloc::vec::Vec;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::sync::Mutex;

use futures_io::{AsyncRead, AsyncWrite};

use super::super::ticket::locked;

/// How much may wait. Then hyper waits.
const ROOM: usize = 64 << 10;

/// A stream, and what waits to be written to it.
pub(super) struct Outbox<S>(Mutex<Inner<S>>);

struct Inner<S> {
    stream: S,
    waiting: Vec<u8>,
    /// How much of it the stream has taken.
    taken: usize,
    /// The stream has taken bytes and was not flushed since.
    unflushed: bool,
    /// hyper's task, if it waits for room.
    writer: Option<Waker>,
}

/// An outbox, whatever the stream.
pub(super) trait Flush: Send + Sync {
    /// Has what waits leave. If the stream does not take it all, `cx` is woken when it takes more.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl<S> Outbox<S> {
    pub(super) const fn new(stream: S) -> Self {
        let inner = Inner { stream, waiting: Vec::new(), taken: 0, unflushed: false, writer: None };
        Self(Mutex::new(inner))
    }
}

impl<S: AsyncRead + Unpin> Outbox<S> {
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut locked(&self.0).stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> Outbox<S> {
    /// Keeps the bytes for the next flush. Pending without room for any.
    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<usize> {
        let mut inner = locked(&self.0);
        let room = ROOM.saturating_sub(inner.waiting.len());
        if room == 0 {
            inner.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let bytes = bytes.get(..room).unwrap_or(bytes);
        inner.waiting.extend_from_slice(bytes);
        Poll::Ready(bytes.len())
    }

    pub(super) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = locked(&self.0);
        ready!(inner.poll_flush(cx))?;
        Pin::new(&mut inner.stream).poll_close(cx)
    }
}

impl<S: AsyncWrite + Unpin> Inner<S> {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.waiting.get(self.taken..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.taken += count;
                    self.unflushed = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.waiting.clear();
        self.taken = 0;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin + Send> Flush for Outbox<S> {
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        locked(&self.0).poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::task::Wake;
    use alloc::vec;
    use core::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Takes so many bytes; what they were, and in how many writes they came.
    #[derive(Default)]
    struct Socket {
        takes: usize,
        got: Vec<u8>,
        writes: usize,
        flushes: usize,
    }

    impl AsyncWrite for Socket {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = self.takes.min(bytes.len());
            if count == 0 {
                return Poll::Pending;
            }
            self.takes -= count;
            self.got.extend(bytes.iter().take(count));
            self.writes += 1;
            Poll::Ready(Ok(count))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn frames_leave_together_in_their_order() {
        let outbox = Outbox::new(Socket { takes: usize::MAX, ..Socket::default() });
        let cx = &mut Context::from_waker(Waker::noop());
        for frame in [&b"headers "[..], b"data ", b"ping"] {
            assert_eq!(outbox.poll_write(cx, frame), Poll::Ready(frame.len()));
        }
        assert_eq!(locked(&outbox.0).stream.writes, 0, "nothing before the flush");
        assert!(outbox.poll_flush(cx).is_ready());
        assert!(outbox.poll_flush(cx).is_ready());
        let socket = &locked(&outbox.0).stream;
        assert_eq!((&*socket.got, socket.writes, socket.flushes), (&b"headers data ping"[..], 1, 1));
    }

    #[test]
    fn a_full_outbox_makes_the_writer_wait_until_the_stream_takes_it() {
        let outbox = Outbox::new(Socket::default());
        let writer = Arc::<Counted>::default();
        let waker = Waker::from(Arc::clone(&writer));
        let cx = &mut Context::from_waker(&waker);
        assert_eq!(outbox.poll_write(cx, &vec![1; ROOM - 1]), Poll::Ready(ROOM - 1));
        assert_eq!(outbox.poll_write(cx, &[2, 3]), Poll::Ready(1), "as much as there is room");
        assert_eq!(outbox.poll_write(cx, &[3]), Poll::Pending);
        for takes in [0, 10, ROOM] {
            assert_eq!(writer.0.load(Ordering::SeqCst), 0);
            locked(&outbox.0).stream.takes = takes;
            assert_eq!(outbox.poll_flush(cx).is_ready(), takes == ROOM);
        }
        assert_eq!(writer.0.load(Ordering::SeqCst), 1, "woken once there is room");
        assert_eq!(outbox.poll_write(cx, &[3]), Poll::Ready(1));
        assert!(outbox.poll_flush(cx).is_ready());
        let socket = &locked(&outbox.0).stream;
        assert_eq!(socket.got.len(), ROOM + 1);
        assert!(socket.got.ends_with(&[1, 2, 3]));
    }
}
