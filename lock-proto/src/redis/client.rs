//! The whole machine: the hub and its connections, bytes in and bytes out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::config::Config;
use super::listener::{Heard, Listener};
use super::locks::Locks;
use super::pipe::{Limits, Pipe, PipeConfig, PipeOutput};
use super::request::Request;
use super::url::Endpoint;
use crate::collections::burst;
use crate::error::{ConfigError, Misuse};
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, LockId, NodeId, Role};
use crate::jitter::mix;
use crate::lock::{Acquire, Cause, Drift, Event, Machine};
use crate::redis::output::LocksOutput;
use crate::time::{Instant, soonest};

/// Everything that a client of one or several Redis nodes does, without doing any I/O.
///
/// The host owns sockets, clock and entropy. It calls a verb or a `handle_` method, then drains `poll_output` until it is empty,
/// writes what `outgoing` shows of each open connection and reports it by `consume`, and calls `handle_timeout` at
/// `next_deadline`. Every call takes the time first. Facts about connections that are not current any more are dropped, so they may
/// come late, twice or never.
///
/// Nothing about safety depends on the order in which a host does these things: whether a lock is held is for the clock to say,
/// see [`valid_until`](Self::valid_until).
///
/// A client is a value (requirement D2): it can be cloned, compared and hashed, and equal histories give equal clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    locks: Locks,
    links: Vec<Link>,
    out: VecDeque<Output>,
    now: Instant,
}

/// The connections to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    commands: Pipe,
    wake: Pipe,
    listener: Listener,
    /// The listener has to be brought in line.
    changed: bool,
    /// The server was asked on this connection who it is.
    asked: bool,
    /// The hub hears of this connection together with the answer.
    announced_by_answer: bool,
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

    /// Nothing has to be carried to or from it.
    fn is_quiet(&self) -> bool {
        !self.commands.has_output() && !self.wake.has_output() && !self.changed
    }
}

/// What the host has to do. Exhaustive on purpose: a new duty must not go unnoticed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an output that is not carried out stalls the client"]
pub enum Output {
    /// Open a connection, then report `handle_connected` or `handle_disconnected`. Resolve the name anew each time; if it has several addresses, do
    /// not wait for a dead one (RFC 8305).
    Connect {
        /// Where to: see [`Client::endpoint`].
        node: NodeId,
        /// Its name from now on.
        conn: ConnId,
    },
    /// Close this connection (or stop opening it). Nothing needs to be reported.
    Disconnect {
        /// The connection.
        conn: ConnId,
    },
    /// Tell the owner of this acquisition.
    Event {
        /// Which acquisition.
        lock: LockId,
        /// What happened.
        event: Event,
    },
    /// The shutdown is over, every connection is closed.
    Stopped {
        /// Locks that something may be left of, until its TTL ends: their deletes were not confirmed in time.
        unreleased: u32,
    },
}

impl Client {
    /// A client of the nodes of `config`. Connections are opened when the first lock is wanted.
    ///
    /// `id` must be unique in the world, `seed` is 64 bits of entropy for jitter: take both from the operating system.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range, with its value and what is allowed.
    pub fn new(now: Instant, config: Config, id: ClientId, seed: u64) -> Result<Self, ConfigError> {
        let locks = Locks::new(now, config, id, seed)?;
        let config = locks.config();
        let pipe = |index: usize, role: Role| {
            let pipe_config = PipeConfig {
                endpoint: config.nodes[index].clone(),
                node: NodeId::new(index as u16),
                role,
                server_info: config.is_quorum() && role == Role::Commands,
                connect_timeout: config.connect_timeout,
                reconnect: config.reconnect,
                limits: Limits::default(),
            };
            let stream = 2 * index as u64 + u64::from(role == Role::Wake);
            Pipe::new(pipe_config, locks.identity().clone(), mix(seed, stream))
        };
        let links = (0..config.nodes.len())
            .map(|index| Link {
                commands: pipe(index, Role::Commands),
                wake: pipe(index, Role::Wake),
                listener: Listener::default(),
                changed: false,
                asked: false,
                announced_by_answer: false,
            })
            .collect();
        Ok(Self { locks, links, out: VecDeque::new(), now })
    }

