//! The transport for stores that speak bytes in order over connections, such as Redis.
//!
//! A store implements [`ByteClient`]; sockets, buffers and reconnects are here.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use futures_io::{AsyncRead, AsyncWrite};

use super::acquire_error::Servers;
use super::address::{Address, Route, Routes};
use super::client::Client;
use super::connect::ConnectError;
use super::credentials::CredentialRequests;
use super::engine::{Engine, Notification};
use super::event_loop::{EventLoop, Links};
use super::fault;
use super::host::Host;
use super::race::Race;
use super::settings::HostSettings;
use super::shared::{Batch, Shared};
use super::stream::Stream;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::TlsFault;
use lock_proto::lock::Output;
use lock_proto::{ByteClient, Machine};
use lock_proto::{ClientId, ConnId, NodeId, Role};

/// Reads from one connection in one iteration, so that a fast server does not hold up the timers
/// and the other connections.
const READS: usize = 8;
/// Size of the read buffer.
const BUFFER: usize = 16 * 1024;

/// The event loop of a client that speaks bytes.
pub(super) type ByteLoop<H, C> = EventLoop<H, Sockets<H, C>>;

/// The handle and the event loop of a client.
pub(super) fn start<H: Host, C: ByteClient + Send + 'static>(
    host: H,
    client: C,
    settings: HostSettings,
    id: ClientId,
    servers: Servers,
    alone_at_once: bool,
) -> Result<(Client, ByteLoop<H, C>), ConnectError> {
    let targets = (0..).map_while(|index| client.target(NodeId::new(index)));
    let routes = Routes::new(targets, &settings, false)?;
    let engine = ByteEngine { client, duties: Vec::new(), wrong_servers: Vec::new(), open: Vec::new() };
    let shared = Shared::new(id, servers, &host, engine);
    let sockets = Sockets {
        alone_at_once,
        routes,
        credentials: CredentialRequests::new(settings, shared.unread_file.clone()),
        conns: Vec::new(),
        duties: Vec::new(),
        buffer: vec![0; BUFFER].into(),
        client: PhantomData,
    };
    Ok((Client::new(shared.clone()), EventLoop::new(host, shared, sockets)))
}

/// The machine, and what handles and driver need beside it.
pub(super) struct ByteEngine<C> {
    pub(super) client: C,
    duties: Vec<Output>,
    /// Nodes whose command connection leads to the wrong server.
    wrong_servers: Vec<NodeId>,
    /// The open connections.
    open: Vec<OpenConn>,
}

/// An open connection as a handle sees it.
struct OpenConn {
    conn: ConnId,
    /// The socket takes no more bytes now. It will wake the driver by itself.
    blocked: bool,
}

impl<C: ByteClient + Send + 'static> Engine for ByteEngine<C> {
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
                Output::Operation { id, event } => return Some(Notification::Operation(id, event)),
                duty @ (Output::Connect { .. }
                | Output::Credentials { .. }
                | Output::Disconnect { .. }
                | Output::Stopped { .. }) => {
                    if let Output::Disconnect { conn, .. } = duty
                        && self.client.is_wrong_server(conn)
                    {
                        self.wrong_servers.push(conn.node());
                    }
                    self.duties.push(duty);
                }
            }
        }
    }

    /// Also returns true if a writable socket has bytes to send.
    fn needs_driver(&mut self) -> bool {
        let Self { client, duties, open, .. } = self;
        !duties.is_empty() || open.iter().any(|own| !own.blocked && client.has_outgoing(own.conn))
    }
}

/// The connections.
pub(super) struct Sockets<H: Host, C> {
    /// See [`Links::alone_at_once`].
    alone_at_once: bool,
    routes: Routes<H::Resolve>,
    credentials: CredentialRequests,
    conns: Vec<OpenSocket<H>>,
    duties: Vec<Output>,
    buffer: Box<[u8]>,
    client: PhantomData<fn() -> C>,
}

struct OpenSocket<H: Host> {
    id: ConnId,
    state: SocketState<H>,
}

enum SocketState<H: Host> {
    Opening(Race<H>),
    Open {
        address: Address,
        stream: Stream<H::Stream>,
        unflushed: bool,
        /// The server has sent something.
        received: bool,
        /// The server has shown that it works.
        up: bool,
    },
}

