//! Clients (hubs), a store, and messages in flight, in virtual time.
//!
//! Requests succeed and take [`LATENCY`] in each direction, unless a test sets the outcome of a
//! request ([`World::set_outcome`], [`World::every`]) or of a whole client ([`World::cut`],
//! [`World::pause`], [`World::kill`]).

#![allow(dead_code, reason = "each test uses a part")]

mod queries;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lock_proto::etcd::{Config, Endpoint, Locks, LocksOutput, Reply, Request, WatchId, WatchOutput};
use lock_proto::{
    Acquire, CallId, Cause, ClientId, ErrorClass, Event, Fault, Instant, LockId, OperationEvent, OperationId,
    ServerError,
};

use crate::etcd::{Change, Store};

pub(crate) const LATENCY: Duration = Duration::from_micros(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Create,
    Look,
    Put,
    Delete,
    First,
    Grant,
    Revoke,
    KeepAlive,
}

impl Kind {
    pub(crate) fn of(request: &Request) -> Self {
        match request {
            Request::Create { .. } => Self::Create,
            Request::Look { .. } => Self::Look,
            Request::Put { .. } => Self::Put,
            Request::Delete { .. } => Self::Delete,
            Request::First { .. } => Self::First,
            Request::Grant { .. } => Self::Grant,
            Request::Revoke { .. } => Self::Revoke,
            Request::KeepAlive { .. } => Self::KeepAlive,
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It is lost without an error.
    Lost,
    /// It is executed, and its reply is lost without an error.
    Unanswered,
    /// It times out, and is executed after this time.
    Late(Duration),
    /// It takes this long in each direction, without a timeout.
    Slow(Duration, Duration),
    /// It takes this long in each direction. Only if the reply is lost, it times out.
    After(Duration, Duration),
    /// It is executed, and the connection breaks before the reply.
    Reset,
    /// It is not executed, and gets this reply.
    Answer(Reply),
}

#[derive(Clone, Debug)]
enum Scheduled {
    Execute { call: CallId, request: Request, back: Option<Duration> },
    Reset { call: CallId, request: Request },
    Answer { call: CallId, reply: Reply },
    GiveUp { call: CallId },
    Open { watch: WatchId },
    Opened { watch: WatchId, revision: i64 },
    Changed { watch: WatchId, change: Change },
}

struct Watch {
    key: Bytes,
    end: Bytes,
    open: bool,
}

impl Watch {
    fn covers(&self, key: &Bytes) -> bool {
        if self.end.is_empty() { *key == self.key } else { *key >= self.key && *key < self.end }
    }
}

/// A clock: what it shows at first, and its speed in thousandths.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) offset: u64,
    pub(crate) pace: u64,
}

impl Clock {
    const TRUE: Self = Self { offset: 0, pace: 1_000 };

    fn read(self, now: Instant) -> Instant {
        let gone = u128::from(now.as_nanos()) * u128::from(self.pace) / 1_000;
        Instant::from_nanos(self.offset + gone as u64)
    }

    /// The first true time at which it shows `at`.
    fn when(self, at: Instant) -> Instant {
        let gone = u128::from(at.as_nanos().saturating_sub(self.offset)) * 1_000;
        Instant::from_nanos(gone.div_ceil(u128::from(self.pace)) as u64)
    }
}

pub(crate) struct Client {
    pub(crate) hub: Locks,
    clock: Clock,
    /// How long its watches take to report a change.
    pub(crate) lag: Duration,
    /// When the last change arrives that is on its way.
    last_change: Instant,
    pub(crate) requests: Vec<(Instant, Request)>,
    pub(crate) stopped: Option<u32>,
    pub(crate) watches_opened: Vec<Bytes>,
    events: BTreeMap<LockId, Vec<(Instant, Event)>>,
    all_events: Vec<(LockId, Event)>,
    elections: BTreeMap<OperationId, Vec<OperationEvent>>,
    calls: BTreeSet<CallId>,
    in_flight: BTreeSet<CallId>,
    watches: BTreeMap<WatchId, Watch>,
    outcomes: Vec<(Kind, Outcome)>,
    always: BTreeMap<Kind, Outcome>,
    cut: bool,
    watches_blocked: bool,
    loses_events: bool,
    paused: bool,
    dead: bool,
    inbox: Vec<Scheduled>,
    claims: bool,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) store: Store,
    pub(crate) clients: Vec<Client>,
    agenda: BTreeMap<(Instant, u64), (usize, Scheduled)>,
    number: u64,
    /// Decides what happens to a request for which a test has set nothing.
    pub(crate) faults: Box<dyn FnMut() -> Option<Outcome>>,
}

