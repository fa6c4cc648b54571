//! Validity of a grant: integer arithmetic on TTLs and clocks.
// T1, Q4, H1

use core::time::Duration;

use super::config::Config;
use crate::error::Invalid;
use crate::jitter::jitter_nanos;
use crate::lock::{MAX_TTL, MIN_TTL, Renew};
use crate::time::{Instant, millis_up, nanos};

/// A checked TTL and the times derived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl {
    ms: u64,
}

impl Ttl {
    /// Checks a TTL against the settings and rounds it up to whole milliseconds.
    ///
    /// # Errors
    ///
    /// Returns [`Invalid`] with the reason and the allowed range.
    pub fn new(given: Duration, renew: Renew, config: &Config) -> Result<Self, Invalid> {
        if given < MIN_TTL || given > MAX_TTL {
            return Err(Invalid::Ttl { given, min: MIN_TTL, max: MAX_TTL });
        }
        let ttl = Self { ms: millis_up(given) };
        if renew == Renew::AtMost(Duration::ZERO) {
            return Err(Invalid::MaxHold);
        }
        let validity = Duration::from_nanos(ttl.validity(config));
        if !config.is_renewable(ttl.duration(), validity) {
            return Err(Invalid::Drift { ttl: given, validity });
        }
        if config.is_quorum() {
            if given > config.store.quarantine {
                return Err(Invalid::TtlOverQuarantine { given, quarantine: config.store.quarantine });
            }
            if let Some(round) = config.store.round_timeout.filter(|round| *round > given / 4) {
                return Err(Invalid::RoundTimeout { round, ttl: given });
            }
        }
        Ok(ttl)
    }

    pub(crate) const fn ms(self) -> u64 {
        self.ms
    }

    pub(crate) const fn duration(self) -> Duration {
        Duration::from_millis(self.ms)
    }

    /// The TTL in ns. Every step uses it, and `Duration` arithmetic is several times slower.
    pub(crate) const fn nanos(self) -> u64 {
        self.ms.saturating_mul(1_000_000)
    }

    /// Validity of a grant in ns, from the emission of its request: the TTL less the clock drift.
    fn validity(self, config: &Config) -> u64 {
        let drift = self.nanos() / u64::from(config.drift.divisor.max(1));
        self.nanos().saturating_sub(drift.saturating_add(nanos(config.drift.margin)))
    }

    /// Returns the end of validity of a grant requested at `emitted`.
    // T1
    pub(crate) fn until(self, emitted: Instant, config: &Config) -> Instant {
        emitted.after(self.validity(config))
    }

    /// Returns when the watchdog renews a lease confirmed by a request of `from`: a third of the
    /// TTL later, less jitter selected by `n`. A coalescing interval of at most TTL/512 joins
    /// writes.
    pub(crate) const fn renew_at(self, from: Instant, seed: u64, n: u64) -> Instant {
        let third = self.nanos() / 3;
        from.after(third - jitter_nanos(seed, n, third / 10)).round_down_to(self.nanos() / 512)
    }

    /// Returns when to retry a renewal that failed at `now`, with jitter selected by `n`.
    pub(crate) const fn retry_at(self, now: Instant, seed: u64, n: u64) -> Instant {
        let pause = self.nanos() / 12;
        now.after(pause - jitter_nanos(seed, n, pause / 2))
    }

    /// Returns when a round ends: when its grants expire, or at the configured timeout.
    // Q1
    pub(crate) fn round_end(self, started: Instant, config: &Config) -> Instant {
        let until = self.until(started, config);
        config.store.round_timeout.filter(|_| config.is_quorum()).map_or(until, |timeout| until.min(started + timeout))
    }
}

