//! A lock from outside this library in the simulated world: `SET key token NX PX ttl`, and a `DEL`
//! that does not compare the token.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use lock_proto::redis::{Client, Output};
use lock_proto::sim::{Keep, Plan, RedisClient, Rule, Scenario, World};
use lock_proto::{
    Acquire, ByteClient, ClientId, ConnId, DEFAULT_TTL, Drift, Event, Failure, Fault, Grant, Instant, LockId, Loss,
    Machine, Misuse, NodeId, Release, Report, Role, Target, Token, Wait,
};

const RETRY: Duration = Duration::from_millis(20);

/// A client of one node, without renewal.
#[derive(Clone, Debug)]
struct Naive {
    id: ClientId,
    locks: BTreeMap<LockId, Lock>,
    pending: VecDeque<LockId>,
    next: u32,
    conn: Option<ConnId>,
    connections: u64,
    is_up: bool,
    bytes: Vec<u8>,
    received: Vec<u8>,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Debug)]
struct Lock {
    key: String,
    ttl: Duration,
    since: Instant,
    wait: Wait,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Next attempt at this time.
    Waits(Instant),
    /// Attempt sent at this time.
    Requested(Instant),
    /// Held until this time.
    Held(Instant),
    Lost,
    /// Timeout of the release.
    Releasing(Instant),
}

