//! One process: its hub, clock and connections, and an application that claims all offers.

use core::hash::{Hash, Hasher};
use std::collections::VecDeque;

use lock_proto::redis::{Config, Endpoint, Locks, LocksOutput, Reply, Request, Wake};
use lock_proto::{Acquire, Backoff, CallId, Cause, ClientId, Event, Fault, Instant, LockId, NodeId, Release};

use crate::{ANSWERED_WITHIN, CALLS, EPOCH, FENCES, HOLD, NUMBERS, TTL};

pub(crate) fn client_name(client: usize) -> char {
    (b'A' + client as u8) as char
}

/// Returns a token's number, counted from 1.
pub(crate) fn short_number(number: u64) -> u64 {
    number.saturating_sub(NUMBERS.start)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Waiting,
    Held,
    Lost,
    Released,
}

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Acquisition {
    pub(crate) id: LockId,
    pub(crate) phase: Phase,
    /// Number of its token, once granted.
    pub(crate) number: u64,
    /// Local time by which its application releases the guard, held or lost.
    pub(crate) release_by: Instant,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Sent {
    call: CallId,
    pub(crate) request: Request,
    /// Request timeout, by the client's clock.
    until: Instant,
    /// The client wanted, held or was releasing the lock when it sent this.
    pub(crate) in_use: bool,
}

/// A connection. It keeps its order.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Conn {
    pub(crate) requests: VecDeque<Sent>,
    pub(crate) replies: VecDeque<(Sent, Reply)>,
}

impl Conn {
    fn timeout(&self) -> Option<Instant> {
        self.replies.iter().map(|(sent, _)| sent).chain(&self.requests).map(|sent| sent.until).min()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.replies.is_empty()
    }
}

/// Things that happened, as bits.
pub(crate) mod mark {
    pub(crate) const GRANTED: u64 = 1;
    pub(crate) const LOST: u64 = 1 << 1;
    pub(crate) const RELEASED: u64 = 1 << 2;
    pub(crate) const NOT_RELEASED: u64 = 1 << 3;
    pub(crate) const RENEWED: u64 = 1 << 4;
    pub(crate) const BOTH: u64 = 1 << 5;
    pub(crate) const LATE_TOOK: u64 = 1 << 6;
    pub(crate) const REPLACED: u64 = 1 << 7;
    pub(crate) const OUTLIVED: u64 = 1 << 8;
    pub(crate) const AFTER_CRASH: u64 = 1 << 9;
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) marks: u64,
    pub(crate) fences: Vec<u64>,
    pub(crate) broken: Option<String>,
    pub(crate) log: Option<Vec<String>>,
}

impl Report {
    pub(crate) fn record(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(what());
        }
    }

    fn broken(&mut self, rule: String) {
        self.broken.get_or_insert(rule);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) index: usize,
    pub(crate) hub: Locks,
    /// Speed of its clock, in thousandths.
    pub(crate) pace: u64,
    pub(crate) conns: Vec<Conn>,
    pub(crate) acquisitions: Vec<Acquisition>,
    pub(crate) acquires: u8,
    pub(crate) crashed: bool,
    pub(crate) stalled: bool,
    /// Request of a watchdog that was not stopped, and when it sends it.
    pub(crate) endless_renewal: Option<(Request, u64)>,
    pub(crate) endless: bool,
    last_renewal: Option<Request>,
}