    // --- verbs ---

    /// Wishes for a lock. Its fate comes as events of the id that is returned.
    ///
    /// # Errors
    ///
    /// [`Misuse`]: a value out of range, a shutdown under way, too many locks. Nothing has changed then.
    pub fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.advance(now);
        let id = self.locks.acquire(now, want)?;
        self.route();
        Ok(id)
    }

    /// Takes the lock that was offered by [`Event::Granted`]. Only from then on is it renewed (requirement H5).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] or [`Misuse::Stale`] if the offer was withdrawn, or nothing was offered.
    pub fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.advance(now);
        let claimed = self.locks.claim(now, lock);
        self.route();
        claimed
    }

    /// Gives the lock a full TTL from now on. Each call is answered by an [`Event::Extended`] or [`Event::ExtendFailed`] of its own, in the
    /// order of the calls, unless the lock is lost or given back first.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the lock is not held.
    pub fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.advance(now);
        let asked = self.locks.extend(now, lock);
        self.route();
        asked
    }

    /// Gives the lock back. Answered by [`Event::Released`]. Legal for a lock that is held, offered or lost.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if it has ended, is waited for only, or is being released already.
    pub fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.advance(now);
        let asked = self.locks.release(now, lock);
        self.route();
        asked
    }

    /// Ends the acquisition, whatever state it is in: no event of it follows, nothing of it is left behind. Legal in every state; for an
    /// id that has ended it does nothing. This is what `Drop` calls.
    pub fn abandon(&mut self, now: Instant, lock: LockId) {
        self.advance(now);
        self.locks.abandon(now, lock);
        self.route();
    }

    /// Gives back what is held, answers who waits, and takes no new wishes (requirement U2). [`Output::Stopped`] follows when every node
    /// has confirmed, or after `within`.
    pub fn shutdown(&mut self, now: Instant, within: Duration) {
        self.advance(now);
        self.locks.shut_down(now, within);
        self.route();
    }

    // --- facts ---

    /// The connection is open.
    pub fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        if let Some(pipe) = self.pipe(conn) {
            pipe.handle_connected(now, conn);
        }
        self.route();
    }

    /// These bytes came, in any portions.
    pub fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.advance(now);
        if let Some(pipe) = self.pipe(conn) {
            pipe.handle_received(now, conn, bytes);
        }
        self.route();
    }

    /// The connection could not be opened, or has ended. After [`Output::Disconnect`] this need not be reported.
    pub fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.advance(now);
        if let Some(pipe) = self.pipe(conn) {
            pipe.handle_disconnected(now, conn, why);
        }
        self.route();
    }

    /// Does what is due. Early, late and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        let now = self.now;
        for link in &mut self.links {
            for pipe in [&mut link.commands, &mut link.wake] {
                if pipe.next_deadline().is_some_and(|at| at <= now) {
                    pipe.handle_timeout(now);
                }
            }
            link.changed |= link.listener.deadline().is_some_and(|at| at <= now);
        }
        self.route();
    }

    // --- drains ---

    /// The next thing to be done, in the order in which it was decided.
    #[must_use = "an output that is not carried out stalls the client"]
    pub fn poll_output(&mut self) -> Option<Output> {
        burst::pop(&mut self.out)
    }

    /// The bytes to be written to this connection next; empty if there are none, or if it is not current. Bounded, so there may be more
    /// after `consume`. They are encoded now: where a host lets other tasks ask first, releases of several locks leave as one command
    /// (requirement P4).
    pub fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        self.pipe(conn).map_or(&[], |pipe| pipe.outgoing(conn))
    }

    /// Whether [`outgoing`](Self::outgoing) would show anything. Asking encodes nothing: what can leave together with requests that
    /// are still to come is left to it.
    #[must_use]
    pub fn has_outgoing(&self, conn: ConnId) -> bool {
        self.links.get(conn.node().index()).is_some_and(|link| link.pipe(conn.role()).has_outgoing(conn))
    }

    /// The first `n` bytes of `outgoing` have been taken by the socket.
    pub fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(pipe) = self.pipe(conn) {
            pipe.consume(conn, n);
        }
    }

    /// When `handle_timeout` is to be called; now, while output is queued. `None`: not before something else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.out.is_empty() {
            return Some(self.now);
        }
        let of_link =
            |link: &Link| soonest([link.commands.next_deadline(), link.wake.next_deadline(), link.listener.deadline()]);
        self.links.iter().map(of_link).fold(self.locks.next_deadline(), |first, at| soonest([first, at]))
    }

    /// [`next_deadline`](Self::next_deadline), and what it is for.
    #[must_use]
    pub fn next_deadline_reason(&self) -> Option<(Instant, &'static str)> {
        if !self.out.is_empty() {
            return Some((self.now, "output is queued"));
        }
        let links = self.links.iter().flat_map(|link| {
            [
                link.commands.next_deadline().map(|at| (at, "command connection")),
                link.wake.next_deadline().map(|at| (at, "wake connection")),
                link.listener.deadline().map(|at| (at, "listener")),
            ]
        });
        links.chain([self.locks.next_deadline_reason()]).flatten().min()
    }

    // --- questions ---

    /// The end of the validity of a lock that is held; `None` if it is not held, or not any more. It is held while the clock, read
    /// *now*, is before that (requirement T3).
    #[must_use]
    pub fn valid_until(&self, lock: LockId) -> Option<Instant> {
        self.locks.valid_until(lock)
    }

    /// How many requests the servers have and have not answered. A host that batches can see by it whether they are at work.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.links.iter().map(|link| link.commands.in_flight()).sum()
    }

    /// Whether any lock is held. A host that sleeps should then wake up every second or so: after a suspend its timer may be late, and the
    /// holders must be told.
    #[must_use]
    pub const fn holds_any(&self) -> bool {
        self.locks.held() > 0
    }

    /// Where a node is, and how to log in to it.
    #[must_use]
    pub fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.config().nodes.get(node.index())
    }

    /// Why there is no connection for commands to this node, during the pause before the next attempt. After an error of the class
    /// [`ErrorClass::Reconnect`](super::ErrorClass::Reconnect) a host that knows several addresses of the node tries the last one at the end.
    #[must_use]
    pub fn down_cause(&self, node: NodeId) -> Option<&Cause> {
        self.links.get(node.index())?.commands.down_cause()
    }

    /// The settings.
    pub const fn config(&self) -> &Config {
        self.locks.config()
    }

    // --- inside ---

    /// Time never runs backwards here (requirement M1), and what is due for the locks comes before any news (requirement T2).
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.locks.handle_timeout(now);
    }

    fn pipe(&mut self, conn: ConnId) -> Option<&mut Pipe> {
        Some(self.links.get_mut(conn.node().index())?.pipe_mut(conn.role()))
    }

    /// Carries what the parts have for each other, until none has anything left: within the call that caused it, not when the host
    /// polls (requirement M3).
    fn route(&mut self) {
        loop {
            self.route_locks();
            let mut quiet = true;
            for index in 0..self.links.len() {
                if !self.links[index].is_quiet() {
                    quiet = false;
                    self.route_link(index);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// From the hub to the connections and the application.
    fn route_locks(&mut self) {
        while let Some(output) = self.locks.poll_output() {
            match output {
                LocksOutput::Send { call, request, patience } => {
                    if let Some(link) = self.links.get_mut(call.node().index()) {
                        // What is held for so long must be compared after the next connect. A lock that is taken and given back costs no
                        // command more.
                        if !link.asked && matches!(request, Request::Extend { .. }) && link.commands.is_up() {
                            link.asked = true;
                            link.commands.ask_server(self.now);
                        }
                        link.commands.send(self.now, call, request, patience);
                    }
                }
                LocksOutput::Event { lock, event } => self.out.push_back(Output::Event { lock, event }),
                LocksOutput::Listen { key } => {
                    for link in &mut self.links {
                        link.listener.want(key.clone());
                        link.changed = true;
                    }
                }
                LocksOutput::Unlisten { key } => {
                    for link in &mut self.links {
                        link.listener.unwant(&key);
                        link.changed = true;
                    }
                }
                LocksOutput::Stopped { unreleased } => {
                    for link in &mut self.links {
                        link.commands.close(self.now);
                        link.listener.shut(self.now, &mut link.wake);
                    }
                    self.out.push_back(Output::Stopped { unreleased });
                }
            }
        }
    }

    /// From the connections of one node to the hub.
    fn route_link(&mut self, index: usize) {
        let now = self.now;
        let node = NodeId::new(index as u16);
        let link = &mut self.links[index];
        while let Some(output) = link.commands.poll_output() {
            match output {
                PipeOutput::Connect(conn) => self.out.push_back(Output::Connect { node, conn }),
                PipeOutput::Disconnect(conn) => self.out.push_back(Output::Disconnect { conn }),
                PipeOutput::Up(hello) => {
                    link.listener.commands_up();
                    link.changed = true;
                    let quorum = self.locks.config().is_quorum();
                    link.announced_by_answer = !quorum && self.locks.compares(node);
                    link.asked = quorum || link.announced_by_answer;
                    if link.announced_by_answer {
                        // One node has no votes: no request has to wait until it is known who it is.
                        link.commands.ask_server(now);
                    } else {
                        self.locks.handle_node_up(now, node, hello.server.as_ref());
                    }
                }
                PipeOutput::Server(server) if link.announced_by_answer => {
                    self.locks.handle_node_up(now, node, Some(&server));
                }
                PipeOutput::Server(server) => self.locks.handle_server(now, node, &server),
                PipeOutput::Reply { call, reply } => self.locks.handle_reply(now, call, &reply),
                PipeOutput::UnblockRefused(_) => link.listener.cannot_unblock(),
                PipeOutput::Down(_) | PipeOutput::Woken(_) | PipeOutput::BlockRefused(_) => {}
            }
        }
        if !link.wake.has_output() && !link.changed {
            return;
        }
        let mut heard = Vec::new();
        while let Some(output) = link.wake.poll_output() {
            link.changed = true;
            match output {
                PipeOutput::Connect(conn) => self.out.push_back(Output::Connect { node, conn }),
                PipeOutput::Disconnect(conn) => self.out.push_back(Output::Disconnect { conn }),
                PipeOutput::Up(hello) => link.listener.connected(hello.client_id),
                PipeOutput::Down(_) => link.listener.down(&mut heard),
                PipeOutput::Woken(list) => link.listener.woken(list.as_deref(), &mut heard),
                PipeOutput::BlockRefused(error) => link.listener.refused(now, &error, &mut link.wake, &mut heard),
                PipeOutput::UnblockRefused(_) | PipeOutput::Reply { .. } | PipeOutput::Server(_) => {}
            }
        }
        if link.changed {
            link.changed = false;
            link.listener.sync(now, &mut link.wake, &mut link.commands, &mut heard);
        }
        for heard in heard {
            match heard {
                Heard::Listening(key) => self.locks.handle_listening(now, node, &key),
                Heard::Deaf(key) => self.locks.handle_deaf(now, node, &key),
                Heard::Signal(key) => self.locks.handle_signal(now, node, &key),
            }
        }
    }
}

impl Machine for Client {
    fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.acquire(now, want)
    }

    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.claim(now, lock)
    }

    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.extend(now, lock)
    }

    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.release(now, lock)
    }

    fn abandon(&mut self, now: Instant, lock: LockId) {
        self.abandon(now, lock);
    }

    fn shutdown(&mut self, now: Instant, within: Duration) {
        self.shutdown(now, within);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn valid_until(&self, lock: LockId) -> Option<Instant> {
        self.valid_until(lock)
    }

    fn holds_any(&self) -> bool {
        self.holds_any()
    }

    fn in_flight(&self) -> usize {
        self.in_flight()
    }
    fn release_within(&self) -> Duration {
        self.config().release_within
    }

    fn drift(&self) -> Drift {
        self.config().drift
    }

    fn prefix(&self) -> &[u8] {
        &self.config().prefix
    }
}
