//! One round of attempts, one on each node (requirements Q1, Q2; one node is the quorum of one).

use alloc::vec::Vec;

use super::cleanup::Take;
use super::context::NodeSet;
use super::per_node::PerNode;
use crate::fault::{Breach, Fault};
use crate::id::NodeId;
use crate::lock::{Answer, Cause, ErrorClass, Expiry};
use crate::redis::request::{FenceBlock, Reply};
use crate::redis::validity::{Ttl, quorum_until};
use crate::time::Instant;

/// What one node said in this round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    /// It has not been asked: an attempt of an earlier round has no answer yet. One attempt on a name and node is without an answer at
    /// most, so that a slow server is not given more to do by each round.
    Waiting,
    /// Nothing yet to the attempt with this serial.
    Asked { serial: u64 },
    /// Yes, and it counts until then.
    Yes { until: Instant },
    /// Anything else.
    No(Answer),
}

/// A round under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    pub(crate) number: u64,
    pub(crate) started: Instant,
    /// When it stops waiting.
    pub(crate) deadline: Instant,
    pub(crate) ttl: Ttl,
    pub(crate) votes: PerNode<Vote>,
    /// The fencing tokens that were granted.
    pub(crate) fence: Option<FenceBlock>,
    /// A release was signalled meanwhile: try once more.
    pub(crate) hinted: bool,
    /// Nodes whose attempt also sets the marker of those who wait.
    pub(crate) marked: NodeSet,
}

/// How a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Open,
    Won,
    Lost,
}

/// Why a round can never be won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hopeless {
    KeyInUse,
    Refused,
}

impl Round {
    pub(crate) fn verdict(&self, now: Instant, quorum: usize) -> Verdict {
        let open = self.votes.iter().filter(|vote| matches!(vote, Vote::Asked { .. } | Vote::Waiting)).count();
        let yes = self.votes.iter().filter(|vote| matches!(vote, Vote::Yes { .. })).count();
        // Won only if the grants still count (requirement Q2); grants that came too late never will.
        let until = quorum_until(self.votes.iter().map(Vote::until), quorum);
        if until.is_some_and(|until| now < until) {
            return Verdict::Won;
        }
        if yes + open < quorum || self.deadline <= now || open == 0 {
            return Verdict::Lost;
        }
        Verdict::Open
    }

    /// The attempt on a node that has not answered.
    pub(crate) fn take(&self, node: NodeId) -> Option<Take> {
        let Vote::Asked { serial } = *self.votes.get(node.index())? else { return None };
        Some(Take { serial, number: self.number, emitted: self.started, ttl: self.ttl })
    }

    /// A node that said yes may not vote any more. Whether it had said so.
    pub(crate) fn withdraw(&mut self, node: NodeId, answer: Answer) -> bool {
        let Some(vote @ Vote::Yes { .. }) = self.votes.get_mut(node.index()) else { return false };
        *vote = Vote::No(answer);
        true
    }

    /// A node has answered. `until` is when its grant would end.
    pub(crate) fn answer(&mut self, node: NodeId, until: Instant, reply: &Reply) {
        let Some(vote) = self.votes.get_mut(node.index()) else { return };
        *vote = if let Reply::Granted { fence } = reply {
            self.fence = *fence;
            Vote::Yes { until }
        } else {
            Vote::No(answer_to_take(reply))
        };
    }

    /// Whether more nodes refuse for good than a quorum can do without.
    pub(crate) fn hopeless(&self, quorum: usize) -> Option<Hopeless> {
        let count = |wanted: fn(&Answer) -> bool| {
            self.votes.iter().filter(|vote| matches!(vote, Vote::No(answer) if wanted(answer))).count()
        };
        let key_in_use =
            count(|answer| matches!(answer, Answer::Rejected(error) if error.class == ErrorClass::KeyInUse));
        let refused = count(|answer| {
            matches!(answer, Answer::Rejected(error) | Answer::Unreachable(Cause::Server(error))
                if error.class == ErrorClass::Refused)
        });
        if self.votes.len() - key_in_use - refused >= quorum {
            None
        } else if refused >= key_in_use {
            Some(Hopeless::Refused)
        } else {
            Some(Hopeless::KeyInUse)
        }
    }

