//! A request that is retried until it succeeds.

use crate::time::Instant;

/// A request that is in flight or scheduled. `C` is what is known of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Retry<C = ()> {
    call: Option<C>,
    /// When to send or resend it.
    due: Option<Instant>,
    tries: u32,
}

impl<C: Copy> Retry<C> {
    pub(crate) const fn new(due: Option<Instant>) -> Self {
        Self { call: None, due, tries: 0 }
    }

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

    /// Takes the call in flight if the reply belongs to it.
    pub(crate) fn answered(&mut self, is: impl FnOnce(&C) -> bool) -> Option<C> {
        self.call.take_if(|call| is(call))
    }

    /// Clears the call in flight: no reply will be matched to it.
    pub(crate) const fn forget_call(&mut self) {
        self.call = None;
    }

    /// Schedules the request, or cancels it.
    pub(crate) const fn set_due(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) const fn succeeded(&mut self) {
        self.tries = 0;
    }

    pub(crate) const fn failed(&mut self, again: Instant) {
        self.due = Some(again);
        self.tries = self.tries.saturating_add(1);
    }

    /// Returns true if it may be sent: no call is in flight and no pause is pending.
    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        self.call.is_none() && self.due.is_none_or(|at| at <= now)
    }

    /// Returns true if it must be sent now: no call is in flight and its time has come.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due.filter(|_| self.call.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_due_again_only_after_reply() {
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
