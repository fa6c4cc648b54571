//! One process: its hub, requests and watches, and an application that claims all offers.

use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;
use lock_proto::etcd::{
    Config, Endpoint, Found, Locks, LocksOutput, Reply, Request, SeenRevisions, WatchId, WatchOutput,
};
use lock_proto::{Acquire, CallId, Cause, ClientId, Event, Fault, Instant, LockId};

use crate::etcd::Change;
use crate::{CALLS, EPOCH, HOLD, TTL, WATCHES};

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
    /// Time by which its application releases the guard, held or lost.
    pub(crate) release_by: Instant,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Sent {
    call: CallId,
    pub(crate) request: Request,
}

#[derive(Clone, Debug)]
struct Watch {
    key: Bytes,
    end: Bytes,
    /// Index of the next change to deliver, or `None` while the watch is not open.
    next_change: Option<usize>,
}

impl Watch {
    fn covers(&self, key: &Bytes) -> bool {
        if self.end.is_empty() { *key == self.key } else { *key >= self.key && *key < self.end }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) hub: Locks,
    pub(crate) requests: Vec<Sent>,
    pub(crate) replies: Vec<(Sent, Reply)>,
    watches: BTreeMap<WatchId, Watch>,
    pub(crate) acquisitions: Vec<Acquisition>,
    pub(crate) acquires: u8,
    pub(crate) served: u8,
    pub(crate) crashed: bool,
    /// Flawed variant: the client never rechecks its own key, and uses the last state it saw.
    pub(crate) credulous: bool,
    own: Option<(Bytes, SeenRevisions)>,
    /// Fencing tokens of grants that are not yet checked.
    pub(crate) fences: Vec<u64>,
    pub(crate) broken: Option<String>,
}

impl Client {
    pub(crate) fn new(index: usize, acquires: u8) -> Self {
        let endpoint = Endpoint::parse("127.0.0.1:2379").unwrap();
        let config = Config::new([endpoint]).session_ttl(TTL);
        let (now, id) = (Instant::from_nanos(EPOCH), ClientId::from_bits(index as u128 + 1));
        let hub = Locks::new(now, config, id, 1).unwrap();
        Self {
            hub: hub.count_from(CALLS.start, WATCHES.start),
            requests: Vec::new(),
            replies: Vec::new(),
            watches: BTreeMap::new(),
            acquisitions: Vec::new(),
            acquires,
            served: 0,
            crashed: false,
            credulous: false,
            own: None,
            fences: Vec::new(),
            broken: None,
        }
    }

    pub(crate) fn hash_state(&self, changes: &[Change], state: &mut impl Hasher) {
        (self.crashed, self.acquires, self.served).hash(state);
        if self.crashed {
            return;
        }
        self.hub.hash(state);
        self.acquisitions.hash(state);
        self.own.hash(state);
        // Requests are concurrent, so their order is irrelevant.
        let mut requests: Vec<&Sent> = self.requests.iter().collect();
        requests.sort_by_key(|sent| sent.call);
        requests.hash(state);
        let mut replies: Vec<&(Sent, Reply)> = self.replies.iter().collect();
        replies.sort_by_key(|(sent, _)| sent.call);
        replies.hash(state);
        for (id, watch) in &self.watches {
            (id, watch.next_change.is_some()).hash(state);
            for change in changes.iter().skip(watch.next_change.unwrap_or(changes.len())) {
                if watch.covers(&change.kv.key) {
                    (change.revision, change.deleted, &change.kv).hash(state);
                }
            }
        }
    }

    pub(crate) fn holds(&self, now: Instant) -> Option<LockId> {
        let valid = |id: &LockId| self.hub.valid_until(*id).is_some_and(|until| now < until);
        self.acquisitions.iter().filter(|_| !self.crashed).map(|known| known.id).find(valid)
    }

    pub(crate) fn releasable(&self) -> impl Iterator<Item = usize> {
        let out = |phase| matches!(phase, Phase::Held | Phase::Lost);
        self.acquisitions.iter().enumerate().filter(move |(_, known)| out(known.phase)).map(|(place, _)| place)
    }

    pub(crate) fn waits(&self) -> bool {
        self.acquisitions.iter().any(|known| known.phase == Phase::Waiting)
    }

    pub(crate) fn is_quiet(&self, changes: usize) -> bool {
        self.crashed
            || (self.requests.is_empty() && self.replies.is_empty() && !self.has_changes(changes) && !self.has_closed())
    }

    pub(crate) fn has_closed(&self) -> bool {
        self.watches.values().any(|watch| watch.next_change.is_none())
    }

    pub(crate) fn has_changes(&self, changes: usize) -> bool {
        self.watches.values().any(|watch| watch.next_change.is_some_and(|next_change| next_change < changes))
    }

    pub(crate) fn acquire(&mut self, now: Instant) {
        self.acquires -= 1;
        let id = self.hub.acquire(now, &Acquire::new("stock")).unwrap();
        self.acquisitions.push(Acquisition { id, phase: Phase::Waiting, release_by: Instant::MAX });
        self.serve(now);
    }

    pub(crate) fn release(&mut self, now: Instant, place: usize) {
        let known = &mut self.acquisitions[place];
        known.phase = Phase::Released;
        known.release_by = Instant::MAX;
        self.hub.release(now, known.id).unwrap();
        self.serve(now);
    }

    pub(crate) fn answered(&mut self, now: Instant, place: usize) {
        let (sent, mut reply) = self.replies.remove(place);
        if self.credulous {
            self.replace_own_key(&sent.request, &mut reply);
        }
        self.hub.handle_reply(now, sent.call, &reply);
        self.serve(now);
    }

