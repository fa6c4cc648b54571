//! A state of the world and its transitions.

use std::collections::VecDeque;
use std::rc::Rc;

use lock_proto::redis::{Reply, Request};

use crate::client::{Client, Phase, Report, Sent, client_name, describe_reply, describe_request, mark, short_number};
use crate::node::{Node, Variant};
use crate::world::{Budget, World};
use crate::{EPOCH, FENCES, TTL};

/// Requests from a closed connection that a node has received.
#[derive(Clone, Debug, Hash)]
pub(crate) struct LateRequests {
    pub(crate) client: usize,
    pub(crate) node: usize,
    pub(crate) requests: VecDeque<Sent>,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) now: u64,
    pub(crate) clients: Vec<Rc<Client>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) late_requests: Vec<LateRequests>,
    pub(crate) left: Budget,
    /// When a client last used the lock, or a request of such a client was executed.
    pub(crate) last_use: u64,
    pub(crate) fence: u64,
    /// Clients that have checked their guard and are paused since.
    pub(crate) remembers: [bool; 2],
    granted: [bool; 2],
    pub(crate) marks: u64,
    pub(crate) broken: Option<String>,
    pub(crate) log: Option<Vec<String>>,
}

impl State {
    pub(crate) fn new(world: &World, paces: [u64; 2]) -> Self {
        let client = |(index, pace)| {
            let mut client = Client::new(index, world.nodes, pace, world.config);
            client.acquires = world.acquires[index];
            client.endless = world.variant == Variant::EndlessRenewal;
            Rc::new(client)
        };
        Self {
            now: EPOCH,
            clients: paces.into_iter().enumerate().map(client).collect(),
            nodes: vec![Node::new(); world.nodes],
            late_requests: Vec::new(),
            left: world.budget,
            last_use: EPOCH,
            fence: FENCES.start,
            remembers: [false; 2],
            granted: [false; 2],
            marks: 0,
            broken: None,
            log: None,
        }
    }

    /// Runs a step of one client and handles its reports.
    pub(crate) fn with<R>(&mut self, client: usize, f: impl FnOnce(&mut Client, u64, &mut Report) -> R) -> R {
        let mut report = Report { log: self.log.take(), ..Report::default() };
        let result = f(Rc::make_mut(&mut self.clients[client]), self.now, &mut report);
        let Report { marks, fences, broken, log } = report;
        self.log = log;
        self.marks |= marks;
        if let Some(rule) = broken {
            self.broken.get_or_insert(rule);
        }
        for fence in fences {
            if fence <= self.fence {
                let (new, old) = (fence - FENCES.start, self.fence - FENCES.start);
                self.broken.get_or_insert_with(|| format!("fencing token {new} is granted after {old}"));
            }
            self.fence = fence;
        }
        if marks & mark::GRANTED != 0 {
            self.granted[client] = true;
            if self.granted == [true; 2] {
                self.marks |= mark::BOTH;
            }
            if self.clients.iter().any(|other| other.crashed) {
                self.marks |= mark::AFTER_CRASH;
            }
        }
        result
    }