impl Naive {
    const fn new(id: ClientId) -> Self {
        Self {
            id,
            locks: BTreeMap::new(),
            pending: VecDeque::new(),
            next: 0,
            conn: None,
            connections: 0,
            is_up: false,
            bytes: Vec::new(),
            received: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    fn emit(&mut self, lock: LockId, event: Event) {
        if event.is_last() {
            self.locks.remove(&lock);
        }
        self.outputs.push_back(Output::Event { lock, event });
    }

    fn send(&mut self, lock: LockId, args: &[&str]) {
        self.pending.push_back(lock);
        self.bytes.extend(format!("*{}\r\n", args.len()).bytes());
        args.iter().for_each(|arg| self.bytes.extend(format!("${}\r\n{arg}\r\n", arg.len()).bytes()));
    }

    fn deadline(&self, lock: &Lock) -> Option<Instant> {
        let ends = match (lock.wait, lock.stage) {
            (Wait::For(time), Stage::Waits(_) | Stage::Requested(_)) => Some(lock.since + time),
            _ => None,
        };
        let next = match lock.stage {
            Stage::Waits(at) => Some(at).filter(|_| self.is_up),
            Stage::Held(at) | Stage::Releasing(at) => Some(at),
            Stage::Requested(_) | Stage::Lost => None,
        };
        [ends, next].into_iter().flatten().min()
    }

    fn answered(&mut self, now: Instant, id: LockId, done: bool) {
        let Some(lock) = self.locks.get_mut(&id) else { return };
        match lock.stage {
            Stage::Requested(sent) if done => {
                let drift = Drift::default();
                let until = sent + lock.ttl.saturating_sub(lock.ttl / drift.divisor + drift.margin);
                let token = Token { client: self.id, number: 1 };
                lock.stage = Stage::Held(until);
                let grant = Grant::new(token, None, lock.ttl, until);
                self.emit(id, Event::Granted(grant));
            }
            Stage::Requested(_) if lock.wait == Wait::Try => self.times_out(now, id),
            Stage::Requested(_) => lock.stage = Stage::Waits(now + RETRY),
            Stage::Releasing(_) => {
                self.emit(id, Event::Released(if done { Release::Released } else { Release::Expired }))
            }
            Stage::Waits(_) | Stage::Held(_) | Stage::Lost => {}
        }
    }

    fn times_out(&mut self, now: Instant, id: LockId) {
        let waited = now.since(self.locks[&id].since);
        self.emit(id, Event::Failed(Failure::TimedOut(Report::new(waited, []))));
    }

    fn connect(&mut self) {
        if self.conn.is_none() {
            self.connections += 1;
            let (node, generation) = (NodeId::new(0), self.connections);
            self.conn = Some(ConnId::new(node, Role::Commands, generation));
            let target = Box::new(Target::Tcp { host: "node0".into(), port: 6379 });
            self.outputs.extend(self.conn.map(|conn| Output::Connect { node, conn, target }));
        }
    }
}

impl Machine for Naive {
    fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.connect();
        self.next += 1;
        let id = LockId::new(self.next, 0);
        let key = String::from_utf8(want.name.to_vec()).unwrap();
        let ttl = want.ttl.unwrap_or(DEFAULT_TTL);
        self.locks.insert(id, Lock { key, ttl, since: now, wait: want.wait, stage: Stage::Waits(now) });
        self.handle_timeout(now);
        Ok(id)
    }

    fn claim(&mut self, _: Instant, _: LockId) -> Result<(), Misuse> {
        Ok(())
    }

    fn extend(&mut self, _: Instant, lock: LockId) -> Result<(), Misuse> {
        self.emit(lock, Event::ExtendFailed(Report::new(Duration::ZERO, [])));
        Ok(())
    }

    // The flaw: the token is not compared.
    fn release(&mut self, now: Instant, id: LockId) -> Result<(), Misuse> {
        let by = now + self.release_within();
        let lock = self.locks.get_mut(&id).ok_or(Misuse::Stale(id))?;
        lock.stage = Stage::Releasing(by);
        let key = lock.key.clone();
        self.send(id, &["DEL", &key]);
        Ok(())
    }

    fn abandon(&mut self, now: Instant, lock: LockId) {
        if matches!(self.locks.get(&lock), Some(Lock { stage: Stage::Held(_), .. })) {
            let _ = self.release(now, lock);
        }
        self.locks.remove(&lock);
    }

    fn shutdown(&mut self, _: Instant, _: Duration) {
        for lock in self.locks.keys().copied().collect::<Vec<_>>() {
            self.emit(lock, Event::Failed(Failure::ShuttingDown));
        }
        self.outputs.extend(self.conn.take().map(|conn| Output::Disconnect { conn }));
        self.outputs.push_back(Output::Stopped { unreleased: 0 });
    }

    fn handle_timeout(&mut self, now: Instant) {
        for id in self.locks.keys().copied().collect::<Vec<_>>() {
            let lock = self.locks[&id].clone();
            if self.deadline(&lock).is_none_or(|at| at > now) {
                continue;
            }
            match lock.stage {
                Stage::Held(_) => {
                    self.locks.get_mut(&id).unwrap().stage = Stage::Lost;
                    self.emit(id, Event::Lost(Loss::Expired));
                }
                Stage::Releasing(_) => self.emit(id, Event::Released(Release::Unknown)),
                Stage::Waits(at) if self.is_up && at <= now => {
                    self.locks.get_mut(&id).unwrap().stage = Stage::Requested(now);
                    let (token, ttl) = (format!("{}:1", self.id), lock.ttl.as_millis().to_string());
                    self.send(id, &["SET", &lock.key, &token, "NX", "PX", &ttl]);
                }
                Stage::Waits(_) | Stage::Requested(_) | Stage::Lost => self.times_out(now, id),
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.locks.values().filter_map(|lock| self.deadline(lock)).min()
    }

    fn valid_until(&self, lock: LockId) -> Option<Instant> {
        match self.locks.get(&lock)?.stage {
            Stage::Held(until) => Some(until),
            Stage::Waits(_) | Stage::Requested(_) | Stage::Lost | Stage::Releasing(_) => None,
        }
    }

    fn holds_any(&self) -> bool {
        self.locks.values().any(|lock| matches!(lock.stage, Stage::Held(_)))
    }

    fn release_within(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn drift(&self) -> Drift {
        Drift::default()
    }

    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.is_up = self.conn == Some(conn);
        self.handle_timeout(now);
    }

    fn handle_disconnected(&mut self, now: Instant, _: ConnId, _: Fault) {
        (self.conn, self.is_up) = (None, false);
        self.bytes.clear();
        self.received.clear();
        for id in core::mem::take(&mut self.pending) {
            self.answered(now, id, false);
        }
        self.connect();
    }
}

impl ByteClient for Naive {
    fn handle_received(&mut self, now: Instant, _: ConnId, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        while let Some(end) = self.received.windows(2).position(|pair| pair == b"\r\n") {
            let line: Vec<u8> = self.received.drain(..end + 2).collect();
            if let Some(lock) = self.pending.pop_front() {
                self.answered(now, lock, line.starts_with(b"+OK") || line.starts_with(b":1"));
            }
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn outgoing(&mut self, _: ConnId) -> &[u8] {
        &self.bytes
    }

    fn has_outgoing(&self, _: ConnId) -> bool {
        !self.bytes.is_empty()
    }

    fn consume(&mut self, _: ConnId, n: usize) {
        self.bytes.drain(..n);
    }
}

/// A holder is paused for longer than its TTL and then releases the next holder's lock.
fn late_release<C: RedisClient>(w: &mut World<C>) {
    let second = Duration::from_secs(1);
    let want = || Acquire::new("stock:42").ttl(2 * second);
    let first = w.acquire(0, want());
    w.expect(second, "the first holds", |w| w.is_held(0, first));
    w.pause_client(0);
    let next = w.acquire(1, want());
    w.expect(4 * second, "the second holds", |w| w.is_held(1, next));
    w.acquire(2, want());
    w.resume_client(0);
    w.release(0, first);
    w.run_for(second);
}

#[test]
fn blind_delete_is_found_by_handwritten_run() {
    let mut naive = World::redis(1).clients(3).machine(|_, _, id, _| Ok(Naive::new(id))).build();
    naive.expect_violation();
    late_release(&mut naive);
    let found = naive.violations().iter().map(|found| found.rule).collect::<Vec<_>>();
    assert_eq!(found, [Rule::MutualExclusion], "{}", naive.log());

    let mut ours = World::redis(1).clients(3).build();
    late_release(&mut ours);
    assert!(ours.violations().is_empty());
}

#[test]
fn blind_delete_is_found_by_scenario() {
    let scenario = Scenario::named("redis-pauses").unwrap();
    let plans = (0..100).map(|seed| Plan::from_seed(scenario, seed)).filter(|plan| plan.setup.nodes.len() == 1);
    let breaks = |plan: &Plan| {
        let outcome = plan.run_redis(Keep::Nothing, |_, _, id, _| Ok(Naive::new(id)));
        outcome.violations.iter().any(|found| found.rule == Rule::MutualExclusion)
    };
    let plan = plans.into_iter().find(breaks).unwrap();
    let small = plan.shrink(breaks);
    assert!(small.len() <= 6, "{small}");
    let ours = small.run_redis(Keep::Lines(200), Client::new);
    assert!(ours.violations.is_empty(), "{small}\n{ours}");
}
