//! The complete Redis client: hub and connections, bytes in and bytes out.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::config::Config;
use super::listener::{Listener, WakeEvent};
use super::lock::Redis;
use super::locks::Locks;
use super::output::LocksOutput;
use super::pipe::{Limits, Pipe, PipeConfig, PipeOutput};
use super::request::Request;
use super::server_error::asks_for_login;
use super::url::Endpoint;
use crate::collections::burst;
use crate::error::ConfigError;
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{self, ByteClient, Cause, Credentials, ErrorClass, Output, ServerError, Transport};
use crate::time::{Instant, soonest};
use crate::url::Target;

/// A client of one Redis node or of a quorum of nodes. It performs no I/O.
///
/// See [`Machine`](crate::Machine) for its operations and [`ByteClient`] for its bytes.
pub type Client = lock::Client<Redis>;

/// The connections to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    commands: Pipe,
    wake: Pipe,
    listener: Listener,
    /// The listener must be synchronized with its connections.
    changed: bool,
    /// `INFO server` was requested on the current command connection.
    server_info_requested: bool,
    /// The hub learns of the connection together with the reply to `INFO server`.
    node_up_awaits_server_info: bool,
}

impl Link {
    const fn pipe(&self, role: Role) -> &Pipe {
        match role {
            Role::Commands => &self.commands,
            Role::Wake => &self.wake,
        }
    }

    const fn pipe_mut(&mut self, role: Role) -> &mut Pipe {
        match role {
            Role::Commands => &mut self.commands,
            Role::Wake => &mut self.wake,
        }
    }

    /// Returns true if neither connection has output and the listener is up to date.
    fn is_quiet(&self) -> bool {
        !self.commands.has_output() && !self.wake.has_output() && !self.changed
    }
}

impl Transport for Redis {
    type Links = Vec<Link>;
    type HostOutput = Output;

    fn connected(links: &mut Vec<Link>, now: Instant, conn: ConnId) {
        if let Some(pipe) = pipe(links, conn) {
            pipe.handle_connected(now, conn);
        }
    }

    fn disconnected(links: &mut Vec<Link>, now: Instant, conn: ConnId, why: Fault) {
        if let Some(pipe) = pipe(links, conn) {
            pipe.handle_disconnected(now, conn, why);
        }
    }

    fn credentials(links: &mut Vec<Link>, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        if let Some(pipe) = pipe(links, conn) {
            pipe.handle_credentials(now, conn, credentials);
        }
    }

    fn links_timeout(links: &mut Vec<Link>, now: Instant) {
        for link in links {
            for pipe in [&mut link.commands, &mut link.wake] {
                if pipe.next_deadline().is_some_and(|at| at <= now) {
                    pipe.handle_timeout(now);
                }
            }
            link.changed |= link.listener.deadline().is_some_and(|at| at <= now);
        }
    }

    fn links_deadline(links: &Vec<Link>) -> Option<(Instant, &'static str)> {
        let of_link =
            |link: &Link| soonest([link.commands.next_deadline(), link.wake.next_deadline(), link.listener.deadline()]);
        links.iter().filter_map(of_link).min().map(|at| (at, "connection"))
    }

    fn in_flight(links: &Vec<Link>) -> usize {
        links.iter().map(|link| link.commands.in_flight()).sum()
    }

    fn route(client: &mut Client) {
        loop {
            client.route_locks();
            let mut quiet = true;
            for index in 0..client.links.len() {
                if !client.links[index].is_quiet() {
                    quiet = false;
                    client.route_link(index);
                }
            }
            if quiet {
                return;
            }
        }
    }
}

/// Returns true if the error tells that the address leads to another server now, such as a replica.
fn is_other_server(error: &ServerError) -> bool {
    error.class == ErrorClass::Reconnect && !asks_for_login(&error.text)
}

fn connect(pipe: &Pipe, conn: ConnId) -> Output {
    Output::Connect { node: conn.node(), conn, target: Box::new(pipe.config().endpoint.target.clone()) }
}

fn pipe(links: &mut [Link], conn: ConnId) -> Option<&mut Pipe> {
    Some(links.get_mut(conn.node().index())?.pipe_mut(conn.role()))
}

