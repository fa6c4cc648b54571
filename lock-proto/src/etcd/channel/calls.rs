//! Unary calls: those that wait for the connection, and those that are on it.

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

/// How many requests may be on the connection at once; the others wait here, where they can still be withdrawn.
pub(super) const MOST_IN_FLIGHT: usize = 128;

/// How many calls with writes are under way before the next writes wait for one another. With two, the server has something to do while
/// the answer to the other one is on its way.
const UNDER_WAY: usize = 2;

/// How long a write waits for others while that many calls are under way. Over a fast connection an answer comes earlier; over a slow one a
/// wait of this length is little beside the way.
const GATHER: Duration = Duration::from_millis(2);

/// A request that has not been answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) call: CallId,
    pub(super) request: Request,
    asked: Instant,
    /// How long it may wait to be sent.
    timeout: Duration,
    /// It has come back once: for lack of a valid token, or because the transaction that it was in was refused. It leaves alone.
    pub(super) came_back: bool,
    /// Its place among those that wait: should it come back, it is before all that came after it.
    place: u64,
}

/// What was handed out as one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    /// One request.
    Alone(Flying),
    /// Several in one transaction (requirement E11).
    Together(Vec<Flying>),
}

/// A request that was handed out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flying {
    pub(super) call: Call,
    /// The login whose token it carries.
    pub(super) login: u64,
}

impl Sent {
    const fn len(&self) -> usize {
        match self {
            Self::Alone(_) => 1,
            Self::Together(all) => all.len(),
        }
    }

    /// The requests, in their order.
    pub(super) fn into_all(self) -> Vec<Flying> {
        match self {
            Self::Alone(one) => vec![one],
            Self::Together(all) => all,
        }
    }

