//! Exhaustive search for own locks: every order in which a few clients can meet.
//!
//! A [`SmallWorld`] has a lock name, some clients and one or more simulated nodes. Every possible
//! next event is a choice, and every choice is tried, breadth first, so that the first
//! counterexample is a shortest one:
//!
//! * a client requests the lock, or releases it, held or lost;
//! * a request is executed, or a reply arrives;
//! * with a budget: a connection breaks, and its requests are executed later or never; a client is
//!   paused; a node restarts without its data, or a member of etcd with it;
//! * time passes up to the next timer or expiry, once all messages have arrived. Clocks agree.
//!
//! In every state at most one client may believe to hold the lock, and no client may break its
//! contract. Choose a TTL of a few retries: each retry is a choice. A server executes the requests
//! of one connection in their order.
//!
//! [`SmallWorld::on_etcd`] is the same for a lock on etcd.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::Release;
//! use lock_sim::own::search::SmallWorld;
//! use lock_sim::own::{Call, Context, Lost, OwnLock};
//! use lock_sim::redis::RespReply;
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
//!     fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
//!         match (call.tag, reply) {
//!             (1, Ok(RespReply::Ok)) => cx.grant(None, None),
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

mod etcd;
mod redis;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;
use core::time::Duration;

use super::client::OwnClient;
use super::connections::Connections;
use super::etcd::Calls;
use super::lock::OwnLock;
use super::transport::{Transport, Verbs};
use crate::search::{Canon, Model, Search, SearchOutcome};
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::{Acquire, Event, LockClient as _, Machine as _};
use lock_proto::{ClientId, ConnId, LockId};

/// The start of time: instants are recognised by their size, see [`Canon`].
const EPOCH: Instant = Instant::from_nanos(1 << 59);
const END: Instant = Instant::from_nanos((1 << 59) + (1 << 43));
/// A machine that produces more at one time does not come to rest.
const ROUNDS: usize = 1_000;
const NAME: &str = "lock";

/// The servers of a small world.
pub(crate) trait SmallServers: Clone + fmt::Debug {
    type Request: Clone + fmt::Debug + Hash;
    type Reply: Clone + fmt::Debug + Hash;

    fn connect(&mut self, now: Instant, conn: Place);
    fn disconnect(&mut self, now: Instant, conn: Place);
    fn execute(&mut self, now: Instant, conn: Place, request: &Self::Request);
    fn restart(&mut self, now: Instant, node: usize);
    fn pass(&mut self, now: Instant);
    /// Takes what the servers have sent on these connections.
    fn collect(&mut self, open: &[Place]) -> Vec<(u64, Self::Reply)>;
    /// Returns when the servers act next.
    fn next(&self, now: Instant) -> Option<Instant>;
    fn hash(&self, now: Instant, canon: &mut Canon);

    /// Describes requests and replies.
    fn show_request(request: &Self::Request) -> String;
    fn show_reply(reply: &Self::Reply) -> String;
    const NODE: &'static str;
    const RESTARTS: &'static str;
}

/// How a client speaks to the servers of a small world.
pub(crate) trait Small<L>: Transport + Hash {
    type Servers: SmallServers;

    fn servers(lock: &L, count: usize) -> Self::Servers;
    fn client(nodes: usize, id: ClientId, lock: L) -> OwnClient<L, Self>;
    /// Returns what a client wants next. These are its open connections.
    fn poll(client: &mut OwnClient<L, Self>, open: &[ConnId]) -> Option<Wish<Request<L, Self>>>;
    fn deliver(client: &mut OwnClient<L, Self>, now: Instant, conn: ConnId, reply: Reply<L, Self>);
}

type Request<L, T> = <<T as Small<L>>::Servers as SmallServers>::Request;
type Reply<L, T> = <<T as Small<L>>::Servers as SmallServers>::Reply;
type Requests<L, T> = VecDeque<Request<L, T>>;
type Lines<L, T> = BTreeMap<ConnId, Line<Request<L, T>, Reply<L, T>>>;