impl Client {
    pub(crate) fn new(index: usize, nodes: usize, pace: u64, change: impl FnOnce(Config) -> Config) -> Self {
        let endpoint = |n| Endpoint::parse(&format!("redis://127.0.0.1:{}", 7000 + n)).unwrap();
        let config = Config::new((0..nodes).map(endpoint))
            .wake(Wake::Poll)
            .round_timeout(TTL / 20)
            .poll(Backoff::fixed(TTL / 2))
            .fence_block(1)
            .release_within(TTL * 2);
        // One seed for all clients: equal jitter must do no harm.
        let id = ClientId::from_bits(index as u128 + 1);
        let hub = Locks::new(Instant::from_nanos(EPOCH), change(config), id, 1).unwrap();
        Self {
            index,
            hub: hub.count_from(NUMBERS.start, CALLS.start),
            pace,
            conns: vec![Conn::default(); nodes],
            acquisitions: Vec::new(),
            acquires: 0,
            crashed: false,
            stalled: false,
            endless_renewal: None,
            endless: false,
            last_renewal: None,
        }
    }

    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let endless_renewal = self.endless_renewal.as_ref().map(|(_, at)| self.clock(*at));
        (self.crashed, self.stalled, self.acquires, self.pace, endless_renewal).hash(state);
        if !self.crashed {
            self.hub.hash(state);
            self.conns.hash(state);
            self.acquisitions.hash(state);
        }
    }

    pub(crate) const fn clock(&self, now: u64) -> Instant {
        Instant::from_nanos(EPOCH + (now - EPOCH) / 1_000 * self.pace)
    }

    /// Returns the first true time at which its clock shows `at`.
    const fn true_time(&self, at: Instant) -> u64 {
        EPOCH + at.as_nanos().saturating_sub(EPOCH).div_ceil(self.pace) * 1_000
    }

    pub(crate) const fn is_awake(&self) -> bool {
        !self.crashed && !self.stalled
    }

    pub(crate) fn next(&self) -> Option<u64> {
        let hub = self.hub.next_deadline().map(|at| self.true_time(at));
        let endless_renewal = self.endless_renewal.as_ref().map(|(_, at)| *at);
        [hub, endless_renewal].into_iter().flatten().min()
    }

    /// Returns the true time by which its application releases a guard.
    pub(crate) fn release_by(&self) -> Option<u64> {
        let out = |known: &&Acquisition| matches!(known.phase, Phase::Held | Phase::Lost);
        self.acquisitions.iter().filter(out).map(|known| self.true_time(known.release_by)).min()
    }

    /// Returns the true time at which a request to this node times out.
    pub(crate) fn timeout(&self, node: usize) -> Option<u64> {
        self.conns[node].timeout().map(|at| self.true_time(at))
    }

    /// Returns the acquisition that holds the lock at the true time `now`, by its own clock.
    // T3
    pub(crate) fn holds(&self, now: u64) -> Option<&Acquisition> {
        let valid = |id| self.hub.valid_until(id).is_some_and(|until| self.clock(now) < until);
        self.acquisitions.iter().filter(|_| !self.crashed).find(|known| valid(known.id))
    }

    pub(crate) fn acquire(&mut self, now: u64, report: &mut Report) {
        self.acquires -= 1;
        let id = self.hub.acquire(self.clock(now), &Acquire::new("stock").ttl(TTL)).unwrap();
        self.acquisitions.push(Acquisition { id, phase: Phase::Waiting, number: 0, release_by: Instant::MAX });
        self.serve(now, report);
    }

    pub(crate) fn release(&mut self, now: u64, place: usize, report: &mut Report) {
        let id = self.acquisitions[place].id;
        if self.endless && self.acquisitions[place].phase == Phase::Held {
            self.endless_renewal = self.last_renewal.take().map(|renewal| (renewal, now + TTL.as_nanos() as u64 / 3));
        }
        self.hub.release(self.clock(now), id).unwrap();
        self.acquisitions[place].phase = Phase::Released;
        self.serve(now, report);
    }

    pub(crate) fn abandon(&mut self, now: u64, place: usize, report: &mut Report) {
        let id = self.acquisitions.remove(place).id;
        self.hub.abandon(self.clock(now), id);
        self.serve(now, report);
    }

    pub(crate) fn deliver_next_reply(&mut self, now: u64, node: usize, report: &mut Report) {
        if let Some((sent, reply)) = self.conns[node].replies.pop_front() {
            self.hub.handle_reply(self.clock(now), sent.call, &reply);
            self.serve(now, report);
        }
    }

    pub(crate) fn cut(&mut self, now: u64, node: usize, report: &mut Report) -> VecDeque<Sent> {
        let Conn { requests, replies } = core::mem::take(&mut self.conns[node]);
        let unknown = Reply::Unknown(Cause::Fault(Fault::Reset));
        let calls: Vec<CallId> = replies.iter().map(|(sent, _)| sent).chain(&requests).map(|sent| sent.call).collect();
        for call in calls {
            self.hub.handle_reply(self.clock(now), call, &unknown);
        }
        self.hub.handle_node_up(self.clock(now), NodeId::new(node as u16), None);
        self.serve(now, report);
        requests
    }

    /// Runs due timers and carries out the hub's outputs.
    pub(crate) fn serve(&mut self, now: u64, report: &mut Report) {
        let clock = self.clock(now);
        if let Some((request, at)) = self.endless_renewal.as_mut().filter(|(_, at)| *at <= now) {
            *at = now + TTL.as_nanos() as u64 / 3;
            let call = CallId::new(NodeId::new(0), 0);
            let sent = Sent { call, request: request.clone(), until: clock + TTL, in_use: false };
            self.conns[0].requests.push_back(sent);
        }
        for _ in 0..100 {
            while let Some(output) = self.hub.poll_output() {
                match output {
                    LocksOutput::Send { call, request } => self.send(clock, call, request, report),
                    LocksOutput::Event { lock, event } => self.handle_event(clock, lock, &event, report),
                    LocksOutput::Operation { .. } | LocksOutput::Listen { .. } | LocksOutput::Unlisten { .. } => {}
                    LocksOutput::Stopped { .. } => report.broken("a hub stopped unasked".into()),
                }
            }
            if self.hub.next_deadline().is_none_or(|at| at > clock) {
                return;
            }
            self.hub.handle_timeout(clock);
        }
        report.broken(format!("{} does not come to rest", client_name(self.index)));
    }

    fn send(&mut self, clock: Instant, call: CallId, request: Request, report: &mut Report) {
        let index = self.index;
        report.record(|| format!("{} sends {}", client_name(index), describe_request(&request)));
        if matches!(request, Request::Extend { .. }) {
            self.last_renewal = Some(request.clone());
        }
        let in_use = self.acquisitions.iter().any(|known| known.phase != Phase::Released);
        let sent = Sent { call, request, until: clock + ANSWERED_WITHIN, in_use };
        self.conns[call.node().index()].requests.push_back(sent);
    }

    fn handle_event(&mut self, clock: Instant, id: LockId, event: &Event, report: &mut Report) {
        let index = self.index;
        report.record(|| format!("{} receives {}", client_name(index), describe_event(event)));
        let Some(place) = self.acquisitions.iter().position(|known| known.id == id) else {
            return report.broken(format!("{id} of {} has ended, and receives {event:?}", client_name(index)));
        };
        let known = &mut self.acquisitions[place];
        match (known.phase, event) {
            (Phase::Waiting, Event::Granted(grant)) => {
                if grant.valid_until <= clock {
                    report.broken(format!("{} is granted what is over", client_name(index)));
                }
                report.marks |= mark::GRANTED;
                report.fences.extend(grant.fence.map(|fence| fence.get()));
                *known = Acquisition { id, phase: Phase::Held, number: grant.token.number, release_by: clock + HOLD };
                if self.hub.claim(clock, id).is_err() {
                    report.broken(format!("{} cannot claim what it was just granted", client_name(index)));
                }
            }
            (Phase::Held, Event::Lost(_)) => {
                report.marks |= mark::LOST;
                known.phase = Phase::Lost;
            }
            (Phase::Held, Event::Renewed { .. }) => report.marks |= mark::RENEWED,
            (Phase::Released, Event::Released(release)) => {
                report.marks |= if *release == Release::Released { mark::RELEASED } else { mark::NOT_RELEASED };
                self.acquisitions.remove(place);
            }
            (Phase::Waiting, Event::Blocked(_))
            | (Phase::Held, Event::AtRisk { .. } | Event::Extended | Event::ExtendFailed(_)) => {}
            // Emitted before the guard was released, and delivered after it.
            (Phase::Released, Event::Lost(_) | Event::AtRisk { .. } | Event::Renewed { .. }) => {}
            (phase, event) => report.broken(format!("{} is {phase:?}, and receives {event:?}", client_name(index))),
        }
    }
}