pub(crate) fn config() -> Config {
    Config::new([Endpoint::parse("127.0.0.1:2379").unwrap()])
}

impl World {
    pub(crate) fn new(clients: usize) -> Self {
        Self::with(clients, |config| config)
    }

    pub(crate) fn with(clients: usize, change: impl Fn(Config) -> Config) -> Self {
        let mut world = Self {
            now: Instant::from_millis(1_000),
            store: Store::new(),
            clients: Vec::new(),
            agenda: BTreeMap::new(),
            number: 0,
            faults: Box::new(|| None),
        };
        for _ in 0..clients {
            world.add(change(config()));
        }
        world
    }

    pub(crate) fn add(&mut self, config: Config) -> usize {
        self.add_with(config, Clock::TRUE)
    }

    pub(crate) fn add_with(&mut self, config: Config, clock: Clock) -> usize {
        let id = self.clients.len() as u128 + 1;
        self.clients.push(Client {
            hub: Locks::new(clock.read(self.now), config, ClientId::from_bits(id), id as u64).unwrap(),
            clock,
            lag: LATENCY,
            last_change: self.now,
            requests: Vec::new(),
            stopped: None,
            watches_opened: Vec::new(),
            events: BTreeMap::new(),
            all_events: Vec::new(),
            elections: BTreeMap::new(),
            calls: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            watches: BTreeMap::new(),
            outcomes: Vec::new(),
            always: BTreeMap::new(),
            cut: false,
            watches_blocked: false,
            loses_events: false,
            paused: false,
            dead: false,
            inbox: Vec::new(),
            claims: true,
        });
        self.clients.len() - 1
    }

    /// What the client's clock shows.
    pub(crate) fn clock(&self, client: usize) -> Instant {
        self.clients[client].clock.read(self.now)
    }

    pub(crate) fn verb<R>(&mut self, client: usize, f: impl FnOnce(&mut Locks, Instant) -> R) -> R {
        let clock = self.clock(client);
        let result = f(&mut self.clients[client].hub, clock);
        self.drain(client);
        result
    }

    pub(crate) fn acquire(&mut self, client: usize, want: Acquire) -> LockId {
        self.verb(client, |hub, now| hub.acquire(now, &want)).unwrap()
    }

    pub(crate) fn campaign(&mut self, client: usize, name: &str, value: &'static str) -> LockId {
        self.verb(client, |hub, now| hub.campaign(now, &Acquire::new(name), value.into())).unwrap()
    }

    #[track_caller]
    pub(crate) fn hold(&mut self, client: usize, want: Acquire) -> LockId {
        let lock = self.acquire(client, want);
        self.expect(Duration::from_millis(200), "it is held", |w| w.is_held(client, lock));
        lock
    }

    #[track_caller]
    pub(crate) fn release(&mut self, client: usize, lock: LockId) {
        self.verb(client, |hub, now| hub.release(now, lock)).unwrap();
    }

    pub(crate) fn abandon(&mut self, client: usize, lock: LockId) {
        self.verb(client, |hub, now| hub.abandon(now, lock));
    }

    pub(crate) fn shut_down(&mut self, client: usize, within: Duration) {
        self.verb(client, |hub, now| hub.shutdown(now, within));
    }

    pub(crate) fn leave_unclaimed(&mut self, client: usize) {
        self.clients[client].claims = false;
    }

    /// Sets the outcome of the next request of this kind.
    pub(crate) fn set_outcome(&mut self, client: usize, kind: Kind, outcome: Outcome) {
        self.clients[client].outcomes.push((kind, outcome));
    }

    /// Sets the outcome of every later request of this kind, or resets it with `None`.
    pub(crate) fn every(&mut self, client: usize, kind: Kind, outcome: Option<Outcome>) {
        match outcome {
            Some(outcome) => self.clients[client].always.insert(kind, outcome),
            None => self.clients[client].always.remove(&kind),
        };
    }

