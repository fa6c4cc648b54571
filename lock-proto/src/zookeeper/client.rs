//! The complete ZooKeeper client: hub and connections, bytes in and bytes out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::config::Config;
use super::lock::ZooKeeper;
use super::locks::Locks;
use super::output::{LocksOutput, SessionOutput};
use super::pipe::{Limits, Pipe, PipeConfig, PipeOutput};
use super::request::{Reply, SessionReport};
use crate::collections::{Waiting, burst};
use crate::error::ConfigError;
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, GENERATIONS, NodeId};
use crate::jitter::mix;
use crate::lock::{self, ByteClient, Credentials, Output, SessionId, Transport};
use crate::time::Instant;
use crate::url::Target;

/// A client of a ZooKeeper ensemble. It performs no I/O.
///
/// See [`Machine`](crate::Machine) for its operations, [`ByteClient`] for its bytes, and
/// [`Elections`](crate::Elections) for elections.
pub type Client = lock::Client<ZooKeeper>;

/// The connections: one for each session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionLinks {
    pipes: BTreeMap<SessionId, Pipe>,
    /// Those that may have output.
    active: BTreeSet<SessionId>,
    /// When each one is due.
    // M7
    timers: Waiting<SessionId>,
}

impl SessionLinks {
    const fn session(conn: ConnId) -> SessionId {
        SessionId((conn.generation / GENERATIONS).wrapping_sub(1) as u32)
    }

    /// Passes input to the pipe of a session, which may have output afterwards. Returns false if
    /// there is none: the session has ended.
    fn input(&mut self, session: SessionId, f: impl FnOnce(&mut Pipe)) -> bool {
        let Some(pipe) = self.pipes.get_mut(&session) else { return false };
        f(pipe);
        self.active.insert(session);
        true
    }

    #[cfg(test)]
    pub(super) fn timers_are_true(&self) -> bool {
        self.timers.earliest() == self.pipes.values().filter_map(Pipe::next_deadline).min()
    }

    /// The pipe of a session has no output left: notes when it is due.
    fn set_timer(&mut self, session: SessionId) {
        let place = u64::from(session.0);
        match self.pipes.get(&session).and_then(Pipe::next_deadline) {
            Some(at) if self.timers.reschedule(place, at) => {}
            Some(at) => self.timers.put(place, session, at),
            None => drop(self.timers.take(place)),
        }
    }
}

impl Transport for ZooKeeper {
    type Links = SessionLinks;
    type HostOutput = Output;

    fn connected(links: &mut SessionLinks, now: Instant, conn: ConnId) {
        links.input(SessionLinks::session(conn), |pipe| pipe.handle_connected(now, conn));
    }

    fn disconnected(links: &mut SessionLinks, now: Instant, conn: ConnId, why: Fault) {
        links.input(SessionLinks::session(conn), |pipe| pipe.handle_disconnected(now, conn, why));
    }

    fn credentials(links: &mut SessionLinks, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        links.input(SessionLinks::session(conn), |pipe| pipe.handle_credentials(now, conn, credentials));
    }

    fn links_timeout(links: &mut SessionLinks, now: Instant) {
        for session in links.timers.due(now).copied().collect::<Vec<_>>() {
            links.input(session, |pipe| pipe.handle_timeout(now));
        }
    }

    fn links_deadline(links: &SessionLinks) -> Option<(Instant, &'static str)> {
        links.timers.earliest().map(|at| (at, "connection"))
    }

    fn in_flight(links: &SessionLinks) -> usize {
        links.pipes.values().map(Pipe::in_flight).sum()
    }

    fn hurry(client: &mut Client, by: Instant) {
        let now = client.now();
        let env = &mut client.locks.ctx.env;
        let Some(session) = env.shared.sessions.shared else { return };
        client.links.input(session, |pipe| {
            let ended = pipe.end_pause(now, by);
            if ended || pipe.is_opening() {
                env.session_step(session, |session, _| session.reopens(ended));
            }
        });
    }

    fn route(client: &mut Client) {
        loop {
            client.route_locks();
            let Some(session) = client.links.active.pop_first() else { return };
            client.route_pipe(session);
        }
    }
}

impl Client {
    /// Creates a client of the ensemble in `config`. It connects when the first lock is requested.
    ///
    /// `id` must be globally unique; `seed` is 64 bits of entropy. Take both from the system.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is out of range, with the allowed range.
    pub fn new(now: Instant, config: Config, id: ClientId, seed: u64) -> Result<Self, ConfigError> {
        Ok(Self::with(Locks::new(now, config, id, seed)?, SessionLinks::default()))
    }