/// A connection as its server knows it: the node and its number.
pub(crate) type Place = (usize, u64);

/// What a client wants of its host.
pub(crate) enum Wish<R> {
    Connect(ConnId),
    Disconnect(ConnId),
    Send(ConnId, R),
    Event(LockId, Event),
    Nothing,
}

/// A small world of own locks, to search exhaustively.
#[derive(Clone, Debug)]
#[must_use = "a SmallWorld does nothing until it is searched"]
pub struct SmallWorld<L, T = Connections> {
    transport: PhantomData<T>,
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
        Self::with(lock, Duration::from_millis(100))
    }
}

impl<L: super::etcd::OwnLock + Hash> SmallWorld<L, Calls> {
    /// Creates a world of two clients and a cluster of one member, in which each client requests
    /// the lock once, with a TTL of 2 s, the shortest of etcd, and nothing fails.
    pub const fn on_etcd(lock: L) -> Self {
        Self::with(lock, Duration::from_secs(2))
    }
}

impl<L: Verbs<T> + Hash, T: Small<L>> SmallWorld<L, T> {
    const fn with(lock: L, ttl: Duration) -> Self {
        let budget = Budget { cuts: 0, pauses: 0, restarts: 0 };
        Self { transport: PhantomData, lock, clients: 2, nodes: 1, ttl, acquires: 1, budget }
    }

    /// Sets the number of clients.
    pub const fn clients(mut self, count: usize) -> Self {
        self.clients = count;
        self
    }

    /// Sets the number of nodes.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub const fn nodes(mut self, count: usize) -> Self {
        assert!(count > 0, "a small world needs a node");
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

    /// Sets how often a node restarts without its data, or a member of etcd with it.
    pub const fn restarts(mut self, count: u8) -> Self {
        self.budget.restarts = count;
        self
    }

    /// Searches all sequences of at most `depth` choices. For other limits, pass the world to
    /// [`Search::run`].
    pub fn search(&self, depth: usize) -> SearchOutcome<Step> {
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
    /// A node restarts without its data, or a member of etcd with it.
    Restart(usize),
    /// Time passes up to the next timer or expiry.
    Pass,
}

/// The state of a [`SmallWorld`].
#[derive(Clone, Debug)]
pub struct State<L, T: Small<L> = Connections> {
    now: Instant,
    clients: Vec<Process<L, T>>,
    servers: T::Servers,
    /// Requests of broken connections: the client, the connection and the requests.
    late: Vec<(usize, ConnId, Requests<L, T>)>,
    left: Budget,
    broken: Option<String>,
}

#[derive(Clone, Debug, Hash)]
struct Process<L, T: Small<L>> {
    machine: OwnClient<L, T>,
    lines: Lines<L, T>,
    /// Those whose application has a guard.
    guards: Vec<LockId>,
    acquires: u8,
    paused: bool,
    /// Connections that ended while it was paused.
    ended: Vec<ConnId>,
}

/// What is in flight on a connection.
#[derive(Clone, Debug, Hash)]
struct Line<Q, R> {
    requests: VecDeque<Q>,
    replies: VecDeque<R>,
}

impl<Q, R> Default for Line<Q, R> {
    fn default() -> Self {
        Self { requests: VecDeque::new(), replies: VecDeque::new() }
    }
}

/// A connection as its node knows it.
fn place(client: usize, conn: ConnId) -> Place {
    // A search opens few connections.
    (conn.node().index(), (client as u64) << 32 | conn.generation())
}

impl<L: Verbs<T>, T: Small<L>> State<L, T> {
    fn break_rule(&mut self, rule: String) {
        self.broken.get_or_insert(rule);
    }

