//! Exhaustive search for own locks: every order in which a few clients can meet.
//!
//! A [`SmallWorld`] has a lock name, some clients and one or more simulated nodes. Every possible
//! next event is a choice, and every choice is tried, breadth first, so that the first
//! counterexample is a shortest one:
//!
//! * a client requests the lock, or releases it, held or lost;
//! * a request is executed, or a reply arrives;
//! * with a budget: a connection breaks, and its requests are executed later or never; a client is
//!   paused; a node restarts without its data;
//! * time passes up to the next timer or expiry, once all messages have arrived. Clocks agree.
//!
//! In every state at most one client may believe to hold the lock, and no client may break its
//! contract. Choose a TTL of a few retries: each retry is a choice.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::Release;
//! use lock_proto::sim::own::search::SmallWorld;
//! use lock_proto::sim::own::{Call, Context, Lost, OwnLock};
//! use lock_proto::sim::redis::Reply;
//!
//! /// A lock without a TTL on the holder's side: it believes to hold until it releases.
//! #[derive(Clone, Debug, Hash)]
//! struct Trusting;
//!
//! impl OwnLock for Trusting {
//!     fn acquire(&mut self, cx: &mut Context<'_>) {
//!         let ttl = cx.ttl().as_millis().to_string();
//!         cx.send(0, 1, &["SET", cx.name(), cx.token(), "NX", "PX", &ttl]);
//!     }
//!
//!     fn release(&mut self, cx: &mut Context<'_>) {
//!         cx.send(0, 2, &["DEL", cx.name()]);
//!     }
//!
//!     fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<Reply, Lost>) {
//!         match (call.tag, reply) {
//!             (1, Ok(Reply::Ok)) => cx.grant(None, None),
//!             (1, _) => cx.retry(cx.ttl()),
//!             _ => cx.released(Release::Released),
//!         }
//!     }
//! }
//!
//! let outcome = SmallWorld::new(Trusting).ttl(Duration::from_millis(100)).search(20);
//! let found = outcome.counterexample.unwrap();
//! assert_eq!(found.rule, "client 0 and client 1 both hold the lock");
//! assert_eq!(found.actions.len(), 7, "{found}");
//! ```

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hash;
use core::time::Duration;

use super::client::OwnClient;
use super::lock::OwnLock;
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, LockId};
use crate::lock::{Acquire, ByteClient as _, Event, Machine as _, Output};
use crate::redis::{Config, Endpoint};
use crate::sim::redis::input::{self, Limits, Parsed};
use crate::sim::redis::{Node, NodeConfig, Reply};
use crate::sim::search::{Canon, Model, Outcome, Search};
use crate::time::Instant;

/// The start of time: instants are recognised by their size, see [`Canon`].
const EPOCH: Instant = Instant::from_nanos(1 << 59);
const END: Instant = Instant::from_nanos((1 << 59) + (1 << 43));
/// A machine that produces more at one time does not come to rest.
const ROUNDS: usize = 1_000;
const NAME: &str = "lock";

/// A small world of own locks, to search exhaustively.
#[derive(Clone, Debug)]
#[must_use = "a SmallWorld does nothing until it is searched"]
pub struct SmallWorld<L> {
    lock: L,
    clients: usize,
    nodes: usize,
    ttl: Duration,
    acquires: u8,
    budget: Budget,
}

/// The faults that are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Budget {
    cuts: u8,
    pauses: u8,
    restarts: u8,
}

impl<L: OwnLock + Hash> SmallWorld<L> {
    /// Creates a world of two clients and one node, in which each client requests the lock once,
    /// with a TTL of 100 ms, and nothing fails.
    pub const fn new(lock: L) -> Self {
        let budget = Budget { cuts: 0, pauses: 0, restarts: 0 };
        Self { lock, clients: 2, nodes: 1, ttl: Duration::from_millis(100), acquires: 1, budget }
    }

    /// Sets the number of clients.
    pub const fn clients(mut self, count: usize) -> Self {
        self.clients = count;
        self
    }