    /// Drops all messages in both directions without an error.
    pub(crate) fn cut(&mut self, client: usize) {
        self.clients[client].cut = true;
    }

    pub(crate) fn heal(&mut self, client: usize) {
        self.clients[client].cut = false;
        self.break_watches(client);
    }

    /// Breaks its watches, which will be reopened.
    pub(crate) fn break_watches(&mut self, client: usize) {
        let ids: Vec<WatchId> = self.clients[client].watches.keys().copied().collect();
        let is_lost = |(of, what): &(usize, Scheduled)| {
            *of == client && matches!(what, Scheduled::Opened { .. } | Scheduled::Changed { .. })
        };
        self.agenda.retain(|_, scheduled| !is_lost(scheduled));
        for watch in ids {
            let Some(known) = self.clients[client].watches.get_mut(&watch) else { continue };
            known.open = false;
            self.verb(client, |hub, now| hub.handle_unsubscribed(now, watch));
            self.plan(LATENCY, client, Scheduled::Open { watch });
        }
    }

    /// Breaks its watches for good.
    pub(crate) fn block_watches(&mut self, client: usize) {
        self.clients[client].watches_blocked = true;
        self.break_watches(client);
    }

    /// Refuses all its watches, and ends them.
    pub(crate) fn refuse_watches(&mut self, client: usize) {
        let error = ServerError { class: ErrorClass::Refused, text: "etcdserver: permission denied".into() };
        for watch in core::mem::take(&mut self.clients[client].watches).into_keys() {
            self.verb(client, |hub, now| hub.handle_watch_refused(now, watch, &error));
        }
    }

    pub(crate) fn lose_events(&mut self, client: usize, loses: bool) {
        self.clients[client].loses_events = loses;
    }

    pub(crate) fn is_running(&self, client: usize) -> bool {
        !self.clients[client].paused && !self.clients[client].dead
    }

    pub(crate) fn pause(&mut self, client: usize) {
        self.clients[client].paused = true;
    }

    /// Resumes the client, which first handles its queued input.
    pub(crate) fn resume(&mut self, client: usize) {
        self.clients[client].paused = false;
        for scheduled in core::mem::take(&mut self.clients[client].inbox) {
            self.handle_scheduled(client, scheduled);
        }
    }

    pub(crate) fn kill(&mut self, client: usize) {
        self.clients[client].dead = true;
    }

    pub(crate) fn put_by_hand(&mut self, key: &str, lease: i64) {
        self.store.put(&key.as_bytes().to_vec().into(), &Bytes::new(), lease);
        self.notify_watchers();
    }

    pub(crate) fn delete_by_hand(&mut self, key: &Bytes) {
        self.store.delete(key);
        self.notify_watchers();
    }

    pub(crate) fn forget(&mut self, gone: impl Fn(&Bytes) -> bool) {
        for key in self.store.keys().into_keys().filter(gone) {
            self.delete_by_hand(&key);
        }
    }

