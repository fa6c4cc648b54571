//! The one loop between the machine and the world.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;

use futures_io::{AsyncRead, AsyncWrite};

use super::shared::{Batch, Line, Shared};
use super::{Host, fault};
use crate::fault::Fault;
use crate::id::{ConnId, Role};
use crate::redis::{Output, Target};
use crate::time::Instant;

/// The longest sleep while a lock is held (requirement T4): a timer that stood still with the machine is this late at most.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Turns of the loop in one poll, before other tasks get their turn.
const TURNS: usize = 16;
/// Reads from one connection in one turn, so that a fast server does not hold up the timers and the other connections.
const READS: usize = 8;
/// How many tasks are woken at once: as many as the servers still have requests, within these limits. What they ask for then leaves in
/// one write, and while the servers work on that, the next ones are woken: fewer would mean more system calls, more would leave the
/// servers idle meanwhile.
const WOKEN_AT_ONCE: RangeInclusive<usize> = 8..=64;
/// Size of the one buffer for reading.
const BUFFER: usize = 16 * 1024;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The task that does a client's work: reads, writes, connects, and minds the time. It ends after the
/// [shutdown](super::Client::shutdown).
///
/// Dropped before, all is over at once: holders are told that their lock is lost, waiters that the client was shut down; keys stay
/// in the store until their TTL ends.
#[must_use = "without its driver being polled, no lock is taken, renewed or given back"]
pub struct Driver<H: Host> {
    host: H,
    shared: Arc<Shared>,
    targets: Vec<Target>,
    conns: Vec<Conn<H::Stream>>,
    /// The timer, and when it goes off.
    sleep: Option<(Instant, BoxFuture<()>)>,
    duties: Vec<Output>,
    batch: Batch,
    buffer: Box<[u8]>,
    /// A handle's call was seen, and other tasks were let through first to add theirs.
    gathered: bool,
    /// Requests that the servers had at the end of the last turn.
    in_flight: usize,
}

struct Conn<S> {
    id: ConnId,
    state: State<S>,
}

enum State<S> {
    Opening(BoxFuture<io::Result<S>>),
    Open {
        stream: S,
        unflushed: bool,
    },
    /// Closed, and the machine knows.
    Closed,
}

/// What a turn of the loop found.
enum Turn {
    /// There is more to do.
    Busy,
    /// Nothing to do before the timer or the next wake-up.
    Idle(Option<Instant>),
    Stopped,
}

impl<H: Host> Driver<H> {
    pub(super) fn new(host: H, shared: Arc<Shared>, targets: Vec<Target>) -> Self {
        Self {
            host,
            shared,
            targets,
            conns: Vec::new(),
            sleep: None,
            duties: Vec::new(),
            batch: Batch::default(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            gathered: false,
            in_flight: 0,
        }
    }

    /// Answers the call of a handle. True if the driver should first let other tasks run: woken together, they have requests of their
    /// own, and all can leave in one write.
    fn gather(&mut self, cx: &Context<'_>) -> bool {
        // Whoever was woken before had its turn already.
        let gathered = self.gathered || self.batch.has_wakers();
        let (called, old) = self.shared.drive(&mut self.batch, |core, _| {
            let called = core.called;
            if called && !gathered {
                return (true, None);
            }
            core.called = false;
            let same = core.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            (false, if same { None } else { core.waker.replace(cx.waker().clone()) })
        });
        drop(old);
        self.gathered = called;
        called
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Turn {
        let Self { shared, batch, duties, .. } = self;
        // Time first: after a pause, what has ended has ended, whatever the sockets still hold (requirement T2).
        shared.drive(batch, |core, now| {
            if core.client.next_deadline().is_some_and(|deadline| deadline <= now) {
                core.client.handle_timeout(now);
            }
        });
        shared.drive(batch, |core, _| core::mem::swap(&mut core.duties, duties));
        if self.do_duties() {
            return Turn::Stopped;
        }
        let mut busy = false;
        for place in 0..self.conns.len() {
            busy |= self.poll_conn(place, cx);
        }
        self.conns.retain(|conn| !matches!(conn.state, State::Closed));
        let sleep = self.sleep.as_ref().map(|(until, _)| *until);
        let in_flight = &mut self.in_flight;
        self.shared.drive(&mut self.batch, |core, now| {
            *in_flight = core.client.in_flight();
            // A connection that was looked at may have been given bytes by one that was looked at after it.
            if busy || core.called || !core.duties.is_empty() || core.has_bytes() {
                return Turn::Busy;
            }
            let mut wanted = core.client.next_deadline();
            if wanted.is_some_and(|deadline| deadline <= now) {
                return Turn::Busy;
            }
            if core.client.holds_any() {
                let latest = now + LONGEST_SLEEP;
                wanted = Some(wanted.map_or(latest, |deadline| deadline.min(latest)));
            }
            // A timer that goes off too early only costs a look at the clock; it is cheaper than a new one.
            core.armed = match (sleep, wanted) {
                (Some(armed), Some(wanted)) => armed.min(wanted),
                (Some(armed), None) => armed,
                (None, wanted) => wanted.unwrap_or(Instant::MAX),
            };
            Turn::Idle((core.armed < Instant::MAX).then_some(core.armed))
        })
    }

    /// Connects and disconnects. True if the machine has stopped.
    fn do_duties(&mut self) -> bool {
        let mut stopped = false;
        for duty in self.duties.drain(..) {
            match duty {
                Output::Connect { node, conn } => {
                    let Some(target) = self.targets.get(node.index()) else { continue };
                    let opening = Box::pin(self.host.connect(target));
                    self.conns.push(Conn { id: conn, state: State::Opening(opening) });
                }
                Output::Disconnect { conn } => {
                    self.conns.retain(|own| own.id != conn);
                    self.shared.drive(&mut self.batch, |core, _| core.lines.retain(|line| line.conn != conn));
                    tracing::debug!(%conn, "connection closed");
                }
                Output::Stopped { unreleased } => {
                    stopped = true;
                    tracing::debug!(unreleased, "client stopped");
                    self.shared.close(Some(unreleased));
                }
                // Events are told where they are drained.
                Output::Event { .. } => {}
            }
        }
        stopped
    }

    /// Moves one connection on as far as it goes. True if it could go on.
    fn poll_conn(&mut self, place: usize, cx: &mut Context<'_>) -> bool {
        let Some(conn) = self.conns.get_mut(place) else { return false };
        let id = conn.id;
        let target = self.targets.get(id.node().index());
        let ended = match &mut conn.state {
            State::Closed => return false,
            State::Opening(opening) => match opening.as_mut().poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(stream)) => {
                    conn.state = State::Open { stream, unflushed: false };
                    tracing::info!(conn = %id, server = target.map(tracing::field::display), wake = id.role() == Role::Wake, "connected");
                    self.shared.drive(&mut self.batch, |core, now| {
                        core.lines.push(Line { conn: id, blocked: false });
                        core.client.handle_connected(now, id);
                    });
                    return true;
                }
                Poll::Ready(Err(error)) => {
                    tracing::warn!(conn = %id, server = target.map(tracing::field::display), %error, "cannot connect");
                    fault::of_connecting(&error)
                }
            },
            State::Open { stream, unflushed } => {
                match read(&self.shared, &mut self.batch, &mut self.buffer, id, stream, cx)
                    .and_then(|more| write(&self.shared, &mut self.batch, id, stream, unflushed, cx).map(|()| more))
                {
                    Ok(more) => return more,
                    Err(error) => {
                        tracing::warn!(conn = %id, server = target.map(tracing::field::display), %error, "connection lost");
                        fault::of_stream(&error)
                    }
                }
            }
        };
        conn.state = State::Closed;
        disconnected(&self.shared, &mut self.batch, id, ended);
        true
    }