    /// Sets the number of nodes.
    pub const fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// Sets the TTL of every request.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how often each client requests the lock.
    pub const fn acquires(mut self, count: u8) -> Self {
        self.acquires = count;
        self
    }

    /// Sets how many connections break.
    pub const fn cuts(mut self, count: u8) -> Self {
        self.budget.cuts = count;
        self
    }

    /// Sets how often a client is paused, until it is resumed.
    pub const fn pauses(mut self, count: u8) -> Self {
        self.budget.pauses = count;
        self
    }

    /// Sets how often a node restarts without its data.
    pub const fn restarts(mut self, count: u8) -> Self {
        self.budget.restarts = count;
        self
    }

    /// Searches all sequences of at most `depth` choices. For other limits, pass the world to
    /// [`Search::run`].
    pub fn search(&self, depth: usize) -> Outcome<Step> {
        Search::new().depth(depth).run(self)
    }
}

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A client requests the lock.
    Acquire(usize),
    /// A client releases the lock, held or lost.
    Release(usize, LockId),
    /// A node executes what a client has sent on a connection.
    Execute(usize, ConnId),
    /// A reply or message arrives.
    Reply(usize, ConnId),
    /// A connection breaks.
    Cut(usize, ConnId),
    /// A node executes a request of a connection that has broken.
    ExecuteLate(usize),
    /// A client is paused.
    Pause(usize),
    /// A client goes on.
    Resume(usize),
    /// A node restarts without its data.
    Restart(usize),
    /// Time passes up to the next timer or expiry.
    Pass,
}

/// The state of a [`SmallWorld`].
#[derive(Clone, Debug)]
pub struct State<L> {
    now: Instant,
    clients: Vec<Process<L>>,
    nodes: Vec<Node>,
    /// Requests of broken connections: the client, the connection and the bytes.
    late: Vec<(usize, ConnId, Vec<u8>)>,
    left: Budget,
    broken: Option<String>,
}

#[derive(Clone, Debug, Hash)]
struct Process<L> {
    machine: OwnClient<L>,
    lines: BTreeMap<ConnId, Line>,
    /// Those whose application has a guard.
    guards: Vec<LockId>,
    acquires: u8,
    paused: bool,
    /// Connections that ended while it was paused.
    ended: Vec<ConnId>,
}

/// What is in flight on a connection.
#[derive(Clone, Debug, Default, Hash)]
struct Line {
    requests: VecDeque<Vec<u8>>,
    replies: VecDeque<Vec<u8>>,
}

/// The number of a connection at its node.
fn number(client: usize, conn: ConnId) -> u64 {
    // A search opens few connections.
    (client as u64) << 32 | conn.generation
}

impl<L: OwnLock> State<L> {
    fn break_rule(&mut self, rule: String) {
        self.broken.get_or_insert(rule);
    }

    /// Carries out the outputs of a client, and its due timers.
    fn serve(&mut self, client: usize) {
        for _ in 0..ROUNDS {
            let now = self.now;
            let mut rests = true;
            while let Some(output) = self.clients[client].machine.poll_output() {
                rests = false;
                self.carry_out(client, output);
            }
            let Process { machine, lines, .. } = &mut self.clients[client];
            for (conn, line) in lines.iter_mut() {
                let bytes = machine.outgoing(*conn).to_vec();
                if !bytes.is_empty() {
                    rests = false;
                    machine.consume(*conn, bytes.len());
                    line.requests.push_back(bytes);
                }
            }
            if machine.next_deadline().is_some_and(|at| at <= now) {
                rests = false;
                machine.handle_timeout(now);
            }
            if rests {
                return;
            }
        }
        self.break_rule(format!("client {client} does not come to rest"));
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        let now = self.now;
        match output {
            Output::Connect { node, conn, .. } => {
                self.nodes[node.index()].handle_connected(now, number(client, conn));
                self.clients[client].lines.insert(conn, Line::default());
                self.clients[client].machine.handle_connected(now, conn);
            }
            Output::Disconnect { conn } => {
                if let Some(line) = self.clients[client].lines.remove(&conn) {
                    self.end(client, conn, line);
                }
            }
            Output::Event { lock, event: Event::Granted(_) } => {
                if self.clients[client].machine.claim(now, lock).is_err() {
                    self.break_rule(format!("client {client} cannot claim what it was granted"));
                }
                self.clients[client].guards.push(lock);
            }
            Output::Event { .. } | Output::Election { .. } | Output::Credentials { .. } | Output::Stopped { .. } => {}
        }
    }