    fn open(&mut self, session: SessionId, timeout: core::time::Duration) {
        let now = self.now();
        if self.links.input(session, |pipe| pipe.reopen(now)) {
            return;
        }
        let config = self.locks.config();
        let number = u64::from(session.0) + 1;
        let pipe_config = PipeConfig {
            servers: config.store.own.servers.clone(),
            login: config.store.login.clone(),
            request_credentials: config.request_credentials,
            timeout,
            tick: config.store.own.tick,
            ping_after: config.ping_interval(),
            connect_timeout: config.connect_timeout,
            request_timeout: config.request_timeout,
            reconnect: config.reconnect,
            limits: Limits::default(),
            generation: number.wrapping_mul(GENERATIONS),
        };
        let mut pipe = Pipe::new(pipe_config, mix(self.locks.ctx.env.seed, number));
        pipe.open(now);
        self.links.pipes.insert(session, pipe);
        self.links.active.insert(session);
    }

    /// Routes the hub's outputs to the connections and the application.
    fn route_locks(&mut self) {
        let now = self.now();
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Store(SessionOutput::Open { session, timeout }) => self.open(session, timeout),
                LocksOutput::Send { call, request, .. } => {
                    if !self.links.input(request.session, |pipe| pipe.send(now, call, request.op)) {
                        // It has ended, or is opened after a pause.
                        let ended = self.locks.ctx.env.is_lost(request.session);
                        let fault = if ended { Fault::NotNeeded } else { Fault::Transport };
                        let reply = Reply::NotSent(fault.into());
                        self.answered(now, reply.answer());
                        self.locks.handle_reply(now, call, &reply);
                    }
                }
                LocksOutput::Store(SessionOutput::Quiet { session }) => {
                    self.links.input(session, |pipe| pipe.quiet(now));
                }
                LocksOutput::Store(SessionOutput::End { session }) => {
                    self.links.input(session, |pipe| pipe.end(now));
                }
                LocksOutput::Event { lock, event } => self.out.push_back(Output::Event { lock, event }),
                LocksOutput::Operation { id, event } => self.out.push_back(Output::Operation { id, event }),
                LocksOutput::Stopped { unreleased } => {
                    for session in self.links.pipes.keys().copied().collect::<Vec<_>>() {
                        self.links.input(session, |pipe| pipe.close(now));
                        self.route_pipe(session);
                    }
                    self.links = SessionLinks::default();
                    self.out.push_back(Output::Stopped { unreleased });
                }
            }
        }
    }

    /// Routes the outputs of one session's connection to the hub.
    fn route_pipe(&mut self, session: SessionId) {
        let now = self.now();
        while let Some(output) = self.links.pipes.get_mut(&session).and_then(Pipe::poll_output) {
            match output {
                PipeOutput::Connect(conn, target) => {
                    self.out.push_back(Output::Connect { node: conn.node(), conn, target });
                }
                PipeOutput::Credentials(conn, request) => self.out.push_back(Output::Credentials { conn, request }),
                PipeOutput::Disconnect(conn, why) => self.out.push_back(Output::Disconnect { conn, why }),
                PipeOutput::Session(report) => {
                    if let SessionReport::Expired | SessionReport::Ended { .. } = report {
                        self.links.pipes.remove(&session);
                    }
                    self.locks.handle_session(now, session, &report);
                }
                PipeOutput::Reply { call, reply } => {
                    self.answered(now, reply.answer());
                    self.locks.handle_reply(now, call, &reply);
                }
                PipeOutput::Event(event) => self.locks.handle_event(now, session, &event),
            }
        }
        self.links.set_timer(session);
    }
}

impl ByteClient for Client {
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.input(now, |links, now| {
            links.input(SessionLinks::session(conn), |pipe| pipe.handle_received(now, conn, bytes));
        });
    }

    fn poll_output(&mut self) -> Option<Output> {
        burst::pop(&mut self.out)
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        self.links.pipes.get_mut(&SessionLinks::session(conn)).map_or(&[], |pipe| pipe.outgoing(conn))
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        self.links.pipes.get(&SessionLinks::session(conn)).is_some_and(|pipe| pipe.has_outgoing(conn))
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(pipe) = self.links.pipes.get_mut(&SessionLinks::session(conn)) {
            pipe.consume(conn, n);
        }
    }

    fn is_up(&self, conn: ConnId) -> bool {
        let pipe = self.links.pipes.get(&SessionLinks::session(conn));
        pipe.is_some_and(|pipe| pipe.is_up() && pipe.current() == Some(conn))
    }

    fn target(&self, node: NodeId) -> Option<&Target> {
        self.config().servers().get(node.index())
    }
}