impl<H: Host, C: ByteClient + Send + 'static> Links<H> for Sockets<H, C> {
    type Engine = ByteEngine<C>;

    fn alone_at_once(&self) -> bool {
        self.alone_at_once
    }

    fn do_queued(&mut self, host: &H, shared: &Shared<ByteEngine<C>>, batch: &mut Batch) -> bool {
        let wrong_servers = shared.drive(batch, |core, _| {
            core::mem::swap(&mut core.engine.duties, &mut self.duties);
            core::mem::take(&mut core.engine.wrong_servers)
        });
        for node in wrong_servers {
            if let Some(route) = self.routes.get_mut(node) {
                route.avoid_current();
            }
        }
        let mut stopped = false;
        for duty in self.duties.drain(..) {
            match duty {
                Output::Connect { node, conn, target } => {
                    let route = match self.routes.set(node, &target) {
                        Ok(route) => route,
                        Err(error) => {
                            tracing::error!(%conn, server = %target, %error, "cannot connect");
                            let fault = TlsFault::BadSettings.into();
                            shared.drive(batch, |core, now| core.engine.client.handle_disconnected(now, conn, fault));
                            continue;
                        }
                    };
                    let opening = match (&route.current, conn.role()) {
                        // Connect to the server of the command connection, even if the name leads
                        // to others too.
                        (Some(address), Role::Wake) => Race::to(address.clone()),
                        (_, Role::Commands) | (None, Role::Wake) => Race::new(host, route),
                    };
                    self.conns.push(OpenSocket { id: conn, state: SocketState::Opening(opening) });
                }
                Output::Credentials { conn, request } => self.credentials.begin(host, conn, *request),
                Output::Disconnect { conn, why } => {
                    self.credentials.cancel(conn);
                    let route = self.routes.get_mut(conn.node());
                    if let (Some(own), Some(route)) = (self.conns.iter_mut().find(|own| own.id == conn), route) {
                        own.give_up(route);
                        if let Some(why) = why {
                            route.log_end(conn, own.is_up(), why, None);
                        }
                    }
                    self.conns.retain(|own| own.id != conn);
                    shared.drive(batch, |core, _| core.engine.open.retain(|own| own.conn != conn));
                    tracing::debug!(%conn, "connection closed");
                }
                Output::Stopped { unreleased } => {
                    stopped = true;
                    tracing::debug!(unreleased, "client stopped");
                    shared.close(Some(unreleased));
                }
                Output::Event { .. } | Output::Operation { .. } => {}
            }
        }
        stopped
    }

    fn poll(&mut self, host: &H, shared: &Shared<ByteEngine<C>>, batch: &mut Batch, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        while let Some((conn, credentials)) = self.credentials.poll(cx) {
            shared.drive(batch, |core, now| core.engine.client.handle_credentials(now, conn, credentials));
            busy = true;
        }
        let Self { routes, credentials, conns, buffer, .. } = self;
        conns.retain_mut(|conn| {
            let Some(route) = routes.get_mut(conn.id.node()) else { return false };
            let ended = match conn.poll(host, route, shared, batch, buffer, cx) {
                Ok(more) => {
                    busy |= more;
                    return true;
                }
                Err(fault) => fault,
            };
            busy = true;
            conn.give_up(route);
            credentials.cancel(conn.id);
            shared.drive(batch, |core, now| {
                core.engine.open.retain(|own| own.conn != conn.id);
                core.engine.client.handle_disconnected(now, conn.id, ended);
            });
            false
        });
        busy
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.conns.iter().filter_map(|conn| match &conn.state {
            SocketState::Opening(race) => race.next_deadline(),
            SocketState::Open { .. } => None,
        });
        deadlines.min()
    }

    fn clear(&mut self) {
        self.conns.clear();
        self.credentials.clear();
    }

    fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.conns));
        self.credentials.leak();
    }
}

impl<H: Host> OpenSocket<H> {
    const fn is_up(&self) -> bool {
        matches!(self.state, SocketState::Open { up: true, .. })
    }

