//! The transport for etcd: gRPC calls and streams.

use alloc::vec::Vec;
use core::fmt;
use core::task::Context;
use core::time::Duration;

use super::super::address::{Routes, cluster_name};
use super::super::client::Client;
use super::super::connect::ConnectError;
use super::super::credentials::CredentialRequests;
use super::super::engine::{Engine, Notification};
use super::super::event_loop::{EventLoop, Links};
use super::super::host::Host;
use super::super::settings::HostSettings;
use super::super::shared::{Batch, Shared};
use super::connection::{EtcdConnection, MachineInput};
use lock_proto::Instant;
use lock_proto::Machine;
use lock_proto::TlsFault;
use lock_proto::etcd::{self, Endpoint, Output};
use lock_proto::{ClientId, ConnId};

pub(super) fn start<H: Host>(
    host: H,
    client: etcd::Client,
    settings: HostSettings,
    id: ClientId,
    endpoints: &[Endpoint],
) -> Result<(Client, EventLoop<H, EtcdConnections<H>>), ConnectError> {
    // Reports name the cluster, not the member that failed.
    let servers = [cluster_name("etcd", "etcds", endpoints.iter().map(|endpoint| &endpoint.target))].into();
    let routes = Routes::new(endpoints.iter().map(|endpoint| &endpoint.target), &settings, true)?;
    let pings = client.config().pings();
    let shared = Shared::new(id, servers, &host, EtcdEngine { client, commands: Vec::new() });
    let connections = EtcdConnections {
        pings,
        routes,
        credentials: CredentialRequests::new(settings, shared.unread_file.clone()),
        open: Vec::new(),
        commands: Vec::new(),
        inputs: Vec::new(),
    };
    Ok((Client::new(shared.clone()), EventLoop::new(host, shared, connections)))
}

/// The state machine, and the work that it has queued for the driver.
pub(in super::super) struct EtcdEngine {
    pub(super) client: etcd::Client,
    /// Work for the driver. Never an event.
    commands: Vec<Output>,
}

impl Engine for EtcdEngine {
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
                Output::Operation { id, event } => return Some(Notification::Operation(id, event)),
                output @ (Output::Connect { .. }
                | Output::Credentials { .. }
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
pub(in super::super) struct EtcdConnections<H: Host> {
    routes: Routes<H::Resolve>,
    credentials: CredentialRequests,
    /// Interval and timeout of pings.
    pings: (Duration, Duration),
    open: Vec<(ConnId, EtcdConnection<H>)>,
    commands: Vec<Output>,
    inputs: Vec<MachineInput>,
}

impl<H: Host> EtcdConnections<H> {
    fn find(&mut self, conn: ConnId) -> Option<&mut EtcdConnection<H>> {
        self.open.iter_mut().find(|(id, _)| *id == conn).map(|(_, connection)| connection)
    }
}

impl<H: Host> Links<H> for EtcdConnections<H> {
    type Engine = EtcdEngine;

    fn alone_at_once(&self) -> bool {
        true
    }

    fn do_queued(&mut self, host: &H, shared: &Shared<EtcdEngine>, batch: &mut Batch) -> bool {
        let mut commands = core::mem::take(&mut self.commands);
        shared.drive(batch, |core, _| {
            let EtcdEngine { client, commands: left } = &mut core.engine;
            core::mem::swap(left, &mut commands);
            // Poll requests last, so that concurrent requests of several handles can be batched.
            commands.extend(core::iter::from_fn(|| client.poll_request()));
        });
        let mut stopped = false;
        for command in commands.drain(..) {
            match command {
                Output::Connect { node, conn, endpoint } => match self.routes.set(node, &endpoint.target) {
                    Ok(route) => self.open.push((conn, EtcdConnection::open(host, route, &endpoint, self.pings))),
                    Err(error) => {
                        tracing::error!(%conn, server = %endpoint, %error, "cannot connect");
                        let fault = TlsFault::BadSettings.into();
                        shared.drive(batch, |core, now| core.engine.client.handle_disconnected(now, conn, fault));
                    }
                },
                // The connection may have ended since.
                Output::Credentials { conn, request } if self.find(conn).is_some() => {
                    self.credentials.begin(host, conn, *request);
                }
                Output::Credentials { .. } => {}
                Output::Disconnect { conn, why } => {
                    self.credentials.cancel(conn);
                    let own = self.open.iter_mut().find(|(id, _)| *id == conn);
                    if let (Some((_, connection)), Some(route)) = (own, self.routes.get_mut(conn.node())) {
                        connection.give_up(route);
                        if let Some(why) = why {
                            route.log_end(conn, connection.was_up(), why, None);
                        }
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
                Output::Event { .. } | Output::Operation { .. } => {}
            }
        }
        self.commands = commands;
        stopped
    }

    fn poll(&mut self, host: &H, shared: &Shared<EtcdEngine>, batch: &mut Batch, cx: &mut Context<'_>) -> bool {
        let Self { routes, credentials, open, inputs, .. } = self;
        let mut busy = false;
        while let Some((conn, answer)) = credentials.poll(cx) {
            shared.drive(batch, |core, now| core.engine.client.handle_credentials(now, conn, answer));
            busy = true;
        }
        open.retain_mut(|(conn, connection)| {
            let Some(route) = routes.get_mut(conn.node()) else { return false };
            busy |= connection.poll(host, route, cx, inputs);
            if inputs.is_empty() {
                return true;
            }
            busy = true;
            let mut goes_on = true;
            for input in inputs.iter() {
                match input {
                    MachineInput::Connected => {
                        route.succeeded();
                        tracing::info!(client = %shared.id, %conn, server = %route.target, "connected");
                    }
                    MachineInput::Ended(fault) => {
                        goes_on = false;
                        credentials.cancel(*conn);
                        let error = connection.connect_error.as_ref();
                        route.log_end(*conn, connection.was_up(), (*fault).into(), error);
                    }
                    MachineInput::Reply(..) | MachineInput::Message(..) | MachineInput::StreamEnded(..) => {}
                }
            }
            shared.drive(batch, |core, now| {
                let client = &mut core.engine.client;
                for input in inputs.drain(..) {
                    match input {
                        MachineInput::Connected => client.handle_connected(now, *conn),
                        MachineInput::Reply(rpc, reply) => client.handle_reply(now, rpc, reply),
                        MachineInput::Message(stream, message) => client.handle_message(now, stream, message),
                        MachineInput::StreamEnded(stream, status) => client.handle_stream_ended(now, stream, status),
                        MachineInput::Ended(fault) => client.handle_disconnected(now, *conn, fault),
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
        self.credentials.clear();
    }

    fn leak(&mut self) {
        core::mem::forget(core::mem::take(&mut self.open));
        self.credentials.leak();
    }
}

impl<H: Host> fmt::Debug for EtcdConnections<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("routes", &self.routes).finish_non_exhaustive()
    }
}