    pub(crate) fn revoke_by_hand(&mut self, lease: i64) {
        assert!(self.store.revoke(lease), "there is no lease {lease:x}");
        self.notify_watchers();
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs until `done` holds, at most for `limit`. Returns whether it holds.
    pub(crate) fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        for _ in 0..1_000_000 {
            if done(self) {
                return true;
            }
            let awake = self.clients.iter().filter(|client| !client.paused && !client.dead);
            let hubs = awake.filter_map(|client| Some(client.clock.when(client.hub.next_deadline()?)));
            let expiry = self.store.next_expiry();
            let first = self.agenda.keys().next().map(|(at, _)| *at);
            let next = hubs.chain(expiry).chain(first).min().unwrap_or(Instant::MAX);
            if next > end {
                self.now = end;
                return done(self);
            }
            self.now = self.now.max(next);
            self.store.expire(self.now);
            self.notify_watchers();
            while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (client, scheduled) = entry.remove();
                self.handle_scheduled(client, scheduled);
            }
            for client in 0..self.clients.len() {
                let clock = self.clock(client);
                let known = &mut self.clients[client];
                if !known.paused && !known.dead && known.hub.next_deadline().is_some_and(|at| at <= clock) {
                    known.hub.handle_timeout(clock);
                    self.drain(client);
                }
            }
        }
        panic!("time stands still at {:?}", self.now);
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, limit: Duration, what: &str, done: impl FnMut(&Self) -> bool) {
        assert!(self.run_until(limit, done), "not within {limit:?}: {what}\n{}", self.describe());
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("now {:?}, keys {:?}, leases {:x?}", self.now, self.store.keys(), self.store.leases());
        for (number, client) in self.clients.iter().enumerate() {
            text += &format!("\nclient {number}");
            for (at, request) in &client.requests {
                text += &format!("\n  {at:?} {request:?}");
            }
            text += &format!("\n  events {:?}", client.all_events);
        }
        text
    }

    fn plan(&mut self, after: Duration, client: usize, scheduled: Scheduled) {
        self.number += 1;
        self.agenda.insert((self.now + after, self.number), (client, scheduled));
    }

    fn handle_scheduled(&mut self, client: usize, scheduled: Scheduled) {
        let (now, clock) = (self.now, self.clock(client));
        let known = &mut self.clients[client];
        let cut = known.cut || known.dead;
        match scheduled {
            // Arrivals at the store.
            Scheduled::Execute { call, request, back } => {
                let reply = self.store.execute(now, &request);
                self.notify_watchers();
                if let Some(back) = back.filter(|_| !cut) {
                    self.plan(back, client, Scheduled::Answer { call, reply });
                }
            }
            Scheduled::Reset { call, request } => {
                self.store.execute(now, &request);
                self.notify_watchers();
                let reply = Reply::Unknown(Cause::Fault(Fault::Reset));
                self.plan(LATENCY, client, Scheduled::Answer { call, reply });
            }
            Scheduled::Open { watch } => {
                if known.watches_blocked && known.watches.contains_key(&watch) {
                    return;
                }
                let Some(known) = known.watches.get_mut(&watch).filter(|_| !cut) else { return };
                known.open = true;
                let revision = self.store.revision();
                self.plan(LATENCY, client, Scheduled::Opened { watch, revision });
            }
            // Arrivals at the client.
            Scheduled::Answer { .. }
            | Scheduled::Opened { .. }
            | Scheduled::Changed { .. }
            | Scheduled::GiveUp { .. }
                if known.paused =>
            {
                known.inbox.push(scheduled);
            }
            Scheduled::Answer { call, reply } => {
                if known.in_flight.remove(&call) {
                    known.hub.handle_reply(clock, call, &reply);
                    self.drain(client);
                }
            }
            Scheduled::GiveUp { call } => {
                if known.in_flight.remove(&call) {
                    known.hub.handle_reply(clock, call, &Reply::Unknown(Cause::Fault(Fault::TimedOut)));
                    self.drain(client);
                }
            }
            Scheduled::Opened { watch, revision } => {
                if known.watches.contains_key(&watch) && !cut {
                    known.hub.handle_watching(clock, watch, revision);
                    self.drain(client);
                }
            }
            Scheduled::Changed { watch, change } => {
                if known.watches.contains_key(&watch) && !cut {
                    known.hub.handle_changed(clock, watch, change.revision, change.deleted, &change.kv);
                    self.drain(client);
                }
            }
        }
    }

    pub(crate) fn notify_watchers(&mut self) {
        let changes = core::mem::take(&mut self.store.changes);
        for change in changes {
            for client in 0..self.clients.len() {
                let known = &self.clients[client];
                if known.cut || known.dead || known.loses_events {
                    continue;
                }
                let open = known.watches.iter().filter(|(_, watch)| watch.open && watch.covers(&change.kv.key));
                // Changes keep their order.
                let at = known.last_change.max(self.now + known.lag);
                for watch in open.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.plan(at.since(self.now), client, Scheduled::Changed { watch, change: change.clone() });
                    self.clients[client].last_change = at;
                }
            }
        }
    }

    fn drain(&mut self, client: usize) {
        let clock = self.clock(client);
        while let Some(output) = self.clients[client].hub.poll_output() {
            let known = &mut self.clients[client];
            match output {
                LocksOutput::Send { call, request, timeout } => {
                    known.requests.push((self.now, request.clone()));
                    assert!(known.calls.insert(call), "{call:?} twice");
                    known.in_flight.insert(call);
                    self.send(client, call, request, timeout);
                }
                LocksOutput::Store(WatchOutput::Watch { watch, key, end, .. }) => {
                    known.watches_opened.push(key.clone());
                    assert!(known.watches.insert(watch, Watch { key, end, open: false }).is_none(), "{watch:?} twice");
                    self.plan(LATENCY, client, Scheduled::Open { watch });
                }
                LocksOutput::Store(WatchOutput::Unwatch { watch }) => {
                    assert!(known.watches.remove(&watch).is_some(), "{watch:?} is not open");
                }
                LocksOutput::Event { lock, event } => {
                    let granted = matches!(event, Event::Granted(_));
                    known.events.entry(lock).or_default().push((self.now, event.clone()));
                    known.all_events.push((lock, event));
                    if granted && known.claims {
                        known.hub.claim(clock, lock).unwrap();
                    }
                }
                LocksOutput::Operation { id, event } => known.elections.entry(id).or_default().push(event),
                LocksOutput::Stopped { unreleased } => known.stopped = Some(unreleased),
            }
        }
    }

    fn send(&mut self, client: usize, call: CallId, request: Request, timeout: Duration) {
        let known = &mut self.clients[client];
        if known.cut || known.dead {
            return self.plan(timeout, client, Scheduled::GiveUp { call });
        }
        let kind = Kind::of(&request);
        let outcome = match known.outcomes.iter().position(|(of, _)| *of == kind) {
            Some(place) => Some(known.outcomes.remove(place).1),
            None => known.always.get(&kind).cloned().or_else(|| (self.faults)()),
        };
        // Wait for the late reply.
        // E13
        match outcome {
            Some(Outcome::Slow(..)) => {}
            Some(Outcome::After(to, back)) => {
                self.plan(timeout.max(to + back + LATENCY), client, Scheduled::GiveUp { call });
            }
            _ => self.plan(timeout, client, Scheduled::GiveUp { call }),
        }
        match outcome {
            None => self.plan(LATENCY, client, Scheduled::Execute { call, request, back: Some(LATENCY) }),
            Some(Outcome::Lost) => {}
            Some(Outcome::Unanswered) => self.plan(LATENCY, client, Scheduled::Execute { call, request, back: None }),
            Some(Outcome::Late(time)) => self.plan(time, client, Scheduled::Execute { call, request, back: None }),
            Some(Outcome::Slow(to, back) | Outcome::After(to, back)) => {
                self.plan(to, client, Scheduled::Execute { call, request, back: Some(back) })
            }
            Some(Outcome::Reset) => self.plan(LATENCY, client, Scheduled::Reset { call, request }),
            Some(Outcome::Answer(reply)) => self.plan(LATENCY, client, Scheduled::Answer { call, reply }),
        }
    }

    /// Shuts down every live client and checks that nothing is left.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        let alive: Vec<usize> = (0..self.clients.len()).filter(|c| !self.clients[*c].dead).collect();
        for client in &alive {
            if self.clients[*client].stopped.is_none() {
                self.shut_down(*client, Duration::from_secs(30));
            }
        }
        self.expect(Duration::from_secs(31), "all have ended", |w| {
            alive.iter().all(|client| w.clients[*client].stopped.is_some())
        });
        assert!(alive.iter().all(|client| self.clients[*client].stopped == Some(0)), "{}", self.describe());
        self.run_for(Duration::from_secs(60));
        assert!(self.store.keys().is_empty() && self.store.leases().is_empty(), "left\n{}", self.describe());
        for client in &alive {
            assert_eq!(self.clients[*client].hub.next_deadline(), None, "a timer runs after the end");
        }
    }

    pub(crate) fn watch_on(&self, client: usize, key: &Bytes) -> WatchId {
        *self.clients[client].watches.iter().find(|(_, watch)| watch.key == *key).unwrap().0
    }

    pub(crate) fn watched(&self, client: usize) -> Vec<Bytes> {
        self.clients[client].watches.values().map(|watch| watch.key.clone()).collect()
    }
}