/// Returns the quorum-th largest end of validity, until which a quorum has the key.
// Q4
pub(crate) fn quorum_until(untils: impl Iterator<Item = Option<Instant>>, quorum: usize) -> Option<Instant> {
    if quorum == 1 {
        return untils.flatten().max();
    }
    let mut known = [Instant::ZERO; super::MAX_NODES];
    let mut count = 0;
    for until in untils.flatten() {
        if let Some(place) = known.get_mut(count) {
            *place = until;
            count += 1;
        }
    }
    let known = known.get_mut(..count)?;
    known.sort_unstable_by(|a, b| b.cmp(a));
    known.get(quorum.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Drift;

    fn config() -> Config {
        Config::new([])
    }

    #[test]
    fn validity_counts_from_request_minus_drift() {
        let ttl = Ttl { ms: 10_000 };
        assert_eq!(ttl.until(Instant::from_millis(5), &config()), Instant::from_millis(5 + 10_000 - 102));
    }

    #[test]
    fn retry_renewal_and_round_end_follow_from_ttl() {
        let ms = Duration::from_millis;
        let ttl = Ttl { ms: 1_200 };
        let at = |ms: u64| Instant::from_millis(10_000 + ms);
        // H1
        for n in 0..100 {
            let retry = ttl.retry_at(at(0), 7, n);
            assert!(at(50) < retry && retry <= at(100), "{n}: {retry}");
        }
        assert_eq!((ttl.ms(), ttl.duration()), (1_200, ms(1_200)));
        // A third, less at most a tenth of that, and less the coalescing interval.
        let interval = ms(1_200) / 512;
        for n in 0..100 {
            let renewal = ttl.renew_at(at(0), 7, n);
            assert!(at(360).back(interval) < renewal && renewal <= at(400), "{n}: {renewal}");
            assert_eq!(renewal, renewal.round_down_to(1 << 21), "a power of two, not above {interval:?}");
        }
        // Q1
        let quorum = Config::new(["redis://a", "redis://b", "redis://c"].map(|url| url.parse().expect("a URL")));
        assert_eq!(ttl.round_end(at(0), &quorum), ttl.until(at(0), &quorum));
        assert_eq!(ttl.round_end(at(0), &quorum.round_timeout(ms(7))), at(7));
        assert_eq!(ttl.round_end(at(0), &config().round_timeout(ms(7))), ttl.until(at(0), &config()));
    }

    /// The bounds themselves are allowed.
    // H1, Q1 and Q6
    #[test]
    fn ttl_is_accepted_at_limit_and_refused_beyond() {
        let ms = Duration::from_millis;
        let drift = |margin: u64| config().drift(Drift { divisor: 100, margin: ms(margin) });
        // A renewal after 200 ms and two tries of 120 ms need 440 ms. The divisor takes 6 ms.
        assert_eq!(Ttl::new(ms(600), Renew::Auto, &drift(154)), Ok(Ttl { ms: 600 }));
        assert!(matches!(Ttl::new(ms(600), Renew::Auto, &drift(155)), Err(Invalid::Drift { .. })));

        let quorum = || Config::new(["redis://a", "redis://b", "redis://c"].map(|url| url.parse().expect("a URL")));
        assert_eq!(Ttl::new(ms(600), Renew::Auto, &quorum().quarantine(ms(600))), Ok(Ttl { ms: 600 }));
        let error = Ttl::new(ms(600), Renew::Auto, &quorum().quarantine(ms(599)));
        assert!(matches!(error, Err(Invalid::TtlOverQuarantine { .. })), "{error:?}");
        assert_eq!(Ttl::new(ms(600), Renew::Auto, &quorum().round_timeout(ms(150))), Ok(Ttl { ms: 600 }));
        let error = Ttl::new(ms(600), Renew::Auto, &quorum().round_timeout(ms(151)));
        assert!(matches!(error, Err(Invalid::RoundTimeout { .. })), "{error:?}");
        // One node has neither rounds nor a quarantine.
        assert!(Ttl::new(ms(600), Renew::Auto, &config().quarantine(ms(599)).round_timeout(ms(151))).is_ok());
        assert_eq!(Ttl::new(MAX_TTL, Renew::Auto, &config()).map(Ttl::duration), Ok(MAX_TTL));
        assert_eq!(Ttl::new(ms(600), Renew::AtMost(Duration::ZERO), &config()), Err(Invalid::MaxHold));
    }

    #[test]
    fn out_of_range_ttl_error_names_range() {
        let error = Ttl::new(Duration::ZERO, Renew::Auto, &config()).expect_err("zero is too short");
        assert_eq!(alloc::format!("{error}"), "a TTL must be between 50ms and 2592000s, this one is 0ns");
        assert!(Ttl::new(MAX_TTL + Duration::from_nanos(1), Renew::Auto, &config()).is_err());
        assert_eq!(Ttl::new(MIN_TTL, Renew::Auto, &config()), Ok(Ttl { ms: 50 }));
    }

    #[test]
    fn two_renewal_tries_must_fit_validity() {
        let wide = config().drift(Drift { divisor: 100, margin: Duration::from_millis(30) });
        assert!(matches!(Ttl::new(Duration::from_millis(100), Renew::Auto, &wide), Err(Invalid::Drift { .. })));
        assert!(Ttl::new(Duration::from_millis(200), Renew::Auto, &wide).is_ok());
    }

    #[test]
    fn fraction_of_millisecond_is_rounded_up() {
        let ttl = Ttl::new(Duration::from_micros(100_001), Renew::Manual, &config());
        assert_eq!(ttl.map(Ttl::ms), Ok(101));
    }

    #[test]
    fn quorum_validity_is_quorum_th_largest() {
        // Q4
        let at = |ms: &[Option<u64>]| {
            quorum_until(ms.iter().map(|ms| ms.map(Instant::from_millis)), 3).map(|i| i.as_nanos() / 1_000_000)
        };
        assert_eq!(at(&[Some(5), Some(1), None, Some(9), Some(7)]), Some(5));
        assert_eq!(at(&[Some(5), None, None, Some(9), None]), None);
    }
}