    /// A connection has ended at the client. Its requests may still be executed.
    fn end(&mut self, client: usize, conn: ConnId, line: Line) {
        let bytes: Vec<u8> = line.requests.into_iter().flatten().collect();
        if bytes.is_empty() {
            self.nodes[conn.node().index()].handle_disconnected(self.now, number(client, conn));
        } else {
            self.late.push((client, conn, bytes));
        }
    }

    fn execute(&mut self, client: usize, conn: ConnId, bytes: &[u8]) {
        let node = conn.node().index();
        self.nodes[node].handle_received(self.now, number(client, conn), bytes);
        self.collect(node);
    }

    /// Takes what a node has sent.
    fn collect(&mut self, node: usize) {
        let (nodes, clients) = (&mut self.nodes, &mut self.clients);
        for (client, process) in clients.iter_mut().enumerate() {
            for (conn, line) in process.lines.iter_mut().filter(|(conn, _)| conn.node().index() == node) {
                let id = number(client, *conn);
                let bytes = nodes[node].outgoing(id).to_vec();
                if !bytes.is_empty() {
                    nodes[node].consume(id, bytes.len());
                    line.replies.push_back(bytes);
                }
            }
        }
    }

    fn cut(&mut self, client: usize, conn: ConnId) {
        let Some(line) = self.clients[client].lines.remove(&conn) else { return };
        self.end(client, conn, line);
        self.clients[client].ended.push(conn);
        if !self.clients[client].paused {
            self.notice_ends(client);
        }
    }

    fn notice_ends(&mut self, client: usize) {
        let now = self.now;
        for conn in core::mem::take(&mut self.clients[client].ended) {
            self.clients[client].machine.handle_disconnected(now, conn, Fault::Reset);
        }
        self.serve(client);
    }

    /// Returns when time stops next.
    fn next(&self) -> Option<Instant> {
        let running = self.clients.iter().filter(|process| !process.paused);
        let timers = running.filter_map(|process| process.machine.next_deadline());
        let nodes = self.nodes.iter();
        let ends = nodes.flat_map(|node| [node.next_deadline(), node.next_expiry(self.now)]).flatten();
        timers.chain(ends).filter(|at| *at > self.now).min()
    }

    /// Returns whether a message is on its way to somebody who runs.
    fn in_flight(&self) -> bool {
        let waits = |process: &Process<L>, line: &Line| {
            !line.requests.is_empty() || (!process.paused && !line.replies.is_empty())
        };
        self.clients.iter().any(|process| process.lines.values().any(|line| waits(process, line)))
    }
}

impl<L: OwnLock + Hash> Model for SmallWorld<L> {
    type State = State<L>;
    type Action = Step;

    fn initial_states(&self) -> Vec<State<L>> {
        let endpoints = (0..self.nodes).filter_map(|node| Endpoint::parse(&format!("redis://node{node}")).ok());
        let config = Config::new(endpoints);
        let process = |client| Process {
            machine: OwnClient::new(&config, ClientId::from_bits(client as u128 + 1), 1, self.lock.clone()),
            lines: BTreeMap::new(),
            guards: Vec::new(),
            acquires: self.acquires,
            paused: false,
            ended: Vec::new(),
        };
        let node = |node| {
            let config = NodeConfig::new(node as u64 + 1).uptime(Duration::from_secs(3_600));
            let scripts = self.lock.scripts().iter();
            Node::new(EPOCH, scripts.fold(config, |config, (source, run)| config.script(source, *run)))
        };
        Vec::from([State {
            now: EPOCH,
            clients: (0..self.clients).map(process).collect(),
            nodes: (0..self.nodes).map(node).collect(),
            late: Vec::new(),
            left: self.budget,
            broken: None,
        }])
    }

