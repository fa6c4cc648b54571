//! The environment of a step: what a store machine sees, and the queues between it and its line.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::answer::Answer;
use super::config::Config;
use super::event::Blocked;
use super::exchange::{Fact, Order};
use super::line::{Answers, Desk};
use super::note::Notes;
use super::operation::{Operations, QueryOf};
use super::store::Store;
use crate::id::{CallId, CallOwner, LockId, NodeId};
use crate::time::Instant;

/// What a store machine sees in a step: time, settings, what the locks of the client share, and its
/// outputs. It has no way to the lines.
// M10
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Env<S: Store> {
    /// The current time. It never goes back.
    pub(crate) now: Instant,
    pub(crate) config: Config<S::Settings>,
    /// 64 bits of entropy for jitter.
    pub(crate) seed: u64,
    /// The slot of the lock that takes the step, for its calls.
    pub(crate) slot: u32,
    /// The number of the last token or grant.
    pub(crate) number: u64,
    pub(crate) serial: u64,
    pub(crate) out: VecDeque<S::Output>,
    /// What the machine has reported in this step. Empty between steps.
    pub(crate) facts: VecDeque<Fact>,
    pub(crate) is_stopping: bool,
    pub(crate) shared: S::Shared,
    pub(crate) operations: Operations<QueryOf<S>>,
}

impl<S: Store> Env<S> {
    /// Returns the id of the next call.
    pub(crate) const fn next_call(&mut self, owner: CallOwner, node: NodeId) -> CallId {
        self.serial += 1;
        CallId { owner, node, serial: self.serial }
    }

    pub(crate) fn report(&mut self, fact: Fact) {
        self.facts.push_back(fact);
    }

    /// Reports why the contention has not succeeded yet.
    pub(crate) fn blocked(&mut self, why: Blocked) {
        self.report(Fact::Blocked(why));
    }
}

/// The environment of a step, and what its lines have for others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Context<S: Store> {
    pub(crate) env: Env<S>,
    /// What the line wants of its store machine. Empty between steps.
    pub(crate) orders: VecDeque<Order<S::Terms>>,
    /// Acquisitions that had their last event in this step.
    pub(crate) ended: Vec<LockId>,
    /// Deadline of the shutdown, if one is in progress.
    pub(crate) stop_at: Option<Instant>,
    pub(crate) notes: Notes,
}

impl<S: Store> Context<S> {
    pub(crate) fn with(now: Instant, config: Config<S::Settings>, seed: u64, shared: S::Shared) -> Self {
        let env = Env {
            now,
            config,
            seed,
            slot: 0,
            number: 0,
            serial: 0,
            out: VecDeque::new(),
            facts: VecDeque::new(),
            is_stopping: false,
            shared,
            operations: Operations::default(),
        };
        Self { env, orders: VecDeque::new(), ended: Vec::new(), stop_at: None, notes: Notes::default() }
    }

    /// Moves the clock forward. A time before the current one is ignored.
    // M1
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        self.env.now = self.env.now.max(now);
        self.ended.clear();
    }

    /// Returns the next output, in the order of decision.
    #[must_use = "an output that is not carried out stalls its lock"]
    pub fn poll_output(&mut self) -> Option<S::Output> {
        crate::collections::burst::pop(&mut self.env.out)
    }

    /// Returns what a line needs for a step. `answers` are the servers' last replies.
    #[inline]
    pub(super) fn desk<'a>(&'a mut self, answers: &'a dyn Fn() -> Box<[Answer]>) -> Desk<'a, S::Terms, S::Output> {
        Desk {
            now: self.env.now,
            at_risk: self.env.config.at_risk,
            release_within: self.env.config.release_within,
            is_stopping: self.env.is_stopping,
            out: &mut self.env.out,
            orders: &mut self.orders,
            ended: &mut self.ended,
            notes: &mut self.notes,
            answers: Answers(answers),
        }
    }
}
