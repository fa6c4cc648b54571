//! What hyper writes, until it leaves.
//!
//! A call is several frames, and hyper writes and flushes each of them when the turn of the task that has it comes. Carried out like that, a call
//! would be several system calls here, and as many wake-ups of the server, which cost it more than the call itself. So what is written
//! waits until all tasks had their turn, and leaves together.
//!
//! The answer to a ping waits longer. A gRPC server in Go, as etcd is, sends a ping with the first bytes of data after the answer to its last one, to
//! learn the bandwidth: answered at once, that is a ping for each call, and it costs both sides a third message each way.

use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use core::time::Duration;
use std::io;
use std::sync::Mutex;

use futures_io::{AsyncRead, AsyncWrite};

use super::super::Host;
use super::super::ticket::locked;

/// How long the answer to a ping may wait. Who pings to find out whether this side lives allows seconds.
const ACK_WAITS: Duration = Duration::from_millis(10);
/// What the answer to a ping begins with: its length, its type, the flag `ACK`, and no stream (RFC 9113, section 6.7).
const ACK_HEAD: [u8; FRAME_HEAD] = [0, 0, 8, 6, 1, 0, 0, 0, 0];
const ACK: usize = FRAME_HEAD + 8;
/// Size of the head of a frame, whose first three bytes are the length of the rest.
const FRAME_HEAD: usize = 9;
/// What a client says before its first frame (RFC 9113, section 3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
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
    /// How much is missing of the frame that was written last; `None` if it is not known where frames begin.
    rest_of_frame: Option<usize>,
    /// The answer to a ping.
    ack: Option<[u8; ACK]>,
    /// It has waited long enough.
    ack_is_due: bool,
    /// Who sees to it that it leaves in time.
    reminder: Option<Waker>,
}

/// An outbox, whatever the stream.
pub(super) trait Flush: Send + Sync {
    /// Has what waits leave. If the stream does not take it all, `cx` is woken when it takes more.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl<S> Outbox<S> {
    pub(super) const fn new(stream: S) -> Self {
        let inner = Inner {
            stream,
            waiting: Vec::new(),
            taken: 0,
            unflushed: false,
            writer: None,
            rest_of_frame: Some(PREFACE),
            ack: None,
            ack_is_due: false,
            reminder: None,
        };
        Self(Mutex::new(inner))
    }

    /// Has answers to pings leave in time; never ends.
    pub(super) async fn acknowledge<H: Host>(&self, host: H) {
        loop {
            poll_fn(|cx| self.poll_ack(cx)).await;
            host.sleep(ACK_WAITS).await;
            locked(&self.0).let_ack_go();
        }
    }