    fn actions(&self, state: &State<L>, actions: &mut Vec<Step>) {
        let left = state.left;
        for (client, process) in state.clients.iter().enumerate() {
            for (conn, line) in &process.lines {
                if !line.requests.is_empty() {
                    actions.push(Step::Execute(client, *conn));
                }
                if !process.paused && !line.replies.is_empty() {
                    actions.push(Step::Reply(client, *conn));
                }
                let idle = line.requests.is_empty() && line.replies.is_empty();
                if left.cuts > 0 && !process.paused && !idle {
                    actions.push(Step::Cut(client, *conn));
                }
            }
            if process.paused {
                actions.push(Step::Resume(client));
                continue;
            }
            if process.acquires > 0 {
                actions.push(Step::Acquire(client));
            }
            actions.extend(process.guards.iter().map(|lock| Step::Release(client, *lock)));
            if left.pauses > 0 {
                actions.push(Step::Pause(client));
            }
        }
        actions.extend((0..state.late.len()).map(Step::ExecuteLate));
        if left.restarts > 0 {
            actions.extend((0..state.nodes.len()).map(Step::Restart));
        }
        if !state.in_flight() && state.next().is_some() {
            actions.push(Step::Pass);
        }
    }

    fn step(&self, state: &State<L>, step: &Step) -> State<L> {
        let mut next = state.clone();
        let now = next.now;
        match *step {
            Step::Acquire(client) => {
                next.clients[client].acquires -= 1;
                let request = Acquire::new(NAME).ttl(self.ttl);
                if next.clients[client].machine.acquire(now, &request).is_err() {
                    next.break_rule(format!("client {client} refuses a request"));
                }
                next.serve(client);
            }
            Step::Release(client, lock) => {
                next.clients[client].guards.retain(|other| *other != lock);
                if next.clients[client].machine.release(now, lock).is_err() {
                    next.break_rule(format!("client {client} cannot release its guard"));
                }
                next.serve(client);
            }
            Step::Execute(client, conn) => {
                let line = next.clients[client].lines.get_mut(&conn);
                if let Some(bytes) = line.and_then(|line| line.requests.pop_front()) {
                    next.execute(client, conn, &bytes);
                }
            }
            Step::Reply(client, conn) => {
                let line = next.clients[client].lines.get_mut(&conn);
                if let Some(bytes) = line.and_then(|line| line.replies.pop_front()) {
                    next.clients[client].machine.handle_received(now, conn, &bytes);
                    next.serve(client);
                }
            }
            Step::Cut(client, conn) => {
                next.left.cuts -= 1;
                next.cut(client, conn);
            }
            Step::ExecuteLate(place) => {
                let (client, conn, bytes) = next.late.remove(place);
                next.execute(client, conn, &bytes);
                next.nodes[conn.node().index()].handle_disconnected(now, number(client, conn));
            }
            Step::Pause(client) => {
                next.left.pauses -= 1;
                next.clients[client].paused = true;
            }
            Step::Resume(client) => {
                next.clients[client].paused = false;
                next.notice_ends(client);
            }
            Step::Restart(node) => {
                next.left.restarts -= 1;
                next.late.retain(|(_, conn, _)| conn.node().index() != node);
                next.nodes[node].restart(now, false);
                for client in 0..next.clients.len() {
                    let conns = next.clients[client].lines.keys().copied();
                    for conn in conns.filter(|conn| conn.node().index() == node).collect::<Vec<_>>() {
                        if let Some(line) = next.clients[client].lines.get_mut(&conn) {
                            *line = Line::default();
                        }
                        next.cut(client, conn);
                    }
                }
            }
            Step::Pass => {
                if let Some(at) = next.next() {
                    next.now = at;
                    for node in 0..next.nodes.len() {
                        next.nodes[node].handle_timeout(at);
                        next.collect(node);
                    }
                    for client in 0..next.clients.len() {
                        if !next.clients[client].paused {
                            next.serve(client);
                        }
                    }
                }
            }
        }
        next
    }

    fn canon(&self) -> Canon {
        Canon::new().times(EPOCH..END, self.ttl * 2, Duration::from_millis(1))
    }

