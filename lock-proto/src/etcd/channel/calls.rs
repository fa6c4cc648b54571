//! Unary calls, queued and in flight.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::batch;
use crate::collections::Waiting;
use crate::etcd::request::Request;
use crate::etcd::rpc::Rpc;
use crate::id::CallId;
use crate::time::Instant;

/// Maximal number of requests in flight. Others stay queued, where they can still be withdrawn.
pub(super) const MAX_IN_FLIGHT: usize = 128;

/// Number of write calls in flight at which writes start to batch. Two keep the server busy.
const BATCH_THRESHOLD: usize = 2;

/// How long a write waits for others while that many calls are in flight.
const BATCH_DELAY: Duration = Duration::from_millis(2);

/// A request without a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) call: CallId,
    pub(super) request: Request,
    queued_at: Instant,
    /// How long it may stay queued.
    timeout: Duration,
    /// It was requeued once, for lack of a token or after a refused batch. Never batched again.
    pub(super) retried: bool,
    /// Position in the queue. A requeued call keeps it, and so goes ahead of later calls.
    place: u64,
}

/// What was sent as one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    Single(InFlight),
    /// A batch in one transaction.
    // E11
    Batch(Vec<InFlight>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InFlight {
    pub(super) call: Call,
    /// The login whose token the request carries.
    pub(super) login: u64,
}

impl Sent {
    const fn len(&self) -> usize {
        match self {
            Self::Single(_) => 1,
            Self::Batch(all) => all.len(),
        }
    }

    pub(super) fn into_all(self) -> Vec<InFlight> {
        match self {
            Self::Single(one) => vec![one],
            Self::Batch(all) => all,
        }
    }

    fn writes(&self) -> bool {
        match self {
            Self::Single(one) => batch::queue_of_write(&one.call.request).is_some(),
            Self::Batch(_) => true,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Calls {
    /// Calls that leave as soon as there is room.
    waiting: Waiting<Call>,
    /// Writes that may be batched.
    writes: Waiting<Call>,
    /// Calls in flight, by the serial number of their RPC.
    in_flight: BTreeMap<u64, Sent>,
    in_flight_requests: usize,
    in_flight_writes: usize,
    /// Maximal batch size for the current server; 1 disables batching.
    max_batch: usize,
    /// Maximal batch size before any server refused a batch.
    initial_max_batch: usize,
    place: u64,
}

impl Calls {
    /// `batching`: whether writes may be combined into one transaction.
    pub(super) fn new(batching: bool) -> Self {
        let max_batch = if batching { batch::MAX_REQUESTS } else { 1 };
        Self { max_batch, initial_max_batch: max_batch, ..Self::default() }
    }

    pub(super) fn push(&mut self, now: Instant, call: CallId, request: Request, timeout: Duration) {
        self.place += 1;
        let call = Call { call, request, queued_at: now, timeout, retried: false, place: self.place };
        self.wait(call, now + timeout);
    }

    fn wait(&mut self, call: Call, deadline: Instant) {
        let batchable = self.initial_max_batch > 1 && batch::queue_of_write(&call.request).is_some();
        let queue = if batchable { &mut self.writes } else { &mut self.waiting };
        queue.put(call.place, call, deadline);
    }

    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.has_room() && (self.waiting.len() > 0 || self.write_is_due(now))
    }

    const fn has_room(&self) -> bool {
        self.in_flight_requests < MAX_IN_FLIGHT
    }

    fn write_is_due(&self, now: Instant) -> bool {
        let Some((_, first)) = self.writes.iter().next() else { return false };
        first.retried
            || self.in_flight_writes < BATCH_THRESHOLD
            || self.writes.len() >= self.max_batch
            || first.queued_at + BATCH_DELAY <= now
    }

    /// Deadline for sending the first queued write. `None` if there is no room in flight.
    pub(super) fn batch_deadline(&self) -> Option<Instant> {
        let (_, first) = self.writes.iter().next().filter(|_| self.has_room())?;
        Some(first.queued_at + BATCH_DELAY)
    }

    /// Sends the next call, which may be a batch. From here on it may be executed.
    pub(super) fn send(&mut self, now: Instant, serial: u64, login: u64) -> Option<Rpc> {
        while self.is_ready(now) {
            let writes = self.writes.first().filter(|_| self.write_is_due(now));
            let place = match (self.waiting.first(), writes) {
                (Some(other), Some(write)) if other > write => return self.send_writes(serial, login),
                (None, Some(_)) => return self.send_writes(serial, login),
                (Some(place), Some(_) | None) => place,
                (None, None) => return None,
            };
            let (call, _) = self.waiting.take(place)?;
            if let Some(rpc) = call.request.rpc() {
                self.insert_in_flight(serial, Sent::Single(call.sent_with(login)));
                return Some(rpc);
            }
        }
        None
    }

    fn send_writes(&mut self, serial: u64, login: u64) -> Option<Rpc> {
        let (first, _) = self.writes.pop()?;
        let others = self.select_batch(&first);
        let first = first.sent_with(login);
        let (rpc, sent) = if others.is_empty() {
            (first.call.request.rpc()?, Sent::Single(first))
        } else {
            let others = others.into_iter().filter_map(|place| self.writes.take(place));
            let all: Vec<_> = core::iter::once(first).chain(others.map(|(call, _)| call.sent_with(login))).collect();
            (batch::combine(all.iter().map(|one| &one.call.request)), Sent::Batch(all))
        };
        self.insert_in_flight(serial, sent);
        Some(rpc)
    }

    /// Positions of the writes to send with `first`: later ones whose queues do not overlap, which
    /// preserves the order within a queue.
    fn select_batch(&self, first: &Call) -> Vec<u64> {
        let max = self.max_batch.min(MAX_IN_FLIGHT - self.in_flight_requests);
        let mut chosen = Vec::<&Call>::new();
        if first.retried {
            return Vec::new();
        }
        let mut bytes = batch::value_len(&first.request);
        // Bounds the scan: with few distinct names, few writes fit together.
        for (_, call) in self.writes.iter().take(2 * max) {
            bytes += batch::value_len(&call.request);
            if call.retried || 1 + chosen.len() >= max || bytes > batch::MAX_BYTES {
                break;
            }
            let mut leaving = core::iter::once(first).chain(chosen.iter().copied());
            if leaving.all(|other| !batch::overlap(&call.request, &other.request)) {
                chosen.push(call);
            }
        }
        chosen.into_iter().map(|call| call.place).collect()
    }

    fn insert_in_flight(&mut self, serial: u64, sent: Sent) {
        self.in_flight_requests += sent.len();
        self.in_flight_writes += usize::from(sent.writes());
        self.in_flight.insert(serial, sent);
    }

    fn uncount(&mut self, sent: Sent) -> Sent {
        self.in_flight_requests -= sent.len();
        self.in_flight_writes -= usize::from(sent.writes());
        sent
    }

    pub(super) fn answered(&mut self, serial: u64) -> Option<Sent> {
        self.in_flight.remove(&serial).map(|sent| self.uncount(sent))
    }

    /// Requeues a request that the server did not execute.
    pub(super) fn requeue(&mut self, now: Instant, request: InFlight) {
        let deadline = now + request.call.timeout;
        self.wait(Call { retried: true, ..request.call }, deadline);
    }

    /// The server refused a batch of `count` requests: halves the batch size.
    pub(super) fn shrink_batches(&mut self, count: usize) {
        self.max_batch = self.max_batch.min(count / 2).max(1);
    }

    /// Restores the batch size: the next connection may lead to another server.
    pub(super) const fn disconnected(&mut self) {
        self.max_batch = self.initial_max_batch;
    }

    /// Removes a call that was queued for too long.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<CallId> {
        self.waiting.pop_due(now).or_else(|| self.writes.pop_due(now)).map(|call| call.call)
    }

    pub(super) fn pop_waiting(&mut self) -> Option<CallId> {
        let queue = match (self.waiting.first(), self.writes.first()) {
            (Some(other), Some(write)) if other > write => &mut self.writes,
            (None, Some(_)) => &mut self.writes,
            (Some(_) | None, Some(_) | None) => &mut self.waiting,
        };
        queue.pop().map(|(call, _)| call.call)
    }

    pub(super) fn pop_in_flight(&mut self) -> Option<Sent> {
        self.in_flight.pop_first().map(|(_, sent)| self.uncount(sent))
    }

    /// When the first queued call times out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.waiting.earliest(), self.writes.earliest()].into_iter().flatten().min()
    }

    pub(super) const fn any_in_flight(&self) -> bool {
        self.in_flight_requests > 0
    }

    pub(super) fn any_waiting(&self) -> bool {
        self.waiting.len() + self.writes.len() > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.writes.len() + self.in_flight_requests
    }
}

impl Call {
    const fn sent_with(self, login: u64) -> InFlight {
        InFlight { call: self, login }
    }
}
