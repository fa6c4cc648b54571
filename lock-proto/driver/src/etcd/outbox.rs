//! Write buffer between hyper and the stream. hyper writes and flushes each frame of a call from
//! another task. Output is buffered until all tasks have run, and leaves in one write. Only ping
//! replies wait longer: see [`Acks`].

use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::sync::Mutex;

use futures_io::AsyncWrite;

use super::super::ticket::locked;
use super::acks::{ACK_DELAY, Acks};
use super::wire::Timers;
use crate::clock::Clock;

/// Size limit. hyper waits while the buffer is full.
const CAPACITY: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Outbox(Mutex<OutboxState>);

#[derive(Default)]
struct OutboxState {
    waiting: Vec<u8>,
    taken: usize,
    /// The stream has taken bytes since the last flush.
    unflushed: bool,
    end: StreamEnd,
    /// hyper's task, if it waits for room or for the close.
    writer: Option<Waker>,
    acks: Acks,
}

#[derive(Default, PartialEq, Eq)]
enum StreamEnd {
    #[default]
    Open,
    /// Close the stream after the pending output.
    Closing,
    Closed,
}

impl Outbox {
    /// Releases delayed ping replies. Never completes.
    pub(super) async fn acknowledge(&self, timers: Timers<impl Clock>) {
        loop {
            poll_fn(|cx| locked(&self.0).acks.poll_held(cx)).await;
            timers.after(ACK_DELAY).await;
            let OutboxState { acks, waiting, .. } = &mut *locked(&self.0);
            acks.release(waiting);
        }
    }

    /// Buffers the bytes for the next flush. Pending if there is no room.
    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<usize> {
        let mut inner = locked(&self.0);
        let room = CAPACITY.saturating_sub(inner.waiting.len());
        if room == 0 {
            inner.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let bytes = bytes.get(..room).unwrap_or(bytes);
        let OutboxState { acks, waiting, .. } = &mut *inner;
        acks.pass(bytes, waiting);
        Poll::Ready(bytes.len())
    }

    /// Ready when everything is written and the stream is closed.
    pub(super) fn poll_close(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = locked(&self.0);
        if inner.end == StreamEnd::Closed {
            return Poll::Ready(());
        }
        inner.end = StreamEnd::Closing;
        inner.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Writes the pending output. If the stream does not take all of it, `cx` is woken when it
    /// takes more.
    pub(super) fn poll_flush(&self, mut stream: impl AsyncWrite + Unpin, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = locked(&self.0);
        let OutboxState { waiting, taken, unflushed, end, writer, .. } = &mut *inner;
        while let Some(rest) = waiting.get(*taken..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut stream).poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    *taken += count;
                    *unflushed = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        waiting.clear();
        *taken = 0;
        if *unflushed {
            ready!(Pin::new(&mut stream).poll_flush(cx))?;
            *unflushed = false;
        }
        if *end == StreamEnd::Closing {
            ready!(Pin::new(&mut stream).poll_close(cx))?;
            *end = StreamEnd::Closed;
        }
        let writer = writer.take();
        drop(inner);
        if let Some(writer) = writer {
            writer.wake();
        }
        Poll::Ready(Ok(()))
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

    /// Takes `takes` bytes, and records them and the number of writes.
    #[derive(Default)]
    struct SlowSocket {
        takes: usize,
        got: Vec<u8>,
        writes: usize,
        flushes: usize,
        closed: bool,
    }

    impl AsyncWrite for SlowSocket {
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

        fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.closed = true;
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

    fn write(outbox: &Outbox, bytes: &[u8]) {
        assert_eq!(outbox.poll_write(&Context::from_waker(Waker::noop()), bytes), Poll::Ready(bytes.len()));
    }

    fn left(outbox: &Outbox, socket: &mut SlowSocket) -> Vec<u8> {
        assert!(outbox.poll_flush(&mut *socket, &mut Context::from_waker(Waker::noop())).is_ready());
        core::mem::take(&mut socket.got)
    }

    #[test]
    fn frames_are_written_together_in_order() {
        let (outbox, mut socket) = (Outbox::default(), SlowSocket { takes: usize::MAX, ..SlowSocket::default() });
        for frame in [&b"headers "[..], b"data ", b"ping"] {
            write(&outbox, frame);
        }
        assert_eq!(left(&outbox, &mut socket), b"headers data ping");
        assert_eq!(left(&outbox, &mut socket), b"");
        assert_eq!((socket.writes, socket.flushes), (1, 1));
    }

    #[test]
    fn close_completes_after_pending_writes() {
        let (outbox, mut socket) = (Outbox::default(), SlowSocket::default());
        let cx = &mut Context::from_waker(Waker::noop());
        write(&outbox, b"goodbye");
        assert!(outbox.poll_close(cx).is_pending());
        assert!(outbox.poll_flush(&mut socket, cx).is_pending());
        assert!(!socket.closed && outbox.poll_close(cx).is_pending());
        socket.takes = usize::MAX;
        assert_eq!(left(&outbox, &mut socket), b"goodbye");
        assert!(socket.closed && outbox.poll_close(cx).is_ready());
    }

    #[test]
    fn held_ping_ack_wakes_reminder_task() {
        let outbox = Outbox::default();
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
            let OutboxState { acks, waiting, .. } = &mut *locked(&outbox.0);
            acks.release(waiting);
        }
        assert!(locked(&outbox.0).acks.poll_held(cx).is_pending());
    }

    #[test]
    fn full_outbox_blocks_writer_until_flushed() {
        let (outbox, mut socket) = (Outbox::default(), SlowSocket::default());
        let writer = Arc::<Counted>::default();
        let waker = Waker::from(Arc::clone(&writer));
        let cx = &mut Context::from_waker(&waker);
        assert_eq!(outbox.poll_write(cx, &vec![1; CAPACITY - 1]), Poll::Ready(CAPACITY - 1));
        assert_eq!(outbox.poll_write(cx, &[2, 3]), Poll::Ready(1), "as much as there is room");
        assert_eq!(outbox.poll_write(cx, &[3]), Poll::Pending);
        for takes in [0, 10, CAPACITY] {
            assert_eq!(writer.0.load(Ordering::SeqCst), 0);
            socket.takes = takes;
            assert_eq!(outbox.poll_flush(&mut socket, cx).is_ready(), takes == CAPACITY);
        }
        assert_eq!(writer.0.load(Ordering::SeqCst), 1, "woken once there is room");
        assert_eq!(outbox.poll_write(cx, &[3]), Poll::Ready(1));
        assert!(outbox.poll_flush(&mut socket, cx).is_ready());
        assert_eq!(socket.got.len(), CAPACITY + 1);
        assert!(socket.got.ends_with(&[1, 2, 3]));
    }
}
