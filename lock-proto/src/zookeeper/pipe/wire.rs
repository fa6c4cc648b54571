//! Requests that wait for the socket, and those that wait for their replies.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Limits;
use crate::id::{CallId, CallOwner};
use crate::time::Instant;
use crate::zookeeper::codec::{Frames, Op, OpCode, RequestFrame, XID_AUTH};

/// A request, and the call that waits for its reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnsentRequest {
    /// `None` for the pipe's own requests.
    pub(super) call: Option<CallId>,
    pub(super) op: Op,
}

/// A request or a ping without its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentRequest {
    pub(super) xid: i32,
    pub(super) code: OpCode,
    pub(super) call: Option<CallId>,
    /// When it left, at the earliest.
    pub(super) emitted: Instant,
}

/// One connection's bytes in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct JuteWire {
    queue: VecDeque<UnsentRequest>,
    /// In the order of the replies. Pings too: the server answers one behind the requests before
    /// it.
    // ZK9
    sent: VecDeque<SentRequest>,
    out: Vec<u8>,
    xid: i32,
    /// The most events that may follow: each watch that was requested is triggered once.
    // ZK9
    watches: usize,
    /// Number of logins without their replies. The server answers them at once.
    logins: usize,
    pub(super) frames: Frames,
}

impl JuteWire {
    #[cfg(test)]
    pub(super) fn counting_from(xid: i32) -> Self {
        Self { xid, ..Self::default() }
    }

    /// Forgets everything but the last number. The next connection counts on: a server identifies a
    /// request by its session and number, whatever connection it came from (`CommitProcessor`).
    // ZK6
    pub(super) fn clear(&mut self) {
        *self = Self { xid: self.xid, ..Self::default() };
    }

    /// Queues a request. Renewals of the session go first: behind a burst of other requests they
    /// would arrive too late.
    // ZK1
    pub(super) fn queue(&mut self, pending: UnsentRequest) {
        match pending.call.map(|call| call.owner) {
            Some(CallOwner::Session(_)) => self.queue.push_front(pending),
            Some(_) | None => self.queue.push_back(pending),
        }
    }

    /// Removes the pings that have not been encoded.
    pub(super) fn drop_pings(&mut self) {
        self.queue.retain(|pending| pending.op != Op::Ping);
    }

    /// Appends a frame that has no number.
    pub(super) fn encode(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.out);
    }

    /// Encodes what the limits allow, and returns the bytes for the socket.
    // M8
    pub(super) fn fill(&mut self, now: Instant, limits: &Limits) -> &[u8] {
        while self.may_encode(limits)
            && let Some(UnsentRequest { call, op }) = self.queue.pop_front()
        {
            self.watches += usize::from(op.watches());
            let xid = op.fixed_xid().unwrap_or_else(|| self.next_xid());
            if xid == XID_AUTH {
                self.logins += 1;
            } else {
                self.sent.push_back(SentRequest { xid, code: op.code(), call, emitted: now });
            }
            RequestFrame { xid, op }.encode(&mut self.out);
        }
        &self.out
    }

    /// Numbers are positive: the others are those of events, pings and logins.
    const fn next_xid(&mut self) -> i32 {
        self.xid = if self.xid == i32::MAX { 1 } else { self.xid + 1 };
        self.xid
    }

    fn may_encode(&self, limits: &Limits) -> bool {
        self.out.len() < limits.outgoing && self.sent.len() + self.logins < limits.in_flight
    }

    pub(super) fn has_outgoing(&self, limits: &Limits) -> bool {
        !self.out.is_empty() || (!self.queue.is_empty() && self.may_encode(limits))
    }

    pub(super) fn consume(&mut self, n: usize) {
        self.out.drain(..n.min(self.out.len()));
        if self.out.is_empty() {
            self.out.shrink_to(Limits::DEFAULT.outgoing);
        }
    }

    pub(super) fn first(&self) -> Option<SentRequest> {
        self.sent.front().copied()
    }

    pub(super) fn done(&mut self) {
        self.sent.pop_front();
    }

    /// A watch was triggered. Returns false if none is left that could have been.
    pub(super) fn triggered(&mut self) -> bool {
        let before = self.watches;
        self.watches = before.saturating_sub(1);
        before > 0
    }

    /// A login was answered. Returns false if none was outstanding.
    pub(super) fn login_done(&mut self) -> bool {
        let before = self.logins;
        self.logins = before.saturating_sub(1);
        before > 0
    }

    /// Returns true if no reply is expected.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.sent.is_empty() && self.logins == 0
    }

    pub(super) fn in_flight(&self) -> usize {
        self.sent.iter().filter(|sent| sent.code != OpCode::Ping).count()
    }

    /// Removes the next unanswered call. The flag is true if the host has seen its bytes: it may
    /// have sent them, even if it has not reported them as taken yet.
    // M8
    pub(super) fn pop_unanswered(&mut self) -> Option<(Option<CallId>, bool)> {
        if let Some(sent) = self.sent.pop_front() {
            return Some((sent.call, true));
        }
        self.queue.pop_front().map(|pending| (pending.call, false))
    }
}