    /// Ready if an answer to a ping waits.
    fn poll_ack(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = locked(&self.0);
        if inner.ack.is_some() {
            return Poll::Ready(());
        }
        inner.reminder = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<S> Inner<S> {
    fn take_in(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.rest_of_frame == Some(0) {
                if let Some(ack) = bytes.first_chunk::<ACK>().filter(|ack| ack.starts_with(&ACK_HEAD)) {
                    self.hold_back(ack);
                    bytes = bytes.get(ACK..).unwrap_or_default();
                    continue;
                }
                self.begin_frame(bytes);
            }
            let count = self.rest_of_frame.unwrap_or(usize::MAX).min(bytes.len());
            let (part, rest) = bytes.split_at(count);
            self.waiting.extend_from_slice(part);
            self.rest_of_frame = self.rest_of_frame.map(|left| left - count);
            bytes = rest;
            if self.ack_is_due {
                self.let_ack_go();
            }
        }
    }

    fn begin_frame(&mut self, bytes: &[u8]) {
        let Some([a, b, c, ..]) = bytes.first_chunk::<FRAME_HEAD>() else {
            // Half a head. From here on all passes as it comes.
            self.let_ack_go();
            self.rest_of_frame = None;
            return;
        };
        let length = u32::from_be_bytes([0, *a, *b, *c]);
        self.rest_of_frame = usize::try_from(length).ok().map(|length| FRAME_HEAD + length);
    }

    /// One answer may wait. A second one takes it along: whoever sends more pings does not wait for answers.
    fn hold_back(&mut self, ack: &[u8; ACK]) {
        if self.ack.is_some() {
            self.let_ack_go();
            self.waiting.extend_from_slice(ack);
            return;
        }
        self.ack = Some(*ack);
        if let Some(reminder) = self.reminder.take() {
            reminder.wake();
        }
    }

    /// Now, or after the frame of which a part was written.
    fn let_ack_go(&mut self) {
        self.ack_is_due = self.ack.is_some() && self.rest_of_frame != Some(0);
        if self.ack_is_due {
            return;
        }
        if let Some(ack) = self.ack.take() {
            self.waiting.extend_from_slice(&ack);
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
        inner.take_in(bytes);
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

    /// A frame of this type, whose payload is `size` times this number.
    fn frame(kind: u8, size: u8, of: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, size, kind, 0, 0, 0, 0, 1];
        frame.resize(FRAME_HEAD + usize::from(size), of);
        frame
    }

    fn ack(of: u8) -> [u8; ACK] {
        let mut ack = [of; ACK];
        ack[..FRAME_HEAD].copy_from_slice(&ACK_HEAD);
        ack
    }

    /// An outbox whose stream takes everything, and to which the preface was written.
    fn begun() -> Outbox<Socket> {
        let outbox = Outbox::new(Socket { takes: usize::MAX, ..Socket::default() });
        assert_eq!(outbox.poll_write(&Context::from_waker(Waker::noop()), &[b'P'; PREFACE]), Poll::Ready(PREFACE));
        assert_eq!(left(&outbox), [b'P'; PREFACE]);
        outbox
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
    fn the_answer_to_a_ping_lets_other_frames_pass() {
        let (headers, data) = (frame(1, 3, 7), frame(0, 200, 8));
        // In front of others, between them, behind them; and what looks like one inside a frame is none.
        for place in 0..3 {
            let mut frames = vec![&*headers, &*data];
            let answer = ack(1);
            frames.insert(place, &answer);
            let outbox = begun();
            write(&outbox, &frames.concat());
            assert_eq!(left(&outbox), [&*headers, &*data].concat(), "{place}");
            locked(&outbox.0).let_ack_go();
            assert_eq!(left(&outbox), answer, "{place}");
        }
        let outbox = begun();
        let mut data = frame(0, 30, 8);
        data[FRAME_HEAD + 2..][..ACK].copy_from_slice(&ack(1));
        // Also if the frame is cut just there.
        for cut in 0..data.len() {
            let (first, second) = data.split_at(cut);
            if first.is_empty() || first.len() >= FRAME_HEAD {
                write(&outbox, first);
                write(&outbox, second);
                assert_eq!(left(&outbox), data, "{cut}");
            }
        }
        write(&outbox, &ack(2));
        assert_eq!(left(&outbox), b"", "it is known still where frames begin");
    }

    #[test]
    fn an_answer_leaves_between_two_frames_and_not_inside_one() {
        let (headers, data) = (frame(1, 3, 7), frame(0, 200, 8));
        for cut in FRAME_HEAD..=data.len() {
            let outbox = begun();
            let (first, second) = data.split_at(cut);
            write(&outbox, &[&ack(1), first].concat());
            locked(&outbox.0).let_ack_go();
            let before = left(&outbox);
            write(&outbox, &[second, &*headers].concat());
            let all = [before, left(&outbox)].concat();
            assert_eq!(all, [&*data, &ack(1), &*headers].concat(), "{cut}");
        }
    }

    #[test]
    fn a_second_answer_takes_the_first_along() {
        let outbox = begun();
        write(&outbox, &ack(1));
        assert_eq!(left(&outbox), b"");
        write(&outbox, &ack(2));
        assert_eq!(left(&outbox), [ack(1), ack(2)].concat());
        write(&outbox, &ack(3));
        assert_eq!(left(&outbox), b"", "the next one waits again");
    }

    #[test]
    fn where_it_is_not_known_where_frames_begin_answers_leave_at_once() {
        let outbox = begun();
        let headers = frame(1, 3, 7);
        write(&outbox, &ack(1));
        write(&outbox, &headers[..4]);
        assert_eq!(left(&outbox), [&ack(1), &headers[..4]].concat());
        write(&outbox, &headers[4..]);
        write(&outbox, &ack(2));
        assert_eq!(left(&outbox), [&headers[4..], &ack(2)].concat());
    }

    #[test]
    fn who_sees_to_the_answer_is_woken_for_it() {
        let outbox = begun();
        let reminder = Arc::<Counted>::default();
        let waker = Waker::from(Arc::clone(&reminder));
        let cx = &Context::from_waker(&waker);
        assert!(outbox.poll_ack(cx).is_pending());
        write(&outbox, &frame(0, 4, 4));
        assert_eq!(reminder.0.load(Ordering::SeqCst), 0);
        write(&outbox, &ack(1));
        assert_eq!(reminder.0.load(Ordering::SeqCst), 1);
        assert!(outbox.poll_ack(cx).is_ready());
        locked(&outbox.0).let_ack_go();
        assert!(outbox.poll_ack(cx).is_pending());
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
