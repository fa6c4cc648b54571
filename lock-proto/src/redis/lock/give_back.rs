//! The answer to a release: what the deletes found (requirement U1).

use alloc::vec;
use alloc::vec::Vec;

use super::EndedHold;
use super::debt::Delete;
use crate::id::{LockId, NodeId};
use crate::redis::event::Release;
use crate::redis::request::Reply;
use crate::time::Instant;

/// What the delete found on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Found {
    /// Not asked: the token was never there.
    NotAsked,
    Waiting,
    Mine,
    Absent,
    Others,
}

/// A release whose answer somebody waits for. The deletes themselves are the nodes' debts and go on without it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GiveBack {
    pub(crate) id: LockId,
    pub(crate) number: u64,
    /// When it is answered with what is known.
    pub(crate) until: Instant,
    /// The end of the hold's validity.
    valid_until: Instant,
    /// It was still valid when it was given back.
    valid: bool,
    found: Vec<Found>,
    /// Nodes on which a delete, emitted while the hold was valid, ended Unknown.
    maybe: Vec<bool>,
}

impl GiveBack {
    pub(crate) fn new(now: Instant, hold: &EndedHold, until: Instant, nodes: usize) -> Self {
        let EndedHold { id, number, valid_until, nodes: asked, others } = *hold;
        let found: Vec<Found> = (0..nodes)
            .map(|index| NodeId::new(index as u16))
            .map(|node| match (asked.contains(node), others.contains(node)) {
                (true, _) => Found::Waiting,
                (false, true) => Found::Others,
                (false, false) => Found::NotAsked,
            })
            .collect();
        let maybe = vec![false; found.len()];
        Self { id, number, until, valid_until, valid: now < valid_until, found, maybe }
    }

    /// A delete on `node` has its answer.
    pub(crate) fn answered(&mut self, node: NodeId, delete: Delete, reply: &Reply) {
        let (Some(found), Some(maybe)) = (self.found.get_mut(node.index()), self.maybe.get_mut(node.index())) else {
            return;
        };
        if *found != Found::Waiting || delete.covers < self.number {
            return;
        }
        *found = match reply {
            Reply::Deleted { number } if *number == self.number => Found::Mine,
            // Gone, after a delete of ours that may have done it while the key was still ours.
            Reply::Deleted { .. } | Reply::Absent | Reply::Taken if *maybe => Found::Mine,
            Reply::Deleted { .. } | Reply::Absent => Found::Absent,
            Reply::Taken => Found::Others,
            Reply::Unknown(_) => {
                *maybe |= delete.emitted < self.valid_until;
                return;
            }
            Reply::Granted { .. }
            | Reply::Busy { .. }
            | Reply::Extended
            | Reply::Announced
            | Reply::Rejected(_)
            | Reply::NotSent(_) => return,
        };
    }

    /// The answer, as early as it is certain; at the end of the release's time what is known.
    pub(crate) fn outcome(&self, now: Instant, quorum: usize) -> Option<Release> {
        let count = |wanted: Found| self.found.iter().filter(|found| **found == wanted).count();
        let (mine, waiting, others) = (count(Found::Mine), count(Found::Waiting), count(Found::Others));
        let minority = self.found.len() - quorum;
        // What a minority has not answered yet can keep nobody from the lock.
        if mine >= quorum || (self.valid && mine > 0 && mine + waiting >= quorum && waiting <= minority) {
            return Some(Release::Released);
        }
        if waiting == 0 {
            // Of a single node `others` says it all; of a quorum it must be a majority to mean anything.
            return Some(if others >= quorum { Release::Taken } else { Release::Expired });
        }
        (self.until <= now).then_some(Release::Unknown)
    }
}