    fn hash_state(&self, state: &State<L>, canon: &mut Canon) {
        canon.now(state.now);
        state.clients.hash(canon);
        for node in &state.nodes {
            node.hash_data(state.now, canon);
        }
        (&state.late, state.left, &state.broken).hash(canon);
    }

    fn check(&self, state: &State<L>) -> Result<(), String> {
        if let Some(rule) = &state.broken {
            return Err(rule.clone());
        }
        let mut holders = Vec::new();
        for (client, process) in state.clients.iter().enumerate() {
            let held = process.guards.iter().filter_map(|lock| process.machine.valid_until(*lock));
            holders.extend(held.filter(|until| *until > state.now).map(|_| client));
        }
        match holders[..] {
            [one, other, ..] => Err(format!("client {one} and client {other} both hold the lock")),
            [_] | [] => Ok(()),
        }
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["somebody holds the lock", "all clients have got it"]
    }

    fn reached(&self, state: &State<L>) -> u64 {
        let held = |process: &Process<L>| {
            process.guards.iter().any(|lock| process.machine.valid_until(*lock).is_some_and(|until| until > state.now))
        };
        let got = |process: &Process<L>| process.acquires == 0 && !process.guards.is_empty();
        u64::from(state.clients.iter().any(held)) | u64::from(state.clients.iter().all(got)) << 1
    }

    fn describe_step(&self, before: &State<L>, step: &Step) -> String {
        let since = before.now.since(EPOCH);
        format!("{since:>9.1?}  {}", Described { before, step })
    }
}

/// A step in words.
struct Described<'a, L> {
    before: &'a State<L>,
    step: &'a Step,
}

impl<L> fmt::Display for Described<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |client: usize, conn: &ConnId| self.before.clients[client].lines.get(conn);
        match self.step {
            Step::Acquire(client) => write!(f, "client {client} requests the lock"),
            Step::Release(client, _) => write!(f, "client {client} releases the lock"),
            Step::Execute(client, conn) => {
                let bytes = line(*client, conn).and_then(|line| line.requests.front());
                let commands = commands(bytes.map_or(&[], |bytes| bytes));
                write!(f, "node {} executes {commands} of client {client}", conn.node().index())
            }
            Step::Reply(client, conn) => {
                let bytes = line(*client, conn).and_then(|line| line.replies.front());
                let replies = replies(bytes.map_or(&[], |bytes| bytes));
                write!(f, "client {client} receives {replies} of node {}", conn.node().index())
            }
            Step::Cut(client, conn) => {
                write!(f, "the connection of client {client} to node {} breaks", conn.node().index())
            }
            Step::ExecuteLate(place) => {
                let Some((client, conn, bytes)) = self.before.late.get(*place) else { return Ok(()) };
                write!(f, "node {} executes late {} of client {client}", conn.node().index(), commands(bytes))
            }
            Step::Pause(client) => write!(f, "client {client} is paused"),
            Step::Resume(client) => write!(f, "client {client} goes on"),
            Step::Restart(node) => write!(f, "node {node} restarts without its data"),
            Step::Pass => f.write_str("time passes"),
        }
    }
}

fn commands(mut bytes: &[u8]) -> String {
    let limits = Limits { max_bulk: bytes.len(), authenticated: true };
    let mut texts = Vec::new();
    loop {
        let mut args = Vec::new();
        let Parsed::Request { len } = input::parse(bytes, limits, &mut args) else { break };
        // The first line of a script is enough.
        let words = args.iter().map(|arg| arg.escape_ascii().to_string());
        texts.push(
            words.map(|word| word.split("\\n").next().unwrap_or_default().into()).collect::<Vec<String>>().join(" "),
        );
        bytes = &bytes[len..];
    }
    texts.join("; ")
}

fn replies(mut bytes: &[u8]) -> String {
    let mut texts = Vec::new();
    while let Some((reply, len)) = Reply::decode(bytes) {
        texts.push(match reply.bytes() {
            Some(bytes) => bytes.escape_ascii().to_string(),
            None => format!("{reply:?}"),
        });
        bytes = &bytes[len..];
    }
    texts.join("; ")
}
