//! A request that is repeated until it succeeds.

use crate::time::Instant;

/// A request that is in flight, or due again. `C` is what is remembered of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Retry<C> {
    call: Option<C>,
    /// When to send it, or to send it again.
    due: Option<Instant>,
    /// Failures in a row.
    tries: u32,
}

impl<C: Copy> Retry<C> {
    pub(crate) const fn new(due: Option<Instant>) -> Self {
        Self { call: None, due, tries: 0 }
    }

    /// The call in flight.
    pub(crate) const fn call(&self) -> Option<C> {
        self.call
    }

    pub(crate) const fn is_in_flight(&self) -> bool {
        self.call.is_some()
    }

    pub(crate) const fn tries(&self) -> u32 {
        self.tries
    }

    pub(crate) fn sent(&mut self, call: C) {
        self.call = Some(call);
        self.due = None;
    }

    /// The call in flight has its answer, if it is this one.
    pub(crate) fn answered(&mut self, is: impl FnOnce(&C) -> bool) -> Option<C> {
        self.call.take_if(|call| is(call))
    }

    /// Nothing is to be heard of the call in flight.
    pub(crate) const fn forget_call(&mut self) {
        self.call = None;
    }

    /// To be sent then, or not at all.
    pub(crate) const fn set_due(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) const fn succeeded(&mut self) {
        self.tries = 0;
    }

    /// Failed: to be sent again then.
    pub(crate) const fn failed(&mut self, again: Instant) {
        self.due = Some(again);
        self.tries = self.tries.saturating_add(1);
    }

    /// Returns true if it may be sent: nothing is in flight, and no pause is under way.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        self.call.is_none() && self.due.is_none_or(|at| at <= now)
    }

    /// Returns true if it is to be sent: nothing is in flight, and its time has come.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// When it is to be sent.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due.filter(|_| self.call.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_due_again_only_after_its_answer() {
        let at = Instant::from_millis;
        let mut retry = Retry::new(Some(at(5)));
        assert_eq!([4, 5].map(|now| retry.is_due(at(now))), [false, true]);
        retry.sent(7);
        assert!(!retry.is_due(at(9)) && !retry.is_ready(at(9)));
        assert_eq!((retry.answered(|call| *call == 6), retry.answered(|call| *call == 7)), (None, Some(7)));
        assert!(retry.is_ready(at(9)) && !retry.is_due(at(9)), "nothing is wanted");
        retry.sent(8);
        retry.failed(at(20));
        assert_eq!((retry.deadline(), retry.tries()), (None, 1), "it is in flight");
        retry.forget_call();
        assert_eq!((retry.deadline(), retry.is_ready(at(19)), retry.is_due(at(20))), (Some(at(20)), false, true));
        retry.succeeded();
        assert_eq!(retry.tries(), 0);
    }
}
