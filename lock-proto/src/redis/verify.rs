//! Which holds a node has to confirm after a reconnect: all, if it may have become another server (requirement Q7), else those whose
//! renewal failed.
//!
//! A bounded number of requests is in flight for each node, so that a server that has just come back is not flooded by every lock at
//! once. The locks whose validity ends first come first.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::request::Reply;
use crate::id::{CallId, NodeId};
use crate::lock::Cause;
use crate::time::Instant;

/// How many locks of one node are verified at a time.
// P6
const IN_FLIGHT: usize = 256;

/// What is left to verify, of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Verifications(BTreeMap<NodeId, Verification>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Verification {
    /// The end of validity and the slot of each lock that was not asked about.
    waiting: BTreeSet<(Instant, u32)>,
    /// The calls without an answer, and what they are about.
    asked: Vec<(u64, (Instant, u32))>,
}

impl Verifications {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These locks are to be verified. Those that an earlier connection left over still are.
    pub(crate) fn begin(&mut self, node: NodeId, held: impl Iterator<Item = (Instant, u32)>) {
        let held: BTreeSet<_> = held.collect();
        if !held.is_empty() {
            let slots: BTreeSet<u32> = held.iter().map(|(_, slot)| *slot).collect();
            let waiting = &mut self.0.entry(node).or_default().waiting;
            waiting.retain(|(_, slot)| !slots.contains(slot));
            waiting.extend(held);
        }
    }

    /// The next lock to ask about, if another request may be in flight.
    pub(crate) fn next(&mut self, node: NodeId) -> Option<(Instant, u32)> {
        let verification = self.0.get_mut(&node)?;
        if verification.asked.len() >= IN_FLIGHT {
            return None;
        }
        let next = verification.waiting.pop_first();
        if next.is_none() && verification.asked.is_empty() {
            self.0.remove(&node);
        }
        next
    }

    /// The call with this serial asks about this lock.
    pub(crate) fn asked(&mut self, node: NodeId, serial: u64, lock: (Instant, u32)) {
        if let Some(verification) = self.0.get_mut(&node) {
            verification.asked.push((serial, lock));
        }
    }

    /// A call has its answer. Whether another lock may be asked about now. After the end of a connection the rest waits for the next one.
    pub(crate) fn answered(&mut self, call: CallId, reply: &Reply) -> bool {
        let Some(verification) = self.0.get_mut(&call.node) else { return false };
        let Some(place) = verification.asked.iter().position(|(serial, _)| *serial == call.serial) else {
            return false;
        };
        let (_, lock) = verification.asked.swap_remove(place);
        let ended = matches!(reply, Reply::NotSent(_) | Reply::Unknown(Cause::Fault(_)));
        if ended {
            verification.waiting.insert(lock);
        }
        !ended
    }
}
