//! Unary calls: those that wait for the connection, and those that are on it.

use core::time::Duration;

use crate::etcd::request::Request;
use crate::etcd::rpc::Rpc;
use crate::id::CallId;
use crate::redis::Waiting;
use crate::time::Instant;

/// How many may be on the connection at once; the others wait their turn. Without a limit a burst of requests makes a busy server leave the
/// last of them unanswered for longer than their patience, the connection is given up as one that hangs, and all come again at once.
pub(super) const MOST_IN_FLIGHT: usize = 128;

/// A request that has not been answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) call: CallId,
    pub(super) request: Request,
    /// How long it may wait to be sent, and then how long for an answer.
    patience: Duration,
    /// It has come back once for lack of a valid token.
    pub(super) came_back: bool,
}

/// A request that was handed out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) call: Call,
    /// Its place among those that waited: should it come back, it is before all that came after it.
    place: u64,
    deadline: Instant,
    /// The login whose token it carries.
    pub(super) login: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Calls {
    waiting: Waiting<Call>,
    /// By the serial numbers of their RPCs.
    flight: Waiting<Sent>,
}

impl Calls {
    pub(super) const fn new() -> Self {
        Self { waiting: Waiting::new(), flight: Waiting::new() }
    }

    pub(super) fn ask(&mut self, now: Instant, call: CallId, request: Request, patience: Duration) {
        self.waiting.push(Call { call, request, patience, came_back: false }, now + patience);
    }

    /// Whether there is something to be handed out.
    pub(super) fn is_ready(&self) -> bool {
        self.any_waiting() && self.flight.len() < MOST_IN_FLIGHT
    }

    /// Hands out the next one: from here on it may be executed.
    pub(super) fn send(&mut self, now: Instant, serial: u64, login: u64) -> Option<Rpc> {
        while self.is_ready() {
            let place = self.waiting.first()?;
            let (call, _) = self.waiting.take(place)?;
            if let Some(rpc) = call.request.rpc() {
                let deadline = now + call.patience;
                self.flight.put(serial, Sent { call, place, deadline, login }, deadline);
                return Some(rpc);
            }
        }
        None
    }

    /// The one that was handed out under this number, if it is not answered yet.
    pub(super) fn answered(&mut self, serial: u64) -> Option<Sent> {
        self.flight.take(serial).map(|(sent, _)| sent)
    }

    /// It was not executed, and waits again.
    pub(super) fn again(&mut self, sent: Sent) {
        self.waiting.put(sent.place, Call { came_back: true, ..sent.call }, sent.deadline);
    }

    /// One that has waited too long to be sent.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<CallId> {
        self.waiting.pop_due(now).map(|call| call.call)
    }

    pub(super) fn pop_waiting(&mut self) -> Option<CallId> {
        self.waiting.pop().map(|(call, _)| call.call)
    }

    pub(super) fn pop_flight(&mut self) -> Option<CallId> {
        self.flight.pop().map(|(sent, _)| sent.call.call)
    }

    /// When the first of those that wait, and of those that were sent, runs out of patience.
    pub(super) fn deadlines(&self) -> (Option<Instant>, Option<Instant>) {
        (self.waiting.earliest(), self.flight.earliest())
    }

    pub(super) fn any_waiting(&self) -> bool {
        self.waiting.len() > 0
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.flight.len()
    }
}
