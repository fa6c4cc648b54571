//! Clients, nodes, what is on its way between them, and everything that can happen next.

use core::cell::Cell;
use core::hash::Hash;
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;

use lock_proto::Instant;
use lock_proto::redis::{Config, Request};
use lock_proto::sim::search::{Canon, Model};

use crate::client::{Client, News, Phase, Sent, mark, short, tell_reply, tell_request, who};
use crate::node::{Node, Variant};
use crate::{CALLS, EPOCH, FENCES, MS, NUMBERS, TTL};

/// What may go wrong on one way, all in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Connections that break, by themselves or because nothing was heard for too long.
    pub(crate) cuts: u8,
    /// Clients that die.
    pub(crate) crashes: u8,
    /// Clients that stand still for as long as it takes.
    pub(crate) stalls: u8,
    /// Wishes that are given up while they wait.
    pub(crate) cancels: u8,
    /// Nodes that forget the key: their data is lost, or their clock jumps.
    pub(crate) forgets: u8,
}

/// A small world.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) nodes: usize,
    /// How often each client wants the lock, and how many of its wishes may be open at once.
    pub(crate) wishes: [u8; 2],
    pub(crate) at_once: usize,
    /// The paces of the two clocks, in parts of a thousand; every pair is a start.
    pub(crate) paces: Vec<[u64; 2]>,
    pub(crate) budget: Budget,
    pub(crate) variant: Variant,
    pub(crate) config: fn(Config) -> Config,
    /// A reply arrives as soon as the node has answered, or never.
    pub(crate) prompt: bool,
    /// Whoever saw that it holds the lock, and then stood still, still acts on it.
    pub(crate) acts_on_memory: bool,
    /// From one in so many states everything is led to its end; 0 for none.
    pub(crate) settle_every: u64,
    pub(crate) settled: Cell<u64>,
    pub(crate) met: Cell<u64>,
}

