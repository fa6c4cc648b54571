//! The driver of a Redis client: bytes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use futures_io::{AsyncRead, AsyncWrite};

use super::address::Route;
use super::clock::Clock as _;
use super::connect::{ConnectError, identity};
use super::engine::{Engine, Notification};
use super::fault;
use super::handle::Client;
use super::host::Host;
use super::race::Race;
use super::shared::{Batch, Shared};
use super::turns::{Links, Turns};
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, NodeId, Role};
use crate::lock::{Cause, ErrorClass, Machine, ServerError};
use crate::redis::{self, Output};
use crate::time::Instant;
use crate::url::Target;

/// Reads from one connection in one turn, so that a fast server does not hold up the timers and the other connections.
const READS: usize = 8;
/// Size of the one buffer for reading.
const BUFFER: usize = 16 * 1024;

/// A client of the servers in `config`, and the driver that does its work.
///
/// The driver must be polled, normally by spawning it. Its id and seed are taken from the system's entropy.
///
/// # Errors
///
/// The settings are out of range, or the system has no entropy.
pub fn client<H: Host>(host: H, config: redis::Config) -> Result<(Client, Driver<H>), ConnectError> {
    let (id, seed) = identity()?;
    with_identity(host, config, id, seed)
}

pub(super) fn with_identity<H: Host>(
    host: H,
    config: redis::Config,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let targets: Vec<_> = config.nodes().iter().map(|node| node.target.clone()).collect();
    let clock = host.clock();
    let machine = redis::Client::new(clock.now(), config, id, seed)?;
    let shared = Shared::new(id, Box::new(move || clock.now()), Redis::new(machine));
    let handle = Client::new(shared.clone());
    Ok((handle, Driver::new(host, shared, targets)))
}

/// The task that does a client's work: reads, writes, connects, and minds the time. It ends after the
/// [shutdown](super::Client::shutdown).
///
/// Dropped before, all is over at once: holders are told that their lock is lost, waiters that the client was shut down; keys stay
/// in the store until their TTL ends.
#[must_use = "without its driver being polled, no lock is taken, renewed or given back"]
pub struct Driver<H: Host>(Turns<H, Sockets<H>>);

impl<H: Host> Driver<H> {
    pub(super) fn new(host: H, shared: Arc<Shared<Redis>>, targets: Vec<Target>) -> Self {
        let routes = targets.into_iter().map(Route::new).collect();
        let sockets = Sockets { routes, conns: Vec::new(), duties: Vec::new(), buffer: vec![0; BUFFER].into() };
        Self(Turns::new(host, shared, sockets))
    }
}

impl<H: Host> Future for Driver<H> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().0.poll(cx)
    }
}

// Nothing in it is pinned in place: the futures are boxed, the streams are `Unpin`.
impl<H: Host> Unpin for Driver<H> {}

impl<H: Host> fmt::Debug for Driver<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("routes", &self.0.links.routes).finish_non_exhaustive()
    }
}

/// The machine, and what handles and driver have to know beside it.
pub(super) struct Redis {
    client: redis::Client,
    /// What only the driver can do: connect, disconnect, stop. Never an event.
    duties: Vec<Output>,
    /// Nodes whose command connection leads to a server that takes no writes: the next attempt tries other addresses first.
    misled: Vec<NodeId>,
    /// The open connections.
    lines: Vec<Line>,
}

/// An open connection as a handle sees it.
struct Line {
    conn: ConnId,
    /// The socket takes no more bytes now; it will wake the driver by itself.
    blocked: bool,
}

impl Redis {
    pub(super) const fn new(client: redis::Client) -> Self {
        Self { client, duties: Vec::new(), misled: Vec::new(), lines: Vec::new() }
    }
}

impl Engine for Redis {
    fn machine(&self) -> &dyn Machine {
        &self.client
    }

    fn machine_mut(&mut self) -> &mut dyn Machine {
        &mut self.client
    }