    /// Waits for `until`. True if it is time already.
    fn rest(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let Some(until) = until else { return false };
        let (_, timer) = match &mut self.sleep {
            Some(sleep) if sleep.0 <= until => sleep,
            place @ (Some(_) | None) => {
                let timer = Box::pin(self.host.sleep(until.since(self.host.now())));
                place.insert((until, timer))
            }
        };
        let over = timer.as_mut().poll(cx).is_ready();
        if over {
            self.sleep = None;
        }
        over
    }
}

/// Reads what there is, up to a limit. True if there may be more.
fn read<S: AsyncRead + Unpin>(
    shared: &Shared,
    batch: &mut Batch,
    buffer: &mut [u8],
    conn: ConnId,
    stream: &mut S,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    for _ in 0..READS {
        match Pin::new(&mut *stream).poll_read(cx, buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(count)) => {
                let bytes = buffer.get(..count).unwrap_or(buffer);
                shared.drive(batch, |core, now| core.client.handle_received(now, conn, bytes));
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes what the machine has and the socket takes.
fn write<S: AsyncWrite + Unpin>(
    shared: &Shared,
    batch: &mut Batch,
    conn: ConnId,
    stream: &mut S,
    unflushed: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<()> {
    let mut blocked = false;
    shared.drive(batch, |core, _| {
        loop {
            let bytes = core.client.outgoing(conn);
            if bytes.is_empty() {
                break;
            }
            match Pin::new(&mut *stream).poll_write(cx, bytes) {
                Poll::Pending => {
                    blocked = true;
                    break;
                }
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    *unflushed = true;
                    core.client.consume(conn, count);
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if let Some(line) = core.lines.iter_mut().find(|line| line.conn == conn) {
            line.blocked = blocked;
        }
        Ok(())
    })?;
    if *unflushed && Pin::new(stream).poll_flush(cx)?.is_ready() {
        *unflushed = false;
    }
    Ok(())
}

fn disconnected(shared: &Shared, batch: &mut Batch, conn: ConnId, why: Fault) {
    shared.drive(batch, |core, now| {
        core.lines.retain(|line| line.conn != conn);
        core.client.handle_disconnected(now, conn, why);
    });
}

impl<H: Host> Future for Driver<H> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.gather(cx) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        for _ in 0..TURNS {
            let turn = this.turn(cx);
            if this.batch.run_some(this.in_flight.clamp(*WOKEN_AT_ONCE.start(), *WOKEN_AT_ONCE.end())) {
                // The others after these have had their turn.
                cx.waker().wake_by_ref();
                return match turn {
                    Turn::Busy | Turn::Idle(_) => Poll::Pending,
                    Turn::Stopped => {
                        this.batch.run();
                        Poll::Ready(())
                    }
                };
            }
            match turn {
                Turn::Busy => {}
                Turn::Idle(until) if this.rest(until, cx) => {}
                Turn::Idle(_) => return Poll::Pending,
                Turn::Stopped => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

// Nothing in it is pinned in place: the futures are boxed, the streams are `Unpin`.
impl<H: Host> Unpin for Driver<H> {}

impl<H: Host> Drop for Driver<H> {
    fn drop(&mut self) {
        self.conns.clear();
        // Whoever was to be woken in a later turn is woken now: there is none.
        self.batch.run();
        self.shared.close(None);
    }
}

impl<H: Host> fmt::Debug for Driver<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("targets", &self.targets).finish_non_exhaustive()
    }
}
