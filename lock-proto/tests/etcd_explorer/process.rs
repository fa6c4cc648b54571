//! One process: a hub, its requests, and its application.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use lock_proto::etcd::{Config, Endpoint, Locks, LocksOutput, QueryId, Request, WatchId, WatchOutput};
use lock_proto::{Acquire, CallId, ClientId, Event, Instant, LockId, Renew};

use crate::etcd::Change;
use crate::seeds::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Offered,
    Held,
    Lost,
    Released,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) name: u8,
    pub(crate) state: State,
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) call: CallId,
    pub(crate) request: Request,
    /// Request timeout, by the process's clock.
    pub(crate) until: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) key: Bytes,
    pub(crate) end: Bytes,
    /// Index of the next change to deliver, or `None` while the watch is not open.
    pub(crate) next_change: Option<usize>,
}

impl Watch {
    fn covers(&self, key: &Bytes) -> bool {
        if self.end.is_empty() { *key == self.key } else { *key >= self.key && *key < self.end }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fences {
    pub(crate) seen: BTreeMap<u8, BTreeSet<u64>>,
    /// Keys are deleted by hand. Grants may be reported out of order, but no token is repeated.
    pub(crate) by_hand: bool,
}

impl Fences {
    fn record(&mut self, name: u8, fence: u64) {
        let seen = self.seen.entry(name).or_default();
        let last = seen.last().copied().unwrap_or(0);
        assert!(fence > last || self.by_hand, "fence {fence} after {last} of {name}");
        assert!(seen.insert(fence), "fence {fence} of {name} comes twice");
    }
}

pub(crate) struct Process {
    pub(crate) id: u128,
    pub(crate) hub: Locks,
    pub(crate) acquisitions: BTreeMap<LockId, Acquisition>,
    pub(crate) queries: BTreeSet<QueryId>,
    pub(crate) requests: VecDeque<Sent>,
    pub(crate) replies: VecDeque<(CallId, lock_proto::etcd::Reply)>,
    pub(crate) watches: BTreeMap<WatchId, Watch>,
    pub(crate) paused: bool,
    pub(crate) stopped: bool,
    /// Initial offset of its clock from the true time, and its speed in thousandths.
    pub(crate) offset: u64,
    pub(crate) pace: u64,
    log: bool,
}

pub(crate) fn name(n: u8) -> String {
    format!("lock-{n}")
}

impl Process {
    pub(crate) fn new(now: u64, id: u128, rng: &mut Rng, log: bool) -> Self {
        let endpoint = Endpoint::parse("127.0.0.1:2379").unwrap();
        let turn = core::time::Duration::from_millis([0, 20, 100, 2_000][rng.below(4) as usize]);
        let config = Config::new([endpoint]).session_ttl(core::time::Duration::from_secs(3)).handover_window(turn);
        let (offset, pace) = (rng.below(1_000_000_000_000), 995 + rng.below(11));
        let mut process = Self {
            id,
            hub: Locks::new(Instant::ZERO, config, ClientId::from_bits(id), id as u64).unwrap(),
            acquisitions: BTreeMap::new(),
            queries: BTreeSet::new(),
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            watches: BTreeMap::new(),
            paused: false,
            stopped: false,
            offset,
            pace,
            log,
        };
        process.hub.handle_timeout(process.clock(now));
        process
    }

    pub(crate) fn clock(&self, now: u64) -> Instant {
        Instant::from_nanos(self.offset + now / 1_000 * self.pace)
    }

    /// Returns the first true time at which its clock shows `at`.
    pub(crate) fn true_time(&self, at: Instant) -> u64 {
        at.as_nanos().saturating_sub(self.offset).div_ceil(self.pace) * 1_000
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        let hub = self.hub.next_deadline();
        let requests = self.requests.iter().map(|sent| Instant::from_nanos(sent.until)).min();
        [hub, requests].into_iter().flatten().min().map(|at| self.true_time(at))
    }

    fn log_event(&self, now: u64, what: &dyn core::fmt::Debug) {
        if self.log {
            println!("{:>12}us p{} {what:?}", now / 1_000, self.id);
        }
    }

    pub(crate) fn drain(&mut self, now: u64, fences: &mut Fences) {
        let clock = self.clock(now);
        while let Some(output) = self.hub.poll_output() {
            self.log_event(now, &output);
            match output {
                LocksOutput::Send { call, request, timeout } => {
                    self.requests.push_back(Sent { call, request, until: (clock + timeout).as_nanos() });
                }
                LocksOutput::Store(WatchOutput::Watch { watch, key, end, .. }) => {
                    let new = self.watches.insert(watch, Watch { key, end, next_change: None });
                    assert!(new.is_none(), "{watch:?} was used before");
                }
                LocksOutput::Store(WatchOutput::Unwatch { watch }) => {
                    self.watches.remove(&watch).unwrap_or_else(|| panic!("{watch:?} is not open"));
                }
                LocksOutput::Event { lock, event } => self.handle_event(lock, &event, fences),
                LocksOutput::Election { query, .. } => {
                    assert!(self.queries.contains(&query), "{query:?} has ended");
                }
                LocksOutput::Stopped { .. } => {
                    assert!(!self.stopped);
                    self.stopped = true;
                    self.watches.clear();
                }
            }
        }
    }

    fn handle_event(&mut self, lock: LockId, event: &Event, fences: &mut Fences) {
        let known = self.acquisitions.get_mut(&lock).unwrap_or_else(|| panic!("{lock} has ended: {event:?}"));
        match (event, known.state) {
            (Event::Granted(grant), State::Waiting) => {
                known.state = State::Offered;
                fences.record(known.name, grant.fence.unwrap().get());
            }
            (Event::Lost(_), State::Held) => known.state = State::Lost,
            (Event::Withdrawn, State::Offered)
            | (Event::Failed(_), State::Waiting | State::Offered)
            | (Event::Released(_), State::Released) => {
                self.acquisitions.remove(&lock);
            }
            // A lock that ends before it is claimed was never held.
            (Event::Blocked(_), State::Waiting)
            | (Event::Renewed { .. }, State::Offered | State::Held)
            | (Event::Extended | Event::ExtendFailed(_), State::Held)
            | (Event::Proclaimed { .. } | Event::ProclaimFailed(_), State::Held)
            | (Event::AtRisk { .. }, State::Held)
            // Emitted before the guard was released, and delivered after it.
            | (Event::Lost(_) | Event::AtRisk { .. } | Event::Renewed { .. }, State::Released) => {}
            (event, state) => panic!("{event:?} while {state:?}"),
        }
    }

    /// Delivers the changes to the hub's watches in order, as one stream does.
    pub(crate) fn deliver_changes(&mut self, now: u64, changes: &[Change]) {
        let clock = self.clock(now);
        let first = self.watches.values().filter_map(|watch| watch.next_change).min().unwrap_or(changes.len());
        for (index, change) in changes.iter().enumerate().skip(first) {
            let ids: Vec<WatchId> = self.watches.keys().copied().collect();
            for id in ids {
                let Some(watch) = self.watches.get_mut(&id) else { continue };
                if watch.next_change.is_none_or(|next_change| next_change > index) {
                    continue;
                }
                watch.next_change = Some(index + 1);
                if watch.covers(&change.kv.key) {
                    self.hub.handle_changed(clock, id, change.revision, change.deleted, &change.kv);
                }
            }
        }
    }
}

pub(crate) fn draw_request(rng: &mut Rng, name_of: u8) -> Acquire {
    let mut want = Acquire::new(name(name_of));
    match rng.below(10) {
        0 => want = want.wait(lock_proto::Wait::Try),
        1..4 => want = want.wait(lock_proto::Wait::For(core::time::Duration::from_millis(rng.below(8_000)))),
        _ => {}
    }
    match rng.below(10) {
        0 => want = want.ttl(core::time::Duration::from_secs(1 + rng.below(5))),
        1 => want = want.renew(Renew::Manual),
        2 => want = want.renew(Renew::AtMost(core::time::Duration::from_millis(1 + rng.below(4_000)))),
        _ => {}
    }
    want
}
