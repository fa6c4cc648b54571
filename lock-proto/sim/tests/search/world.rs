//! Clients, nodes, data in flight, and the possible next events.

use core::cell::Cell;
use core::hash::Hash;
use core::time::Duration;
use std::rc::Rc;

use lock_proto::Instant;
use lock_proto::redis::Config;
use lock_sim::search::{Canon, Model};

use crate::client::{Client, Phase, client_name, mark};
use crate::node::Variant;
use crate::state::{LateRequests, State};
use crate::{CALLS, EPOCH, FENCES, MS, NUMBERS, TTL};

/// Maximum number of faults on one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Broken connections, including timeouts.
    pub(crate) cuts: u8,
    pub(crate) crashes: u8,
    /// Clients that are paused until resumed.
    pub(crate) stalls: u8,
    pub(crate) cancels: u8,
    /// Nodes that lose the key: their data is lost, or their clock jumps.
    pub(crate) forgets: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) nodes: usize,
    /// How often each client requests the lock, and how many requests may be open at once.
    pub(crate) acquires: [u8; 2],
    pub(crate) at_once: usize,
    /// Pairs of clock speeds in thousandths. Each pair is an initial state.
    pub(crate) paces: Vec<[u64; 2]>,
    pub(crate) budget: Budget,
    pub(crate) variant: Variant,
    pub(crate) config: fn(Config) -> Config,
    /// A reply arrives at once or never.
    pub(crate) prompt: bool,
    /// A client that checked its guard before a pause acts on the result after it.
    pub(crate) acts_on_memory: bool,
    /// The state after one in this many steps is run to its end; 0 for none.
    pub(crate) settle_every: u64,
    pub(crate) settled: Cell<u64>,
    pub(crate) steps: Cell<u64>,
}

