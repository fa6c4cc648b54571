//! State that all locks of a client share, and the queue of their outputs.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::config::Config;
use super::event::Event;
use super::store::Store;
use crate::id::{CallId, CallOwner, LockId, NodeId};
use crate::time::Instant;

/// The environment of a step: time, settings, and the queue of outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Context<S: Store> {
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
    /// Acquisitions that had their last event in this step.
    pub(crate) ended: Vec<LockId>,
    /// Deadline of the shutdown, if one is in progress.
    pub(crate) stop_at: Option<Instant>,
    pub(crate) shared: S::Shared,
}

impl<S: Store> Context<S> {
    pub(crate) const fn with(now: Instant, config: Config<S::Settings>, seed: u64, shared: S::Shared) -> Self {
        Self {
            now,
            config,
            seed,
            slot: 0,
            number: 0,
            serial: 0,
            out: VecDeque::new(),
            ended: Vec::new(),
            stop_at: None,
            shared,
        }
    }

    /// Moves the clock forward. A time before the current one is ignored.
    // M1
    #[inline]
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.ended.clear();
    }

    /// Returns the next output, in the order of decision.
    #[must_use = "an output that is not carried out stalls its lock"]
    pub fn poll_output(&mut self) -> Option<S::Output> {
        crate::collections::burst::pop(&mut self.out)
    }

    pub(crate) const fn is_stopping(&self) -> bool {
        self.stop_at.is_some()
    }

    /// Emits a request with a timeout, and returns the serial of its call.
    pub(crate) fn call(&mut self, owner: CallOwner, node: NodeId, request: S::Request, timeout: Duration) -> u64 {
        self.serial += 1;
        let call = CallId { owner, node, serial: self.serial };
        self.out.push_back(S::request(call, request, timeout));
        call.serial
    }

    pub(crate) fn emit(&mut self, id: LockId, event: Event) {
        self.out.push_back(S::event(id, event));
    }

    /// Ends an acquisition. Its id is never used again.
    pub(crate) fn forget(&mut self, id: LockId) {
        self.ended.push(id);
    }

    pub(crate) fn end(&mut self, id: LockId, event: Event) {
        self.emit(id, event);
        self.forget(id);
    }
}
