//! The transport for etcd: gRPC calls and streams.

use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::task::Context;

use super::super::address::Route;
use super::super::client::Client;
use super::super::connect::ConnectError;
use super::super::engine::{Engine, Notification};
use super::super::event_loop::{EventLoop, Links};
use super::super::host::Host;
use super::super::shared::{Batch, Shared};
use super::connection::{Connection, Input};
use crate::etcd::{self, Endpoint, Output};
use crate::id::{ClientId, ConnId};
use crate::lock::Machine;
use crate::time::Instant;
use crate::url::Target;

pub(super) fn start<H: Host>(
    host: H,
    client: etcd::Client,
    id: ClientId,
    endpoints: Vec<Endpoint>,
) -> Result<(Client, EventLoop<H, Connections<H>>), ConnectError> {
    let server = |Endpoint { target, .. }: &Endpoint| match target {
        Target::Tls { .. } => format!("etcds://{target}").into(),
        Target::Tcp { .. } | Target::Unix { .. } => format!("etcd://{target}").into(),
    };
    let servers = endpoints.iter().map(server).collect();
    let routes =
        endpoints.iter().map(|endpoint| Route::new(endpoint.target.clone(), true)).collect::<Result<_, _>>()?;
    let shared = Shared::new(id, servers, host.clock(), Etcd { client, commands: Vec::new() });
    let connections = Connections { endpoints, routes, open: Vec::new(), commands: Vec::new(), inputs: Vec::new() };
    Ok((Client::new(shared.clone()), EventLoop::new(host, shared, connections)))
}

/// The state machine, and the work that it has queued for the driver.
pub(in super::super) struct Etcd {
    pub(super) client: etcd::Client,
    /// Work for the driver. Never an event.
    commands: Vec<Output>,
}

impl Engine for Etcd {
    fn machine(&self) -> &dyn Machine {
        &self.client
    }

    fn machine_mut(&mut self) -> &mut dyn Machine {
        &mut self.client
    }

    fn poll_notification(&mut self) -> Option<Notification> {
        loop {
            match self.client.poll_notification()? {
                Output::Event { lock, event } => return Some(Notification::Lock(lock, event)),
                Output::Election { query, event } => return Some(Notification::Election(query, event)),
                output @ (Output::Connect { .. }
                | Output::Disconnect { .. }
                | Output::Call { .. }
                | Output::Open { .. }
                | Output::Send { .. }
                | Output::Close { .. }
                | Output::Stopped { .. }) => self.commands.push(output),
            }
        }
    }

    fn needs_driver(&mut self) -> bool {
        !self.commands.is_empty()
    }
}

/// The connections. Usually there is one.
pub(in super::super) struct Connections<H: Host> {
    endpoints: Vec<Endpoint>,
    /// By endpoint.
    routes: Vec<Route>,
    open: Vec<(ConnId, Connection<H>)>,
    commands: Vec<Output>,
    inputs: Vec<Input>,
}

impl<H: Host> Connections<H> {
    fn find(&mut self, conn: ConnId) -> Option<&mut Connection<H>> {
        self.open.iter_mut().find(|(id, _)| *id == conn).map(|(_, connection)| connection)
    }
}

impl<H: Host> Links<H> for Connections<H> {
    type Engine = Etcd;
    const ALONE_AT_ONCE: bool = true;

