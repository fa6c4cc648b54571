//! The connections to one server: one for commands, one that waits for releases.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::key::Key;
use super::listener::{Listener, WakeEvent};
use super::pipe::{Pipe, PipeOutput, ServerInfo};
use super::request::{Reply, Request};
use super::server_error::asks_for_login;
use super::url::Endpoint;
use crate::fault::Fault;
use crate::id::{CallId, ConnId, NodeId, Role};
use crate::lock::{Cause, Credentials, ErrorClass, Output, ServerError};
use crate::time::{Instant, soonest};

/// The place of a link in its client. Not the number of a node: a node may come to have several
/// links, and a link may lead to another server than before.
// N8
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkId(u16);

impl LinkId {
    /// Returns the link that carries the commands of a node. Today each node has one.
    pub(super) const fn of_node(node: NodeId) -> Self {
        Self(node.index() as u16)
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The connections to one server, as one machine. The outputs of [`poll`](Self::poll) come in
/// rounds, which [`sync`](Self::sync) ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    node: NodeId,
    commands: Pipe,
    wake: Pipe,
    listener: Listener,
    /// The listener must be synchronized with its connections.
    changed: bool,
    /// What the listener reports at the end of the round.
    events: Vec<WakeEvent>,
    /// This round has come to the outputs of the wake connection.
    polls_wake: bool,
    identity: IdentityRequest,
}

/// Whether `INFO server` was requested on the current command connection, apart from its
/// handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IdentityRequest {
    No,
    Yes,
    /// The hub learns of the connection together with the reply.
    NodeAwaits,
}

/// An output of a [`Link`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkOutput {
    /// For the host.
    Host(Output),
    /// The command connection is up, with what the handshake tells of the server. The node is up as
    /// well, unless the answer is [`await_identity`](Link::await_identity).
    Up(Option<Result<ServerInfo, ServerError>>),
    /// The reply that [`await_identity`](Link::await_identity) waits for.
    Identity(Result<ServerInfo, ServerError>),
    /// Another reply to `INFO server`.
    Server(Result<ServerInfo, ServerError>),
    /// The command connection has failed.
    Down(Cause),
    /// Nothing has arrived on the command connection for this long.
    Idle(core::time::Duration),
    /// The reply to a request.
    Reply(CallId, Reply),
}

impl Link {
    pub(super) fn new(node: NodeId, pipe: impl Fn(Role) -> Pipe) -> Self {
        Self {
            node,
            commands: pipe(Role::Commands),
            wake: pipe(Role::Wake),
            listener: Listener::default(),
            changed: false,
            events: Vec::new(),
            polls_wake: false,
            identity: IdentityRequest::No,
        }
    }

    pub(super) const fn node(&self) -> NodeId {
        self.node
    }

    pub(super) const fn endpoint(&self) -> &Endpoint {
        &self.commands.config().endpoint
    }

    pub(super) const fn pipe(&self, role: Role) -> &Pipe {
        match role {
            Role::Commands => &self.commands,
            Role::Wake => &self.wake,
        }
    }

    pub(super) const fn pipe_mut(&mut self, role: Role) -> &mut Pipe {
        match role {
            Role::Commands => &mut self.commands,
            Role::Wake => &mut self.wake,
        }
    }

    /// Returns true if neither connection has output and the listener is up to date.
    pub(super) fn is_quiet(&self) -> bool {
        !self.commands.has_output() && !self.wake.has_output() && !self.changed
    }

    pub(super) fn in_flight(&self) -> usize {
        self.commands.in_flight()
    }

    /// Sends a request. A long hold needs the server's identity, to compare it after a reconnect. A
    /// short one does not.
    pub(super) fn send(&mut self, now: Instant, call: CallId, request: Request) {
        if self.identity == IdentityRequest::No && matches!(request, Request::Extend { .. }) && self.commands.is_up() {
            self.identity = IdentityRequest::Yes;
            self.commands.request_server_info(now);
        }
        self.commands.send(now, call, request);
    }

    pub(super) fn listen(&mut self, key: Key) {
        self.listener.subscribe(key);
        self.changed = true;
    }

    pub(super) fn unlisten(&mut self, key: &Key) {
        self.listener.unsubscribe(key);
        self.changed = true;
    }

    /// Reports the node only when its identity is known. A single node does not vote, so requests
    /// need not wait for it.
    pub(super) fn await_identity(&mut self, now: Instant) {
        self.identity = IdentityRequest::NodeAwaits;
        self.commands.request_server_info(now);
    }

    pub(super) fn ping(&mut self, now: Instant) {
        self.commands.ping(now);
    }

    /// Somebody waits for an answer only until `by`.
    pub(super) fn end_pause(&mut self, now: Instant, by: Instant) {
        self.commands.end_pause(now, by);
    }

    /// Closes the command connection if no command is queued and no reply is expected.
    pub(super) fn close_if_unused(&mut self, now: Instant) {
        if self.commands.is_unused() {
            self.commands.close(now);
        }
    }

    /// Nothing needs the command connection.
    pub(super) const fn rest(&mut self) {
        self.commands.rest();
    }

    pub(super) fn close(&mut self, now: Instant) {
        self.commands.close(now);
        self.listener.close(now, &mut self.wake, &mut Vec::new());
    }

