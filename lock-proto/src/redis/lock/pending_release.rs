//! The answer to a release: what the deletes found (requirement U1).

use super::Redis;
use super::cleanup::Delete;
use super::context::NodeSet;
use crate::id::NodeId;
use crate::lock::{Ended, Release};
use crate::redis::request::Reply;
use crate::time::Instant;

/// What the deletes of a release have found so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Releasing {
    number: u64,
    /// The end of the hold's validity.
    valid_until: Instant,
    /// It was still valid when it was given back.
    valid: bool,
    /// Nodes that have not said yet what the delete found.
    waiting: NodeSet,
    /// Nodes with a delete of something else under way, emitted before: its answer says nothing of this.
    before: NodeSet,
    /// Nodes that had the token, until the delete.
    mine: NodeSet,
    /// Nodes where somebody else has the key.
    others: NodeSet,
    /// Nodes that will not be asked again: they do not allow the delete.
    given_up: NodeSet,
    /// Nodes on which a delete, emitted while the hold was valid, ended Unknown.
    maybe: NodeSet,
}

impl Releasing {
    /// `before`: nodes with a delete under way.
    pub(crate) fn new(now: Instant, ended: &Ended<Redis>, before: NodeSet) -> Self {
        let Ended { valid_until, remains, .. } = *ended;
        Self {
            number: remains.number,
            valid_until,
            valid: now < valid_until,
            waiting: remains.nodes,
            before,
            mine: NodeSet::default(),
            given_up: NodeSet::default(),
            others: remains.others.without(remains.nodes),
            maybe: NodeSet::default(),
        }
    }

    /// The delete under way on `node` has its answer.
    pub(crate) fn answered(&mut self, node: NodeId, delete: Delete, reply: &Reply) {
        if self.before.contains(node) {
            return self.before.remove(node);
        }
        if !self.waiting.contains(node) {
            return;
        }
        match reply {
            Reply::Deleted { number, .. } if *number == self.number => self.mine.insert(node),
            // Gone, after a delete of ours that may have done it while the key was still ours.
            Reply::Deleted { .. } | Reply::Absent | Reply::Taken if self.maybe.contains(node) => self.mine.insert(node),
            Reply::Deleted { .. } | Reply::Absent => {}
            Reply::Taken => self.others.insert(node),
            Reply::Unknown(_) => {
                if delete.emitted < self.valid_until {
                    self.maybe.insert(node);
                }
                return;
            }
            Reply::Granted { .. }
            | Reply::Busy { .. }
            | Reply::Extended
            | Reply::Announced
            | Reply::Rejected(_)
            | Reply::NotSent(_) => return,
        }
        self.waiting.remove(node);
    }

    /// The node does not allow the delete, and is not asked again.
    pub(crate) fn give_up(&mut self, node: NodeId) {
        self.given_up.insert(node);
    }

