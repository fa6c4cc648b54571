//! What hyper writes, until it leaves.
//!
//! A call is several frames, and hyper writes and flushes each of them when the turn of the task that has it comes. Carried out like that, a call
//! would be several system calls here, and as many wake-ups of the server, which cost it more than the call itself. So what is written
//! waits until all tasks had their turn, and leaves together.
//! Only the answer to a ping waits longer: see [`Acks`].

use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::sync::Mutex;

use futures_io::{AsyncRead, AsyncWrite};

use super::super::Host;
use super::super::ticket::locked;
use super::acks::{ACK_WAITS, Acks};

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
    acks: Acks,
}

/// An outbox, whatever the stream.
pub(super) trait Flush: Send + Sync {
    /// Has what waits leave. If the stream does not take it all, `cx` is woken when it takes more.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl<S> Outbox<S> {
    pub(super) const fn new(stream: S) -> Self {
        let inner = Inner { stream, waiting: Vec::new(), taken: 0, unflushed: false, writer: None, acks: Acks::new() };
        Self(Mutex::new(inner))
    }

    /// Has answers to pings leave in time; never ends.
    pub(super) async fn acknowledge<H: Host>(&self, host: H) {
        loop {
            poll_fn(|cx| locked(&self.0).acks.poll_held(cx)).await;
            host.sleep(ACK_WAITS).await;
            let Inner { acks, waiting, .. } = &mut *locked(&self.0);
            acks.let_go(waiting);
        }
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
        let Inner { acks, waiting, .. } = &mut *inner;
        acks.pass(bytes, waiting);
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

    use super::super::tests::kit::{DATA, PING, frame};
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

    fn write(outbox: &Outbox<Socket>, bytes: &[u8]) {
        assert_eq!(outbox.poll_write(&Context::from_waker(Waker::noop()), bytes), Poll::Ready(bytes.len()));
    }

    /// What leaves with a flush.
    fn left(outbox: &Outbox<Socket>) -> Vec<u8> {
        assert!(outbox.poll_flush(&mut Context::from_waker(Waker::noop())).is_ready());
        core::mem::take(&mut locked(&outbox.0).stream.got)
    }

    #[test]
    fn frames_leave_together_in_their_order() {
        let outbox = Outbox::new(Socket { takes: usize::MAX, ..Socket::default() });
        for frame in [&b"headers "[..], b"data ", b"ping"] {
            write(&outbox, frame);
        }
        assert_eq!(locked(&outbox.0).stream.writes, 0, "nothing before the flush");
        assert_eq!(left(&outbox), b"headers data ping");
        assert_eq!(left(&outbox), b"");
        let socket = &locked(&outbox.0).stream;
        assert_eq!((socket.writes, socket.flushes), (1, 1));
    }

    #[test]
    fn who_sees_to_the_answer_is_woken_for_it() {
        let outbox = Outbox::new(Socket { takes: usize::MAX, ..Socket::default() });
        write(&outbox, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let reminder = Arc::<Counted>::default();
        let waker = Waker::from(Arc::clone(&reminder));
        let cx = &Context::from_waker(&waker);
        assert!(locked(&outbox.0).acks.poll_held(cx).is_pending());
        write(&outbox, &frame(DATA, 0, 1, &[4; 4]));
        assert_eq!(reminder.0.load(Ordering::SeqCst), 0);
        write(&outbox, &frame(PING, 1, 0, &[1; 8]));
        assert_eq!(reminder.0.load(Ordering::SeqCst), 1);
        assert!(locked(&outbox.0).acks.poll_held(cx).is_ready());
        {
            let Inner { acks, waiting, .. } = &mut *locked(&outbox.0);
            acks.let_go(waiting);
        }
        assert!(locked(&outbox.0).acks.poll_held(cx).is_pending());
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
