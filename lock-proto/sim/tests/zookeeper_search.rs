//! Exhaustive search over real ZooKeeper clients: all ways in which two of them, with sessions, can
//! meet at one server.
//!
//! The server is [`lock_sim::zookeeper::Ensemble`] with one
//! member, and the explorer [`lock_sim::search`], breadth first. Every possible
//! next event is a choice, and every choice is tried:
//!
//! * a client requests the lock, releases it, or drops its wait;
//! * the bytes on a connection arrive, in either direction;
//! * a connection breaks, and what was sent on it is lost, or is executed later;
//! * the server ends the session of a client;
//! * somebody deletes the queue while it is empty, so that its numbers begin anew;
//! * a server begins or ceases to reject requests, for a single client of two servers, the second
//!   of which applies late what the first one commits;
//! * time passes up to the next timer of a client or the server.
//!
//! The number of faults is bounded. Every state is checked: at most one client holds the lock,
//! fencing tokens grow with the grants, and a client with two nodes does not wait for its own.
//!
//! `LOCK_DEPTH=2` searches two choices deeper; `--nocapture` shows the counts.
// S6
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

use core::hash::Hash as _;
use core::time::Duration;
use std::collections::VecDeque;

use lock_proto::zookeeper::{Client, Config, Output};
use lock_proto::{
    Acquire, ByteClient as _, ClientId, ConnId, Event, Fault, Instant, LockClient as _, LockId, Machine as _, Wait,
};
use lock_sim::search::{Canon, Model, Search};
use lock_sim::zookeeper::{Condition, Ensemble, EnsembleConfig, EnsembleOutput};

const EPOCH: u64 = 1_000_000_000_000_000_000;
const TICK: Duration = Duration::from_millis(100);
const QUEUE: &str = "/a";
const CHILDREN: &str = "/a/";

/// What may happen in a search.
#[derive(Clone, Copy)]
struct World {
    /// Acquisitions of each client.
    acquisitions: u8,
    breaks: u8,
    expiries: u8,
    deletions: u8,
    /// How often servers begin to reject requests, of which there is one client.
    throttles: u8,
    /// What is sent arrives at once. Histories can then be longer.
    instant: bool,
    flaw: Option<Flaw>,
}

/// What the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// The fence is the number of the queue's first node, which begins anew with the queue.
    NumbersAsFences,
    /// A client that waits believes that it holds the lock.
    HoldsWhileWaiting,
}

#[derive(Clone, Debug)]
enum Action {
    Acquire(usize),
    Release(usize),
    Abandon(usize),
    ToServer(usize, usize),
    ToClient(usize, usize),
    /// The connection ends. What was sent on it is lost, or arrives later.
    Break(usize, usize, bool),
    Expire(usize),
    DeleteQueue,
    /// The servers begin or cease to reject requests.
    Throttle(bool),
    Time,
}

#[derive(Clone, Hash)]
struct Link {
    conn: ConnId,
    id: u64,
    /// The client has not closed it.
    open: bool,
    up: Vec<u8>,
    /// Bytes, or the end of the connection.
    down: VecDeque<Option<Vec<u8>>>,
}

#[derive(Clone, Hash)]
struct Process {
    machine: Client,
    links: Vec<Link>,
    lock: Option<LockId>,
    held: bool,
    left: u8,
}

#[derive(Clone)]
struct State {
    now: Instant,
    ensemble: Ensemble,
    clients: [Process; 2],
    next_link: u64,
    breaks: u8,
    expiries: u8,
    deletions: u8,
    throttles: u8,
    throttled: bool,
    fence: u64,
    reached: u64,
    violation: Option<String>,
    flaw: Option<Flaw>,
}

const SOMETIMES: [&str; 7] = [
    "a client waits",
    "both have held",
    "a session has ended",
    "a request was executed late",
    "a hold was lost",
    "the queue was deleted",
    "a create was unanswered while servers reject requests",
];

impl State {
    fn reach(&mut self, what: usize) {
        self.reached |= 1 << what;
    }

    fn pump(&mut self) {
        for client in 0..2 {
            self.pump_client(client);
        }
    }