    /// Replaces the own key in a reply by its state when it was written.
    fn replace_own_key(&mut self, request: &Request, reply: &mut Reply) {
        let Reply::Done(Found::Queue { own, .. }) = reply else { return };
        match request {
            Request::Create { queue, lease, .. } | Request::Put { queue, lease, .. } => {
                self.own = own.map(|seen| (queue.key(*lease), seen));
            }
            Request::Look { .. } => *own = self.own.as_ref().map(|(_, seen)| *seen).or(*own),
            _ => {}
        }
    }

    /// Reports a request as failed with an unknown result.
    pub(crate) fn lost(&mut self, now: Instant, call: CallId) {
        self.hub.handle_reply(now, call, &Reply::Unknown(Cause::Fault(Fault::Reset)));
        self.serve(now);
    }

    pub(crate) fn lose_request(&mut self, now: Instant, place: usize) -> Request {
        let sent = self.requests.remove(place);
        self.lost(now, sent.call);
        sent.request
    }

    pub(crate) fn lose_reply(&mut self, now: Instant, place: usize) {
        let (sent, _) = self.replies.remove(place);
        self.lost(now, sent.call);
    }

    pub(crate) fn open(&mut self, now: Instant, changes: usize, revision: i64) {
        let closed: Vec<WatchId> =
            self.watches.iter().filter(|(_, watch)| watch.next_change.is_none()).map(|(id, _)| *id).collect();
        for id in closed {
            if let Some(watch) = self.watches.get_mut(&id) {
                watch.next_change = Some(changes);
                self.hub.handle_watching(now, id, revision);
                self.serve(now);
            }
        }
    }

    pub(crate) fn deliver_changes(&mut self, now: Instant, changes: &[Change]) {
        for (index, change) in changes.iter().enumerate() {
            let ids: Vec<WatchId> = self.watches.keys().copied().collect();
            for id in ids {
                let Some(watch) = self.watches.get_mut(&id) else { continue };
                if watch.next_change.is_none_or(|next_change| next_change > index) {
                    continue;
                }
                watch.next_change = Some(index + 1);
                let own = self.credulous && self.own.as_ref().is_some_and(|(key, _)| *key == change.kv.key);
                if watch.covers(&change.kv.key) && !own {
                    self.hub.handle_changed(now, id, change.revision, change.deleted, &change.kv);
                    self.serve(now);
                }
            }
        }
    }

    /// Runs due timers and carries out the hub's outputs.
    pub(crate) fn serve(&mut self, now: Instant) {
        for _ in 0..100 {
            while let Some(output) = self.hub.poll_output() {
                match output {
                    LocksOutput::Send { call, request, .. } => self.requests.push(Sent { call, request }),
                    LocksOutput::Store(WatchOutput::Watch { watch, key, end, .. }) => {
                        self.watches.insert(watch, Watch { key, end, next_change: None });
                    }
                    LocksOutput::Store(WatchOutput::Unwatch { watch }) => drop(self.watches.remove(&watch)),
                    LocksOutput::Event { lock, event } => self.handle_event(now, lock, &event),
                    LocksOutput::Operation { .. } | LocksOutput::Stopped { .. } => {
                        self.broken.get_or_insert_with(|| format!("{output:?} unasked"));
                    }
                }
            }
            if self.hub.next_deadline().is_none_or(|at| at > now) {
                return;
            }
            self.hub.handle_timeout(now);
        }
        self.broken.get_or_insert_with(|| "a hub does not come to rest".into());
    }

    fn handle_event(&mut self, now: Instant, id: LockId, event: &Event) {
        let Some(place) = self.acquisitions.iter().position(|known| known.id == id) else {
            self.broken.get_or_insert_with(|| format!("{id} has ended, and receives {event:?}"));
            return;
        };
        let known = &mut self.acquisitions[place];
        match (known.phase, event) {
            (Phase::Waiting, Event::Granted(grant)) => {
                self.fences.extend(grant.fence.map(|fence| fence.get()));
                (known.phase, known.release_by) = (Phase::Held, now + HOLD);
                self.served += 1;
                if self.hub.claim(now, id).is_err() {
                    self.broken.get_or_insert_with(|| "what was just granted cannot be claimed".into());
                }
            }
            (Phase::Held, Event::Lost(_)) => known.phase = Phase::Lost,
            (Phase::Released, Event::Released(_)) => drop(self.acquisitions.remove(place)),
            (Phase::Waiting, Event::Blocked(_)) | (Phase::Held, Event::AtRisk { .. } | Event::Renewed { .. }) => {}
            // Emitted before the guard was released, and delivered after it.
            (Phase::Released, Event::Lost(_) | Event::AtRisk { .. } | Event::Renewed { .. }) => {}
            (phase, event) => {
                self.broken.get_or_insert_with(|| format!("{event:?} while {phase:?}"));
            }
        }
    }

    pub(crate) fn release_by(&self) -> Instant {
        self.acquisitions.iter().map(|known| known.release_by).min().unwrap_or(Instant::MAX)
    }
}

pub(crate) fn describe_request(request: &Request) -> String {
    match request {
        Request::Create { .. } => "enter the queue".into(),
        Request::Look { before, .. } => format!("look at the queue{}", if before.is_some() { "" } else { ", own key" }),
        Request::Put { .. } => "write the own key".into(),
        Request::Delete { .. } => "delete the own key".into(),
        _ => format!("{request:?}"),
    }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