    /// Carries out the outputs of a client, and its due timers.
    fn serve(&mut self, client: usize) {
        for _ in 0..ROUNDS {
            let now = self.now;
            let mut rests = true;
            loop {
                let Process { machine, lines, .. } = &mut self.clients[client];
                let open: Vec<ConnId> = lines.keys().copied().collect();
                let Some(wish) = T::poll(machine, &open) else { break };
                rests = false;
                self.carry_out(client, wish);
            }
            let machine = &mut self.clients[client].machine;
            if machine.next_deadline().is_some_and(|at| at <= now) {
                rests = false;
                machine.handle_timeout(now);
            }
            if let Some((_, text)) = machine.next_violation() {
                self.break_rule(format!("client {client} {text}"));
            }
            if rests {
                return;
            }
        }
        self.break_rule(format!("client {client} does not come to rest"));
    }

    fn carry_out(&mut self, client: usize, wish: Wish<Request<L, T>>) {
        let now = self.now;
        match wish {
            Wish::Connect(conn) => {
                self.servers.connect(now, place(client, conn));
                self.clients[client].lines.insert(conn, Line::default());
                self.clients[client].machine.handle_connected(now, conn);
            }
            Wish::Disconnect(conn) => {
                if let Some(line) = self.clients[client].lines.remove(&conn) {
                    self.end(client, conn, line.requests);
                }
            }
            Wish::Send(conn, request) => {
                if let Some(line) = self.clients[client].lines.get_mut(&conn) {
                    line.requests.push_back(request);
                }
            }
            Wish::Event(lock, Event::Granted(_)) => {
                if self.clients[client].machine.claim(now, lock).is_err() {
                    self.break_rule(format!("client {client} cannot claim what it was granted"));
                }
                self.clients[client].guards.push(lock);
            }
            Wish::Event(..) | Wish::Nothing => {}
        }
    }

    /// A connection has ended at the client. Its requests may still be executed.
    fn end(&mut self, client: usize, conn: ConnId, requests: Requests<L, T>) {
        if requests.is_empty() {
            self.servers.disconnect(self.now, place(client, conn));
        } else {
            self.late.push((client, conn, requests));
        }
    }

    fn execute(&mut self, client: usize, conn: ConnId, request: &Request<L, T>) {
        self.servers.execute(self.now, place(client, conn), request);
        self.collect();
    }

    /// Takes what the servers have sent.
    fn collect(&mut self) {
        let lines = self.clients.iter_mut().enumerate().flat_map(|(client, process)| {
            process.lines.iter_mut().map(move |(conn, line)| (place(client, *conn), line))
        });
        let mut lines: BTreeMap<Place, _> = lines.collect();
        let open: Vec<Place> = lines.keys().copied().collect();
        for (number, reply) in self.servers.collect(&open) {
            if let Some((_, line)) = lines.iter_mut().find(|((_, other), _)| *other == number) {
                line.replies.push_back(reply);
            }
        }
    }

    fn cut(&mut self, client: usize, conn: ConnId) {
        let Some(line) = self.clients[client].lines.remove(&conn) else { return };
        self.end(client, conn, line.requests);
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
        timers.chain(self.servers.next(self.now)).filter(|at| *at > self.now).min()
    }

    /// Returns whether a message is on its way to somebody who runs.
    fn in_flight(&self) -> bool {
        self.clients.iter().any(|process| {
            let mut lines = process.lines.values();
            lines.any(|line| !line.requests.is_empty() || (!process.paused && !line.replies.is_empty()))
        })
    }
}

impl<L: Verbs<T> + Hash, T: Small<L>> Model for SmallWorld<L, T> {
    type State = State<L, T>;
    type Action = Step;

    fn initial_states(&self) -> Vec<State<L, T>> {
        let process = |client| Process {
            machine: T::client(self.nodes, ClientId::from_bits(client as u128 + 1), self.lock.clone()),
            lines: BTreeMap::new(),
            guards: Vec::new(),
            acquires: self.acquires,
            paused: false,
            ended: Vec::new(),
        };
        Vec::from([State {
            now: EPOCH,
            clients: (0..self.clients).map(process).collect(),
            servers: T::servers(&self.lock, self.nodes),
            late: Vec::new(),
            left: self.budget,
            broken: None,
        }])
    }

