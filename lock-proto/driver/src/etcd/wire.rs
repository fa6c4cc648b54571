//! What hyper requires of a runtime: a stream, timers and an executor, all `Send`, unlike a host's.
//! The connection owns the host's stream and moves bytes between it and hyper's buffers. The driver
//! sleeps until the first timer.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use core::time::Duration;
use std::io;
use std::sync::Mutex;
use std::time::Instant as StdInstant;

use futures_io::AsyncRead;
use hyper::rt::{Executor, Read, ReadBufCursor, Sleep, Timer, Write};

use super::super::fault;
use super::super::ticket::locked;
use super::BoxFuture;
use super::acks::FRAME_HEAD;
use super::outbox::Outbox;
use crate::clock::Clock;
use lock_proto::Instant;
use lock_proto::{Breach, Fault};

/// Size of a connection's read buffer.
const BUFFER: usize = 16 * 1024;
/// Length of the beginning of the server's first frame, by which its protocol is recognised.
const GREETING: usize = FRAME_HEAD;
/// The type of a SETTINGS frame, which must be the first (RFC 9113, section 3.4).
const SETTINGS: u8 = 4;

/// State of a connection, beside what hyper reports.
#[derive(Debug, Default)]
pub(super) struct ConnState(Mutex<KnownHeaders>);

#[derive(Debug, Default)]
struct KnownHeaders {
    greeting: [u8; GREETING],
    greeted: usize,
    /// The server has sent its part of a TLS handshake.
    tls: bool,
    /// Why the stream ended.
    fault: Option<Fault>,
}

impl ConnState {
    /// Returns true if the server has begun to speak HTTP/2.
    pub(super) fn is_up(&self) -> bool {
        let known = locked(&self.0);
        known.greeted == GREETING && known.fault.is_none()
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        locked(&self.0).fault
    }

    /// Records that the stream is open, with TLS or without.
    pub(super) fn open(&self, tls: bool) {
        locked(&self.0).tls = tls;
    }

    /// Records why the connection ended, unless there is an earlier reason.
    pub(super) fn end(&self, why: Fault) {
        locked(&self.0).fault.get_or_insert(why);
    }

    fn read(&self, bytes: &[u8]) -> io::Result<()> {
        let mut known = locked(&self.0);
        if bytes.is_empty() {
            known.broken(&io::ErrorKind::UnexpectedEof.into());
            return Ok(());
        }
        let KnownHeaders { greeting, greeted, fault, .. } = &mut *known;
        for (place, byte) in greeting.iter_mut().skip(*greeted).zip(bytes) {
            *place = *byte;
            *greeted += 1;
        }
        let Some(breach) = greeting.get(..*greeted).and_then(peer_without_http2_is_protocol_fault) else {
            return Ok(());
        };
        fault.get_or_insert(Fault::Protocol(breach));
        Err(io::Error::new(io::ErrorKind::InvalidData, breach))
    }

    /// Records an error of the stream, unless there is an earlier reason.
    pub(super) fn broken(&self, error: &io::Error) {
        locked(&self.0).broken(error);
    }
}

impl KnownHeaders {
    fn broken(&mut self, error: &io::Error) {
        let received = self.tls || self.greeted > 0;
        self.fault.get_or_insert_with(|| fault::of_stream(error, received));
    }
}

/// Checks the beginning of the server's first frame.
fn peer_without_http2_is_protocol_fault(greeting: &[u8]) -> Option<Breach> {
    let other = Breach::of_other_protocol(greeting);
    if other.is_some() {
        other
    } else if b"HTTP/".starts_with(greeting) {
        // Too short to decide.
        None
    } else {
        let no_settings = greeting.get(3).is_some_and(|kind| *kind != SETTINGS);
        let acknowledges = greeting.get(4).is_some_and(|flags| flags & 1 != 0);
        (no_settings || acknowledges).then_some(Breach::Malformed)
    }
}

/// Input from the stream that hyper has not read yet.
pub(super) struct Inbox(Mutex<GrpcReceived>);

struct GrpcReceived {
    buffer: Box<[u8]>,
    /// Unread part of the buffer.
    from: usize,
    to: usize,
    /// Set at the end of the stream, with the error if there was one.
    end: Option<io::Result<()>>,
    /// hyper's task, if it waits for input. Nothing is read from the stream otherwise.
    reader: Option<Waker>,
}

impl Default for Inbox {
    fn default() -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self(Mutex::new(GrpcReceived { buffer, from: 0, to: 0, end: None, reader: None }))
    }
}

impl Inbox {
    /// Reads from the stream if hyper waits for input. Returns true if there was some. Otherwise
    /// `cx` is woken when there is.
    pub(super) fn fill(&self, stream: impl AsyncRead + Unpin, cx: &mut Context<'_>) -> bool {
        let mut received = locked(&self.0);
        if received.reader.is_none() {
            return false;
        }
        match Pin::new(&mut { stream }).poll_read(cx, &mut received.buffer) {
            Poll::Pending => return false,
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => return true,
            Poll::Ready(Ok(0)) => received.end = Some(Ok(())),
            Poll::Ready(Ok(count)) => (received.from, received.to) = (0, count),
            Poll::Ready(Err(error)) => received.end = Some(Err(error)),
        }
        let reader = received.reader.take();
        drop(received);
        reader.into_iter().for_each(Waker::wake);
        true
    }