    fn poll_notification(&mut self) -> Option<Notification> {
        loop {
            match self.client.poll_output()? {
                Output::Event { lock, event } => return Some(Notification::Lock(lock, event)),
                output @ Output::Disconnect { conn } => {
                    let node = conn.node();
                    if let Some(Cause::Server(ServerError { class: ErrorClass::Reconnect, .. })) =
                        self.client.down_cause(node)
                        && conn.role() == Role::Commands
                    {
                        self.misled.push(node);
                    }
                    self.duties.push(output);
                }
                output @ (Output::Connect { .. } | Output::Stopped { .. }) => self.duties.push(output),
            }
        }
    }

    /// Also if a socket that takes bytes could be given some.
    fn needs_driver(&mut self) -> bool {
        let Self { client, duties, lines, .. } = self;
        !duties.is_empty() || lines.iter().any(|line| !line.blocked && client.has_outgoing(line.conn))
    }
}

/// The connections.
struct Sockets<H: Host> {
    /// Of each node.
    routes: Vec<Route>,
    conns: Vec<Conn<H>>,
    duties: Vec<Output>,
    buffer: Box<[u8]>,
}

struct Conn<H: Host> {
    id: ConnId,
    state: State<H>,
}

enum State<H: Host> {
    Opening(Race<H>),
    Open {
        stream: H::Stream,
        unflushed: bool,
    },
    /// Closed, and the machine knows.
    Closed,
}

impl<H: Host> Links<H> for Sockets<H> {
    type Engine = Redis;
    const ALONE_AT_ONCE: bool = false;

    fn do_duties(&mut self, host: &H, shared: &Shared<Redis>, batch: &mut Batch) -> bool {
        let misled = shared.drive(batch, |core, _| {
            core::mem::swap(&mut core.engine.duties, &mut self.duties);
            core::mem::take(&mut core.engine.misled)
        });
        for node in misled {
            if let Some(route) = self.routes.get_mut(node.index()) {
                route.avoid_current();
            }
        }
        let mut stopped = false;
        for duty in self.duties.drain(..) {
            match duty {
                Output::Connect { node, conn } => {
                    let Some(route) = self.routes.get(node.index()) else { continue };
                    let opening = match (&route.current, conn.role()) {
                        // The same server, whatever else the name leads to.
                        (Some(address), Role::Wake) => Race::to(address.clone()),
                        (_, Role::Commands) | (None, Role::Wake) => Race::new(host, route),
                    };
                    self.conns.push(Conn { id: conn, state: State::Opening(opening) });
                }
                Output::Disconnect { conn } => {
                    let route = self.routes.get_mut(conn.node().index());
                    if let (Some(own), Some(route)) = (self.conns.iter_mut().find(|own| own.id == conn), route)
                        && let State::Opening(race) = &mut own.state
                    {
                        race.give_up(route);
                    }
                    self.conns.retain(|own| own.id != conn);
                    shared.drive(batch, |core, _| core.engine.lines.retain(|line| line.conn != conn));
                    tracing::debug!(%conn, "connection closed");
                }
                Output::Stopped { unreleased } => {
                    stopped = true;
                    tracing::debug!(unreleased, "client stopped");
                    shared.close(Some(unreleased));
                }
                // Events are told where they are drained.
                Output::Event { .. } => {}
            }
        }
        stopped
    }

    fn poll(&mut self, host: &H, shared: &Shared<Redis>, batch: &mut Batch, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        for place in 0..self.conns.len() {
            busy |= self.poll_conn(place, host, shared, batch, cx);
        }
        self.conns.retain(|conn| !matches!(conn.state, State::Closed));
        busy
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.conns.iter().filter_map(|conn| match &conn.state {
            State::Opening(race) => race.next_deadline(),
            State::Open { .. } | State::Closed => None,
        });
        deadlines.min()
    }