    fn actions(&self, state: &State<L, T>, actions: &mut Vec<Step>) {
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
            actions.extend((0..self.nodes).map(Step::Restart));
        }
        if !state.in_flight() && state.next().is_some() {
            actions.push(Step::Pass);
        }
    }

    fn step(&self, state: &State<L, T>, step: &Step) -> State<L, T> {
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
                if let Some(request) = line.and_then(|line| line.requests.pop_front()) {
                    next.execute(client, conn, &request);
                }
            }
            Step::Reply(client, conn) => {
                let line = next.clients[client].lines.get_mut(&conn);
                if let Some(reply) = line.and_then(|line| line.replies.pop_front()) {
                    T::deliver(&mut next.clients[client].machine, now, conn, reply);
                    next.serve(client);
                }
            }
            Step::Cut(client, conn) => {
                next.left.cuts -= 1;
                next.cut(client, conn);
            }
            Step::ExecuteLate(late) => {
                let (client, conn, requests) = next.late.remove(late);
                requests.iter().for_each(|request| next.execute(client, conn, request));
                next.servers.disconnect(now, place(client, conn));
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
                next.servers.restart(now, node);
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
                    next.servers.pass(at);
                    next.collect();
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

    fn hash_state(&self, state: &State<L, T>, canon: &mut Canon) {
        canon.now(state.now);
        state.clients.hash(canon);
        state.servers.hash(state.now, canon);
        (&state.late, state.left, &state.broken).hash(canon);
    }

    fn check(&self, state: &State<L, T>) -> Result<(), String> {
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

    fn reached(&self, state: &State<L, T>) -> u64 {
        let held = |process: &Process<L, T>| {
            process.guards.iter().any(|lock| process.machine.valid_until(*lock).is_some_and(|until| until > state.now))
        };
        let got = |process: &Process<L, T>| process.acquires == 0 && !process.guards.is_empty();
        u64::from(state.clients.iter().any(held)) | u64::from(state.clients.iter().all(got)) << 1
    }

    fn describe_step(&self, before: &State<L, T>, step: &Step) -> String {
        let since = before.now.since(EPOCH);
        format!("{since:>9.1?}  {}", Described { before, step })
    }
}

/// A step in words.
struct Described<'a, L, T: Small<L>> {
    before: &'a State<L, T>,
    step: &'a Step,
}

impl<L, T: Small<L>> fmt::Display for Described<'_, L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |client: usize, conn: &ConnId| self.before.clients[client].lines.get(conn);
        let node = |conn: &ConnId| format!("{} {}", T::Servers::NODE, conn.node().index());
        match self.step {
            Step::Acquire(client) => write!(f, "client {client} requests the lock"),
            Step::Release(client, _) => write!(f, "client {client} releases the lock"),
            Step::Execute(client, conn) => {
                let request = line(*client, conn).and_then(|line| line.requests.front());
                let request = request.map_or_else(String::new, T::Servers::show_request);
                write!(f, "{} executes {request} of client {client}", node(conn))
            }
            Step::Reply(client, conn) => {
                let reply = line(*client, conn).and_then(|line| line.replies.front());
                let reply = reply.map_or_else(String::new, T::Servers::show_reply);
                write!(f, "client {client} receives {reply} of {}", node(conn))
            }
            Step::Cut(client, conn) => write!(f, "the connection of client {client} to {} breaks", node(conn)),
            Step::ExecuteLate(place) => {
                let Some((client, conn, requests)) = self.before.late.get(*place) else { return Ok(()) };
                let requests = requests.iter().map(T::Servers::show_request).collect::<Vec<_>>().join("; ");
                write!(f, "{} executes late {requests} of client {client}", node(conn))
            }
            Step::Pause(client) => write!(f, "client {client} is paused"),
            Step::Resume(client) => write!(f, "client {client} goes on"),
            Step::Restart(node) => write!(f, "{} {node} {}", T::Servers::NODE, T::Servers::RESTARTS),
            Step::Pass => f.write_str("time passes"),
        }
    }
}