impl World {
    /// Creates a world of two clients and one node, with maximum clock drift and no faults.
    pub(crate) fn new() -> Self {
        Self {
            nodes: 1,
            acquires: [1, 1],
            at_once: 1,
            paces: vec![[990, 1_010], [1_000, 1_000], [1_010, 990]],
            budget: Budget::default(),
            variant: Variant::Ours,
            config: |config| config,
            prompt: false,
            acts_on_memory: false,
            settle_every: 0,
            settled: Cell::new(0),
            steps: Cell::new(0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire(usize),
    Release(usize, usize),
    Cancel(usize, usize),
    Execute(usize, usize),
    Reply(usize, usize),
    Cut(usize, usize),
    /// A node executes a request from a closed connection.
    ExecuteLate(usize),
    Crash(usize),
    Stall(usize),
    Resume(usize),
    Forget(usize),
    /// Time passes until the next timer.
    Pass,
}

impl World {
    /// Checks that at most one client holds the lock in true time.
    pub(crate) fn holders(&self, state: &State) -> Result<(), String> {
        let holds = |c: &usize| state.clients[*c].holds(state.now).is_some() || state.remembers[*c];
        let holders: Vec<usize> = (0..state.clients.len()).filter(holds).collect();
        match *holders {
            [one, other, ..] => Err(format!("{} and {} both hold the lock", client_name(one), client_name(other))),
            [_] | [] => Ok(()),
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn initial_states(&self) -> Vec<State> {
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
                actions.push(Action::Resume(c));
                continue;
            }
            if client.acquires > 0 && client.acquisitions.len() < self.at_once {
                actions.push(Action::Acquire(c));
            }
            actions.extend(state.releasable(c).map(|place| Action::Release(c, place)));
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
        actions.extend((0..state.late_requests.len()).map(Action::ExecuteLate));
        if left.forgets > 0 {
            let full = state.nodes.iter().enumerate().filter(|(_, node)| node.value.is_some());
            actions.extend(full.map(|(n, _)| Action::Forget(n)));
        }
        // Once no connection may break any more, the request timeout bounds every delay.
        let awake = || state.clients.iter().filter(|client| client.is_awake());
        if let Some(next) = state.next()
            && state.overdue(next).len() <= usize::from(left.cuts)
            && awake().filter_map(|client| client.release_by()).all(|at| next <= at)
        {
            actions.push(Action::Pass);
        }
    }

    fn step(&self, state: &State, action: &Action) -> State {
        let mut next = state.clone();
        match *action {
            Action::Acquire(c) => next.with(c, Client::acquire),
            Action::Release(c, place) => next.with(c, |client, now, report| client.release(now, place, report)),
            Action::Cancel(c, place) => {
                next.left.cancels -= 1;
                next.with(c, |client, now, report| client.abandon(now, place, report));
            }
            Action::Execute(c, n) => {
                next.execute_next(self, c, n);
                if self.prompt && next.clients[c].is_awake() {
                    next.deliver_reply(self, c, n);
                }
            }
            Action::Reply(c, n) => next.deliver_reply(self, c, n),
            Action::Cut(c, n) => {
                next.left.cuts -= 1;
                next.cut(c, n);
            }
            Action::ExecuteLate(place) => next.execute_late(self, place),
            Action::Crash(c) => {
                next.left.crashes -= 1;
                let client = Rc::make_mut(&mut next.clients[c]);
                client.crashed = true;
                let conns = core::mem::take(&mut client.conns);
                for (n, conn) in conns.into_iter().enumerate() {
                    next.add_late_requests(c, n, conn.requests);
                }
            }
            Action::Stall(c) => {
                next.left.stalls -= 1;
                Rc::make_mut(&mut next.clients[c]).stalled = true;
            }
            Action::Resume(c) => {
                Rc::make_mut(&mut next.clients[c]).stalled = false;
                next.serve();
            }
            Action::Forget(n) => {
                next.left.forgets -= 1;
                next.nodes[n].value = None;
            }
            Action::Pass => {
                if let Some(at) = state.next() {
                    next.advance_to(at);
                }
            }
        }
        next.update_derived(self);
        next
    }

    fn canon(&self) -> Canon {
        let at = Instant::from_nanos;
        Canon::new().times(at(EPOCH)..at(EPOCH + (1 << 43)), TTL / 4, TTL / 20).ids(NUMBERS).ids(CALLS).ids(FENCES)
    }

    fn hash_state(&self, state: &State, canon: &mut Canon) {
        let now = Instant::from_nanos(state.now);
        canon.now(now);
        for node in &state.nodes {
            node.hash_state(canon);
        }
        (state.left, state.fence, Instant::from_nanos(state.last_use), state.remembers).hash(canon);
        for client in &state.clients {
            canon.now(client.clock(state.now));
            client.hash_state(canon);
            let of_client = |late_requests: &&LateRequests| late_requests.client == client.index;
            for late_requests in state.late_requests.iter().filter(of_client) {
                (late_requests.client, late_requests.node).hash(canon);
                for sent in &late_requests.requests {
                    (&sent.request, sent.in_use).hash(canon);
                }
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        self.holders(state)?;
        if let Some(rule) = &state.broken {
            return Err(rule.clone());
        }
        if !state.has_acquisitions() {
            let longest = state.last_use + (TTL + Duration::from_millis(1)).as_nanos() as u64;
            if state.nodes.iter().any(|node| node.value.is_some_and(|value| value.expires_at() > longest)) {
                return Err("a key lives on, and nobody is there".into());
            }
        }
        self.steps.set(self.steps.get() + 1);
        if self.settle_every > 0 && self.steps.get().is_multiple_of(self.settle_every) {
            self.settled.set(self.settled.get() + 1);
            state.clone().settle(self).map_err(|rule| format!("once everything works again: {rule}"))?;
        }
        Ok(())
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[
            "somebody gets the lock",
            "a holder loses it",
            "it is released",
            "it had ended, or its state is unknown, when it is released",
            "it is renewed",
            "both clients get it",
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

    fn describe_step(&self, before: &State, action: &Action) -> String {
        let mut with_log = before.clone();
        with_log.log = Some(Vec::new());
        let after = self.step(&with_log, action);
        let what = match *action {
            Action::Acquire(c) => format!("{} wants the lock", client_name(c)),
            Action::Release(c, _) => format!("{} releases the lock", client_name(c)),
            Action::Cancel(c, _) => format!("{} does not want it any more", client_name(c)),
            Action::Crash(c) => format!("{} dies", client_name(c)),
            Action::Stall(c) => format!("{} is paused", client_name(c)),
            Action::Resume(c) => format!("{} resumes", client_name(c)),
            Action::Forget(n) => format!("node {n} forgets the key"),
            Action::Pass => format!("time passes, to {} ms", (after.now - EPOCH) / MS),
            // These are described by the state.
            Action::Execute(..) | Action::Reply(..) | Action::Cut(..) | Action::ExecuteLate(_) => String::new(),
        };
        let own = Some(what).filter(|what| !what.is_empty());
        let lines: Vec<String> = own.into_iter().chain(after.log.unwrap_or_default()).collect();
        format!("{:>5} ms  {}", (before.now - EPOCH) / MS, lines.join("\n            "))
    }
}
