//! Result of a release, from what its deletes found.
// U1

use super::Remains;
use super::cleanup::Delete;
use super::context::NodeSet;
use crate::id::{LockId, NodeId};
use crate::lock::Release;
use crate::redis::request::Reply;
use crate::time::Instant;

/// What the deletes of a release have found so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeleteResults {
    pub(super) id: LockId,
    number: u64,
    /// The end of the hold's validity.
    valid_until: Instant,
    /// The hold was valid when it was released.
    valid: bool,
    /// Nodes that have not yet reported what the delete found.
    waiting: NodeSet,
    /// Nodes with an earlier delete in flight, whose reply does not count for this release.
    before: NodeSet,
    /// Nodes that had the token until the delete.
    mine: NodeSet,
    /// Nodes on which another client has the key.
    others: NodeSet,
    /// Nodes that refuse the delete and get no further one.
    refused: NodeSet,
    /// Nodes on which a delete emitted during the validity ended `Unknown`.
    maybe: NodeSet,
}

impl DeleteResults {
    /// `before`: nodes with a delete in flight.
    pub(crate) fn new(id: LockId, now: Instant, remains: Remains, before: NodeSet) -> Self {
        Self {
            id,
            number: remains.number,
            valid_until: remains.valid_until,
            valid: now < remains.valid_until,
            waiting: remains.nodes,
            before,
            mine: NodeSet::default(),
            refused: NodeSet::default(),
            others: remains.others.without(remains.nodes),
            maybe: NodeSet::default(),
        }
    }

    /// Handles the reply to the delete in flight on `node`.
    pub(crate) fn answered(&mut self, node: NodeId, delete: Delete, reply: &Reply) {
        if self.before.contains(node) {
            return self.before.remove(node);
        }
        if !self.waiting.contains(node) {
            return;
        }
        match reply {
            Reply::Deleted { number, .. } if *number == self.number => self.mine.insert(node),
            // An earlier delete may have removed the key while it was still ours.
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

    /// The node refuses the delete and gets no further one.
    pub(crate) fn refused(&mut self, node: NodeId) {
        self.refused.insert(node);
    }

    /// Returns true if the node has not yet reported what the delete found.
    pub(crate) fn awaits(&self, node: NodeId) -> bool {
        self.waiting.contains(node)
    }

    /// The node has no token of this client.
    pub(crate) fn has_none(&mut self, node: NodeId) {
        self.waiting.remove(node);
    }

    /// Returns the result as soon as it is certain.
    pub(crate) fn outcome(&self, quorum: usize) -> Option<Release> {
        let (mine, waiting) = (self.mine.len(), self.waiting.len());
        // A minority that has not replied cannot block the next holder.
        if mine >= quorum || (self.valid && mine > 0 && mine + waiting >= quorum && waiting < quorum) {
            return Some(Release::Released);
        }
        if waiting == 0 {
            // `others` decides for a single node. In a quorum it must be a majority.
            return Some(if self.others.len() >= quorum { Release::Taken } else { Release::Expired });
        }
        self.waiting.without(self.refused).is_empty().then_some(Release::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::calls::RedisCalls;
    use super::super::cleanup::Cleanup;
    use super::*;
    use crate::fault::Fault;
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

    /// A release at `now` of token 7, which was on `nodes` and valid until 100 ms.
    fn release(now: u64, nodes: &[u16]) -> DeleteResults {
        release_after(now, nodes, &[])
    }

    /// The same, with earlier deletes in flight on the nodes `before`.
    fn release_after(now: u64, nodes: &[u16], before: &[u16]) -> DeleteResults {
        let remains = Remains { number: 7, valid_until: ms(100), nodes: set(nodes), others: NodeSet::default() };
        DeleteResults::new(LockId { slot: 0, generation: 0 }, ms(now), remains, set(before))
    }

    fn delete(emitted: u64) -> Delete {
        let mut cleanup = Cleanup::default();
        cleanup.delete_sent(RedisCalls::default().takes(NodeId::new(0)), ms(emitted), 7, false);
        cleanup.deleting().expect("it was sent")
    }

    /// The result after these replies of nodes 0, 1 and 2 to the deletes of the release.
    fn outcome(now: u64, nodes: &[u16], answers: &[Reply]) -> Option<Release> {
        let mut back = release(now, nodes);
        for (node, reply) in answers.iter().enumerate() {
            back.answered(NodeId::new(node as u16), delete(now), reply);
        }
        back.outcome(2)
    }

    /// Only three of five nodes could block the next holder; at most two can do so here.
    #[test]
    fn release_resolves_once_silent_nodes_cannot_block_next_holder() {
        // U1
        let mut back = release(0, &[0, 1, 2]);
        assert_eq!(back.outcome(3), None);
        back.answered(NodeId::new(1), delete(0), &MINE);
        assert_eq!(back.outcome(3), Some(Release::Released));
    }

    #[test]
    fn release_resolves_as_soon_as_quorum_is_certain() {
        // U1
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
        // A silent minority does not delay the release of a lock that was still valid.
        assert_eq!(outcome(99, all, &[MINE, Reply::Absent]), Some(Release::Released));
        assert_eq!(outcome(100, all, &[MINE, Reply::Absent]), None);
        assert_eq!(outcome(99, all, &[Reply::Absent, Reply::Absent]), None);
        assert_eq!(outcome(99, &[0, 1], &[MINE]), Some(Release::Released));
    }

    #[test]
    fn key_gone_after_timely_delete_with_lost_reply_is_released() {
        // U1
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
    fn delete_in_flight_before_release_does_not_resolve_it() {
        // U1
        for earlier in [Reply::Absent, Reply::Taken, UNKNOWN, Reply::Deleted { number: 6, awaited: false }] {
            let mut back = release_after(50, &[0], &[0]);
            back.answered(NodeId::new(0), delete(50), &earlier);
            assert_eq!(back.outcome(1), None, "{earlier:?}");
            back.answered(NodeId::new(0), delete(60), &Reply::Absent);
            assert_eq!(back.outcome(1), Some(Release::Expired), "{earlier:?}");
        }
    }
}