    fn do_queued(&mut self, host: &H, shared: &Shared<Etcd>, batch: &mut Batch) -> bool {
        let mut commands = core::mem::take(&mut self.commands);
        shared.drive(batch, |core, _| {
            let Etcd { client, commands: left } = &mut core.engine;
            core::mem::swap(left, &mut commands);
            // Poll requests last, so that concurrent requests of several handles can be batched.
            commands.extend(core::iter::from_fn(|| client.poll_request()));
        });
        let mut stopped = false;
        for command in commands.drain(..) {
            match command {
                Output::Connect { node, conn } => {
                    let (endpoint, route) = (self.endpoints.get(node.index()), self.routes.get(node.index()));
                    let (Some(endpoint), Some(route)) = (endpoint, route) else { continue };
                    self.open.push((conn, Connection::open(host, route, endpoint)));
                }
                Output::Disconnect { conn } => {
                    let own = self.open.iter_mut().find(|(id, _)| *id == conn);
                    if let (Some((_, connection)), Some(route)) = (own, self.routes.get_mut(conn.node().index())) {
                        connection.give_up(route);
                    }
                    self.open.retain(|(id, _)| *id != conn);
                    tracing::debug!(%conn, "connection closed");
                }
                // If the connection has ended, the machine answers these itself once it learns of
                // the end.
                Output::Call { rpc, request, token } => {
                    if let Some(connection) = self.find(rpc.conn()) {
                        connection.call(rpc, request, token);
                    }
                }
                Output::Open { stream, token } => {
                    if let Some(connection) = self.find(stream.conn()) {
                        connection.open_stream(stream, token);
                    }
                }
                Output::Send { stream, message } => {
                    if let Some(connection) = self.find(stream.conn()) {
                        connection.send(stream, message);
                    }
                }
                Output::Close { stream } => {
                    if let Some(connection) = self.find(stream.conn()) {
                        connection.close_stream(stream);
                    }
                }
                Output::Stopped { unreleased } => {
                    stopped = true;
                    tracing::debug!(unreleased, "client stopped");
                    shared.close(Some(unreleased));
                }
                // Already delivered by `poll_notification`.
                Output::Event { .. } | Output::Election { .. } => {}
            }
        }
        self.commands = commands;
        stopped
    }

    fn poll(&mut self, host: &H, shared: &Shared<Etcd>, batch: &mut Batch, cx: &mut Context<'_>) -> bool {
        let Self { endpoints, routes, open, inputs, .. } = self;
        let mut busy = false;
        open.retain_mut(|(conn, connection)| {
            let Some(route) = routes.get_mut(conn.node().index()) else { return false };
            busy |= connection.poll(host, route, cx, inputs);
            if inputs.is_empty() {
                return true;
            }
            busy = true;
            let server = || endpoints.get(conn.node().index()).map(tracing::field::display);
            let mut goes_on = true;
            for input in inputs.iter() {
                match input {
                    Input::Connected => {
                        route.record_outcome(None);
                        tracing::info!(%conn, server = server(), "connected");
                    }
                    Input::Ended(fault) => {
                        goes_on = false;
                        let error = connection.connect_error.as_ref().map(tracing::field::display);
                        if connection.was_up() {
                            tracing::warn!(%conn, server = server(), %fault, "connection lost");
                        } else if route.record_outcome(Some(*fault)) {
                            tracing::warn!(%conn, server = server(), %fault, error, "cannot connect, retrying");
                        } else {
                            tracing::debug!(%conn, server = server(), %fault, error, "still cannot connect");
                        }
                    }
                    Input::Reply(..) | Input::Message(..) | Input::StreamEnded(..) => {}
                }
            }
            shared.drive(batch, |core, now| {
                let client = &mut core.engine.client;
                for input in inputs.drain(..) {
                    match input {
                        Input::Connected => client.handle_connected(now, *conn),
                        Input::Reply(rpc, reply) => client.handle_reply(now, rpc, reply),
                        Input::Message(stream, message) => client.handle_message(now, stream, message),
                        Input::StreamEnded(stream, status) => client.handle_stream_ended(now, stream, status),
                        Input::Ended(fault) => client.handle_disconnected(now, *conn, fault),
                    }
                }
            });
            goes_on
        });
        busy
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.open.iter().filter_map(|(_, connection)| connection.next_deadline()).min()
    }

    fn clear(&mut self) {
        self.open.clear();
    }

    fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.open));
    }
}

impl<H: Host> fmt::Debug for Connections<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
