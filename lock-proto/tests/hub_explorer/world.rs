//! Nodes, processes and the adversary.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lock_proto::redis::{Key, Reply, Wake};
use lock_proto::{Cause, Fault, Instant};

use crate::node::Node;
use crate::process::{Acquisition, Input, Process, Sent, State, draw_request, server_info};
use crate::seeds::Rng;

const MS: u64 = 1_000_000;
/// Nodes started before this time are past any quarantine.
const START: u64 = 100_000 * MS;
const STEPS: usize = 400;
/// Everything must be over within this time after the faults: several TTLs for each acquisition.
const SETTLED_WITHIN: u64 = 90_000 * MS;

pub(crate) struct World {
    now: u64,
    rng: Rng,
    nodes: Vec<Node>,
    processes: Vec<Process>,
    fences: BTreeMap<u8, u64>,
    next_id: u128,
    wake: Wake,
    log: bool,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: usize, log: bool) -> Self {
        let mut rng = Rng(seed);
        let wake = if rng.one_in(3) { Wake::Poll } else { Wake::Notify };
        let mut world = Self {
            now: START,
            rng,
            nodes: vec![Node::default(); nodes],
            processes: Vec::new(),
            fences: BTreeMap::new(),
            next_id: 1,
            wake,
            log,
        };
        for _ in 0..2 + world.rng.below(2) {
            let process = world.new_process();
            world.processes.push(process);
        }
        world
    }

    fn new_process(&mut self) -> Process {
        self.next_id += 1;
        let (id, wake, nodes, log) = (self.next_id, self.wake, self.nodes.len(), self.log);
        let block = [1, 2, 64][self.rng.index(3)];
        let turn = Duration::from_millis([0, 20, 100, 1_000][self.rng.index(4)]);
        let change = |config: lock_proto::redis::Config| config.wake(wake).fence_block(block).handover_window(turn);
        let mut process = Process::new(self.now, id, nodes, change, log);
        for n in 0..nodes {
            self.connect(&mut process, n);
        }
        process
    }

    fn connect(&self, process: &mut Process, n: usize) {
        let node = &self.nodes[n];
        process.conns[n].up = true;
        // A difference of two whole seconds, as Redis reports it.
        let second = |nanos: u64| nanos / 1_000 / MS;
        let uptime = second(self.now) - second(node.started);
        let server = server_info(&format!("{n}.{}", node.starts), uptime);
        process.inputs.push_back(Input::Up(n, Box::new(server)));
    }

    fn log_event(&self, what: &dyn core::fmt::Debug) {
        if self.log {
            println!("{:>12}us {what:?}", self.now / 1_000);
        }
    }

    pub(crate) fn chaos(&mut self) {
        for _ in 0..STEPS {
            let p = self.rng.index(self.processes.len());
            let n = self.rng.index(self.nodes.len());
            match self.rng.below(120) {
                // Mostly no faults; otherwise no client would hold a lock that could be lost.
                100..120 => {
                    self.serve(p);
                    self.claim_offers(p);
                }
                0..22 => self.advance_to_next(),
                22..26 => self.now += self.rng.below(20 * MS),
                26..27 => self.now += self.rng.below(3_000) * MS,
                27..37 => self.flush(p, n),
                37..52 => self.execute(p, n),
                52..66 => self.deliver(p, n),
                66..68 => self.break_connection(p, n, Fault::Reset),
                68..72 => self.reconnect(p, n, false),
                72..74 => self.execute_late(n),
                74..75 => self.processes[p].paused = true,
                75..78 => self.processes[p].paused = false,
                78..79 if self.rng.one_in(3) => self.restart(n),
                79..80 if self.rng.one_in(4) => self.crash(p),
                80..84 => self.listen(p, n),
                84..96 => self.verb(p),
                96..97 if self.rng.one_in(12) => self.shut_down(p),
                97..98 => self.call_in_the_past(p),
                _ => self.duplicate(p, n),
            }
            self.run_timers();
        }
    }

    /// Runs due timers of all running processes, then checks the invariants.
    fn run_timers(&mut self) {
        for p in 0..self.processes.len() {
            if self.processes[p].paused {
                continue;
            }
            for n in 0..self.nodes.len() {
                if self.processes[p].conns[n].deadline().is_some_and(|at| at <= self.now) {
                    self.break_connection(p, n, Fault::TimedOut);
                }
            }
            self.processes[p].drain(self.now, &mut self.fences);
        }
        self.check_exclusion();
    }

    fn check_exclusion(&self) {
        let mut holders: BTreeMap<u8, (u128, u64)> = BTreeMap::new();
        for process in &self.processes {
            for (id, acquisition) in &process.acquisitions {
                let until = process.hub.valid_until(*id);
                assert!(until.is_none() || acquisition.state == State::Held, "{id} is {:?}", acquisition.state);
                if until.is_some_and(|until| until.as_nanos() > self.now) {
                    let me = (process.id, acquisition.token.unwrap());
                    let other = holders.insert(acquisition.name, me);
                    assert!(other.is_none(), "two holders of {}: {me:?} and {other:?}", acquisition.name);
                }
            }
        }
    }

    fn advance_to_next(&mut self) {
        let mut next = self.now + 500 * MS;
        for process in self.processes.iter().filter(|process| !process.paused) {
            let conns = process.conns.iter().filter_map(|conn| conn.deadline());
            let hub = process.hub.next_deadline().map(Instant::as_nanos);
            next = conns.chain(hub).filter(|at| *at > self.now).fold(next, u64::min);
        }
        self.now = next;
    }

    fn flush(&mut self, p: usize, n: usize) {
        let conn = &mut self.processes[p].conns[n];
        let all = core::mem::take(&mut conn.unsent);
        conn.socket.extend(all);
    }

    fn execute(&mut self, p: usize, n: usize) {
        let Some(sent) = self.processes[p].conns[n].socket.pop_front() else { return };
        let id = self.processes[p].id;
        let reply = self.execute_request(n, id, &sent.request);
        self.processes[p].conns[n].answered.push_back((sent, reply));
    }

    fn execute_request(&mut self, n: usize, client: u128, request: &lock_proto::redis::Request) -> Reply {
        let (reply, deleted) = self.nodes[n].execute(self.now, client, request);
        self.log_event(&(n, client, request, &reply, deleted));
        if let Some((client, number)) = deleted
            && let Some(process) = self.processes.iter().find(|process| process.id == client)
        {
            // The token of a holder stays while its guard exists, lost or not.
            // H6
            let out = |known: &&Acquisition| {
                matches!(known.state, State::Held | State::Lost) && known.token == Some(number) && !process.stopping
            };
            let harmed = process.acquisitions.values().find(out);
            assert!(harmed.is_none(), "the token of {harmed:?} was deleted");
        }
        self.wake(n, &request.key().clone());
        reply
    }

    fn wake(&mut self, n: usize, key: &Key) {
        if let Some(p) = self.nodes[n].wake(key) {
            self.processes[p].blocked.remove(&(n, key.clone()));
            self.processes[p].inputs.push_back(Input::Signal(n, key.clone()));
        }
    }

    fn deliver(&mut self, p: usize, n: usize) {
        let process = &mut self.processes[p];
        if let Some((sent, reply)) = process.conns[n].answered.pop_front() {
            process.inputs.push_back(Input::Reply(sent.call, reply));
        }
    }

    fn duplicate(&mut self, p: usize, n: usize) {
        let Some((sent, reply)) = self.processes[p].conns[n].answered.front().cloned() else { return };
        self.deliver(p, n);
        self.processes[p].inputs.push_back(Input::Reply(sent.call, reply));
        self.processes[p].inputs.push_back(Input::Reply(sent.call, Reply::Absent));
    }

    fn break_connection(&mut self, p: usize, n: usize, why: Fault) {
        if !self.processes[p].conns[n].up {
            return;
        }
        self.log_event(&("broken", p, n));
        let retry_at = self.now + self.rng.below(300) * MS;
        let lands = self.rng.one_in(2);
        let process = &mut self.processes[p];
        let conn = core::mem::take(&mut process.conns[n]);
        process.conns[n].retry_at = retry_at;
        for (sent, _) in &conn.answered {
            process.inputs.push_back(Input::Reply(sent.call, Reply::Unknown(Cause::Fault(why))));
        }
        for sent in &conn.socket {
            process.inputs.push_back(Input::Reply(sent.call, Reply::Unknown(Cause::Fault(why))));
        }
        for sent in &conn.unsent {
            process.inputs.push_back(Input::Reply(sent.call, Reply::NotSent(Cause::Fault(why))));
        }
        if lands {
            let left: VecDeque<_> = conn.socket.into_iter().map(|sent: Sent| sent.request).collect();
            self.nodes[n].late_requests.push((process.id, left));
        }
        if self.rng.one_in(2) {
            self.break_listener(p, n);
        }
    }

    /// Breaks the connection on which the process waits for signals.
    fn break_listener(&mut self, p: usize, n: usize) {
        for waiting in self.nodes[n].waiting.values_mut() {
            waiting.retain(|other| *other != p);
        }
        let process = &mut self.processes[p];
        let lost: Vec<_> = process.blocked.iter().filter(|(at, _)| *at == n).cloned().collect();
        for (n, key) in lost {
            process.blocked.remove(&(n, key.clone()));
            process.inputs.push_back(Input::Unsubscribed(n, key));
        }
    }

    fn reconnect(&mut self, p: usize, n: usize, at_once: bool) {
        let conn = &self.processes[p].conns[n];
        if conn.up || (conn.retry_at > self.now && !at_once) {
            return;
        }
        self.log_event(&("connected", p, n));
        let mut process = self.processes.swap_remove(p);
        self.connect(&mut process, n);
        self.processes.push(process);
        let last = self.processes.len() - 1;
        self.processes.swap(p, last);
    }

    /// Executes a request from a closed connection.
    fn execute_late(&mut self, n: usize) {
        let count = self.nodes[n].late_requests.len();
        if count == 0 {
            return;
        }
        let g = self.rng.index(count);
        let (client, request) = {
            let (client, left) = &mut self.nodes[n].late_requests[g];
            (*client, left.pop_front())
        };
        match request {
            Some(request) => {
                self.execute_request(n, client, &request);
                if let Some(value) = self.nodes[n].keys.get_mut(request.key()) {
                    value.written_late |= value.client == client;
                }
            }
            None => drop(self.nodes[n].late_requests.swap_remove(g)),
        }
    }

    /// Restarts a node. Only a quorum node loses its data: a single one must keep it.
    fn restart(&mut self, n: usize) {
        let empty = self.nodes.len() > 1 && self.rng.one_in(2);
        self.log_event(&("restart", n, empty));
        for p in 0..self.processes.len() {
            self.break_connection(p, n, Fault::Closed);
            self.break_listener(p, n);
        }
        self.nodes[n].restart(self.now, empty);
    }

    fn crash(&mut self, p: usize) {
        self.log_event(&("crash", p));
        for n in 0..self.nodes.len() {
            self.break_connection(p, n, Fault::Closed);
            self.break_listener(p, n);
        }
        self.processes[p] = self.new_process();
    }

    fn listen(&mut self, p: usize, n: usize) {
        let process = &mut self.processes[p];
        let listening: BTreeSet<_> = process.listening.iter().map(|key| (n, key.clone())).collect();
        let new: Vec<_> = listening.difference(&process.blocked).cloned().collect();
        let old: Vec<_> = process.blocked.iter().filter(|at| at.0 == n && !listening.contains(at)).cloned().collect();
        for (n, key) in old {
            process.blocked.remove(&(n, key.clone()));
            self.nodes[n].waiting.get_mut(&key).unwrap().retain(|other| *other != p);
        }
        for (n, key) in new {
            self.processes[p].inputs.push_back(Input::Listening(n, key.clone()));
            self.processes[p].blocked.insert((n, key.clone()));
            self.nodes[n].waiting.entry(key.clone()).or_default().push_back(p);
            self.nodes[n].expire(self.now);
            self.wake(n, &key);
        }
    }

    fn call_in_the_past(&mut self, p: usize) {
        let now = self.now - self.rng.below(5_000) * MS;
        if !self.processes[p].paused {
            self.processes[p].hub.handle_timeout(Instant::from_nanos(now));
        }
    }

    fn verb(&mut self, p: usize) {
        if self.processes[p].paused {
            return;
        }
        let (now, name) = (self.now, self.rng.below(2) as u8);
        let process = &mut self.processes[p];
        let count = process.acquisitions.len();
        if count == 0 || (count < 7 && self.rng.one_in(3)) {
            let request = draw_request(&mut self.rng, name);
            if self.log {
                println!("{:>12}us {p} wants {request:?}", now / 1_000);
            }
            return process.acquire(now, name, &request);
        }
        let (&id, known) = process.acquisitions.iter().nth(self.rng.index(count)).unwrap();
        let state = known.state;
        if self.log {
            println!("{:>12}us {p} verb on {id} {state:?}", now / 1_000);
        }
        match (state, self.rng.below(16)) {
            (State::Offered, 0..11) => process.claim(now, id),
            (_, 0..1) => process.claim(now, id),
            (_, 1..5) => drop(process.hub.extend(Instant::from_nanos(now), id)),
            (State::Held | State::Lost, 5..12) | (_, 5..7) => process.release(now, id),
            (_, 14..15) => process.abandon(now, id, &mut self.fences),
            _ => {}
        }
    }

    fn shut_down(&mut self, p: usize) {
        if !self.processes[p].paused {
            let process = &mut self.processes[p];
            process.stopping = true;
            process.hub.shutdown(Instant::from_nanos(self.now), Duration::from_millis(self.rng.below(6_000)));
        }
    }

    /// Ends all faults and releases every guard. Within a bounded time nothing may be left.
    pub(crate) fn settle(&mut self) {
        self.log_event(&"settling");
        for n in 0..self.nodes.len() {
            while !self.nodes[n].late_requests.is_empty() {
                self.execute_late(n);
            }
        }
        let (start, sends) = (self.now, self.processes.iter().map(|process| process.sends).sum::<u64>());
        while !self.is_over() {
            if self.now > start + SETTLED_WITHIN {
                self.fail_unsettled();
            }
            for p in 0..self.processes.len() {
                self.work(p);
            }
            self.run_timers();
            let before = self.now;
            self.advance_to_next();
            self.now = self.now.min(before + MS);
        }
        for node in &mut self.nodes {
            node.expire(self.now);
            assert!(node.keys.is_empty(), "left behind: {:?}", node.keys);
        }
        let sends = self.processes.iter().map(|process| process.sends).sum::<u64>() - sends;
        assert!(sends < 60_000, "{sends} requests");
    }

    fn serve(&mut self, p: usize) {
        for n in 0..self.nodes.len() {
            self.flush(p, n);
            while !self.processes[p].conns[n].socket.is_empty() {
                self.execute(p, n);
            }
            while !self.processes[p].conns[n].answered.is_empty() {
                self.deliver(p, n);
            }
        }
    }

    fn claim_offers(&mut self, p: usize) {
        let process = &mut self.processes[p];
        if process.paused {
            return;
        }
        process.drain(self.now, &mut self.fences);
        let offered = process.acquisitions.iter().filter(|(_, known)| known.state == State::Offered);
        for id in offered.map(|(id, _)| *id).collect::<Vec<_>>() {
            process.claim(self.now, id);
        }
    }

    fn work(&mut self, p: usize) {
        self.processes[p].paused = false;
        for n in 0..self.nodes.len() {
            self.reconnect(p, n, true);
            self.listen(p, n);
        }
        self.serve(p);
        self.processes[p].drain(self.now, &mut self.fences);
        let process = &mut self.processes[p];
        let known: Vec<_> = process.acquisitions.iter().map(|(id, known)| (*id, known.state, known.since)).collect();
        for (id, state, since) in known {
            match state {
                State::Offered => process.claim(self.now, id),
                State::Held if since + 5 * MS <= self.now => process.release(self.now, id),
                State::Lost => process.release(self.now, id),
                State::Waiting | State::Held | State::Releasing => {}
            }
        }
        process.drain(self.now, &mut self.fences);
    }

    fn is_over(&self) -> bool {
        self.processes.iter().all(|process| {
            let idle = process.conns.iter().all(|conn| conn.is_idle()) && process.inputs.is_empty();
            let quiet = process.acquisitions.is_empty() && process.hub.next_deadline().is_none();
            idle && quiet && (process.stopped || format!("{:?}", process.hub).contains("names: {}"))
        }) && (self.nodes.iter().all(|node| node.keys.values().all(|value| value.until < self.now / MS)))
    }

    fn fail_unsettled(&self) -> ! {
        for process in &self.processes {
            println!("{:x} {:?} {:?}", process.id, process.acquisitions, process.hub.next_deadline_reason());
            println!("{:?}", process.hub);
        }
        println!("{:?}", self.nodes);
        panic!("not over after {} ms", SETTLED_WITHIN / MS);
    }
}
