//! The checkers, which are always on.
//!
//! A [`Checker`] sees the requests and events of applications, the contents of the stores, the
//! writes to protected resources, and the amount of traffic. It knows true time. It works for every
//! backend: keys are bytes and clients are numbered. To use it with another world, report
//! everything that happens and read [`Checker::poll_violation`].
// S3

mod acquisition;
mod fault_free;
mod resource;
mod rule;
mod stored;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use acquisition::{Acquisition, Granted};
use fault_free::{FaultFree, Free};
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::time::nanos;
use lock_proto::{Event, Failure, Loss, Release};
use resource::Resource;

pub use acquisition::Stage;
pub(super) use fault_free::TAKE;
pub use rule::{Rule, Violation};

/// Leaky bucket for requests from one client to one node: burst size, and drain rate per second for
/// the client itself and for each of its acquisitions and queries that are not over. A retry after
/// each round trip is faster if that takes less than 20 ms, divided by one plus their number. Each
/// acquisition, and each call of [`Checker::allow`], adds to the allowance.
const BURST: u64 = 200;
const PER_SECOND: u64 = 50;
const PER_ACQUISITION: u64 = 50;

/// The most grants of a client that are remembered.
const MAX_TAKEN: usize = 16;

/// The most locks that one script takes, each with its own fencing token.
const TAKES_PER_SCRIPT: u64 = 16;

/// The last content seen under a key. A deleted key keeps its entry, because it usually returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    presence: Presence,
    value: Vec<u8>,
    /// Expiry by the clock of its store.
    expires: Option<u64>,
    /// When it was last seen missing.
    missing: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Missing,
    There,
    /// It was there before something other than a client changed the data of the node.
    Doubtful,
}

/// The positions at which a value first and last appeared in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Minted {
    first: u64,
    last: u64,
    /// The wall clock of the node, in µs, when its data was last changed before `last`.
    changed: u64,
}

impl Minted {
    const fn is_at(&self, position: u64) -> bool {
        self.first == position || self.last == position
    }
}

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CheckedNode {
    stored: BTreeMap<Vec<u8>, Content>,
    /// When something other than a client changed the data, by the wall clock, in µs.
    changed: u64,
    /// Total µs by which the clock was set back.
    set_back: u64,
}

