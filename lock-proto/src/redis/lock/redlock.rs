//! RedLock: one round of attempts, one per node. A single node is a quorum of one.
// Q1, Q2

use alloc::vec::Vec;

use super::context::NodeSet;
use crate::collections::Few;
use crate::fault::{Breach, Fault};
use crate::id::NodeId;
use crate::lock::{Answer, Cause, ErrorClass, Expiry, refusals_are_undecided};
use crate::redis::request::{FenceBlock, Reply};
use crate::redis::validity::{Ttl, quorum_until};
use crate::time::Instant;

/// Vote of one node in a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    /// Not sent: an attempt of an earlier round is still in flight. At most one is, per name and
    /// node.
    Deferred,
    Pending,
    /// Granted, and valid until then.
    Yes {
        until: Instant,
    },
    /// Any other result.
    No(Answer),
}

/// A round in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Round {
    pub(crate) number: u64,
    pub(crate) started: Instant,
    /// When the round stops waiting for replies.
    pub(crate) deadline: Instant,
    pub(crate) ttl: Ttl,
    pub(crate) votes: Few<Vote>,
    pub(crate) fence: Option<FenceBlock>,
    /// A release was signalled during the round: try once more.
    pub(crate) signalled: bool,
    /// Nodes whose attempt also sets the marker for waiters.
    pub(crate) marked: NodeSet,
    /// Nodes whose attempt is a plain `SET`, which does not tell what it found under the key.
    pub(crate) plain: NodeSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Open,
    Won,
    Lost,
}

/// Why no round can ever be won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FatalReason {
    KeyInUse,
    Refused,
}

impl Round {
    pub(crate) fn verdict(&self, now: Instant, quorum: usize) -> Verdict {
        let open = self.votes.iter().filter(|vote| matches!(vote, Vote::Pending | Vote::Deferred)).count();
        let yes = self.votes.iter().filter(|vote| matches!(vote, Vote::Yes { .. })).count();
        // Grants that came too late do not count.
        // Q2
        let until = quorum_until(self.votes.iter().map(Vote::until), quorum);
        if until.is_some_and(|until| now < until) {
            return Verdict::Won;
        }
        // Q1
        let decided =
            yes + open < quorum && !refusals_are_undecided(self.count(rules_out), open, self.votes.len() - quorum);
        if decided || self.deadline <= now || open == 0 { Verdict::Lost } else { Verdict::Open }
    }

    /// Counts the nodes with such a reply.
    fn count(&self, is: impl Fn(&Answer) -> bool) -> usize {
        self.votes.iter().filter(|vote| matches!(vote, Vote::No(answer) if is(answer))).count()
    }

    /// Returns true if a node has granted it.
    pub(crate) fn has_granted(&self, node: NodeId) -> bool {
        matches!(self.votes.get(node.index()), Some(Vote::Yes { .. }))
    }

    /// Revokes the grant of a node. Returns false if there was none.
    pub(crate) fn withdraw(&mut self, node: NodeId, answer: Answer) -> bool {
        let Some(vote @ Vote::Yes { .. }) = self.votes.get_mut(node.index()) else { return false };
        *vote = Vote::No(answer);
        true
    }

    /// Records a node's reply. `until` is when its grant would end.
    pub(crate) fn answer(&mut self, node: NodeId, until: Instant, reply: &Reply) {
        let Some(vote) = self.votes.get_mut(node.index()) else { return };
        *vote = if let Reply::Granted { fence } = reply {
            self.fence = *fence;
            Vote::Yes { until }
        } else {
            Vote::No(answer_to_take(reply))
        };
    }

    /// Returns why no quorum is possible, if too many nodes refuse permanently.
    pub(crate) fn fatal_reason(&self, quorum: usize) -> Option<FatalReason> {
        let (key_in_use, refused) = (self.count(is_key_in_use), self.count(Answer::is_refusal));
        if self.votes.len() - key_in_use - refused >= quorum {
            None
        } else if refused >= key_in_use {
            Some(FatalReason::Refused)
        } else {
            Some(FatalReason::KeyInUse)
        }
    }

    /// Returns how soon enough of the observed holders expire.
    pub(crate) fn expires_in(&self, quorum: usize) -> Option<core::time::Duration> {
        let yes = self.votes.iter().filter(|vote| matches!(vote, Vote::Yes { .. })).count();
        let end = |vote: &Vote| if let Vote::No(Answer::Taken(Expiry::In(left))) = vote { Some(*left) } else { None };
        let mut ends: Vec<_> = self.votes.iter().filter_map(end).collect();
        ends.sort_unstable();
        ends.get(quorum.saturating_sub(yes).max(1) - 1).copied()
    }

    pub(crate) fn answers(&self) -> impl Iterator<Item = Answer> + '_ {
        self.votes.iter().map(|vote| match vote {
            Vote::Pending | Vote::Deferred => Answer::Silent,
            Vote::Yes { .. } => Answer::Granted,
            Vote::No(answer) => answer.clone(),
        })
    }
}

fn is_key_in_use(answer: &Answer) -> bool {
    matches!(answer, Answer::Rejected(error) if error.class == ErrorClass::KeyInUse)
}

/// Returns true if the node cannot grant the lock until somebody intervenes.
fn rules_out(answer: &Answer) -> bool {
    is_key_in_use(answer) || answer.is_refusal()
}