    fn writes(&self) -> bool {
        match self {
            Self::Alone(one) => batch::written(&one.call.request).is_some(),
            Self::Together(_) => true,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Calls {
    /// Those that leave as soon as there is room.
    waiting: Waiting<Call>,
    /// Those that may leave together.
    writes: Waiting<Call>,
    /// By the serial numbers of their RPCs. They stay until they are answered, or the connection ends.
    flight: BTreeMap<u64, Sent>,
    /// Requests in `flight`.
    flying: usize,
    /// Calls with writes in `flight`.
    writing: usize,
    /// How many may leave together: 1 where writes are kept apart.
    most: usize,
    /// The same, as long as this server has refused none.
    allowed: usize,
    place: u64,
}

impl Calls {
    /// `together`: whether several writes may be in one transaction.
    pub(super) fn new(together: bool) -> Self {
        let most = if together { batch::MOST } else { 1 };
        Self { most, allowed: most, ..Self::default() }
    }

    pub(super) fn ask(&mut self, now: Instant, call: CallId, request: Request, timeout: Duration) {
        self.place += 1;
        let call = Call { call, request, asked: now, timeout, came_back: false, place: self.place };
        self.wait(call, now + timeout);
    }

    fn wait(&mut self, call: Call, deadline: Instant) {
        let gathers = self.allowed > 1 && batch::written(&call.request).is_some();
        let line = if gathers { &mut self.writes } else { &mut self.waiting };
        line.put(call.place, call, deadline);
    }

    /// Whether there is something to be handed out.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.has_room() && (self.waiting.len() > 0 || self.leaves(now))
    }

    const fn has_room(&self) -> bool {
        self.flying < MOST_IN_FLIGHT
    }

    /// Whether the first of the writes leaves now.
    fn leaves(&self, now: Instant) -> bool {
        let Some((_, first)) = self.writes.iter().next() else { return false };
        first.came_back || self.writing < UNDER_WAY || self.writes.len() >= self.most || first.asked + GATHER <= now
    }

    /// When the first of the writes leaves at the latest, if it waits for others only.
    pub(super) fn gathers_until(&self) -> Option<Instant> {
        let (_, first) = self.writes.iter().next().filter(|_| self.has_room())?;
        Some(first.asked + GATHER)
    }

    /// Hands out the next ones, as one call: from here on they may be executed.
    pub(super) fn send(&mut self, now: Instant, serial: u64, login: u64) -> Option<Rpc> {
        while self.is_ready(now) {
            let writes = self.writes.first().filter(|_| self.leaves(now));
            let place = match (self.waiting.first(), writes) {
                (Some(other), Some(write)) if other > write => return self.send_writes(serial, login),
                (None, Some(_)) => return self.send_writes(serial, login),
                (Some(place), Some(_) | None) => place,
                (None, None) => return None,
            };
            let (call, _) = self.waiting.take(place)?;
            if let Some(rpc) = call.request.rpc() {
                self.put_flight(serial, Sent::Alone(call.fly(login)));
                return Some(rpc);
            }
        }
        None
    }

    fn send_writes(&mut self, serial: u64, login: u64) -> Option<Rpc> {
        let (first, _) = self.writes.pop()?;
        let others = self.companions(&first);
        let first = first.fly(login);
        let (rpc, sent) = if others.is_empty() {
            (first.call.request.rpc()?, Sent::Alone(first))
        } else {
            let others = others.into_iter().filter_map(|place| self.writes.take(place));
            let all: Vec<_> = core::iter::once(first).chain(others.map(|(call, _)| call.fly(login))).collect();
            (batch::together(all.iter().map(|one| &one.call.request)), Sent::Together(all))
        };
        self.put_flight(serial, sent);
        Some(rpc)
    }

    /// The places of the writes that leave with `first`: those after it whose queues overlap with no other one's. So writes to one queue keep
    /// their order.
    fn companions(&self, first: &Call) -> Vec<u64> {
        let most = self.most.min(MOST_IN_FLIGHT - self.flying);
        let mut chosen = Vec::<&Call>::new();
        if first.came_back {
            return Vec::new();
        }
        let mut bytes = batch::weight(&first.request);
        // Where many want few names, few fit together: no need to look at all of them.
        for (_, call) in self.writes.iter().take(2 * most) {
            bytes += batch::weight(&call.request);
            if 1 + chosen.len() >= most || bytes > batch::MOST_BYTES {
                break;
            }
            let mut leaving = core::iter::once(first).chain(chosen.iter().copied());
            if leaving.all(|other| !batch::overlap(&call.request, &other.request)) {
                chosen.push(call);
            }
        }
        chosen.into_iter().map(|call| call.place).collect()
    }

    fn put_flight(&mut self, serial: u64, sent: Sent) {
        self.flying += sent.len();
        self.writing += usize::from(sent.writes());
        self.flight.insert(serial, sent);
    }

    fn landed(&mut self, sent: Sent) -> Sent {
        self.flying -= sent.len();
        self.writing -= usize::from(sent.writes());
        sent
    }

    /// What was handed out under this number, if it is not answered yet.
    pub(super) fn answered(&mut self, serial: u64) -> Option<Sent> {
        self.flight.remove(&serial).map(|sent| self.landed(sent))
    }

    /// It was not executed, and waits again.
    pub(super) fn again(&mut self, now: Instant, flying: Flying) {
        let deadline = now + flying.call.timeout;
        self.wait(Call { came_back: true, ..flying.call }, deadline);
    }

    /// This server answers so many in one transaction with an error: from now on fewer are given to it.
    pub(super) fn fewer_than(&mut self, count: usize) {
        self.most = self.most.min(count / 2).max(1);
    }

    /// What was handed out has been settled, and the next server may be another.
    pub(super) const fn disconnected(&mut self) {
        self.most = self.allowed;
    }

    /// One that has waited too long to be sent.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<CallId> {
        self.waiting.pop_due(now).or_else(|| self.writes.pop_due(now)).map(|call| call.call)
    }

    pub(super) fn pop_waiting(&mut self) -> Option<CallId> {
        let line = match (self.waiting.first(), self.writes.first()) {
            (Some(other), Some(write)) if other > write => &mut self.writes,
            (None, Some(_)) => &mut self.writes,
            (Some(_) | None, Some(_) | None) => &mut self.waiting,
        };
        line.pop().map(|(call, _)| call.call)
    }

    /// The requests that were handed out together.
    pub(super) fn pop_flight(&mut self) -> Option<Sent> {
        self.flight.pop_first().map(|(_, sent)| self.landed(sent))
    }

    /// When the first of those that wait has waited too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.waiting.earliest(), self.writes.earliest()].into_iter().flatten().min()
    }

    /// Whether an answer is expected.
    pub(super) const fn any_in_flight(&self) -> bool {
        self.flying > 0
    }

    pub(super) fn any_waiting(&self) -> bool {
        self.waiting.len() + self.writes.len() > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.writes.len() + self.flying
    }
}

impl Call {
    const fn fly(self, login: u64) -> Flying {
        Flying { call: self, login }
    }
}
