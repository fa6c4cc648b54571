//! Time of the next attempt: polling, and expiry of the holder's key.
// A6, Q2

use super::Redis;
use super::attempt::{NOTIFIED_POLL_FACTOR, NOTIFIED_POLL_GROWTH};
use super::context::RedisEnv;
use super::redlock::Round;
use crate::jitter::{doubled, jitter};
use crate::lock::{Answer, Blocked, Expiry};
use crate::time::{Instant, soonest};
use core::time::Duration;

/// Range over which waiters for the same expiry are spread.
const EXPIRY_SPREAD: Duration = Duration::from_millis(10);

impl Redis {
    pub(super) fn why_blocked(&self, quorum: usize) -> Blocked {
        let count = |is: fn(&Answer) -> bool| self.answers.iter().filter(|answer| is(answer)).count();
        let reachable = count(|answer| matches!(answer, Answer::Granted | Answer::Taken(_)));
        let recently_restarted = count(|answer| matches!(answer, Answer::RecentlyRestarted));
        let unstable = count(|answer| matches!(answer, Answer::UnstableIdentity));
        if reachable < quorum && reachable + recently_restarted >= quorum {
            Blocked::RecentlyRestarted
        } else if reachable < quorum && reachable + recently_restarted + unstable >= quorum {
            Blocked::UnstableIdentity
        } else if reachable < quorum {
            Blocked::Unreachable
        } else if count(|answer| matches!(answer, Answer::Taken(Expiry::Never))) > self.answers.len() - quorum {
            Blocked::HeldWithoutExpiry
        } else {
            Blocked::Held
        }
    }

    /// `signalled`: the lost round was started by a wake-up.
    pub(super) fn next_attempt(&mut self, env: &RedisEnv, round: &Round, blocked: Blocked, signalled: bool) -> Instant {
        let n = env.number;
        let poll = env.config.store.poll;
        let mut every = doubled(poll.every, self.tries.saturating_sub(1), poll.max);
        let notified = self.subscription.is_some_and(|subscription| subscription.active);
        if notified || matches!(blocked, Blocked::Unreachable | Blocked::RecentlyRestarted | Blocked::UnstableIdentity)
        {
            every *= NOTIFIED_POLL_FACTOR;
        }
        if notified {
            // With a thousand waiters in a queue, frequent polls would outweigh the holders' work.
            let most = (every * NOTIFIED_POLL_GROWTH).min(round.ttl.duration() / 2).max(every);
            every = doubled(every, self.tries.saturating_sub(2), most);
        }
        let mut at = env.now + every.saturating_sub(jitter(env.seed, n, every / 4));
        // A key expires only after its last millisecond.
        let expiry = round.expires_in(env.quorum()).map(|left| env.now + left + Duration::from_millis(1));
        let is_quarantined = matches!(blocked, Blocked::RecentlyRestarted | Blocked::UnstableIdentity);
        let vote = if is_quarantined { env.shared.quarantine_end(env.now) } else { None };
        if let Some(end) = soonest([expiry, vote]) {
            // The jitter keeps waiters apart.
            at = at.min(end + jitter(env.seed ^ 1, n, EXPIRY_SPREAD.min(every)));
        }
        let contested = env.config.is_quorum() && blocked == Blocked::Held;
        let granted = self.answers.iter().any(|answer| matches!(answer, Answer::Granted));
        let split = contested && granted && !signalled;
        self.split_votes = if split { self.split_votes.saturating_add(1) } else { 0 };
        if contested && (split || signalled) {
            // A split vote, or the round overtook the release. Retry after a random delay longer
            // than a round; the waiter that was woken goes first. While the holder lacks a node,
            // each vote looks split, so the delay grows.
            // Q2
            let took = env.now.since(round.started);
            let base = took * 2 + poll.every / 2;
            let spread = if signalled { took } else { doubled(base, self.split_votes - 1, every.max(base)) };
            at = at.min(env.now + took + jitter(env.seed ^ 2, n, spread));
        }
        at
    }
}