impl Client {
    /// Creates a client for the nodes of `config`. It connects when the first lock is requested.
    ///
    /// `id` must be globally unique; `seed` is 64 bits of entropy. Take both from the system.
    ///
    /// # Errors
    ///
    /// Returns the first setting that is out of range, with its value and the allowed range.
    pub fn new(now: Instant, config: Config, id: ClientId, seed: u64) -> Result<Self, ConfigError> {
        let locks = Locks::new(now, config, id, seed)?;
        let config = locks.config();
        let pipe = |index: usize, role: Role| {
            let pipe_config = PipeConfig {
                endpoint: config.nodes()[index].clone(),
                node: NodeId::new(index as u16),
                role,
                server_info: config.is_quorum() && role == Role::Commands,
                request_credentials: config.request_credentials,
                idle_checks: (role == Role::Commands).then_some([config.ping_after, config.idle_timeout]),
                connect_timeout: config.connect_timeout,
                request_timeout: config.request_timeout,
                reconnect: config.reconnect,
                limits: Limits::default(),
            };
            let stream = 2 * index as u64 + u64::from(role == Role::Wake);
            Pipe::new(pipe_config, locks.identity().clone(), mix(seed, stream))
        };
        let links = (0..config.nodes().len())
            .map(|index| Link {
                commands: pipe(index, Role::Commands),
                wake: pipe(index, Role::Wake),
                listener: Listener::default(),
                changed: false,
                server_info_requested: false,
                node_up_awaits_server_info: false,
            })
            .collect();
        Ok(Self::with(locks, links))
    }

