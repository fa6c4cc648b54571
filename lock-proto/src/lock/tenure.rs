//! The period in which one acquisition has the lock: offered, held, at risk, lost.

use core::time::Duration;

use super::exchange::Holding;
use super::grant::Loss;
use super::request::Renew;
use super::waiters::Waiter;
use crate::id::LockId;
use crate::time::{Instant, nanos};

/// Progress of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The store is updated before the holder is notified: a full TTL, a fencing token, a value.
    Preparing,
    /// The holder was notified, and has not claimed the lock yet.
    Offered,
    Held,
}

/// The acquisition that has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tenure<T> {
    pub(super) waiter: Waiter<T>,
    pub(super) phase: Phase,
    /// What the store knows of its hold.
    pub(super) holding: Holding,
    since: Instant,
    /// The end of validity last reported to the holder; `None` before the offer.
    reported: Option<Instant>,
    /// The holder was warned that its validity ends soon.
    warned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Lost(Loss),
    /// The validity ends earlier than the holder was told.
    Shortened(Instant),
    /// The wait ended before the lock could be offered.
    TimedOut,
    /// The offer was not claimed in time.
    Withdraw,
    /// Warn the holder that the validity ends at this time.
    Warn(Instant),
}

impl<T> Tenure<T> {
    pub(super) const fn new(now: Instant, waiter: Waiter<T>, holding: Holding) -> Self {
        Self { waiter, phase: Phase::Preparing, holding, since: now, reported: None, warned: false }
    }

    pub(super) const fn id(&self) -> LockId {
        self.waiter.id
    }

    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(super) const fn offer(&mut self, now: Instant) {
        self.phase = Phase::Offered;
        self.since = now;
        self.warned = false;
    }

    pub(super) const fn reported(&self) -> Option<Instant> {
        self.reported
    }

    /// Records the end of validity that was reported to the holder. Rearms the warning.
    pub(super) const fn report(&mut self, valid_until: Instant) {
        self.reported = Some(valid_until);
        self.warned = false;
    }

    /// Returns the end of the maximal hold time, which begins with the offer.
    fn max_hold_end(&self) -> Option<Instant> {
        match self.waiter.renew {
            Renew::AtMost(most) if self.phase != Phase::Preparing => Some(self.since + most),
            Renew::AtMost(_) | Renew::Auto | Renew::Manual => None,
        }
    }

    /// Returns why the hold is over at `now`, if it is.
    pub(super) fn loss(&self, now: Instant) -> Option<Loss> {
        if self.holding.until <= now {
            return Some(Loss::Expired);
        }
        self.max_hold_end().filter(|end| *end <= now).map(|_| Loss::MaxHold)
    }

    /// Returns the end of validity for the holder, given that in the store.
    pub(super) fn valid_until(&self, until: Instant) -> Instant {
        self.max_hold_end().map_or(until, |end| until.min(end))
    }

    /// Returns when an unclaimed offer expires.
    const fn claim_by(&self) -> Instant {
        self.since.after(self.holding.ttl / 3)
    }

    /// Returns when the holder is warned: `at_risk` before the end of validity, if set. At most half
    /// of the TTL counts, because a healthy lock is renewed at a third of it. The end of a maximal
    /// hold time is no risk.
    fn warn_at(&self, at_risk: Option<Duration>) -> Instant {
        let ttl = self.holding.ttl;
        self.holding.until.before(at_risk.map_or_else(|| ttl / 4, |before| nanos(before).min(ttl / 2)))
    }

    /// Returns the action that is due. A warning is due once for each end of validity.
    // T2, T3
    pub(super) fn due(&mut self, now: Instant, at_risk: Option<Duration>) -> Due {
        if let Some(loss) = self.loss(now) {
            return Due::Lost(loss);
        }
        let until = self.valid_until(self.holding.until);
        if self.reported.is_some_and(|reported| until < reported) {
            self.report(until);
            return Due::Shortened(until);
        }
        match self.phase {
            Phase::Preparing if self.waiter.deadline().is_some_and(|end| end <= now) => Due::TimedOut,
            Phase::Offered if self.claim_by() <= now => Due::Withdraw,
            Phase::Held if !self.warned && self.warn_at(at_risk) <= now => {
                self.warned = true;
                Due::Warn(until)
            }
            Phase::Preparing | Phase::Offered | Phase::Held => Due::Nothing,
        }
    }

