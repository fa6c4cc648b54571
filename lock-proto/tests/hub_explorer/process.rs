//! One client: its hub, its connections, and an application that records its events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use core::time::Duration;
use lock_proto::redis::{Config, Endpoint, Key, Locks, LocksOutput, Reply, Request, ServerInfo};
use lock_proto::{
    Acquire, CallId, Cause, ClientId, Event, Fault, Instant, LockId, Loss, NodeId, Renew, ServerError, Wait,
};

use crate::seeds::Rng;

pub(crate) const MAX_TTL: u64 = 3_000;
/// Request timeout in ns. It ends the connection.
const ANSWERED_WITHIN: u64 = 500_000_000;
/// Maximum number of outputs and timeouts of a hub at one instant.
const MOST_AT_ONCE: u32 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Offered,
    Held,
    Lost,
    Releasing,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) name: u8,
    pub(crate) state: State,
    pub(crate) token: Option<u64>,
    pub(crate) since: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) call: CallId,
    pub(crate) request: Request,
    pub(crate) deadline: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Conn {
    pub(crate) up: bool,
    pub(crate) retry_at: u64,
    pub(crate) unsent: VecDeque<Sent>,
    pub(crate) socket: VecDeque<Sent>,
    pub(crate) answered: VecDeque<(Sent, Reply)>,
}

impl Conn {
    pub(crate) fn deadline(&self) -> Option<u64> {
        let answered = self.answered.iter().map(|(sent, _)| sent);
        self.unsent.iter().chain(&self.socket).chain(answered).map(|sent| sent.deadline).min()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.unsent.is_empty() && self.socket.is_empty() && self.answered.is_empty()
    }
}

/// Input of a process. Queued while the process is paused.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Reply(CallId, Reply),
    Up(usize, Box<Result<ServerInfo, ServerError>>),
    Listening(usize, Key),
    Unsubscribed(usize, Key),
    Signal(usize, Key),
}

pub(crate) struct Process {
    pub(crate) hub: Locks,
    pub(crate) id: u128,
    pub(crate) conns: Vec<Conn>,
    pub(crate) acquisitions: BTreeMap<LockId, Acquisition>,
    ended: BTreeSet<LockId>,
    pub(crate) inputs: VecDeque<Input>,
    pub(crate) paused: bool,
    pub(crate) stopped: bool,
    pub(crate) stopping: bool,
    /// Locks whose release the hub subscribed to, and the nodes that block for them.
    pub(crate) listening: BTreeSet<Key>,
    /// Locks with a delivered signal. The hub may subscribe to them again.
    signalled: BTreeSet<Key>,
    pub(crate) blocked: BTreeSet<(usize, Key)>,
    pub(crate) sends: u64,
    at_once: (u64, u32),
    log: bool,
}

fn endpoint(n: usize) -> Endpoint {
    Endpoint::parse(&format!("redis://127.0.0.1:{}", 7000 + n)).unwrap()
}

pub(crate) fn server_info(run_id: &str, uptime: u64) -> Result<ServerInfo, ServerError> {
    Ok(ServerInfo::new(run_id, Duration::from_secs(uptime)))
}

impl Process {
    pub(crate) fn new(now: u64, id: u128, nodes: usize, change: impl FnOnce(Config) -> Config, log: bool) -> Self {
        let config = Config::new((0..nodes).map(endpoint)).quarantine(Duration::from_millis(MAX_TTL));
        let hub = Locks::new(Instant::from_nanos(now), change(config), ClientId::from_bits(id), id as u64).unwrap();
        Self {
            hub,
            id,
            conns: vec![Conn::default(); nodes],
            acquisitions: BTreeMap::new(),
            ended: BTreeSet::new(),
            inputs: VecDeque::new(),
            paused: false,
            stopped: false,
            stopping: false,
            listening: BTreeSet::new(),
            signalled: BTreeSet::new(),
            blocked: BTreeSet::new(),
            sends: 0,
            at_once: (0, 0),
            log,
        }
    }

    fn busy(&mut self, now: u64, what: &dyn core::fmt::Debug) {
        if self.at_once.0 != now {
            self.at_once = (now, 0);
        }
        self.at_once.1 += 1;
        assert!(self.at_once.1 < MOST_AT_ONCE, "a busy loop at {now}, last {what:?}");
    }

    /// Carries out all outputs of the hub, and replies to those that take no time.
    pub(crate) fn drain(&mut self, now: u64, fences: &mut BTreeMap<u8, u64>) {
        loop {
            while let Some(output) = self.hub.poll_output() {
                self.busy(now, &output);
                if self.log {
                    println!("{:>12}us {:x} -> {output:?}", now / 1_000, self.id);
                }
                match output {
                    LocksOutput::Send { call, request } => {
                        self.sends += 1;
                        let conn = &mut self.conns[call.node().index()];
                        if conn.up && !self.stopped {
                            let deadline = now + ANSWERED_WITHIN;
                            conn.unsent.push_back(Sent { call, request, deadline });
                            assert!(conn.unsent.len() + conn.socket.len() < 500, "requests without bounds");
                        } else {
                            self.inputs.push_back(Input::Reply(call, Reply::NotSent(Cause::Fault(Fault::Refused))));
                        }
                    }
                    LocksOutput::Event { lock, event } => self.handle_event(now, lock, &event, fences),
                    LocksOutput::Listen { key, .. } => {
                        let again = self.signalled.remove(&key);
                        assert!(self.listening.insert(key) || again, "listened to twice");
                    }
                    LocksOutput::Unlisten { key, .. } => assert!(self.listening.remove(&key), "was not listened to"),
                    LocksOutput::Operation { .. } => panic!("no operation is started"),
                    LocksOutput::Stopped { .. } => {
                        assert!(!self.stopped && self.stopping, "stopped twice, or unasked");
                        self.stopped = true;
                    }
                }
            }
            if self.paused {
                return;
            }
            let at = Instant::from_nanos(now);
            if let Some(input) = self.inputs.pop_front() {
                self.busy(now, &input);
                self.handle_input(at, input);
            } else if self.hub.next_deadline().is_some_and(|deadline| deadline <= at) {
                self.busy(now, &self.hub.next_deadline_reason());
                self.hub.handle_timeout(at);
            } else {
                return;
            }
        }
    }

