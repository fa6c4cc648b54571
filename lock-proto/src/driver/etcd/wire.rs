//! What hyper needs of a runtime: a stream, a timer, and somewhere to run its tasks. Made of a [`Host`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;
use std::sync::Mutex;
use std::time::Instant as StdInstant;

use futures_io::{AsyncRead, AsyncWrite};
use hyper::rt::{Executor, Read, ReadBufCursor, Sleep, Timer, Write};

use super::super::ticket::locked;
use super::super::turns::BoxFuture;
use super::super::{Host, fault};
use super::acks::FRAME_HEAD;
use super::outbox::Outbox;
use crate::fault::{Breach, Fault};
use crate::time::Instant;

/// Size of a connection's buffer for reading.
const BUFFER: usize = 16 * 1024;
/// How much of the server's first frame tells what it speaks.
const GREETING: usize = FRAME_HEAD;
/// The type of a SETTINGS frame, which must be the first (RFC 9113, section 3.4).
const SETTINGS: u8 = 4;
/// What a record of TLS that is an alert begins with.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// What is known of a connection, beside what hyper tells.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    greeting: [u8; GREETING],
    greeted: usize,
    /// Why it ended, as far as the stream can tell.
    fault: Option<Fault>,
}

impl Line {
    /// Whether the server has begun to speak HTTP/2.
    pub(super) fn is_up(&self) -> bool {
        let known = locked(&self.0);
        known.greeted == GREETING && known.fault.is_none()
    }

    /// Why the stream ended, if it did.
    pub(super) fn fault(&self) -> Option<Fault> {
        locked(&self.0).fault
    }

    /// Notes why the connection ended, unless there was a reason before.
    pub(super) fn end(&self, why: Fault) {
        locked(&self.0).fault.get_or_insert(why);
    }

    fn read(&self, bytes: &[u8]) -> io::Result<()> {
        let mut known = locked(&self.0);
        if bytes.is_empty() {
            known.fault.get_or_insert(Fault::Closed);
            return Ok(());
        }
        let Known { greeting, greeted, fault } = &mut *known;
        for (place, byte) in greeting.iter_mut().skip(*greeted).zip(bytes) {
            *place = *byte;
            *greeted += 1;
        }
        let Some(breach) = greeting.get(..*greeted).and_then(no_http2) else { return Ok(()) };
        fault.get_or_insert(Fault::Protocol(breach));
        Err(io::Error::new(io::ErrorKind::InvalidData, breach))
    }

    fn broken(&self, error: io::Error) -> io::Error {
        self.end(fault::of_stream(&error));
        error
    }
}

/// What is wrong with the beginning of the server's first frame.
fn no_http2(greeting: &[u8]) -> Option<Breach> {
    if greeting.starts_with(b"HTTP/") {
        Some(Breach::Http1)
    } else if greeting.starts_with(&TLS_ALERT) {
        Some(Breach::Tls)
    } else if b"HTTP/".starts_with(greeting) {
        // Not enough to tell.
        None
    } else {
        let no_settings = greeting.get(3).is_some_and(|kind| *kind != SETTINGS);
        let acknowledges = greeting.get(4).is_some_and(|flags| flags & 1 != 0);
        (no_settings || acknowledges).then_some(Breach::Malformed)
    }
}

/// A host's stream, as hyper reads and writes it.
pub(super) struct Wire<S> {
    outbox: Arc<Outbox<S>>,
    line: Arc<Line>,
    buffer: Box<[u8]>,
}

impl<S> Wire<S> {
    pub(super) fn new(outbox: Arc<Outbox<S>>, line: Arc<Line>) -> Self {
        Self { outbox, line, buffer: vec![0; BUFFER].into_boxed_slice() }
    }
}

impl<S: AsyncRead + Unpin> Read for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let Self { outbox, line, buffer } = self.get_mut();
        let most = into.remaining().min(buffer.len());
        let Some(room) = buffer.get_mut(..most) else { return Poll::Ready(Ok(())) };
        let count = ready!(outbox.poll_read(cx, room)).map_err(|error| line.broken(error))?;
        let bytes = room.get(..count).unwrap_or_default();
        line.read(bytes)?;
        into.put_slice(bytes);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Write for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.outbox.poll_write(cx, bytes).map(Ok)
    }

    /// The connection flushes, when all of hyper's tasks have written.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outbox.poll_close(cx).map_err(|error| self.line.broken(error))
    }
}

/// A host's timer, as hyper sets it.
pub(super) struct Timers<H> {
    host: H,
    /// One moment on both clocks.
    here: Instant,
    there: StdInstant,
}

impl<H: Host> Timers<H> {
    pub(super) fn new(host: H) -> Self {
        let here = host.now();
        Self { host, here, there: StdInstant::now() }
    }
}

impl<H: Host> Timer for Timers<H> {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Sleep>> {
        let host = self.host.clone();
        let until = host.now() + time;
        // A host's sleep may end early: the clock is compared.
        let sleep: BoxFuture<()> = Box::pin(async move {
            loop {
                let left = until.since(host.now());
                if left.is_zero() {
                    break;
                }
                host.sleep(left).await;
            }
        });
        Box::pin(Nap(Mutex::new(sleep)))
    }

    fn sleep_until(&self, deadline: StdInstant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(self.now()))
    }

    fn now(&self) -> StdInstant {
        let passed = self.host.now().since(self.here);
        self.there.checked_add(passed).unwrap_or(self.there)
    }
}

/// A sleep. The mutex is never locked: it makes it `Sync`, which hyper asks for.
struct Nap(Mutex<BoxFuture<()>>);

impl Sleep for Nap {}

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        sleep.as_mut().poll(cx)
    }
}

/// Where hyper leaves its tasks. Nothing is spawned: whoever polls the connection takes and polls them.
#[derive(Clone, Default)]
pub(super) struct Nursery(Arc<Mutex<Vec<BoxFuture<()>>>>);

impl Nursery {
    /// Moves the new tasks out. False if there are none.
    pub(super) fn take(&self, into: impl FnMut(BoxFuture<()>)) -> bool {
        let new = core::mem::take(&mut *locked(&self.0));
        let any = !new.is_empty();
        new.into_iter().for_each(into);
        any
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Nursery {
    fn execute(&self, task: F) {
        locked(&self.0).push(Box::pin(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_first_tells_what_it_speaks() {
        for (said, breach) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], Some(Breach::Http1)),
            (b"H", None),
            (b"HTTP", None),
            (b"HTTX", Some(Breach::Malformed)),
            (&[0x15, 3, 1, 0, 2, 2, 70], Some(Breach::Tls)),
            (&[0, 0, 6, SETTINGS, 0, 0, 0, 0, 0], None),
            (&[0, 0, 0, SETTINGS, 1, 0, 0, 0, 0], Some(Breach::Malformed)),
            (&[0, 0, 6], None),
            (&[0, 0, 6, 0, 0, 0, 0, 0, 0], Some(Breach::Malformed)),
            (b"-ERR unknown command\r\n", Some(Breach::Malformed)),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Some(Breach::Malformed)),
        ] {
            // In one piece, and byte by byte.
            for size in [said.len(), 1] {
                let line = Line::default();
                let read: io::Result<Vec<()>> = said.chunks(size).map(|piece| line.read(piece)).collect();
                assert_eq!(read.is_err(), breach.is_some(), "{said:?}");
                assert_eq!(line.fault(), breach.map(Fault::Protocol), "{said:?}");
                assert_eq!(line.is_up(), breach.is_none() && said.len() >= GREETING, "{said:?}");
            }
        }
    }
}