/// Converts the reply to a take for a report.
pub(crate) fn answer_to_take(reply: &Reply) -> Answer {
    match reply {
        Reply::Granted { .. } => Answer::Granted,
        Reply::Busy { expires } => Answer::Taken(*expires),
        Reply::Rejected(error) => Answer::Rejected(error.clone()),
        Reply::NotSent(cause) => Answer::Unreachable(cause.clone()),
        Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
        // Not a reply to a take.
        Reply::Extended | Reply::Deleted { .. } | Reply::Absent | Reply::Taken | Reply::Announced => {
            Answer::Unknown(Cause::Fault(Fault::Protocol(Breach::WrongReply)))
        }
    }
}

impl Vote {
    pub(crate) const fn until(&self) -> Option<Instant> {
        if let Self::Yes { until } = self { Some(*until) } else { None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::lock::{Renew, ServerError};
    use crate::redis::Config;

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    /// A round whose deadline is at 60 ms.
    fn round<const N: usize>(votes: [Vote; N]) -> Round {
        Round {
            number: 7,
            started: ms(0),
            deadline: ms(60),
            ttl: Ttl::new(Duration::from_secs(1), Renew::Auto, &Config::new([])).unwrap(),
            votes: votes.into_iter().collect(),
            fence: None,
            signalled: false,
            marked: NodeSet::default(),
            plain: NodeSet::default(),
        }
    }

    fn yes(until: u64) -> Vote {
        Vote::Yes { until: ms(until) }
    }

    fn busy(left: u64) -> Vote {
        Vote::No(Answer::Taken(Expiry::In(Duration::from_millis(left))))
    }

    fn refused(class: ErrorClass) -> Vote {
        Vote::No(Answer::Rejected(ServerError { class, text: "no".into() }))
    }

    const PENDING: Vote = Vote::Pending;
    const SILENT: Vote = Vote::No(Answer::Silent);

    #[test]
    fn round_is_won_while_quorum_of_grants_is_valid() {
        // Q2
        let two = round([yes(100), yes(90), SILENT]);
        assert_eq!(two.verdict(ms(89), 2), Verdict::Won);
        assert_eq!(two.verdict(ms(90), 2), Verdict::Lost);
        // A quorum of valid grants wins even at the deadline.
        assert_eq!(two.verdict(ms(60), 2), Verdict::Won);
        assert_eq!(round([yes(100), SILENT, SILENT]).verdict(ms(1), 2), Verdict::Lost);
    }

    #[test]
    fn round_is_decided_as_early_as_possible() {
        // Q1
        let open = round([yes(100), PENDING, SILENT]);
        assert_eq!([59, 60].map(|now| open.verdict(ms(now), 2)), [Verdict::Open, Verdict::Lost]);
        assert_eq!(round([PENDING, PENDING, PENDING]).verdict(ms(1), 2), Verdict::Open);
        assert_eq!(round([PENDING, SILENT, SILENT]).verdict(ms(1), 2), Verdict::Lost);
        // Two grants, one of which has expired. A third can still win.
        let late = Round { deadline: ms(99), ..round([yes(100), yes(10), PENDING]) };
        assert_eq!(late.verdict(ms(50), 2), Verdict::Open);
    }

    #[test]
    fn round_waits_for_replies_that_decide_whether_it_is_fatal() {
        // Q1
        let (no, used) = (|| refused(ErrorClass::Refused), || refused(ErrorClass::KeyInUse));
        for votes in [[SILENT, no(), PENDING], [no(), PENDING, SILENT], [busy(9), PENDING, used()]] {
            assert_eq!([59, 60].map(|now| round(votes.clone()).verdict(ms(now), 2)), [Verdict::Open, Verdict::Lost]);
        }
        for votes in [[no(), used(), PENDING], [SILENT, SILENT, PENDING], [no(), SILENT, busy(9)]] {
            assert_eq!(round(votes).verdict(ms(1), 2), Verdict::Lost);
        }
        // Two of five refuse; the fifth cannot change that a majority does not.
        let five = round([no(), SILENT, SILENT, PENDING, busy(9)]);
        assert_eq!(five.verdict(ms(1), 3), Verdict::Lost);
    }

    #[test]
    fn round_is_fatal_when_refusals_rule_out_quorum() {
        let (used, no) = (|| refused(ErrorClass::KeyInUse), || refused(ErrorClass::Refused));
        assert_eq!(round([used(), busy(1), PENDING]).fatal_reason(2), None);
        assert_eq!(round([no(), refused(ErrorClass::Transient), SILENT]).fatal_reason(2), None);
        assert_eq!(round([used(), used(), PENDING]).fatal_reason(2), Some(FatalReason::KeyInUse));
        assert_eq!(round([no(), no(), yes(100)]).fatal_reason(2), Some(FatalReason::Refused));
        assert_eq!(round([no(), used(), yes(100)]).fatal_reason(2), Some(FatalReason::Refused));
        assert_eq!(round([used(), no(), used()]).fatal_reason(2), Some(FatalReason::KeyInUse));
    }

    #[test]
    fn next_attempt_is_due_when_enough_holders_have_expired() {
        let left = |round: Round| round.expires_in(2).map(|left| left.as_millis());
        assert_eq!(left(round([busy(30), busy(10), busy(20)])), Some(20));
        assert_eq!(left(round([yes(100), busy(30), busy(20)])), Some(20));
        assert_eq!(left(round([yes(100), yes(100), busy(20)])), Some(20));
        assert_eq!(left(round([PENDING, busy(20), SILENT])), None);
    }
}