    /// Returns the address and the login of a node.
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.config().nodes().get(node.index())
    }

    /// Routes the hub's outputs to the connections and the application.
    fn route_locks(&mut self) {
        let now = self.now();
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request } => {
                    if let Some(link) = self.links.get_mut(call.node().index()) {
                        // A long hold needs the server's identity, to compare it after a reconnect.
                        // A short one does not.
                        if !link.server_info_requested
                            && matches!(request, Request::Extend { .. })
                            && link.commands.is_up()
                        {
                            link.server_info_requested = true;
                            link.commands.request_server_info(now);
                            link.changed = true;
                        }
                        link.commands.send(now, call, request);
                    }
                }
                LocksOutput::Event { lock, event } => self.out.push_back(Output::Event { lock, event }),
                LocksOutput::Listen { node, key } => {
                    if let Some(link) = self.links.get_mut(node.index()) {
                        link.listener.subscribe(key);
                        link.changed = true;
                    }
                }
                LocksOutput::Unlisten { node, key } => {
                    if let Some(link) = self.links.get_mut(node.index()) {
                        link.listener.unsubscribe(&key);
                        link.changed = true;
                    }
                }
                LocksOutput::Stopped { unreleased } => {
                    for link in &mut self.links {
                        link.commands.close(now);
                        link.listener.close(now, &mut link.wake, &mut Vec::new());
                    }
                    self.out.push_back(Output::Stopped { unreleased });
                }
            }
        }
    }

    /// Routes the outputs of one node's connections to the hub.
    fn route_link(&mut self, index: usize) {
        let now = self.now();
        let node = NodeId::new(index as u16);
        let link = &mut self.links[index];
        let mut events = Vec::new();
        while let Some(output) = link.commands.poll_output() {
            match output {
                PipeOutput::Connect(conn) => self.out.push_back(connect(&link.commands, conn)),
                PipeOutput::Credentials(conn, request) => self.out.push_back(Output::Credentials { conn, request }),
                PipeOutput::Disconnect(conn, why) => self.out.push_back(Output::Disconnect { conn, why }),
                PipeOutput::Up(hello) => {
                    link.listener.restart(now, &mut link.wake, &mut events);
                    link.changed = true;
                    let quorum = self.locks.config().is_quorum();
                    link.node_up_awaits_server_info = !quorum && self.locks.compares_identity(node);
                    link.server_info_requested = quorum || link.node_up_awaits_server_info;
                    if link.node_up_awaits_server_info {
                        // A single node does not vote, so requests need not wait for its identity.
                        link.commands.request_server_info(now);
                    } else {
                        self.locks.handle_node_up(now, node, hello.server.as_ref());
                    }
                }
                PipeOutput::Server(server) if link.node_up_awaits_server_info => {
                    self.locks.handle_node_up(now, node, Some(&server));
                }
                PipeOutput::Server(server) => self.locks.handle_server(now, node, &server),
                PipeOutput::Reply { call, reply } => self.locks.handle_reply(now, call, &reply),
                PipeOutput::UnblockRefused(_) => link.listener.unblock_refused(),
                PipeOutput::NotBlocked => {
                    link.listener.not_blocked(now);
                    link.changed = true;
                }
                PipeOutput::Idle(silence) => {
                    if self.locks.is_used() {
                        if silence >= self.locks.config().ping_after {
                            link.commands.ping(now);
                        }
                    } else if silence >= self.locks.config().idle_timeout && link.commands.is_unused() {
                        link.commands.close(now);
                    }
                }
                PipeOutput::Down(_) if self.locks.may_rest() => link.commands.rest(),
                PipeOutput::Down(Cause::Server(error)) => self.locks.handle_login_refused(node, error),
                PipeOutput::Down(Cause::Fault(_)) | PipeOutput::Woken(_) | PipeOutput::BlockRefused(_) => {}
            }
        }
        if !link.wake.has_output() && !link.changed {
            return;
        }
        while let Some(output) = link.wake.poll_output() {
            link.changed = true;
            match output {
                PipeOutput::Connect(conn) => self.out.push_back(connect(&link.wake, conn)),
                PipeOutput::Credentials(conn, request) => self.out.push_back(Output::Credentials { conn, request }),
                PipeOutput::Disconnect(conn, why) => self.out.push_back(Output::Disconnect { conn, why }),
                PipeOutput::Up(hello) => link.listener.connected(hello.client_id),
                PipeOutput::Down(_) => link.listener.disconnected(&mut events),
                PipeOutput::Woken(list) => link.listener.woken(list.as_deref(), &mut events),
                PipeOutput::BlockRefused(error) => {
                    // The server has become a replica. A client that only waits learns it from no
                    // other command.
                    if is_other_server(&error) {
                        link.commands.leave_server(now, &error);
                    }
                    link.listener.block_refused(now, &error, &mut link.wake, &mut events)
                }
                PipeOutput::UnblockRefused(_)
                | PipeOutput::NotBlocked
                | PipeOutput::Idle(_)
                | PipeOutput::Reply { .. }
                | PipeOutput::Server(_) => {}
            }
        }
        if link.changed {
            link.changed = false;
            link.listener.sync(now, &mut link.wake, &mut link.commands, &mut events);
        }
        for event in events {
            match event {
                WakeEvent::Subscribed(key) => self.locks.handle_subscribed(now, node, &key),
                WakeEvent::Unsubscribed(key) => self.locks.handle_unsubscribed(now, node, &key),
                WakeEvent::Signal(key) => self.locks.handle_signal(now, node, &key),
            }
        }
    }
}

impl ByteClient for Client {
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.input(now, |links, now| {
            if let Some(pipe) = pipe(links, conn) {
                pipe.handle_received(now, conn, bytes);
            }
        });
    }

    fn poll_output(&mut self) -> Option<Output> {
        burst::pop(&mut self.out)
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        pipe(&mut self.links, conn).map_or(&[], |pipe| pipe.outgoing(conn))
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        let link = self.links.get(conn.node().index());
        link.is_some_and(|link| link.commands.has_outgoing(conn) || link.wake.has_outgoing(conn))
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(pipe) = pipe(&mut self.links, conn) {
            pipe.consume(conn, n);
        }
    }

    fn target(&self, node: NodeId) -> Option<&Target> {
        self.endpoint(node).map(|endpoint| &endpoint.target)
    }

    fn is_up(&self, conn: ConnId) -> bool {
        let link = self.links.get(conn.node().index());
        link.is_some_and(|link| {
            let pipe = link.pipe(conn.role());
            pipe.is_up() && pipe.current() == Some(conn)
        })
    }

    fn is_wrong_server(&self, conn: ConnId) -> bool {
        let down = self.links.get(conn.node().index()).and_then(|link| link.commands.down_cause());
        matches!(down, Some(Cause::Server(error)) if is_other_server(error)) && conn.role() == Role::Commands
    }
}