    /// The answer, as early as it is certain.
    pub(crate) fn outcome(&self, quorum: usize) -> Option<Release> {
        let (mine, waiting) = (self.mine.len(), self.waiting.len());
        // What a minority has not answered yet can keep nobody from the lock.
        if mine >= quorum || (self.valid && mine > 0 && mine + waiting >= quorum && waiting < quorum) {
            return Some(Release::Released);
        }
        if waiting == 0 {
            // Of a single node `others` says it all; of a quorum it must be a majority to mean anything.
            return Some(if self.others.len() >= quorum { Release::Taken } else { Release::Expired });
        }
        self.waiting.without(self.given_up).is_empty().then_some(Release::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Remains;
    use super::super::cleanup::Cleanup;
    use super::*;
    use crate::fault::Fault;
    use crate::id::LockId;
    use crate::lock::Cause;

    const MINE: Reply = Reply::Deleted { number: 7, awaited: false };
    const UNKNOWN: Reply = Reply::Unknown(Cause::Fault(Fault::TimedOut));

    fn ms(n: u64) -> Instant {
        Instant::from_millis(n)
    }

    fn set(nodes: &[u16]) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.iter().for_each(|node| set.insert(NodeId::new(*node)));
        set
    }

    /// A release at `now` of the token 7, which was on `nodes` and valid until 100 ms.
    fn release(now: u64, nodes: &[u16]) -> Releasing {
        release_after(now, nodes, &[])
    }

    /// The same, while other deletes are under way on the nodes `before`.
    fn release_after(now: u64, nodes: &[u16], before: &[u16]) -> Releasing {
        let remains = Remains { number: 7, nodes: set(nodes), others: NodeSet::default() };
        let ended = Ended { id: LockId { slot: 0, generation: 0 }, valid_until: ms(100), remains };
        Releasing::new(ms(now), &ended, set(before))
    }

    fn delete(emitted: u64) -> Delete {
        let mut cleanup = Cleanup::default();
        cleanup.delete_sent(1, ms(emitted), 7, false);
        cleanup.delete(1).expect("it was sent")
    }

    /// What is known after these answers of the nodes 0, 1, 2 to deletes that left with the release.
    fn outcome(now: u64, nodes: &[u16], answers: &[Reply]) -> Option<Release> {
        let mut back = release(now, nodes);
        for (node, reply) in answers.iter().enumerate() {
            back.answered(NodeId::new(node as u16), delete(now), reply);
        }
        back.outcome(2)
    }

    /// Three of five would have to be somebody else's to keep it from the next one; here it can be two.
    #[test]
    fn u1_what_a_minority_has_not_answered_keeps_nobody_from_the_lock() {
        let mut back = release(0, &[0, 1, 2]);
        assert_eq!(back.outcome(3), None);
        back.answered(NodeId::new(1), delete(0), &MINE);
        assert_eq!(back.outcome(3), Some(Release::Released));
    }

    #[test]
    fn u1_a_release_is_answered_as_soon_as_a_quorum_is_certain() {
        let all = &[0, 1, 2];
        for now in [99, 100] {
            assert_eq!(outcome(now, all, &[]), None);
            assert_eq!(outcome(now, all, &[MINE]), None);
            assert_eq!(outcome(now, all, &[MINE, MINE]), Some(Release::Released));
            assert_eq!(outcome(now, all, &[Reply::Absent, Reply::Absent, Reply::Absent]), Some(Release::Expired));
            assert_eq!(outcome(now, all, &[MINE, Reply::Absent, Reply::Absent]), Some(Release::Expired));
            assert_eq!(outcome(now, all, &[Reply::Taken, Reply::Absent, Reply::Absent]), Some(Release::Expired));
            assert_eq!(outcome(now, all, &[Reply::Taken, Reply::Taken, Reply::Absent]), Some(Release::Taken));
        }
        // What a minority has not said keeps nobody from a lock that was valid when it was given back.
        assert_eq!(outcome(99, all, &[MINE, Reply::Absent]), Some(Release::Released));
        assert_eq!(outcome(100, all, &[MINE, Reply::Absent]), None);
        assert_eq!(outcome(99, all, &[Reply::Absent, Reply::Absent]), None);
        assert_eq!(outcome(99, &[0, 1], &[MINE]), Some(Release::Released));
    }

    #[test]
    fn u1_gone_after_a_delete_whose_answer_was_lost_counts_as_released() {
        for (emitted, then) in [(99, Release::Released), (100, Release::Expired)] {
            for gone in [Reply::Absent, Reply::Taken, Reply::Deleted { number: 6, awaited: false }] {
                let mut back = release(0, &[0]);
                back.answered(NodeId::new(0), delete(emitted), &UNKNOWN);
                assert_eq!(back.outcome(1), None);
                back.answered(NodeId::new(0), delete(200), &gone);
                let then = if gone == Reply::Taken && then == Release::Expired { Release::Taken } else { then };
                assert_eq!(back.outcome(1), Some(then), "{gone:?} after a delete at {emitted} ms");
            }
        }
    }

    #[test]
    fn u1_a_delete_that_was_under_way_before_says_nothing() {
        for earlier in [Reply::Absent, Reply::Taken, UNKNOWN, Reply::Deleted { number: 6, awaited: false }] {
            let mut back = release_after(50, &[0], &[0]);
            back.answered(NodeId::new(0), delete(50), &earlier);
            assert_eq!(back.outcome(1), None, "{earlier:?}");
            back.answered(NodeId::new(0), delete(60), &Reply::Absent);
            assert_eq!(back.outcome(1), Some(Release::Expired), "{earlier:?}");
        }
    }
}