/// Watches a world and reports violated rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checker {
    clients: Vec<CheckedClient>,
    locks: BTreeMap<Arc<[u8]>, CheckedLock>,
    nodes: Vec<CheckedNode>,
    serial: u64,
    grants: u64,
    overlaps: u64,
    found: VecDeque<Violation>,
    now: Instant,
    fault_free: FaultFree,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CheckedClient {
    live: BTreeMap<LockId, Acquisition>,
    /// The times of its latest grants.
    taken: VecDeque<Instant>,
    /// The number of open queries and observations of elections.
    queries: u64,
    over: BTreeSet<LockId>,
    /// Lost holds whose guards were not returned before the client stopped.
    left_guards: BTreeSet<LockId>,
    stop_by: Option<Instant>,
    gone: bool,
    /// For each node: the level of the bucket, in billionths of a request, and since when.
    buckets: Vec<(u64, Instant)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CheckedLock {
    /// The granted acquisitions that are not over, by client.
    holders: Vec<(usize, LockId)>,
    /// The lowest and highest fencing token for each position in the order of the store.
    fences: BTreeMap<u64, (u64, u64)>,
    /// The values that appeared in the store.
    minted: BTreeMap<Vec<u8>, Minted>,
    order: u64,
    /// The value that appeared last, and its position.
    last: Option<(Vec<u8>, u64)>,
    /// The position of the most recent other value.
    before_last: u64,
    resource: Resource,
    free: Free,
}

impl CheckedLock {
    /// Returns true if there is a value at position `position` and no other one was seen since.
    fn is_alone_since(&self, position: u64) -> bool {
        let Some((last, at)) = &self.last else { return false };
        let is_own = |value: &Minted| value.is_at(position);
        let newest_other = if self.minted.get(last).is_some_and(is_own) { self.before_last } else { *at };
        newest_other < position && self.minted.values().any(is_own)
    }
}

impl Checker {
    /// Creates a checker.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the time that applies to calls without a time.
    pub const fn advance(&mut self, now: Instant) {
        self.now = now;
    }

    /// An acquisition begins. `wait_ends` is when its wait must end, in true time.
    pub fn requested(&mut self, now: Instant, client: usize, lock: LockId, key: &[u8], wait_ends: Option<Instant>) {
        self.serial += 1;
        let key = self.key(key);
        let (stage, serial, due) = (Stage::Waiting, self.serial, wait_ends);
        let acquisition = Acquisition { key, stage, requested_at: now, serial, due, lost: false, granted: None };
        let state = self.client(client);
        let again = state.over.contains(&lock) || state.live.contains_key(&lock);
        state.live.insert(lock, acquisition);
        if again {
            self.report(now, Rule::OneOutcome, format!("client {client} gave the id {lock} twice"));
        }
        self.allow(client, PER_ACQUISITION);
    }

    /// The application claims an offer.
    pub fn claimed(&mut self, client: usize, lock: LockId) {
        if let Some(acquisition) = self.client(client).live.get_mut(&lock)
            && acquisition.stage == Stage::Offered
        {
            acquisition.stage = Stage::Held;
        }
    }

    /// The clock of a process stopped for `by`, so its deadlines move by that much in true time.
    /// Checks whether what it believes it holds is also held by others.
    pub fn suspended(&mut self, now: Instant, client: usize, by: Duration) {
        let mut holds = Vec::new();
        let state = self.client(client);
        state.stop_by = state.stop_by.map(|at| at + by);
        for (lock, acquisition) in &mut state.live {
            acquisition.due = acquisition.due.map(|due| due + by);
            if acquisition.holds(now) {
                holds.extend(acquisition.due.map(|until| (*lock, until)));
            }
        }
        for (lock, until) in holds {
            self.holds(now, client, lock, until);
        }
    }

    /// The application releases the lock. The result must arrive by `answer_by`.
    pub fn release_requested(&mut self, client: usize, lock: LockId, answer_by: Option<Instant>) {
        self.mark_free(client, lock);
        self.forget_holder(client, lock);
        if let Some(acquisition) = self.client(client).live.get_mut(&lock) {
            acquisition.stage = Stage::Releasing;
            acquisition.due = answer_by;
        }
    }

    /// The application dropped the acquisition; no more events may follow.
    pub fn abandoned(&mut self, client: usize, lock: LockId) {
        self.ends(client, lock);
    }

    /// The process dies, and all its holds and waits end.
    pub fn killed(&mut self, client: usize) {
        let all: Vec<LockId> = self.client(client).live.keys().copied().collect();
        for lock in all {
            self.ends(client, lock);
        }
        let state = self.client(client);
        (state.stop_by, state.gone) = (None, true);
    }

    /// A client is shut down. It must have stopped by `by`, in true time.
    pub fn shut_down(&mut self, client: usize, by: Instant) {
        let state = self.client(client);
        if !state.gone {
            state.stop_by = Some(state.stop_by.map_or(by, |earlier| earlier.min(by)));
        }
    }

    /// Returns true if a client was shut down and has not stopped yet.
    #[must_use]
    pub fn is_stopping(&self, client: usize) -> bool {
        self.clients.get(client).is_some_and(|state| state.stop_by.is_some())
    }

    /// A client has stopped. It emits no more events, so none may be missing.
    pub fn stopped(&mut self, now: Instant, client: usize) {
        let unreported = self.live(client).next();
        if let Some((lock, stage)) = unreported {
            let text = format!("client {client} stopped while {lock} was {stage:?}, without reporting it");
            self.report(now, Rule::Notified, text);
        }
        self.killed(client);
    }

    /// An acquisition receives an event. `until` is the end of validity in the event, in true time.
    /// `order` is the position of the grant in the order of the store (see [`order`](Self::order)).
    /// If it is `None`, grants are ordered by their events.
    pub fn notified(
        &mut self,
        now: Instant,
        client: usize,
        lock: LockId,
        event: &Event,
        until: Option<Instant>,
        order: Option<u64>,
    ) {
        if matches!(event, Event::Lost(Loss::Taken) | Event::Released(Release::Taken)) {
            self.check_taken(now, client, lock);
        }
        if matches!(event, Event::Failed(Failure::TimedOut(_))) {
            self.check_prompt(now, client, lock, false);
        }
        if matches!(event, Event::Withdrawn | Event::Failed(_)) {
            self.mark_free(client, lock);
        }
        let state = self.client(client);
        let stopping = state.stop_by.is_some();
        let Some(acquisition) = state.live.get_mut(&lock) else {
            let why = if state.over.contains(&lock) { "which is over" } else { "which was never requested" };
            return self.report(
                now,
                Rule::OneOutcome,
                format!("client {client} emits an event of {lock}, {why}: {event:?}"),
            );
        };
        let stage = match acquisition.next(event, stopping) {
            Ok(stage) => stage,
            Err(found) => return self.report(now, Rule::OneOutcome, format!("client {client} {lock}: {found}")),
        };
        let renewed_late = matches!(event, Event::Renewed { .. }) && acquisition.due.is_none_or(|until| until <= now);
        acquisition.lost |= matches!(event, Event::Lost(_));
        let left = acquisition.stage == Stage::Lost && stage == Stage::Over;
        acquisition.stage = stage;
        if left {
            state.left_guards.insert(lock);
        }
        match stage {
            Stage::Over => return self.ends(client, lock),
            Stage::Lost => {
                acquisition.due = None;
                self.mark_lost(client, lock);
                return self.forget_holder(client, lock);
            }
            Stage::Releasing => return,
            Stage::Waiting | Stage::Offered | Stage::Held => {}
        }
        if let Some(until) = until {
            acquisition.due = Some(until);
            let first = stage == Stage::Offered && acquisition.granted.is_none();
            if renewed_late {
                self.report(now, Rule::Notified, format!("client {client} {lock} was renewed after its end"));
            }
            if first && let Event::Granted(grant) = event {
                self.check_prompt(now, client, lock, true);
                self.granted(now, client, lock, grant.fence.map(|fence| fence.get()), order);
            }
            self.holds(now, client, lock, until);
        }
    }

    /// A process has finished its work at `now`: everything that ended must be reported.
    pub fn check_overdue(&mut self, now: Instant, client: usize) {
        let Some(state) = self.clients.get_mut(client) else { return };
        if state.stop_by.take_if(|at| *at <= now).is_some() {
            return self.report(now, Rule::Notified, format!("client {client} has not stopped in time"));
        }
        let late = |acquisition: &&Acquisition| acquisition.due.is_some_and(|at| at <= now);
        let Some((lock, acquisition)) = state.live.iter().find(|(_, acquisition)| late(acquisition)) else { return };
        let what = match acquisition.stage {
            Stage::Waiting => "its wait was over",
            Stage::Offered | Stage::Held => "its validity was over",
            Stage::Releasing => "the time to release it was over",
            Stage::Lost | Stage::Over => return,
        };
        let (lock, name, due) = (*lock, acquisition.key.escape_ascii(), acquisition.due.unwrap_or(now));
        let text = format!("client {client} {lock} ({name}) was not notified: {what} at {due}");
        if let Some(acquisition) = self.client(client).live.get_mut(&lock) {
            acquisition.due = None;
        }
        self.report(now, Rule::Notified, text);
    }

    /// Returns the claimed holds of a client, and until when each is valid by its events, in true
    /// time.
    pub(super) fn held(&self, client: usize) -> impl Iterator<Item = (LockId, Instant)> {
        let live = self.clients.get(client).into_iter().flat_map(|state| &state.live);
        live.filter_map(|(lock, acquisition)| {
            acquisition.due.filter(|_| acquisition.stage == Stage::Held).map(|until| (*lock, until))
        })
    }

    /// A client sends something to a node.
    pub fn count_request(&mut self, now: Instant, client: usize, node: usize) {
        const ONE: u64 = 1_000_000_000;
        let state = self.client(client);
        if state.buckets.len() <= node {
            state.buckets.resize(node + 1, (0, now));
        }
        let (level, since) = &mut state.buckets[node];
        let rate = PER_SECOND * (1 + state.live.len() as u64 + state.queries);
        let drained = nanos(now.since(*since)).saturating_mul(rate);
        (*level, *since) = (level.saturating_sub(drained) + ONE, now);
        if *level > BURST * ONE {
            *level = 0;
            let text = format!("client {client} sends without end to node {node}");
            self.report(now, Rule::Bounded, text);
        }
    }

    /// Sets the number of open queries and observations of elections of a client.
    pub fn set_open_queries(&mut self, client: usize, count: u64) {
        self.client(client).queries = count;
    }

    /// Allows a client this many additional requests to every node.
    pub fn allow(&mut self, client: usize, requests: u64) {
        for (level, _) in &mut self.client(client).buckets {
            *level = level.saturating_sub(requests.saturating_mul(1_000_000_000));
        }
    }

    /// Reports a violation that the world itself has found.
    pub fn report(&mut self, now: Instant, rule: Rule, text: String) {
        self.found.push_back(Violation { rule, text, at: now });
    }

    /// Removes and returns the next violation.
    pub fn poll_violation(&mut self) -> Option<Violation> {
        self.found.pop_front()
    }

    /// Returns the stage of an acquisition, or `None` if it is unknown.
    #[must_use]
    pub fn stage(&self, client: usize, lock: LockId) -> Option<Stage> {
        let state = self.clients.get(client)?;
        let live = state.live.get(&lock).map(|acquisition| acquisition.stage);
        live.or_else(|| state.over.contains(&lock).then_some(Stage::Over))
    }

    /// Returns the acquisitions of a client that are not over.
    pub fn live(&self, client: usize) -> impl Iterator<Item = (LockId, Stage)> {
        self.clients
            .get(client)
            .into_iter()
            .flat_map(|state| state.live.iter().map(|(lock, acquisition)| (*lock, acquisition.stage)))
    }

    /// Returns the lost holds whose guards exist, also after the client has stopped. Their keys are
    /// left alone.
    // H6
    pub(super) fn lost_guards(&self, client: usize) -> impl Iterator<Item = LockId> {
        let left = self.clients.get(client).into_iter().flat_map(|state| state.left_guards.iter().copied());
        left.chain(self.live(client).filter(|(_, stage)| *stage == Stage::Lost).map(|(lock, _)| lock))
    }

    /// Returns the number of grants.
    #[must_use]
    pub const fn grants(&self) -> u64 {
        self.grants
    }

    /// Returns how often a grant or renewal overlapped another holder's validity.
    #[must_use]
    pub const fn overlaps(&self) -> u64 {
        self.overlaps
    }

    fn client(&mut self, client: usize) -> &mut CheckedClient {
        if self.clients.len() <= client {
            self.clients.resize_with(client + 1, CheckedClient::default);
        }
        &mut self.clients[client]
    }

    fn key(&mut self, key: &[u8]) -> Arc<[u8]> {
        if let Some((interned, _)) = self.locks.get_key_value(key) {
            return interned.clone();
        }
        let new: Arc<[u8]> = key.into();
        self.locks.insert(new.clone(), CheckedLock::default());
        new
    }

    fn lock(&mut self, key: &Arc<[u8]>) -> &mut CheckedLock {
        self.locks.entry(key.clone()).or_default()
    }

    fn granted(&mut self, now: Instant, client: usize, id: LockId, fence: Option<u64>, order: Option<u64>) {
        self.grants += 1;
        self.allow(client, PER_ACQUISITION);
        let taken = &mut self.clients[client].taken;
        taken.truncate(MAX_TAKEN - 1);
        taken.push_front(now);
        let Some(key) = self.clients[client].live.get(&id).map(|acquisition| acquisition.key.clone()) else { return };
        let lock = self.lock(&key);
        let order = order.unwrap_or_else(|| {
            lock.order += 1;
            lock.order
        });
        let found = fence.and_then(|fence| {
            let below = lock.fences.range(..=order).next_back().map(|(_, (_, high))| *high);
            let above = lock.fences.range(order + 1..).next().map(|(_, (low, _))| *low);
            let position = lock.fences.entry(order).or_insert((fence, fence));
            *position = (position.0.min(fence), position.1.max(fence));
            let wrong = below.filter(|low| *low >= fence).or_else(|| above.filter(|high| *high <= fence));
            wrong.map(|other| format!("the fence of {} went from {other} to {fence}", key.escape_ascii()))
        });
        if let Some(text) = found {
            self.report(now, Rule::FenceGrows, text);
        }
        let state = &mut self.clients[client];
        let Some(acquisition) = state.live.get_mut(&id) else { return };
        acquisition.granted = Some(Granted { fence, order });
        let serial = acquisition.serial;
        let earlier = state
            .live
            .iter()
            .find(|(_, other)| other.stage == Stage::Waiting && other.serial < serial && other.key == key);
        if let Some((other, _)) = earlier {
            let text = format!("client {client} {id} got {} before {other}, which asked first", key.escape_ascii());
            self.report(now, Rule::Fifo, text);
        }
    }

    /// Checks mutual exclusion when a lock is granted or renewed.
    fn holds(&mut self, now: Instant, client: usize, id: LockId, until: Instant) {
        let Some(key) = self.clients[client].live.get(&id).map(|acquisition| acquisition.key.clone()) else { return };
        let own = (client, id);
        let Some(lock) = self.locks.get(&key) else { return };
        let other = self.valid_holder(lock, now, Some(own));
        if !lock.holders.contains(&own)
            && let Some(lock) = self.locks.get_mut(&key)
        {
            lock.holders.push(own);
        }
        if let Some((other, lock, end)) = other.filter(|_| until > now) {
            self.overlaps += 1;
            let text = format!(
                "two holders of {}: client {other} {lock} {} and client {client} {id} {}",
                key.escape_ascii(),
                until_text(end),
                until_text(until),
            );
            self.report(now, Rule::MutualExclusion, text);
        }
    }

    /// Checks a report that another client took the lock.
    fn check_taken(&mut self, now: Instant, client: usize, id: LockId) {
        let Some(acquisition) = self.clients.get(client).and_then(|state| state.live.get(&id)) else { return };
        let Some((granted, lock)) = acquisition.granted.zip(self.locks.get(&acquisition.key)) else { return };
        if lock.is_alone_since(granted.order) {
            let text = format!(
                "client {client} {id} reports that another client took {}: none did",
                acquisition.key.escape_ascii()
            );
            self.report(now, Rule::TrueLoss, text);
        }
    }

    /// Returns another acquisition that believes it holds the lock at `now`, and until when.
    fn valid_holder(
        &self,
        lock: &CheckedLock,
        now: Instant,
        but: Option<(usize, LockId)>,
    ) -> Option<(usize, LockId, Instant)> {
        lock.holders.iter().filter(|holder| Some(**holder) != but).find_map(|(client, id)| {
            let acquisition = self.clients.get(*client)?.live.get(id)?;
            Some((*client, *id, acquisition.due.filter(|_| acquisition.holds(now))?))
        })
    }

    fn forget_holder(&mut self, client: usize, id: LockId) {
        let Some(acquisition) = self.clients.get(client).and_then(|state| state.live.get(&id)) else { return };
        if let Some(lock) = self.locks.get_mut(&acquisition.key) {
            lock.holders.retain(|holder| *holder != (client, id));
        }
    }

    fn ends(&mut self, client: usize, id: LockId) {
        self.mark_free(client, id);
        self.forget_holder(client, id);
        let state = self.client(client);
        state.live.remove(&id);
        state.over.insert(id);
    }
}

/// Describes the end of a hold.
fn until_text(until: Instant) -> String {
    // More than ten years: no run lasts that long.
    if until > Instant::from_nanos(1 << 58) { "for ever".into() } else { format!("until {until}") }
}

/// The credentials of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permit {
    /// The client that writes.
    pub client: usize,
    /// The acquisition.
    pub lock: LockId,
    /// Its fencing token, if it has one.
    pub fence: Option<u64>,
    order: u64,
}

#[cfg(test)]
mod tests;