    /// Returns true if the node's address leads to another server now, such as a replica.
    pub(super) fn is_wrong_server(&self) -> bool {
        matches!(self.commands.down_cause(), Some(Cause::Server(error)) if is_other_server(error))
    }

    pub(super) fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.pipe_mut(conn.role()).handle_connected(now, conn);
    }

    pub(super) fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.pipe_mut(conn.role()).handle_disconnected(now, conn, why);
    }

    pub(super) fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.pipe_mut(conn.role()).handle_credentials(now, conn, credentials);
    }

    #[inline]
    pub(super) fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.pipe_mut(conn.role()).handle_received(now, conn, bytes);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for pipe in [&mut self.commands, &mut self.wake] {
            if pipe.next_deadline().is_some_and(|at| at <= now) {
                pipe.handle_timeout(now);
            }
        }
        self.changed |= self.listener.deadline().is_some_and(|at| at <= now);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        soonest([self.commands.next_deadline(), self.wake.next_deadline(), self.listener.deadline()])
    }

    /// Returns the next output of the connections.
    pub(super) fn poll(&mut self, now: Instant) -> Option<LinkOutput> {
        while !self.polls_wake
            && let Some(output) = self.commands.poll_output()
        {
            if let Some(output) = self.commands_output(now, output) {
                return Some(output);
            }
        }
        self.polls_wake = true;
        while let Some(output) = self.wake.poll_output() {
            self.changed = true;
            if let Some(output) = self.wake_output(now, output) {
                return Some(output);
            }
        }
        None
    }

    /// Ends the round: synchronizes the listener with its connections, and returns what it reports.
    pub(super) fn sync(&mut self, now: Instant) -> Vec<WakeEvent> {
        self.polls_wake = false;
        if mem::take(&mut self.changed) {
            self.listener.sync(now, &mut self.wake, &mut self.commands, &mut self.events);
        }
        mem::take(&mut self.events)
    }

    fn commands_output(&mut self, now: Instant, output: PipeOutput) -> Option<LinkOutput> {
        match output {
            PipeOutput::Reply { call, reply } => return Some(LinkOutput::Reply(call, reply)),
            PipeOutput::Up(hello) => {
                self.listener.restart(now, &mut self.wake, &mut self.events);
                self.changed = true;
                self.identity =
                    if self.commands.config().server_info { IdentityRequest::Yes } else { IdentityRequest::No };
                return Some(LinkOutput::Up(hello.server));
            }
            PipeOutput::Server(server) if self.identity == IdentityRequest::NodeAwaits => {
                return Some(LinkOutput::Identity(server));
            }
            PipeOutput::Server(server) => return Some(LinkOutput::Server(server)),
            PipeOutput::Down(cause) => return Some(LinkOutput::Down(cause)),
            PipeOutput::Idle(silence) => return Some(LinkOutput::Idle(silence)),
            PipeOutput::UnblockRefused(_) => self.listener.unblock_refused(),
            PipeOutput::NotBlocked => {
                self.listener.not_blocked(now);
                self.changed = true;
            }
            PipeOutput::Connect(_)
            | PipeOutput::Credentials(..)
            | PipeOutput::Disconnect(..)
            | PipeOutput::Woken(_)
            | PipeOutput::BlockRefused(_) => return self.host_output(output),
        }
        None
    }

    fn wake_output(&mut self, now: Instant, output: PipeOutput) -> Option<LinkOutput> {
        match output {
            PipeOutput::Up(hello) => self.listener.connected(hello.client_id),
            PipeOutput::Down(_) => self.listener.disconnected(&mut self.events),
            PipeOutput::Woken(list) => self.listener.woken(list.as_deref(), &mut self.events),
            PipeOutput::BlockRefused(error) => {
                // The server has become a replica. A client that only waits learns it from no
                // other command.
                if is_other_server(&error) {
                    self.commands.leave_server(now, &error);
                }
                self.listener.block_refused(now, &error, &mut self.wake, &mut self.events);
            }
            PipeOutput::Connect(_)
            | PipeOutput::Credentials(..)
            | PipeOutput::Disconnect(..)
            | PipeOutput::UnblockRefused(_)
            | PipeOutput::NotBlocked
            | PipeOutput::Idle(_)
            | PipeOutput::Reply { .. }
            | PipeOutput::Server(_) => return self.host_output(output),
        }
        None
    }

    fn host_output(&self, output: PipeOutput) -> Option<LinkOutput> {
        Some(LinkOutput::Host(match output {
            PipeOutput::Connect(conn) => {
                Output::Connect { node: self.node, conn, target: Box::new(self.endpoint().target.clone()) }
            }
            PipeOutput::Credentials(conn, request) => Output::Credentials { conn, request },
            PipeOutput::Disconnect(conn, why) => Output::Disconnect { conn, why },
            PipeOutput::Up(_)
            | PipeOutput::Server(_)
            | PipeOutput::Down(_)
            | PipeOutput::Idle(_)
            | PipeOutput::Reply { .. }
            | PipeOutput::Woken(_)
            | PipeOutput::BlockRefused(_)
            | PipeOutput::UnblockRefused(_)
            | PipeOutput::NotBlocked => return None,
        }))
    }
}

/// Returns true if the error tells that the address leads to another server now, such as a replica.
fn is_other_server(error: &ServerError) -> bool {
    error.class == ErrorClass::Reconnect && !asks_for_login(&error.text)
}