pub(crate) fn describe_request(request: &Request) -> String {
    match request {
        Request::Take { number, retired, .. } => {
            format!("take #{} (spent: to #{})", short_number(*number), short_number(retired.last))
        }
        Request::Extend { number, .. } => format!("renew #{}", short_number(*number)),
        Request::Release { number, retired, .. } => {
            let retired = retired.map(|retired| format!(" and what is spent, to #{}", short_number(retired.last)));
            format!("delete #{}{}", short_number(*number), retired.unwrap_or_default())
        }
        _ => format!("{request:?}"),
    }
}

pub(crate) fn describe_reply(reply: &Reply) -> String {
    match reply {
        Reply::Granted { fence } => {
            let fence = fence.map(|fence| format!(", fence {}", fence.first - FENCES.start));
            format!("granted{}", fence.unwrap_or_default())
        }
        Reply::Deleted { number, .. } => format!("deleted #{}", short_number(*number)),
        _ => format!("{reply:?}"),
    }
}

fn describe_event(event: &Event) -> String {
    match event {
        Event::Granted(grant) => {
            let ms = (grant.valid_until.as_nanos() - EPOCH) / crate::MS;
            format!("Granted #{} until {ms} ms of its clock", short_number(grant.token.number))
        }
        Event::Renewed { valid_until } => {
            format!("Renewed until {} ms of its clock", (valid_until.as_nanos() - EPOCH) / crate::MS)
        }
        _ => format!("{event:?}"),
    }
}