    /// How soon enough of the holders that were seen end by themselves.
    pub(crate) fn free_in(&self, quorum: usize) -> Option<core::time::Duration> {
        let yes = self.votes.iter().filter(|vote| matches!(vote, Vote::Yes { .. })).count();
        let end = |vote: &Vote| if let Vote::No(Answer::Taken(Expiry::In(left))) = vote { Some(*left) } else { None };
        let mut ends: Vec<_> = self.votes.iter().filter_map(end).collect();
        ends.sort_unstable();
        ends.get(quorum.saturating_sub(yes).max(1) - 1).copied()
    }

    /// What is reported of each node.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Answer> + '_ {
        self.votes.iter().map(|vote| match vote {
            Vote::Asked { .. } | Vote::Waiting => Answer::Silent,
            Vote::Yes { .. } => Answer::Granted,
            Vote::No(answer) => answer.clone(),
        })
    }
}

/// What is reported of a node that answered a take like this.
pub(crate) fn answer_to_take(reply: &Reply) -> Answer {
    match reply {
        Reply::Granted { .. } => Answer::Granted,
        Reply::Busy { expires } => Answer::Taken(*expires),
        Reply::Rejected(error) => Answer::Rejected(error.clone()),
        Reply::NotSent(cause) => Answer::Unreachable(cause.clone()),
        Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
        // Not what a take is answered with.
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
            hinted: false,
            marked: NodeSet::default(),
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

    const ASKED: Vote = Vote::Asked { serial: 1 };
    const SILENT: Vote = Vote::No(Answer::Silent);

    #[test]
    fn q2_a_round_is_won_while_the_grants_of_a_quorum_count() {
        let two = round([yes(100), yes(90), SILENT]);
        assert_eq!(two.verdict(ms(89), 2), Verdict::Won);
        assert_eq!(two.verdict(ms(90), 2), Verdict::Lost);
        // Won is won, also at the deadline.
        assert_eq!(two.verdict(ms(60), 2), Verdict::Won);
        assert_eq!(round([yes(100), SILENT, SILENT]).verdict(ms(1), 2), Verdict::Lost);
    }

    #[test]
    fn q1_a_round_is_decided_as_early_as_it_can_be() {
        let open = round([yes(100), ASKED, SILENT]);
        assert_eq!([59, 60].map(|now| open.verdict(ms(now), 2)), [Verdict::Open, Verdict::Lost]);
        assert_eq!(round([ASKED, ASKED, ASKED]).verdict(ms(1), 2), Verdict::Open);
        assert_eq!(round([ASKED, SILENT, SILENT]).verdict(ms(1), 2), Verdict::Lost);
        // Two grants that count no more: a third may still bring it about.
        let late = Round { deadline: ms(99), ..round([yes(100), yes(10), ASKED]) };
        assert_eq!(late.verdict(ms(50), 2), Verdict::Open);
    }

    #[test]
    fn a_round_is_hopeless_if_more_refuse_than_a_quorum_can_do_without() {
        let (used, no) = (|| refused(ErrorClass::KeyInUse), || refused(ErrorClass::Refused));
        assert_eq!(round([used(), busy(1), ASKED]).hopeless(2), None);
        assert_eq!(round([no(), refused(ErrorClass::Transient), SILENT]).hopeless(2), None);
        assert_eq!(round([used(), used(), ASKED]).hopeless(2), Some(Hopeless::KeyInUse));
        assert_eq!(round([no(), no(), yes(100)]).hopeless(2), Some(Hopeless::Refused));
        assert_eq!(round([no(), used(), yes(100)]).hopeless(2), Some(Hopeless::Refused));
        assert_eq!(round([used(), no(), used()]).hopeless(2), Some(Hopeless::KeyInUse));
    }

    #[test]
    fn the_next_attempt_is_due_when_enough_of_the_holders_have_ended() {
        let left = |round: Round| round.free_in(2).map(|left| left.as_millis());
        assert_eq!(left(round([busy(30), busy(10), busy(20)])), Some(20));
        assert_eq!(left(round([yes(100), busy(30), busy(20)])), Some(20));
        assert_eq!(left(round([yes(100), yes(100), busy(20)])), Some(20));
        assert_eq!(left(round([ASKED, busy(20), SILENT])), None);
    }
}