    /// Returns when the next action is due or the validity ends.
    pub(super) fn deadline(&self, at_risk: Option<Duration>) -> Instant {
        let until = self.valid_until(self.holding.until);
        match self.phase {
            Phase::Preparing => self.waiter.deadline().map_or(until, |end| until.min(end)),
            Phase::Offered => until.min(self.claim_by()),
            Phase::Held if self.warned => until,
            Phase::Held => until.min(self.warn_at(at_risk)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::Wait;
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// Valid until 1200 ms, with a TTL of 1200 ms.
    fn tenure(renew: Renew, wait: Wait) -> Tenure<()> {
        let waiter = Waiter { id: LockId { slot: 0, generation: 0 }, terms: (), renew, wait, since: at(0) };
        Tenure::new(at(0), waiter, Holding { until: at(1_200), ttl: 1_200 * MS, hands_over_until: None })
    }

    #[test]
    fn offer_is_withdrawn_after_third_of_ttl() {
        // H5
        let mut tenure = tenure(Renew::Auto, Wait::Forever);
        assert_eq!((tenure.due(at(900), None), tenure.deadline(None)), (Due::Nothing, at(1_200)));
        tenure.offer(at(100));
        assert_eq!(tenure.deadline(None), at(500));
        assert_eq!([499, 500].map(|now| tenure.due(at(now), None)), [Due::Nothing, Due::Withdraw]);
    }

    #[test]
    fn wait_without_offer_times_out() {
        let mut tenure = tenure(Renew::Auto, Wait::For(Duration::from_millis(50)));
        assert_eq!(tenure.deadline(None), at(50));
        assert_eq!([49, 50].map(|now| tenure.due(at(now), None)), [Due::Nothing, Due::TimedOut]);
        tenure.offer(at(49));
        assert_eq!(tenure.due(at(50), None), Due::Nothing);
    }

    #[test]
    fn holder_is_warned_once_until_renewed() {
        // H2
        let ms = Duration::from_millis;
        for (at_risk, first) in [(None, 900), (Some(ms(10)), 1_190), (Some(ms(600)), 600), (Some(ms(3_000)), 600)] {
            let mut tenure = tenure(Renew::Auto, Wait::Forever);
            tenure.offer(at(0));
            tenure.phase = Phase::Held;
            assert_eq!((tenure.deadline(at_risk), tenure.due(at(first - 1), at_risk)), (at(first), Due::Nothing));
            assert_eq!(tenure.due(at(first), at_risk), Due::Warn(at(1_200)));
            assert_eq!((tenure.due(at(first), at_risk), tenure.deadline(at_risk)), (Due::Nothing, at(1_200)));
            tenure.report(at(1_200));
            assert_eq!(tenure.due(at(first), at_risk), Due::Warn(at(1_200)));
        }
    }

    #[test]
    fn max_hold_time_starts_at_offer() {
        // H4
        let mut tenure = tenure(Renew::AtMost(Duration::from_millis(300)), Wait::Forever);
        assert_eq!((tenure.loss(at(400)), tenure.valid_until(at(1_200))), (None, at(1_200)));
        tenure.offer(at(100));
        assert_eq!((tenure.loss(at(399)), tenure.loss(at(400))), (None, Some(Loss::MaxHold)));
        assert_eq!((tenure.valid_until(at(1_200)), tenure.valid_until(at(200))), (at(400), at(200)));
        // Its end is no risk.
        tenure.phase = Phase::Held;
        assert_eq!((tenure.due(at(399), None), tenure.deadline(None)), (Due::Nothing, at(400)));
        tenure.holding.until = at(450);
        assert_eq!(tenure.due(at(200), None), Due::Warn(at(400)));
    }

    #[test]
    fn hold_expires_with_its_validity() {
        // T2
        let mut tenure = tenure(Renew::Auto, Wait::Forever);
        tenure.offer(at(0));
        assert_eq!([1_199, 1_200].map(|now| tenure.loss(at(now))), [None, Some(Loss::Expired)]);
    }
}
