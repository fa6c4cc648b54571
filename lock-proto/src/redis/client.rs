//! The complete Redis client: hub and connections, bytes in and bytes out.

use alloc::vec::Vec;

use super::config::Config;
use super::link::{Link, LinkId, LinkOutput};
use super::listener::WakeEvent;
use super::lock::Redis;
use super::locks::Locks;
use super::output::LocksOutput;
use super::pipe::{Limits, Pipe, PipeConfig};
use super::url::Endpoint;
use crate::collections::burst;
use crate::error::ConfigError;
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{self, ByteClient, Cause, Credentials, Output, Transport};
use crate::time::Instant;
use crate::url::Target;

/// A client of one Redis node or of a quorum of nodes. It performs no I/O.
///
/// See [`Machine`](crate::Machine) for its operations and [`ByteClient`] for its bytes.
pub type Client = lock::Client<Redis>;

impl Transport for Redis {
    type Links = Vec<Link>;
    type HostOutput = Output;

    fn connected(links: &mut Vec<Link>, now: Instant, conn: ConnId) {
        if let Some(link) = link(links, conn.node()) {
            link.handle_connected(now, conn);
        }
    }

    fn disconnected(links: &mut Vec<Link>, now: Instant, conn: ConnId, why: Fault) {
        if let Some(link) = link(links, conn.node()) {
            link.handle_disconnected(now, conn, why);
        }
    }

    fn credentials(links: &mut Vec<Link>, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        if let Some(link) = link(links, conn.node()) {
            link.handle_credentials(now, conn, credentials);
        }
    }

    fn links_timeout(links: &mut Vec<Link>, now: Instant) {
        links.iter_mut().for_each(|link| link.handle_timeout(now));
    }

    fn links_deadline(links: &Vec<Link>) -> Option<(Instant, &'static str)> {
        links.iter().filter_map(Link::next_deadline).min().map(|at| (at, "connection"))
    }

    fn in_flight(links: &Vec<Link>) -> usize {
        links.iter().map(Link::in_flight).sum()
    }

    fn hurry(client: &mut Client, by: Instant) {
        let now = client.now();
        client.links.iter_mut().for_each(|link| link.end_pause(now, by));
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

fn link(links: &mut [Link], node: NodeId) -> Option<&mut Link> {
    links.get_mut(LinkId::of_node(node).index())
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
        let pipe = |node: NodeId, endpoint: &Endpoint, role: Role| {
            let pipe_config = PipeConfig {
                endpoint: endpoint.clone(),
                node,
                role,
                server_info: config.is_quorum() && role == Role::Commands,
                request_credentials: config.request_credentials,
                idle_checks: (role == Role::Commands).then_some([config.ping_after, config.idle_timeout]),
                connect_timeout: config.connect_timeout,
                request_timeout: config.request_timeout,
                reconnect: config.reconnect,
                limits: Limits::default(),
            };
            let stream = 2 * node.index() as u64 + u64::from(role == Role::Wake);
            Pipe::new(pipe_config, locks.identity().clone(), mix(seed, stream))
        };
        let nodes = (0..).map(NodeId::new).zip(config.nodes());
        let links = nodes.map(|(node, endpoint)| Link::new(node, |role| pipe(node, endpoint, role))).collect();
        Ok(Self::with(locks, links))
    }

    /// Returns the address and the login of a node.
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.config().nodes().get(node.index())
    }

    fn link(&self, node: NodeId) -> Option<&Link> {
        self.links.get(LinkId::of_node(node).index())
    }

    /// Routes the hub's outputs to the connections and the application.
    fn route_locks(&mut self) {
        let now = self.now();
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request } => {
                    if let Some(link) = link(&mut self.links, call.node()) {
                        link.send(now, call, request);
                    }
                }
                LocksOutput::Event { lock, event } => self.out.push_back(Output::Event { lock, event }),
                LocksOutput::Operation { id, event } => self.out.push_back(Output::Operation { id, event }),
                LocksOutput::Listen { node, key } => {
                    if let Some(link) = link(&mut self.links, node) {
                        link.listen(key);
                    }
                }
                LocksOutput::Unlisten { node, key } => {
                    if let Some(link) = link(&mut self.links, node) {
                        link.unlisten(&key);
                    }
                }
                LocksOutput::Stopped { unreleased } => {
                    self.links.iter_mut().for_each(|link| link.close(now));
                    self.out.push_back(Output::Stopped { unreleased });
                }
            }
        }
    }

    /// Routes the outputs of a link to the hub.
    fn route_link(&mut self, index: usize) {
        let now = self.now();
        let link = &mut self.links[index];
        let node = link.node();
        while let Some(output) = link.poll(now) {
            match output {
                LinkOutput::Host(output) => self.out.push_back(output),
                LinkOutput::Reply(call, reply) => self.locks.handle_reply(now, call, &reply),
                LinkOutput::Up(_) if !self.locks.config().is_quorum() && self.locks.compares_identity(node) => {
                    link.await_identity(now);
                }
                LinkOutput::Up(server) => self.locks.handle_node_up(now, node, server.as_ref()),
                LinkOutput::Identity(server) => self.locks.handle_node_up(now, node, Some(&server)),
                LinkOutput::Server(server) => self.locks.handle_server(now, node, &server),
                // The hub decides: a held lock may have nothing in flight, and what is due is sent
                // first.
                // P7
                LinkOutput::Idle(silence) => {
                    if self.locks.is_used() {
                        if silence >= self.locks.config().ping_after {
                            link.ping(now);
                        }
                    } else if silence >= self.locks.config().idle_timeout {
                        link.close_if_unused(now);
                    }
                }
                LinkOutput::Down(_) if self.locks.may_rest() => link.rest(),
                LinkOutput::Down(Cause::Server(error)) => self.locks.handle_login_refused(node, error),
                LinkOutput::Down(Cause::Fault(_)) => {}
            }
        }
        for event in link.sync(now) {
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
            if let Some(link) = link(links, conn.node()) {
                link.handle_received(now, conn, bytes);
            }
        });
    }

    fn poll_output(&mut self) -> Option<Output> {
        burst::pop(&mut self.out)
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        link(&mut self.links, conn.node()).map_or(&[], |link| link.pipe_mut(conn.role()).outgoing(conn))
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        self.link(conn.node()).is_some_and(|link| link.pipe(conn.role()).has_outgoing(conn))
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(link) = link(&mut self.links, conn.node()) {
            link.pipe_mut(conn.role()).consume(conn, n);
        }
    }

    fn target(&self, node: NodeId) -> Option<&Target> {
        self.endpoint(node).map(|endpoint| &endpoint.target)
    }

    fn is_up(&self, conn: ConnId) -> bool {
        self.link(conn.node()).is_some_and(|link| {
            let pipe = link.pipe(conn.role());
            pipe.is_up() && pipe.is_current(conn)
        })
    }

    fn is_wrong_server(&self, conn: ConnId) -> bool {
        conn.role() == Role::Commands && self.link(conn.node()).is_some_and(Link::is_wrong_server)
    }
}
