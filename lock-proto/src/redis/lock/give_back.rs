//! The answer to a release: what the deletes found (requirement U1).

use super::EndedHold;
use super::context::NodeSet;
use super::debt::Delete;
use crate::id::{LockId, NodeId};
use crate::redis::event::Release;
use crate::redis::request::Reply;
use crate::time::Instant;

/// A release whose answer somebody waits for. The deletes themselves are the nodes' debts and go on without it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GiveBack {
    pub(crate) id: LockId,
    number: u64,
    /// When it is answered with what is known.
    pub(crate) until: Instant,
    /// The end of the hold's validity.
    valid_until: Instant,
    /// It was still valid when it was given back.
    valid: bool,
    /// Nodes that have not said yet what the delete found.
    waiting: NodeSet,
    /// Nodes that had the token, until the delete.
    mine: NodeSet,
    /// Nodes where somebody else has the key.
    others: NodeSet,
    /// Nodes on which a delete, emitted while the hold was valid, ended Unknown.
    maybe: NodeSet,
}

impl GiveBack {
    pub(crate) fn new(now: Instant, hold: &EndedHold, until: Instant) -> Self {
        Self {
            id: hold.id,
            number: hold.number,
            until,
            valid_until: hold.valid_until,
            valid: now < hold.valid_until,
            waiting: hold.nodes,
            mine: NodeSet::default(),
            others: hold.others.without(hold.nodes),
            maybe: NodeSet::default(),
        }
    }

    /// A delete on `node` has its answer.
    pub(crate) fn answered(&mut self, node: NodeId, delete: Delete, reply: &Reply) {
        if !self.waiting.contains(node) || delete.covers < self.number {
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

    /// The answer, as early as it is certain; at the end of the release's time what is known.
    pub(crate) fn outcome(&self, now: Instant, nodes: usize) -> Option<Release> {
        let quorum = nodes / 2 + 1;
        let (mine, waiting) = (self.mine.len(), self.waiting.len());
        // What a minority has not answered yet can keep nobody from the lock.
        if mine >= quorum || (self.valid && mine > 0 && mine + waiting >= quorum && waiting <= nodes - quorum) {
            return Some(Release::Released);
        }
        if waiting == 0 {
            // Of a single node `others` says it all; of a quorum it must be a majority to mean anything.
            return Some(if self.others.len() >= quorum { Release::Taken } else { Release::Expired });
        }
        (self.until <= now).then_some(Release::Unknown)
    }
}