    /// It ends. An address whose server has not replied comes last in the next attempt.
    // P5
    fn give_up(&mut self, route: &mut Route<H::Resolve>) {
        match &mut self.state {
            SocketState::Opening(race) => race.give_up(route),
            SocketState::Open { received: false, .. } if self.id.role() == Role::Commands => route.avoid_current(),
            SocketState::Open { .. } => {}
        }
    }

    /// Makes progress. True if there is more to do. An error is the end of the connection.
    fn poll<C: ByteClient + Send + 'static>(
        &mut self,
        host: &H,
        route: &mut Route<H::Resolve>,
        shared: &Shared<ByteEngine<C>>,
        batch: &mut Batch,
        buffer: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Result<bool, Fault> {
        let id = self.id;
        match &mut self.state {
            SocketState::Opening(race) => match race.poll(host, route, shared.now(), cx) {
                Poll::Pending => Ok(false),
                Poll::Ready(Ok((address, stream))) => {
                    tracing::debug!(conn = %id, server = %route.target, %address, "TCP connection open");
                    if id.role() == Role::Commands {
                        route.current = Some(address.clone());
                    }
                    self.state = SocketState::Open { address, stream, unflushed: false, received: false, up: false };
                    shared.drive(batch, |core, now| {
                        core.engine.open.push(OpenConn { conn: id, blocked: false });
                        core.engine.client.handle_connected(now, id);
                    });
                    Ok(true)
                }
                Poll::Ready(Err(error)) => {
                    let fault = fault::of_connecting(&error);
                    route.log_end(id, false, fault.into(), Some(&error));
                    Err(fault)
                }
            },
            SocketState::Open { address, stream, unflushed, received, up } => {
                let result = read(shared, batch, buffer, id, stream, received, cx)
                    .and_then(|more| write(shared, batch, buffer, id, stream, unflushed, cx).map(|()| more));
                if *received && !*up && shared.drive(batch, |core, _| core.engine.client.is_up(id)) {
                    *up = true;
                    route.succeeded();
                    let wake = id.role() == Role::Wake;
                    tracing::info!(client = %shared.id, conn = %id, server = %route.target, %address, wake, "connected");
                }
                let error = match result {
                    Ok(more) => return Ok(more),
                    Err(error) => error,
                };
                // The machine ends it, for a reason of its own: the server of another protocol
                // often closes it as well, and ZooKeeper that of a session that has ended.
                let is_over = |duty: &Output| matches!(duty, Output::Disconnect { conn, .. } if *conn == id);
                if shared.drive(batch, |core, _| core.engine.duties.iter().any(is_over)) {
                    return Ok(true);
                }
                // A server with TLS has sent its part of the handshake.
                let fault = fault::of_stream(&error, *received || stream.is_tls());
                route.log_end(id, *up, fault.into(), None);
                Err(fault)
            }
        }
    }
}

impl<H: Host, C> fmt::Debug for Sockets<H, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("routes", &self.routes).finish_non_exhaustive()
    }
}

/// Reads up to a limit. True if there may be more.
fn read<C: ByteClient + Send + 'static, S: AsyncRead + Unpin>(
    shared: &Shared<ByteEngine<C>>,
    batch: &mut Batch,
    buffer: &mut [u8],
    conn: ConnId,
    stream: &mut S,
    received: &mut bool,
    cx: &mut Context<'_>,
) -> io::Result<bool> {
    for _ in 0..READS {
        match Pin::new(&mut *stream).poll_read(cx, buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(count)) => {
                *received = true;
                let bytes = buffer.get(..count).unwrap_or(buffer);
                shared.drive(batch, |core, now| core.engine.client.handle_received(now, conn, bytes));
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
    Ok(true)
}

/// Writes what the machine has and the socket takes. The machine is not locked during the system
/// call, which takes as long as many calls of the handles.
fn write<C: ByteClient + Send + 'static, S: AsyncWrite + Unpin>(
    shared: &Shared<ByteEngine<C>>,
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
            let ByteEngine { client, open, .. } = &mut core.engine;
            client.consume(conn, taken);
            if let Some(own) = open.iter_mut().find(|own| own.conn == conn) {
                own.blocked = blocked;
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