impl World {
    /// Two clients and one node, clocks as far apart as the settings allow, nothing that goes wrong.
    pub(crate) fn new() -> Self {
        Self {
            nodes: 1,
            wishes: [1, 1],
            at_once: 1,
            paces: vec![[990, 1_010], [1_000, 1_000], [1_010, 990]],
            budget: Budget::default(),
            variant: Variant::Ours,
            config: |config| config,
            prompt: false,
            acts_on_memory: false,
            settle_every: 0,
            settled: Cell::new(0),
            met: Cell::new(0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire(usize),
    /// The guard at this place comes back.
    Release(usize, usize),
    /// The wish at this place is given up.
    Cancel(usize, usize),
    /// A node executes the next request of a client.
    Execute(usize, usize),
    /// A client hears the next reply of a node.
    Reply(usize, usize),
    /// A connection breaks.
    Cut(usize, usize),
    /// A node executes what a closed connection had brought.
    Ghost(usize),
    Crash(usize),
    Stall(usize),
    GoOn(usize),
    Forget(usize),
    /// Time passes until something happens by itself.
    Pass,
}

/// What a closed connection had brought to a node.
#[derive(Clone, Debug, Hash)]
struct Ghosts {
    client: usize,
    node: usize,
    requests: VecDeque<Sent>,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) now: u64,
    clients: Vec<Rc<Client>>,
    nodes: Vec<Node>,
    ghosts: Vec<Ghosts>,
    left: Budget,
    /// When somebody last had, wanted or gave back the lock, or something was executed that had been sent by such a one.
    quiet: u64,
    fence: u64,
    /// Clients that have looked at their guard, seen that they hold the lock, and stand still since.
    remembers: [bool; 2],
    granted: [bool; 2],
    marks: u64,
    broken: Option<String>,
    log: Option<Vec<String>>,
}

impl State {
    fn new(world: &World, paces: [u64; 2]) -> Self {
        let client = |(index, pace)| {
            let mut client = Client::new(index, world.nodes, pace, world.config);
            client.wishes = world.wishes[index];
            client.endless = world.variant == Variant::EndlessRenewal;
            Rc::new(client)
        };
        Self {
            now: EPOCH,
            clients: paces.into_iter().enumerate().map(client).collect(),
            nodes: vec![Node::new(); world.nodes],
            ghosts: Vec::new(),
            left: world.budget,
            quiet: EPOCH,
            fence: FENCES.start,
            remembers: [false; 2],
            granted: [false; 2],
            marks: 0,
            broken: None,
            log: None,
        }
    }

    /// A step of one client, and what follows from it.
    fn with<R>(&mut self, client: usize, f: impl FnOnce(&mut Client, u64, &mut News) -> R) -> R {
        let mut news = News { log: self.log.take(), ..News::default() };
        let result = f(Rc::make_mut(&mut self.clients[client]), self.now, &mut news);
        let News { marks, fences, broken, log } = news;
        self.log = log;
        self.marks |= marks;
        if let Some(rule) = broken {
            self.broken.get_or_insert(rule);
        }
        for fence in fences {
            if fence <= self.fence {
                let (new, old) = (fence - FENCES.start, self.fence - FENCES.start);
                self.broken.get_or_insert_with(|| format!("fencing token {new} is told after {old}"));
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

    fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(what());
        }
    }

    fn execute(&mut self, world: &World, client: usize, n: usize, sent: &Sent) -> lock_proto::redis::Reply {
        let (reply, done) = self.nodes[n].execute(self.now, client, &sent.request, world.variant);
        let node = self.nodes[n];
        self.say(|| {
            let (what, answer) = (tell_request(&sent.request), tell_reply(&reply));
            format!("node {n} executes {}'s {what}: {answer}; there is now {}", who(client), node.tell())
        });
        if done.replaced {
            self.marks |= mark::REPLACED;
        }
        if sent.wanted && !matches!(sent.request, Request::Release { .. }) {
            self.quiet = self.now;
        }
        if let Some((owner, number)) = done.ended.filter(|(owner, _)| !self.clients[*owner].crashed) {
            // Requirement H6: whoever still has the guard, lost or not, keeps its key for as long as it lives.
            let out = |phase| matches!(phase, Phase::Held | Phase::Lost);
            if self.clients[owner].acquisitions.iter().any(|known| known.number == number && out(known.phase)) {
                let rule = format!("the key of {}'s #{} is deleted, and its guard is out", who(owner), short(number));
                self.broken.get_or_insert(rule);
            }
        }
        reply
    }

    /// When time passes, it passes up to here: the next instant at which something happens by itself.
    fn next(&self) -> Option<u64> {
        let clients = self.clients.iter().filter(|client| client.is_awake());
        let clients = clients.flat_map(|client| {
            let patience = (0..self.nodes.len()).filter_map(|n| client.patience(n));
            client.next().into_iter().chain(patience)
        });
        let keys = self.nodes.iter().filter_map(|node| node.value.map(|value| value.gone_at()));
        clients.chain(keys).filter(|at| *at > self.now).min()
    }

    /// Connections whose silence has been too long by `now`.
    fn overdue(&self, now: u64) -> Vec<(usize, usize)> {
        let awake = self.clients.iter().filter(|client| client.is_awake());
        let conns = awake.flat_map(|client| (0..client.conns.len()).map(move |n| (client, n)));
        let late = conns.filter(|(client, n)| client.patience(*n).is_some_and(|at| at <= now));
        late.map(|(client, n)| (client.index, n)).collect()
    }

    fn cut(&mut self, client: usize, node: usize) {
        self.say(|| format!("{} loses its connection to node {node}", who(client)));
        let requests = self.with(client, |client, now, news| client.cut(now, node, news));
        self.haunt(client, node, requests);
    }

    fn haunt(&mut self, client: usize, node: usize, requests: VecDeque<Sent>) {
        if !requests.is_empty() {
            self.ghosts.push(Ghosts { client, node, requests });
        }
    }

    /// The next thing that a closed connection had brought is executed.
    fn ghost(&mut self, world: &World, place: usize) {
        let Ghosts { client, node, requests } = &mut self.ghosts[place];
        let (client, node) = (*client, *node);
        let sent = requests.pop_front();
        if requests.is_empty() {
            self.ghosts.remove(place);
        }
        if let Some(sent) = sent {
            self.say(|| "from a connection that is closed:".into());
            let reply = self.execute(world, client, node, &sent);
            if matches!(reply, lock_proto::redis::Reply::Granted { .. }) {
                self.marks |= mark::GHOST_TOOK;
            }
        }
    }

    /// Everybody who is awake does what is due.
    fn serve(&mut self) {
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

    fn pass(&mut self, to: u64) {
        self.now = to;
        for node in &mut self.nodes {
            node.expire(to);
        }
        self.serve();
    }

    fn anybody(&self) -> bool {
        self.clients.iter().any(|client| !client.crashed && !client.acquisitions.is_empty())
    }

    /// What follows from every step.
    fn look_around(&mut self, world: &World) {
        if self.anybody() {
            self.quiet = self.now;
        }
        for (c, client) in self.clients.iter().enumerate() {
            let holds = client.holds(self.now);
            if let Some(known) = holds
                && known.phase != Phase::Held
            {
                self.broken.get_or_insert_with(|| format!("{} holds a lock that is {:?}", who(c), known.phase));
            }
            self.remembers[c] = client.stalled && (self.remembers[c] || (world.acts_on_memory && holds.is_some()));
        }
    }

    /// From here on nothing goes wrong, and every guard comes back: everybody is served, and nothing is left.
    fn settle(mut self, world: &World) -> Result<(), String> {
        let end = self.now + (TTL * 40).as_nanos() as u64;
        let mut rounds = 0;
        loop {
            rounds += 1;
            while !self.ghosts.is_empty() {
                self.ghost(world, 0);
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
                        self.carry(world, c, n);
                    }
                }
                let back: Vec<usize> = self.returnable(c).collect();
                for place in back.into_iter().rev() {
                    self.with(c, |client, now, news| client.release(now, place, news));
                }
            }
            self.look_around(world);
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
            self.pass(next);
        }
        match self.clients.iter().find(|client| !client.crashed && !client.acquisitions.is_empty()) {
            Some(client) => Err(format!("never served: {:?} of {}", client.acquisitions, who(client.index))),
            None if self.nodes.iter().any(|node| node.value.is_some()) => Err("a key is left behind".into()),
            None => Ok(()),
        }
    }

    /// One request there, or one reply back.
    fn carry(&mut self, world: &World, c: usize, n: usize) {
        if self.clients[c].conns[n].replies.is_empty() {
            self.execute_next(world, c, n);
        } else {
            self.say(|| format!("{} hears node {n}", who(c)));
            self.with(c, |client, now, news| client.answered(now, n, news));
        }
    }

    fn execute_next(&mut self, world: &World, c: usize, n: usize) {
        let Some(sent) = Rc::make_mut(&mut self.clients[c]).conns[n].requests.pop_front() else { return };
        let reply = self.execute(world, c, n, &sent);
        Rc::make_mut(&mut self.clients[c]).conns[n].replies.push_back((sent, reply));
    }

    /// Guards that can come back.
    fn returnable(&self, c: usize) -> impl Iterator<Item = usize> {
        let out = |phase| matches!(phase, Phase::Held | Phase::Lost);
        let known = self.clients[c].acquisitions.iter().enumerate();
        known.filter(move |(_, known)| out(known.phase)).map(|(place, _)| place)
    }
}

impl World {
    /// Nobody holds the lock beside somebody else, in true time.
    fn holders(&self, state: &State) -> Result<(), String> {
        let holds = |c: &usize| state.clients[*c].holds(state.now).is_some() || state.remembers[*c];
        let holders: Vec<usize> = (0..state.clients.len()).filter(holds).collect();
        match *holders {
            [one, other, ..] => Err(format!("{} and {} both hold the lock", who(one), who(other))),
            [_] | [] => Ok(()),
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn starts(&self) -> Vec<State> {
        self.paces.iter().map(|paces| State::new(self, *paces)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (c, client) in state.clients.iter().enumerate() {
            if client.crashed {
                continue;
            }
            for (n, conn) in client.conns.iter().enumerate() {
                if !conn.requests.is_empty() {
                    actions.push(Action::Execute(c, n));
                }
                if !client.stalled && !conn.replies.is_empty() {
                    actions.push(Action::Reply(c, n));
                }
                if !client.stalled && !conn.is_idle() && left.cuts > 0 {
                    actions.push(Action::Cut(c, n));
                }
            }
            if client.stalled {
                actions.push(Action::GoOn(c));
                continue;
            }
            if client.wishes > 0 && client.acquisitions.len() < self.at_once {
                actions.push(Action::Acquire(c));
            }
            actions.extend(state.returnable(c).map(|place| Action::Release(c, place)));
            if left.cancels > 0 {
                let waiting = client.acquisitions.iter().enumerate().filter(|(_, known)| known.phase == Phase::Waiting);
                actions.extend(waiting.map(|(place, _)| Action::Cancel(c, place)));
            }
            if left.crashes > 0 {
                actions.push(Action::Crash(c));
            }
            if left.stalls > 0 {
                actions.push(Action::Stall(c));
            }
        }
        actions.extend((0..state.ghosts.len()).map(Action::Ghost));
        if left.forgets > 0 {
            let full = state.nodes.iter().enumerate().filter(|(_, node)| node.value.is_some());
            actions.extend(full.map(|(n, _)| Action::Forget(n)));
        }
        // A delay is bounded by the patience of whoever waits, as long as no connection may break any more.
        let awake = || state.clients.iter().filter(|client| client.is_awake());
        if let Some(next) = state.next()
            && state.overdue(next).len() <= usize::from(left.cuts)
            && awake().filter_map(|client| client.back_by()).all(|at| next <= at)
        {
            actions.push(Action::Pass);
        }
    }

    fn step(&self, state: &State, action: &Action) -> State {
        let mut next = state.clone();
        match *action {
            Action::Acquire(c) => next.with(c, Client::acquire),
            Action::Release(c, place) => next.with(c, |client, now, news| client.release(now, place, news)),
            Action::Cancel(c, place) => {
                next.left.cancels -= 1;
                next.with(c, |client, now, news| client.abandon(now, place, news));
            }
            Action::Execute(c, n) => {
                next.execute_next(self, c, n);
                if self.prompt && next.clients[c].is_awake() {
                    next.carry(self, c, n);
                }
            }
            Action::Reply(c, n) => next.carry(self, c, n),
            Action::Cut(c, n) => {
                next.left.cuts -= 1;
                next.cut(c, n);
            }
            Action::Ghost(place) => next.ghost(self, place),
            Action::Crash(c) => {
                next.left.crashes -= 1;
                let client = Rc::make_mut(&mut next.clients[c]);
                client.crashed = true;
                let conns = core::mem::take(&mut client.conns);
                for (n, conn) in conns.into_iter().enumerate() {
                    next.haunt(c, n, conn.requests);
                }
            }
            Action::Stall(c) => {
                next.left.stalls -= 1;
                Rc::make_mut(&mut next.clients[c]).stalled = true;
            }
            Action::GoOn(c) => {
                Rc::make_mut(&mut next.clients[c]).stalled = false;
                next.serve();
            }
            Action::Forget(n) => {
                next.left.forgets -= 1;
                next.nodes[n].value = None;
            }
            Action::Pass => {
                if let Some(at) = state.next() {
                    next.pass(at);
                }
            }
        }
        next.look_around(self);
        next
    }

    fn canon(&self) -> Canon {
        let at = Instant::from_nanos;
        Canon::new().times(at(EPOCH)..at(EPOCH + (1 << 43)), TTL / 4, TTL / 20).ids(NUMBERS).ids(CALLS).ids(FENCES)
    }

    fn describe(&self, state: &State, canon: &mut Canon) {
        let now = Instant::from_nanos(state.now);
        canon.now(now);
        for node in &state.nodes {
            node.describe(canon);
        }
        (state.left, state.fence, Instant::from_nanos(state.quiet), state.remembers).hash(canon);
        for client in &state.clients {
            canon.now(client.clock(state.now));
            client.describe(canon);
            let of_client = |ghosts: &&Ghosts| ghosts.client == client.index;
            for ghosts in state.ghosts.iter().filter(of_client) {
                (ghosts.client, ghosts.node).hash(canon);
                for sent in &ghosts.requests {
                    (&sent.request, sent.wanted).hash(canon);
                }
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        self.holders(state)?;
        if let Some(rule) = &state.broken {
            return Err(rule.clone());
        }
        if !state.anybody() {
            let longest = state.quiet + (TTL + Duration::from_millis(1)).as_nanos() as u64;
            if state.nodes.iter().any(|node| node.value.is_some_and(|value| value.gone_at() > longest)) {
                return Err("a key lives on, and nobody is there".into());
            }
        }
        self.met.set(self.met.get() + 1);
        if self.settle_every > 0 && self.met.get().is_multiple_of(self.settle_every) {
            self.settled.set(self.settled.get() + 1);
            state.clone().settle(self).map_err(|rule| format!("once everything works again: {rule}"))?;
        }
        Ok(())
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[
            "somebody gets the lock",
            "a holder loses it",
            "it is given back",
            "it had ended, or nobody knows, when it is given back",
            "it is renewed",
            "both get it in turn",
            "a late attempt takes it for nobody",
            "a client replaces what it had left behind",
            "a hold outlives its first TTL",
            "one dies, and the other gets it",
        ]
    }

    fn reached(&self, state: &State) -> u64 {
        let old = state.clients.iter().any(|client| client.holds(state.now).is_some())
            && state.now > EPOCH + TTL.as_nanos() as u64
            && state.marks & mark::RENEWED != 0;
        state.marks | if old { mark::OUTLIVED } else { 0 }
    }

    fn tell(&self, before: &State, action: &Action) -> String {
        let mut with_log = before.clone();
        with_log.log = Some(Vec::new());
        let after = self.step(&with_log, action);
        let what = match *action {
            Action::Acquire(c) => format!("{} wants the lock", who(c)),
            Action::Release(c, _) => format!("{} gives the lock back", who(c)),
            Action::Cancel(c, _) => format!("{} does not want it any more", who(c)),
            Action::Crash(c) => format!("{} dies", who(c)),
            Action::Stall(c) => format!("{} stands still", who(c)),
            Action::GoOn(c) => format!("{} goes on", who(c)),
            Action::Forget(n) => format!("node {n} forgets the key"),
            Action::Pass => format!("time passes, to {} ms", (after.now - EPOCH) / MS),
            // These tell themselves.
            Action::Execute(..) | Action::Reply(..) | Action::Cut(..) | Action::Ghost(_) => String::new(),
        };
        let own = Some(what).filter(|what| !what.is_empty());
        let lines: Vec<String> = own.into_iter().chain(after.log.unwrap_or_default()).collect();
        format!("{:>5} ms  {}", (before.now - EPOCH) / MS, lines.join("\n            "))
    }
}