    fn handle_input(&mut self, at: Instant, input: Input) {
        if self.log {
            println!("{:>12}us {:x} <- {input:?}", at.as_nanos() / 1_000, self.id);
        }
        let node = |n: usize| NodeId::new(n as u16);
        match input {
            Input::Reply(call, reply) => self.hub.handle_reply(at, call, &reply),
            Input::Up(n, server) => self.hub.handle_node_up(at, node(n), Some(&*server)),
            Input::Listening(n, key) => self.hub.handle_subscribed(at, node(n), &key),
            Input::Unsubscribed(n, key) => self.hub.handle_unsubscribed(at, node(n), &key),
            Input::Signal(n, key) => {
                self.signalled.insert(key.clone());
                self.hub.handle_signal(at, node(n), &key);
            }
        }
    }

    fn handle_event(&mut self, now: u64, id: LockId, event: &Event, fences: &mut BTreeMap<u8, u64>) {
        assert!(!self.ended.contains(&id), "{id} has ended and receives {event:?}");
        let known = self.acquisitions.get_mut(&id).unwrap_or_else(|| panic!("{id} is unknown: {event:?}"));
        let old = known.state;
        let stopping = self.stopping;
        known.state = match (old, event) {
            (State::Waiting, Event::Blocked(_)) => old,
            (State::Waiting, Event::Granted(grant)) => {
                assert!(grant.valid_until.as_nanos() > now, "granted when it is over already");
                if let Some(fence) = grant.fence {
                    let last = fences.insert(known.name, fence.get());
                    assert!(last.is_none_or(|last| fence.get() > last), "fence {fence} after {last:?}");
                }
                known.token = Some(grant.token.number);
                known.since = now;
                State::Offered
            }
            (State::Held, Event::Renewed { valid_until }) => {
                assert!(valid_until.as_nanos() > now, "renewed until the past");
                old
            }
            (State::Held, Event::AtRisk { .. } | Event::Extended | Event::ExtendFailed(_)) => old,
            (State::Held, Event::Lost(loss)) => {
                assert!(*loss != Loss::ShutDown || stopping);
                State::Lost
            }
            (State::Offered, Event::Withdrawn) | (State::Waiting, Event::Failed(_)) => old,
            (State::Offered, Event::Failed(_)) if stopping => old,
            (State::Releasing, Event::Released(_)) => old,
            (State::Lost, Event::Released(_)) if stopping => old,
            _ => panic!("{id} is {old:?} and receives {event:?}"),
        };
        if event.is_last() {
            self.acquisitions.remove(&id);
            self.ended.insert(id);
        }
    }

    pub(crate) fn acquire(&mut self, now: u64, name: u8, want: &Acquire) {
        if let Ok(id) = self.hub.acquire(Instant::from_nanos(now), want) {
            let acquisition = Acquisition { name, state: State::Waiting, token: None, since: now };
            assert!(self.acquisitions.insert(id, acquisition).is_none());
            assert!(!self.ended.contains(&id), "{id} has come back");
        } else {
            assert!(self.stopping);
        }
    }

    pub(crate) fn claim(&mut self, now: u64, id: LockId) {
        let claimed = self.hub.claim(Instant::from_nanos(now), id);
        if let (Ok(()), Some(known)) = (claimed, self.acquisitions.get_mut(&id)) {
            assert_eq!(known.state, State::Offered, "claimed");
            known.state = State::Held;
        }
    }

    pub(crate) fn release(&mut self, now: u64, id: LockId) {
        let released = self.hub.release(Instant::from_nanos(now), id);
        if let (Ok(()), Some(known)) = (released, self.acquisitions.get_mut(&id)) {
            // A loss or withdrawal within this call is reported first.
            known.state = if known.state == State::Waiting { State::Waiting } else { State::Releasing };
        }
    }

    pub(crate) fn abandon(&mut self, now: u64, id: LockId, fences: &mut BTreeMap<u8, u64>) {
        self.hub.abandon(Instant::from_nanos(now), id);
        // The last events of the acquisition may be queued already.
        self.drain_events_of(now, id, fences);
        self.acquisitions.remove(&id);
        self.ended.insert(id);
    }

    fn drain_events_of(&mut self, now: u64, id: LockId, fences: &mut BTreeMap<u8, u64>) {
        let paused = core::mem::replace(&mut self.paused, true);
        self.ended.remove(&id);
        self.drain(now, fences);
        self.paused = paused;
    }
}

pub(crate) fn draw_request(rng: &mut Rng, name: u8) -> Acquire {
    let ttl = [1_000, 2_000, MAX_TTL][rng.index(3)];
    let wait = match rng.below(6) {
        0 => Wait::Try,
        1 => Wait::For(Duration::from_millis(rng.below(3_000))),
        _ => Wait::Forever,
    };
    let renew = match rng.below(5) {
        0 => Renew::Manual,
        1 => Renew::AtMost(Duration::from_millis(1 + rng.below(4_000))),
        _ => Renew::Auto,
    };
    Acquire::new([b'a' + name]).ttl(Duration::from_millis(ttl)).wait(wait).renew(renew)
}
