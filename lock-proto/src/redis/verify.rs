//! Verification of held locks after a reconnect: of all holds if the server may be another one,
//! else of those whose renewal failed. The requests in flight per node are bounded, and locks that
//! expire first are verified first.
// Q7

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::request::Reply;
use crate::id::{CallId, NodeId};
use crate::lock::Cause;
use crate::time::Instant;

/// Maximum number of verifications in flight per node.
// P6
const IN_FLIGHT: usize = 256;

/// Pending verifications of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Verifications(BTreeMap<NodeId, Verification>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Verification {
    /// Expiry and slot of each lock whose verification is not yet sent.
    waiting: BTreeSet<(Instant, u32)>,
    /// Calls in flight, each with the lock it verifies.
    in_flight: Vec<(u64, (Instant, u32))>,
}

impl Verifications {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds these locks. Locks left over from an earlier connection remain.
    pub(crate) fn begin(&mut self, node: NodeId, held: impl Iterator<Item = (Instant, u32)>) {
        let held: BTreeSet<_> = held.collect();
        if !held.is_empty() {
            let slots: BTreeSet<u32> = held.iter().map(|(_, slot)| *slot).collect();
            let waiting = &mut self.0.entry(node).or_default().waiting;
            waiting.retain(|(_, slot)| !slots.contains(slot));
            waiting.extend(held);
        }
    }

    /// Returns the next lock to verify, unless too many requests are in flight.
    pub(crate) fn next(&mut self, node: NodeId) -> Option<(Instant, u32)> {
        let verification = self.0.get_mut(&node)?;
        if verification.in_flight.len() >= IN_FLIGHT {
            return None;
        }
        let next = verification.waiting.pop_first();
        if next.is_none() && verification.in_flight.is_empty() {
            self.0.remove(&node);
        }
        next
    }

    /// Records the call that verifies this lock.
    pub(crate) fn sent(&mut self, node: NodeId, serial: u64, lock: (Instant, u32)) {
        if let Some(verification) = self.0.get_mut(&node) {
            verification.in_flight.push((serial, lock));
        }
    }

    /// Handles the reply to a call. Returns true if another lock may be verified now.
    pub(crate) fn answered(&mut self, call: CallId, reply: &Reply) -> bool {
        let Some(verification) = self.0.get_mut(&call.node) else { return false };
        let Some(index) = verification.in_flight.iter().position(|(serial, _)| *serial == call.serial) else {
            return false;
        };
        let (_, lock) = verification.in_flight.swap_remove(index);
        let ended = matches!(reply, Reply::NotSent(_) | Reply::Unknown(Cause::Fault(_)));
        if ended {
            verification.waiting.insert(lock);
        }
        !ended
    }
}