    /// Reads up to `max` bytes of the input. Reads no bytes at the end.
    fn poll_take<R>(&self, max: usize, cx: &Context<'_>, take: impl FnOnce(&[u8]) -> R) -> Poll<io::Result<R>> {
        let mut received = locked(&self.0);
        let GrpcReceived { buffer, from, to, end, reader } = &mut *received;
        let bytes = buffer.get(*from..*to).unwrap_or_default();
        let bytes = bytes.get(..max).unwrap_or(bytes);
        if bytes.is_empty() {
            match end {
                Some(end) => core::mem::replace(end, Ok(()))?,
                None => {
                    *reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        *from += bytes.len();
        Poll::Ready(Ok(take(bytes)))
    }
}

/// The stream of a connection as hyper sees it.
pub(super) struct HttpStream {
    pub(super) inbox: Arc<Inbox>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) conn_state: Arc<ConnState>,
}

impl Read for HttpStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let Self { inbox, conn_state, .. } = &*self;
        let max = into.remaining();
        if max == 0 {
            return Poll::Ready(Ok(()));
        }
        let taken = inbox.poll_take(max, cx, |bytes| {
            conn_state.read(bytes)?;
            into.put_slice(bytes);
            Ok(())
        });
        ready!(taken).inspect_err(|error| conn_state.broken(error))?.into()
    }
}

impl Write for HttpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.outbox.poll_write(cx, bytes).map(Ok)
    }

    /// The connection flushes once all of hyper's tasks have run.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_close(cx).map(Ok)
    }
}

#[derive(Default)]
pub(super) struct Sleeps(Mutex<WaitingCall>);

#[derive(Default)]
struct WaitingCall {
    /// By deadline and a unique number.
    wakers: BTreeMap<(Instant, u64), Waker>,
    last: u64,
    /// Sleeps until then are over.
    woken: Instant,
}

impl Sleeps {
    pub(super) fn next(&self) -> Option<Instant> {
        locked(&self.0).wakers.first_key_value().map(|((until, _), _)| *until)
    }

    /// Ends the sleeps that are due. They do not look at the clock themselves: hyper does so before
    /// it reads.
    pub(super) fn wake(&self, now: Instant) {
        let due = {
            let WaitingCall { wakers, woken, .. } = &mut *locked(&self.0);
            *woken = now;
            let later = wakers.split_off(&(now, u64::MAX));
            core::mem::replace(wakers, later)
        };
        due.into_values().for_each(Waker::wake);
    }
}

/// hyper's view of a connection's timers.
#[derive(Clone)]
pub(super) struct Timers<C> {
    clock: C,
    sleeps: Arc<Sleeps>,
    /// The same moment on the host's clock and on the system's.
    here: Instant,
    there: StdInstant,
}

impl<C: Clock> Timers<C> {
    pub(super) fn new(clock: C, sleeps: Arc<Sleeps>) -> Self {
        Self { here: clock.now(), there: StdInstant::now(), clock, sleeps }
    }

    pub(super) fn after(&self, time: Duration) -> TimerSleep {
        let number = {
            let mut waiting = locked(&self.sleeps.0);
            waiting.last += 1;
            waiting.last
        };
        TimerSleep { key: (self.clock.now() + time, number), sleeps: Arc::clone(&self.sleeps) }
    }
}

impl<C: Clock> Timer for Timers<C> {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.after(time))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }

    fn now(&self) -> StdInstant {
        let passed = self.clock.now().since(self.here);
        self.there.checked_add(passed).unwrap_or(self.there)
    }
}

pub(super) struct TimerSleep {
    key: (Instant, u64),
    sleeps: Arc<Sleeps>,
}

impl Sleep for TimerSleep {}

impl Future for TimerSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = locked(&self.sleeps.0);
        if waiting.woken >= self.key.0 {
            return Poll::Ready(());
        }
        let old = waiting.wakers.insert(self.key, cx.waker().clone());
        drop(waiting);
        drop(old);
        Poll::Pending
    }
}

impl Drop for TimerSleep {
    fn drop(&mut self) {
        let _waker = locked(&self.sleeps.0).wakers.remove(&self.key);
    }
}

/// Executor for hyper. It collects tasks, which the connection polls.
#[derive(Clone, Default)]
pub(super) struct TaskSet(Arc<Mutex<Vec<BoxFuture<()>>>>);

impl TaskSet {
    /// Moves new tasks out. Returns false if there are none.
    pub(super) fn take(&self, into: impl FnMut(BoxFuture<()>)) -> bool {
        let new = core::mem::take(&mut *locked(&self.0));
        let any = !new.is_empty();
        new.into_iter().for_each(into);
        any
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for TaskSet {
    fn execute(&self, task: F) {
        locked(&self.0).push(Box::pin(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_identify_protocol() {
        for (greeting, breach) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], Some(Breach::Http1)),
            (b"H", None),
            (b"HTTP", None),
            (b"HTTX", Some(Breach::Malformed)),
            (&[0x15, 3, 1, 0, 2, 2, 70], Some(Breach::Tls)),
            (&[0, 0, 6, SETTINGS, 0, 0, 0, 0, 0], None),
            (&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0], Some(Breach::Malformed)),
            (&[0, 0, 6], None),
            (&[0, 0, 6, 0, 0, 0, 0, 0, 0], Some(Breach::Malformed)),
            (b"-ERR unknown command\r\n", Some(Breach::Resp)),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Some(Breach::Malformed)),
        ] {
            // In one piece, and byte by byte.
            for size in [greeting.len(), 1] {
                let conn_state = ConnState::default();
                let read: io::Result<Vec<()>> = greeting.chunks(size).map(|piece| conn_state.read(piece)).collect();
                assert_eq!(read.is_err(), breach.is_some(), "{greeting:?}");
                assert_eq!(conn_state.fault(), breach.map(Fault::Protocol), "{greeting:?}");
                assert_eq!(conn_state.is_up(), breach.is_none() && greeting.len() >= GREETING, "{greeting:?}");
            }
        }
    }
}
