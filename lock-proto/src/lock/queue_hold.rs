//! What the holds of queue stores have in common: answers to extends, and grants within a client.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::answer::Answer;
use super::context::Context;
use super::event::{Event, Report};
use super::grant::Fence;
use super::store::Store;
use crate::id::LockId;
use crate::time::Instant;

/// The times of the extends that are not answered, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Extends(Vec<Instant>);

impl Extends {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, at: Instant) {
        self.0.push(at);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes those that a renewal emitted at this instant answers, and returns their number.
    pub(crate) fn take_answered(&mut self, emitted: Instant) -> usize {
        let answered = self.0.partition_point(|at| *at <= emitted);
        self.0.drain(..answered);
        answered
    }

    /// Answers those that a renewal emitted at this instant should have confirmed.
    pub(crate) fn fail<S: Store>(&mut self, ctx: &mut Context<S>, id: LockId, emitted: Instant, answer: &Answer) {
        let answered = self.0.partition_point(|at| *at <= emitted);
        for requested_at in self.0.drain(..answered) {
            let report = Report { waited: ctx.now.since(requested_at), nodes: Box::new([answer.clone()]) };
            ctx.emit(id, Event::ExtendFailed(report));
        }
    }
}

/// Low bits of a fencing token, which count the grants since ownership was proven.
// E8, ZK4
const GRANT_BITS: u32 = 16;

/// Grants to consecutive holders within this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocalGrants {
    /// What proved ownership: a revision or transaction of the store.
    pub(crate) revision: i64,
    /// Number of hand-overs since `revision`.
    pub(crate) count: u64,
    /// After this time, the lock is released even if local waiters remain.
    until: Instant,
}

impl LocalGrants {
    pub(crate) const fn new(revision: i64, until: Instant) -> Self {
        Self { revision, count: 0, until }
    }

    /// Returns the fencing token: the proof's revision, then the number of grants since.
    // E8, ZK4
    pub(crate) fn fence(&self) -> Fence {
        Fence(self.revision.unsigned_abs() << GRANT_BITS | self.count)
    }

    /// Returns true if there may be another hand-over.
    // A8
    pub(crate) fn may_hand_over(&self, now: Instant) -> bool {
        now < self.until && self.count + 1 < 1 << GRANT_BITS
    }
}