    fn record(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(what());
        }
    }

    pub(crate) fn execute(&mut self, world: &World, client: usize, n: usize, sent: &Sent) -> Reply {
        let (reply, done) = self.nodes[n].execute(self.now, client, &sent.request, world.variant);
        let node = self.nodes[n];
        self.record(|| {
            let (what, answer) = (describe_request(&sent.request), describe_reply(&reply));
            format!("node {n} executes {}'s {what}: {answer}; there is now {}", client_name(client), node.describe())
        });
        if done.replaced {
            self.marks |= mark::REPLACED;
        }
        if sent.in_use && !matches!(sent.request, Request::Release { .. }) {
            self.last_use = self.now;
        }
        if let Some((owner, number)) = done.ended.filter(|(owner, _)| !self.clients[*owner].crashed) {
            // A key stays while its guard exists, lost or not.
            // H6
            let out = |phase| matches!(phase, Phase::Held | Phase::Lost);
            if self.clients[owner].acquisitions.iter().any(|known| known.number == number && out(known.phase)) {
                let rule = format!(
                    "the key of {}'s #{} is deleted, and its guard is out",
                    client_name(owner),
                    short_number(number)
                );
                self.broken.get_or_insert(rule);
            }
        }
        reply
    }

    /// Returns the next instant at which something happens without a choice.
    pub(crate) fn next(&self) -> Option<u64> {
        let clients = self.clients.iter().filter(|client| client.is_awake());
        let clients = clients.flat_map(|client| {
            let timeout = (0..self.nodes.len()).filter_map(|n| client.timeout(n));
            client.next().into_iter().chain(timeout)
        });
        let keys = self.nodes.iter().filter_map(|node| node.value.map(|value| value.expires_at()));
        clients.chain(keys).filter(|at| *at > self.now).min()
    }

    /// Returns the connections that have timed out by `now`.
    pub(crate) fn overdue(&self, now: u64) -> Vec<(usize, usize)> {
        let awake = self.clients.iter().filter(|client| client.is_awake());
        let conns = awake.flat_map(|client| (0..client.conns.len()).map(move |n| (client, n)));
        let late = conns.filter(|(client, n)| client.timeout(*n).is_some_and(|at| at <= now));
        late.map(|(client, n)| (client.index, n)).collect()
    }

    pub(crate) fn cut(&mut self, client: usize, node: usize) {
        self.record(|| format!("{} loses its connection to node {node}", client_name(client)));
        let requests = self.with(client, |client, now, report| client.cut(now, node, report));
        self.add_late_requests(client, node, requests);
    }

    pub(crate) fn add_late_requests(&mut self, client: usize, node: usize, requests: VecDeque<Sent>) {
        if !requests.is_empty() {
            self.late_requests.push(LateRequests { client, node, requests });
        }
    }

    /// Executes the next request from a closed connection.
    pub(crate) fn execute_late(&mut self, world: &World, place: usize) {
        let LateRequests { client, node, requests } = &mut self.late_requests[place];
        let (client, node) = (*client, *node);
        let sent = requests.pop_front();
        if requests.is_empty() {
            self.late_requests.remove(place);
        }
        if let Some(sent) = sent {
            self.record(|| "from a connection that is closed:".into());
            let reply = self.execute(world, client, node, &sent);
            if matches!(reply, Reply::Granted { .. }) {
                self.marks |= mark::LATE_TOOK;
            }
        }
    }

    pub(crate) fn serve(&mut self) {
        for (c, n) in self.overdue(self.now) {
            self.left.cuts = self.left.cuts.saturating_sub(1);
            self.cut(c, n);
        }
        for c in 0..self.clients.len() {
            let client = &self.clients[c];
            if client.is_awake() && client.next().is_some_and(|at| at <= self.now) {
                self.with(c, Client::serve);
            }
        }
    }

    pub(crate) fn advance_to(&mut self, to: u64) {
        self.now = to;
        for node in &mut self.nodes {
            node.expire(to);
        }
        self.serve();
    }

    pub(crate) fn has_acquisitions(&self) -> bool {
        self.clients.iter().any(|client| !client.crashed && !client.acquisitions.is_empty())
    }

    /// Updates derived state after every step.
    pub(crate) fn update_derived(&mut self, world: &World) {
        if self.has_acquisitions() {
            self.last_use = self.now;
        }
        for (c, client) in self.clients.iter().enumerate() {
            let holds = client.holds(self.now);
            if let Some(known) = holds
                && known.phase != Phase::Held
            {
                self.broken.get_or_insert_with(|| format!("{} holds a lock that is {:?}", client_name(c), known.phase));
            }
            self.remembers[c] = client.stalled && (self.remembers[c] || (world.acts_on_memory && holds.is_some()));
        }
    }

    /// Runs the world to its end without faults: every waiter is served, and nothing is left.
    pub(crate) fn settle(mut self, world: &World) -> Result<(), String> {
        let end = self.now + (TTL * 40).as_nanos() as u64;
        let mut rounds = 0;
        loop {
            rounds += 1;
            while !self.late_requests.is_empty() {
                self.execute_late(world, 0);
            }
            for c in 0..self.clients.len() {
                if self.clients[c].crashed {
                    continue;
                }
                if self.clients[c].stalled {
                    Rc::make_mut(&mut self.clients[c]).stalled = false;
                    self.serve();
                }
                for n in 0..self.nodes.len() {
                    while !self.clients[c].conns[n].is_idle() {
                        self.deliver_reply(world, c, n);
                    }
                }
                let back: Vec<usize> = self.releasable(c).collect();
                for place in back.into_iter().rev() {
                    self.with(c, |client, now, report| client.release(now, place, report));
                }
            }
            self.update_derived(world);
            world.holders(&self)?;
            if let Some(rule) = self.broken {
                return Err(rule);
            }
            if self.clients.iter().any(|client| !client.crashed && client.conns.iter().any(|conn| !conn.is_idle())) {
                continue;
            }
            let Some(next) = self.next() else { break };
            if self.now > end || rounds > 2_000 {
                return Err(format!("not settled within 40 TTLs: {:?}", self.clients));
            }
            self.advance_to(next);
        }
        match self.clients.iter().find(|client| !client.crashed && !client.acquisitions.is_empty()) {
            Some(client) => Err(format!("never served: {:?} of {}", client.acquisitions, client_name(client.index))),
            None if self.nodes.iter().any(|node| node.value.is_some()) => Err("a key is left behind".into()),
            None => Ok(()),
        }
    }

    pub(crate) fn deliver_reply(&mut self, world: &World, c: usize, n: usize) {
        if self.clients[c].conns[n].replies.is_empty() {
            self.execute_next(world, c, n);
        } else {
            self.record(|| format!("{} gets the reply of node {n}", client_name(c)));
            self.with(c, |client, now, report| client.deliver_next_reply(now, n, report));
        }
    }

    pub(crate) fn execute_next(&mut self, world: &World, c: usize, n: usize) {
        let Some(sent) = Rc::make_mut(&mut self.clients[c]).conns[n].requests.pop_front() else { return };
        let reply = self.execute(world, c, n, &sent);
        Rc::make_mut(&mut self.clients[c]).conns[n].replies.push_back((sent, reply));
    }

    /// Returns the guards that can be released.
    pub(crate) fn releasable(&self, c: usize) -> impl Iterator<Item = usize> {
        let out = |phase| matches!(phase, Phase::Held | Phase::Lost);
        let known = self.clients[c].acquisitions.iter().enumerate();
        known.filter(move |(_, known)| out(known.phase)).map(|(place, _)| place)
    }
}