    fn pump_client(&mut self, client: usize) {
        loop {
            let mut idle = true;
            while let Some(output) = self.clients[client].machine.poll_output() {
                idle = false;
                match output {
                    Output::Connect { conn, .. } => {
                        self.next_link += 1;
                        let id = self.next_link;
                        // Connecting is not a choice.
                        self.ensemble.handle_connected(self.now, conn.node().index(), id);
                        let link = Link { conn, id, open: true, up: Vec::new(), down: VecDeque::new() };
                        self.clients[client].links.push(link);
                        let now = self.now;
                        self.clients[client].machine.handle_connected(now, conn);
                    }
                    Output::Disconnect { conn, .. } => {
                        for link in self.clients[client].links.iter_mut().filter(|link| link.conn == conn) {
                            (link.open, link.down) = (false, VecDeque::new());
                        }
                        self.sweep();
                    }
                    Output::Event { lock, event } => self.event(client, lock, &event),
                    Output::Credentials { .. } | Output::Operation { .. } | Output::Stopped { .. } => {}
                }
            }
            let Process { machine, links, .. } = &mut self.clients[client];
            for link in links.iter_mut().filter(|link| link.open) {
                let bytes = machine.outgoing(link.conn).to_vec();
                if !bytes.is_empty() {
                    idle = false;
                    machine.consume(link.conn, bytes.len());
                    link.up.extend(bytes);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn acquire(&mut self, client: usize) {
        let want = Acquire::new("a").wait(Wait::Forever);
        let lock = self.clients[client].machine.acquire(self.now, &want).unwrap();
        self.clients[client].lock = Some(lock);
    }

    fn release(&mut self, client: usize) {
        self.clients[client].held = false;
        if let Some(lock) = self.clients[client].lock {
            let _ = self.clients[client].machine.release(self.now, lock);
        }
    }

    fn cycle(&mut self, client: usize) {
        self.acquire(client);
        self.run_until(|state| state.clients[client].held);
        self.release(client);
        self.run_until(|state| state.contenders().is_empty());
    }

    /// Delivers everything. Servers that send to each other need time as well.
    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        self.deliver_all();
        for _ in 0..1_000 {
            if done(self) {
                return;
            }
            self.pass();
            self.deliver_all();
        }
        panic!("it is never done");
    }

    /// The sessions of the nodes in the queue.
    fn contenders(&self) -> Vec<i64> {
        let nodes = self.ensemble.nodes().into_iter().filter(|(path, _)| path.starts_with(CHILDREN));
        nodes.map(|(_, stat)| stat.ephemeral_owner).collect()
    }

    /// Delivers until nothing is under way.
    fn deliver_all(&mut self) {
        loop {
            self.pump();
            let place = |waits: fn(&Link) -> bool| {
                let found = |(c, client): (usize, &Process)| Some((c, client.links.iter().position(waits)?));
                self.clients.iter().enumerate().find_map(found)
            };
            if let Some((client, link)) = place(|link| link.open && !link.down.is_empty()) {
                self.deliver_to_client(client, link);
            } else if let Some((client, link)) = place(|link| !link.up.is_empty()) {
                self.deliver_to_server(client, link);
            } else {
                return;
            }
        }
    }

    fn event(&mut self, client: usize, lock: LockId, event: &Event) {
        match event {
            Event::Granted(grant) => {
                let now = self.now;
                if self.clients[client].machine.claim(now, lock).is_err() {
                    self.violation = Some(format!("client {client} cannot claim what was offered"));
                }
                self.clients[client].held = true;
                let fence = match self.flaw {
                    Some(Flaw::NumbersAsFences) => self.first_number() + 1,
                    _ => grant.fence.map_or(0, |fence| fence.get()),
                };
                if fence <= self.fence {
                    self.violation = Some(format!("the fence went from {} to {fence}", self.fence));
                }
                self.fence = fence;
                if self.clients[1 - client].left == 0 && self.clients[1 - client].lock.is_none() {
                    self.reach(1);
                }
            }
            Event::Blocked(_) => {
                self.reach(0);
                self.clients[client].held = self.flaw == Some(Flaw::HoldsWhileWaiting);
            }
            Event::Lost(_) => {
                self.clients[client].held = false;
                self.reach(4);
            }
            event if event.is_last() => (self.clients[client].lock, self.clients[client].held) = (None, false),
            _ => {}
        }
    }

    fn first_number(&self) -> u64 {
        let nodes = self.ensemble.nodes();
        let number = |(path, _): &(String, _)| path.rsplit_once('-')?.1.parse().ok();
        nodes.iter().filter_map(number).min().unwrap()
    }

    fn pump_server(&mut self) {
        while let Some(output) = self.ensemble.poll_output() {
            let id = output.conn();
            let link = self.clients.iter_mut().flat_map(|client| &mut client.links).find(|link| link.id == id);
            let Some(link) = link.filter(|link| link.open) else { continue };
            link.down.push_back(match output {
                EnsembleOutput::Send { bytes, .. } => Some(bytes),
                EnsembleOutput::Closed { .. } => None,
            });
        }
    }

    /// Removes connections that are closed and carry nothing.
    fn sweep(&mut self) {
        let (now, ensemble) = (self.now, &mut self.ensemble);
        for client in &mut self.clients {
            client.links.retain(|link| {
                let stays = link.open || !link.up.is_empty();
                if !stays {
                    ensemble.handle_disconnected(now, link.id);
                }
                stays
            });
        }
    }

    /// Time passes up to the next timer. Returns true if it concerns a client.
    fn pass(&mut self) -> bool {
        let clients = self.clients.iter().filter_map(|client| client.machine.next_deadline());
        let due = clients.chain(self.ensemble.next_deadline()).min().unwrap_or(self.now + TICK);
        self.now = self.now.max(due);
        let now = self.now;
        self.ensemble.handle_timeout(now);
        self.pump_server();
        let mut concerned = self.clients.iter().any(|client| client.links.iter().any(|link| !link.down.is_empty()));
        for client in &mut self.clients {
            if client.machine.next_deadline().is_some_and(|at| at <= now) {
                client.machine.handle_timeout(now);
                concerned = true;
            }
        }
        concerned
    }

    fn throttle(&mut self, on: bool) {
        self.throttled = on;
        self.ensemble.set(self.now, Condition::Throttled, on);
        if on && self.clients[0].lock.is_some() && !self.clients[0].held {
            self.reach(6);
        }
    }

    /// Returns what remains wrong once nothing fails any more, if the only client has two nodes.
    fn own_node_in_the_way(&self) -> Option<String> {
        if self.contenders().len() < 2 {
            return None;
        }
        let mut later = self.clone();
        later.throttle(false);
        let end = later.now + TICK * 600;
        while later.now < end {
            later.pass();
            later.deliver_all();
        }
        let client = &later.clients[0];
        let left = later.contenders().len();
        (client.lock.is_some() != client.held || left > usize::from(client.held))
            .then(|| format!("a client waits for its own node, or leaves it: {left} nodes"))
    }

    fn deliver_to_server(&mut self, client: usize, link: usize) {
        let link = &mut self.clients[client].links[link];
        let (id, bytes, late) = (link.id, core::mem::take(&mut link.up), !link.open);
        self.ensemble.handle_received(self.now, id, &bytes);
        if late {
            self.reach(3);
        }
        self.pump_server();
        self.sweep();
    }

    fn deliver_to_client(&mut self, client: usize, link: usize) {
        let now = self.now;
        let Process { machine, links, .. } = &mut self.clients[client];
        let link = &mut links[link];
        let conn = link.conn;
        match link.down.pop_front() {
            Some(Some(bytes)) => machine.handle_received(now, conn, &bytes),
            Some(None) => {
                (link.open, link.up) = (false, Vec::new());
                machine.handle_disconnected(now, conn, Fault::Closed);
            }
            None => {}
        }
        self.sweep();
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn initial_states(&self) -> Vec<State> {
        let now = Instant::from_nanos(EPOCH);
        let (members, url) = if self.throttles > 0 { (2, "zk://h,i") } else { (1, "zk://h") };
        let config = EnsembleConfig::new(members, 7).tick(TICK).container_interval(None);
        let process = |id| {
            let config = Config::parse(url).unwrap().tick(TICK).session_ttl(TICK * 10).request_timeout(TICK * 3);
            let machine = Client::new(now, config, ClientId::from_bits(id), 1).unwrap();
            Process { machine, links: Vec::new(), lock: None, held: false, left: self.acquisitions }
        };
        let mut state = State {
            now,
            ensemble: Ensemble::new(now, config),
            clients: [process(1), process(2)],
            next_link: 0,
            breaks: self.breaks,
            expiries: self.expiries,
            deletions: self.deletions,
            throttles: self.throttles,
            throttled: false,
            fence: 0,
            reached: 0,
            violation: None,
            flaw: None,
        };
        // Both have sessions, and the queue exists.
        let clients = if self.throttles > 0 { 1 } else { 2 };
        (0..clients).for_each(|client| state.cycle(client));
        if self.throttles > 0 {
            state.clients[1].left = 0;
            state.ensemble.set_lag(state.now, 1, TICK);
        } else if self.instant {
            // The next number of the first client is 2. It will need no list.
            state.ensemble.delete(state.now, QUEUE);
            (0..2).for_each(|_| state.cycle(0));
        }
        state.reached = 0;
        if self.flaw.is_some() {
            (state.flaw, state.fence) = (self.flaw, 0);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (c, client) in state.clients.iter().enumerate() {
            match client.lock {
                // Clients are alike, so the first one begins.
                None if client.left > 0 && (c == 0 || self.instant || state.clients[0].left < self.acquisitions) => {
                    actions.push(Action::Acquire(c));
                }
                Some(_) if client.held => actions.push(Action::Release(c)),
                Some(_) => actions.push(Action::Abandon(c)),
                None => {}
            }
            for (l, link) in client.links.iter().enumerate() {
                if !link.up.is_empty() {
                    actions.push(Action::ToServer(c, l));
                }
                if link.open && !link.down.is_empty() {
                    actions.push(Action::ToClient(c, l));
                }
                if link.open && state.breaks > 0 {
                    actions.push(Action::Break(c, l, false));
                    if !link.up.is_empty() {
                        actions.push(Action::Break(c, l, true));
                    }
                }
            }
            if state.expiries > 0 && client.links.iter().any(|link| state.ensemble.session_of(link.id).is_some()) {
                actions.push(Action::Expire(c));
            }
        }
        let is_empty = || !state.ensemble.nodes().iter().any(|(path, _)| path.starts_with(CHILDREN));
        if state.deletions > 0 && state.ensemble.stat(0, QUEUE).is_some() && is_empty() {
            actions.push(Action::DeleteQueue);
        }
        if state.throttled || state.throttles > 0 {
            actions.push(Action::Throttle(!state.throttled));
        }
        actions.push(Action::Time);
    }

    fn step(&self, state: &State, action: &Action) -> State {
        let mut next = state.clone();
        let now = next.now;
        match action {
            Action::Acquire(c) => {
                next.clients[*c].left -= 1;
                next.acquire(*c);
            }
            Action::Release(c) => next.release(*c),
            Action::Abandon(c) => {
                if let Some(lock) = next.clients[*c].lock.take() {
                    next.clients[*c].machine.abandon(now, lock);
                }
            }
            Action::ToServer(c, l) => next.deliver_to_server(*c, *l),
            Action::ToClient(c, l) => next.deliver_to_client(*c, *l),
            Action::Break(c, l, late) => {
                next.breaks -= 1;
                let link = &mut next.clients[*c].links[*l];
                let conn = link.conn;
                link.open = false;
                link.down.clear();
                if !late {
                    link.up.clear();
                }
                next.clients[*c].machine.handle_disconnected(now, conn, Fault::Reset);
                next.sweep();
            }
            Action::Expire(c) => {
                next.expiries -= 1;
                next.reach(2);
                let session = next.clients[*c].links.iter().find_map(|link| next.ensemble.session_of(link.id));
                if let Some(session) = session {
                    next.ensemble.expire_session(now, session);
                    next.pump_server();
                }
            }
            Action::DeleteQueue => {
                next.deletions -= 1;
                next.reach(5);
                next.ensemble.delete(now, QUEUE);
                next.pump_server();
            }
            Action::Throttle(on) => {
                next.throttles -= u8::from(*on);
                next.throttle(*on);
            }
            // The messages among servers are no choice.
            Action::Time if self.throttles > 0 => {
                let _ = (0..64).find(|_| next.pass());
            }
            Action::Time => {
                next.pass();
            }
        }
        if self.instant {
            next.deliver_all();
        } else {
            next.pump();
        }
        next
    }

    fn canon(&self) -> Canon {
        let times = Instant::from_nanos(EPOCH)..Instant::from_nanos(EPOCH * 2);
        Canon::new().times(times, TICK * 20, TICK / 4).ids(1 << 32..1 << 33).ids(1_700_000_000_000..1_800_000_000_000)
    }

    fn hash_state(&self, state: &State, canon: &mut Canon) {
        canon.now(state.now);
        state.ensemble.hash(canon);
        state.clients.hash(canon);
        (state.breaks, state.expiries, state.deletions, state.throttles, state.throttled).hash(canon);
        // The transaction that created the node, which is an id, and the count of hand-overs.
        (state.fence >> 16, state.fence as u16).hash(canon);
    }

    fn check(&self, state: &State) -> Result<(), String> {
        let own = || if self.throttles > 0 { state.own_node_in_the_way() } else { None };
        if let Some(text) = state.violation.clone().or_else(own) {
            return Err(text);
        }
        let holds = |client: &Process| {
            let until = client.lock.filter(|_| client.held).and_then(|lock| client.machine.valid_until(lock));
            until.is_some_and(|until| until > state.now) || client.held && state.flaw == Some(Flaw::HoldsWhileWaiting)
        };
        if state.clients.iter().all(holds) { Err("two clients hold the lock".into()) } else { Ok(()) }
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &SOMETIMES
    }

    fn reached(&self, state: &State) -> u64 {
        state.reached
    }
}

/// Explores a world, and expects at least `floor` states and the conditions of `reached`.
fn explore(name: &str, world: World, depth: usize, floor: usize, reached: u64) {
    let deeper: usize = std::env::var("LOCK_DEPTH").map_or(0, |text| text.parse().unwrap());
    let start = std::time::Instant::now();
    let outcome = Search::new().depth(depth + deeper).run(&world);
    println!("{name}: {outcome}, {:.1} s", start.elapsed().as_secs_f64());
    for (what, states) in &outcome.sometimes {
        println!("  {states:>9} x {what}");
    }
    if let Some(found) = outcome.counterexample {
        panic!("{found}");
    }
    assert!(outcome.states >= floor, "only {} states", outcome.states);
    for (i, (what, states)) in outcome.sometimes.iter().enumerate() {
        assert!(reached >> i & 1 == 0 || *states > 0, "never: {what}");
    }
}

/// The bytes of two clients in flight, without faults.
const CALM: World =
    World { acquisitions: 1, breaks: 0, expiries: 0, deletions: 0, throttles: 0, instant: false, flaw: None };

#[test]
fn two_clients_without_faults() {
    // S6, ZK3
    explore("calm", CALM, 9, 50_000, 0b00011);
}

#[test]
fn two_clients_whose_connections_break() {
    // S6, ZK2, ZK6
    explore("breaks", World { breaks: 1, ..CALM }, 8, 50_000, 0b01011);
}

#[test]
fn two_clients_whose_sessions_end() {
    // S6, ZK2
    explore("expiry", World { breaks: 1, expiries: 1, ..CALM }, 8, 100_000, 0b01111);
}

/// A number that follows directly proves a place, but not if the numbers have begun anew.
#[test]
fn queue_that_is_deleted_and_created() {
    // S6, ZK10
    let world = World { acquisitions: 3, deletions: 1, instant: true, ..CALM };
    explore("numbers", world, 10, 20_000, 0b100011);
}

/// The first write on the next connection may be rejected while the create is still to be executed.
#[test]
fn client_whose_connections_break_under_overload() {
    // S6, ZK6
    let world = World { breaks: 1, throttles: 2, instant: true, ..CALM };
    explore("overload", world, 14, 10_000, 0b1000000);
}

/// What would be wrong is found.
#[test]
fn planted_flaws_are_found() {
    // S4
    let world = World { acquisitions: 3, deletions: 1, instant: true, ..CALM };
    let flaws = [
        (Flaw::NumbersAsFences, 4, "the fence went from 3 to 1"),
        (Flaw::HoldsWhileWaiting, 2, "two clients hold the lock"),
    ];
    for (flaw, steps, rule) in flaws {
        let found = Search::new().depth(steps).run(&World { flaw: Some(flaw), ..world }).counterexample.unwrap();
        assert_eq!((found.actions.len(), found.rule.as_str()), (steps, rule), "{flaw:?}: {found}");
    }
}