    fn clear(&mut self) {
        self.conns.clear();
    }

    fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.conns));
    }
}

impl<H: Host> Sockets<H> {
    /// Moves one connection on as far as it goes. True if it could go on.
    fn poll_conn(
        &mut self,
        place: usize,
        host: &H,
        shared: &Shared<Redis>,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(conn) = self.conns.get_mut(place) else { return false };
        let id = conn.id;
        let Some(route) = self.routes.get_mut(id.node().index()) else { return false };
        let ended = match &mut conn.state {
            State::Closed => return false,
            State::Opening(race) => match race.poll(host, route, shared.now(), cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok((address, stream))) => {
                    conn.state = State::Open { stream, unflushed: false };
                    let wake = id.role() == Role::Wake;
                    tracing::info!(conn = %id, server = %route.target, %address, wake, "connected");
                    if !wake {
                        route.current = Some(address);
                    }
                    shared.drive(batch, |core, now| {
                        core.engine.lines.push(Line { conn: id, blocked: false });
                        core.engine.client.handle_connected(now, id);
                    });
                    return true;
                }
                Poll::Ready(Err(error)) => {
                    tracing::warn!(conn = %id, server = %route.target, %error, "cannot connect");
                    fault::of_connecting(&error)
                }
            },
            State::Open { stream, unflushed } => {
                match read(shared, batch, &mut self.buffer, id, stream, cx)
                    .and_then(|more| write(shared, batch, &mut self.buffer, id, stream, unflushed, cx).map(|()| more))
                {
                    Ok(more) => return more,
                    Err(error) => {
                        tracing::warn!(conn = %id, server = %route.target, %error, "connection lost");
                        fault::of_stream(&error)
                    }
                }
            }
        };
        conn.state = State::Closed;
        disconnected(shared, batch, id, ended);
        true
    }
}

/// Reads what there is, up to a limit. True if there may be more.
fn read<S: AsyncRead + Unpin>(
    shared: &Shared<Redis>,
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
                shared.drive(batch, |core, now| core.engine.client.handle_received(now, conn, bytes));
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes what the machine has and the socket takes. The handles use the machine meanwhile: a system call takes as long as many of their
/// calls.
fn write<S: AsyncWrite + Unpin>(
    shared: &Shared<Redis>,
    batch: &mut Batch,
    buffer: &mut [u8],
    conn: ConnId,
    stream: &mut S,
    unflushed: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<()> {
    let (mut taken, mut blocked) = (0, false);
    loop {
        let size = shared.drive(batch, |core, _| {
            let Redis { client, lines, .. } = &mut core.engine;
            client.consume(conn, taken);
            if let Some(line) = lines.iter_mut().find(|line| line.conn == conn) {
                line.blocked = blocked;
            }
            let bytes = client.outgoing(conn);
            let size = bytes.len().min(buffer.len());
            if let (false, Some(to), Some(bytes)) = (blocked, buffer.get_mut(..size), bytes.get(..size)) {
                to.copy_from_slice(bytes);
            }
            size
        });
        let bytes = buffer.get(..size).unwrap_or_default();
        if bytes.is_empty() || blocked {
            break;
        }
        taken = match Pin::new(&mut *stream).poll_write(cx, bytes) {
            Poll::Pending => {
                blocked = true;
                0
            }
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(count)) => {
                *unflushed = true;
                count
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => 0,
            Poll::Ready(Err(error)) => return Err(error),
        };
    }
    if *unflushed && Pin::new(stream).poll_flush(cx)?.is_ready() {
        *unflushed = false;
    }
    Ok(())
}

fn disconnected(shared: &Shared<Redis>, batch: &mut Batch, conn: ConnId, why: Fault) {
    shared.drive(batch, |core, now| {
        core.engine.lines.retain(|line| line.conn != conn);
        core.engine.client.handle_disconnected(now, conn, why);
    });
}
