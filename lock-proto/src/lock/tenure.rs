//! The period in which one acquisition has the lock: offered, held, at risk, lost.

use core::time::Duration;

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
pub struct Tenure<T> {
    pub(crate) waiter: Waiter<T>,
    pub(crate) phase: Phase,
    since: Instant,
    /// The end of validity last reported to the holder.
    reported: Instant,
    /// The holder was warned that its validity ends soon.
    warned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// The wait ended before the lock could be offered.
    TimedOut,
    /// The offer was not claimed in time.
    Withdraw,
    /// Warn the holder that the validity ends at this time.
    Warn(Instant),
}

/// The values from which the timers of a tenure are computed.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The end of validity in the store.
    pub(crate) until: Instant,
    /// The TTL in nanoseconds. Arithmetic on `Duration` is several times slower.
    pub(crate) ttl: u64,
    /// How long before the end of validity the holder is warned, if set. At most half of the TTL
    /// counts, because a healthy lock is renewed at a third of it.
    pub(crate) at_risk: Option<Duration>,
}

impl Terms {
    /// Returns when the holder is warned. The end of a maximal hold time is no risk.
    fn warn_at(&self) -> Instant {
        self.until.before(self.at_risk.map_or_else(|| self.ttl / 4, |before| nanos(before).min(self.ttl / 2)))
    }
}

impl<T> Tenure<T> {
    pub(crate) const fn new(now: Instant, waiter: Waiter<T>) -> Self {
        Self { waiter, phase: Phase::Preparing, since: now, reported: Instant::ZERO, warned: false }
    }

    pub(crate) const fn id(&self) -> LockId {
        self.waiter.id
    }

    pub(crate) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(crate) const fn offer(&mut self, now: Instant) {
        self.phase = Phase::Offered;
        self.since = now;
        self.warned = false;
    }

    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    pub(crate) const fn reported(&self) -> Instant {
        self.reported
    }

    /// Records the end of validity that was reported to the holder. Rearms the warning.
    pub(crate) const fn report(&mut self, valid_until: Instant) {
        self.reported = valid_until;
        self.warned = false;
    }

    /// Returns the end of validity if a later one was reported to the holder.
    // T3
    pub(crate) fn shortened(&mut self, terms: &Terms) -> Option<Instant> {
        let until = self.valid_until(terms.until);
        if self.phase == Phase::Preparing || until >= self.reported {
            return None;
        }
        self.report(until);
        Some(until)
    }

    /// Returns the end of the maximal hold time, which begins with the offer.
    fn max_hold_end(&self) -> Option<Instant> {
        match self.waiter.renew {
            Renew::AtMost(most) if self.phase != Phase::Preparing => Some(self.since + most),
            Renew::AtMost(_) | Renew::Auto | Renew::Manual => None,
        }
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.max_hold_end().is_some_and(|end| end <= now)
    }

    /// Returns the end of validity for the holder, given that in the store.
    pub(crate) fn valid_until(&self, until: Instant) -> Instant {
        self.max_hold_end().map_or(until, |end| until.min(end))
    }

    /// Returns when an unclaimed offer expires.
    const fn claim_by(&self, ttl: u64) -> Instant {
        self.since.after(ttl / 3)
    }

    /// Returns the action that is due. A warning is due once for each end of validity.
    pub(crate) fn due(&mut self, now: Instant, terms: &Terms) -> Due {
        match self.phase {
            Phase::Preparing if self.waiter.deadline().is_some_and(|end| end <= now) => Due::TimedOut,
            Phase::Offered if self.claim_by(terms.ttl) <= now => Due::Withdraw,
            Phase::Held if !self.warned => {
                if terms.warn_at() > now {
                    return Due::Nothing;
                }
                self.warned = true;
                Due::Warn(self.valid_until(terms.until))
            }
            Phase::Preparing | Phase::Offered | Phase::Held => Due::Nothing,
        }
    }

    /// Returns when the next action is due or the validity ends.
    pub(crate) fn deadline(&self, terms: &Terms) -> Instant {
        let until = self.valid_until(terms.until);
        match self.phase {
            Phase::Preparing => self.waiter.deadline().map_or(until, |end| until.min(end)),
            Phase::Offered => until.min(self.claim_by(terms.ttl)),
            Phase::Held if self.warned => until,
            Phase::Held => until.min(terms.warn_at()),
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

    fn tenure(renew: Renew, wait: Wait) -> Tenure<()> {
        Tenure::new(at(0), Waiter { id: LockId { slot: 0, generation: 0 }, terms: (), renew, wait, since: at(0) })
    }

    /// Valid until 1200 ms, with a TTL of 1200 ms.
    fn terms() -> Terms {
        Terms { until: at(1_200), ttl: 1_200 * MS, at_risk: None }
    }

    #[test]
    fn offer_is_withdrawn_after_third_of_ttl() {
        // H5
        let mut tenure = tenure(Renew::Auto, Wait::Forever);
        assert_eq!((tenure.due(at(900), &terms()), tenure.deadline(&terms())), (Due::Nothing, at(1_200)));
        tenure.offer(at(100));
        assert_eq!(tenure.deadline(&terms()), at(500));
        assert_eq!([499, 500].map(|now| tenure.due(at(now), &terms())), [Due::Nothing, Due::Withdraw]);
    }

    #[test]
    fn wait_without_offer_times_out() {
        let mut tenure = tenure(Renew::Auto, Wait::For(Duration::from_millis(50)));
        assert_eq!(tenure.deadline(&terms()), at(50));
        assert_eq!([49, 50].map(|now| tenure.due(at(now), &terms())), [Due::Nothing, Due::TimedOut]);
        tenure.offer(at(49));
        assert_eq!(tenure.due(at(50), &terms()), Due::Nothing);
    }

    #[test]
    fn holder_is_warned_once_until_renewed() {
        // H2
        let ms = Duration::from_millis;
        for (at_risk, first) in [(None, 900), (Some(ms(10)), 1_190), (Some(ms(600)), 600), (Some(ms(3_000)), 600)] {
            let terms = Terms { at_risk, ..terms() };
            let mut tenure = tenure(Renew::Auto, Wait::Forever);
            tenure.offer(at(0));
            tenure.phase = Phase::Held;
            assert_eq!((tenure.deadline(&terms), tenure.due(at(first - 1), &terms)), (at(first), Due::Nothing));
            assert_eq!(tenure.due(at(first), &terms), Due::Warn(at(1_200)));
            assert_eq!((tenure.due(at(first), &terms), tenure.deadline(&terms)), (Due::Nothing, at(1_200)));
            tenure.report(at(1_200));
            assert_eq!(tenure.due(at(first), &terms), Due::Warn(at(1_200)));
        }
    }

    #[test]
    fn max_hold_time_starts_at_offer() {
        // H4
        let mut tenure = tenure(Renew::AtMost(Duration::from_millis(300)), Wait::Forever);
        assert_eq!((tenure.is_over(at(400)), tenure.valid_until(at(1_200))), (false, at(1_200)));
        tenure.offer(at(100));
        assert_eq!((tenure.is_over(at(399)), tenure.is_over(at(400))), (false, true));
        assert_eq!((tenure.valid_until(at(1_200)), tenure.valid_until(at(200))), (at(400), at(200)));
        // Its end is no risk.
        tenure.phase = Phase::Held;
        assert_eq!((tenure.due(at(399), &terms()), tenure.deadline(&terms())), (Due::Nothing, at(400)));
        let expiring = Terms { until: at(450), ..terms() };
        assert_eq!(tenure.due(at(200), &expiring), Due::Warn(at(400)));
    }
}
