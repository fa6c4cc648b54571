//! The leases of a client: a shared one, and one for each lock with a separate TTL.
// E1

use core::time::Duration;

use super::Context;
use crate::etcd::request::{LeaseId, Request};
use crate::id::{CallOwner, ClientId, NodeId};
use crate::jitter::mix;
use crate::lock::{Loss, SessionId};

impl Context {
    /// Returns an unused lease id: a hash of the client's random id and a counter.
    // E1
    pub(crate) fn fresh_lease(&mut self) -> LeaseId {
        fresh(self.shared.client, self.shared.next_id())
    }

    /// Sends a request of a session, and returns the serial of its call.
    pub(crate) fn send_for(&mut self, session: SessionId, request: Request, timeout: Duration) -> u64 {
        self.call(CallOwner::Session(session.0), NodeId(0), request, timeout)
    }

    /// Retires a session whose create may still be executed. Its lease gets no new keys.
    // E3
    pub(crate) fn retire(&mut self, id: SessionId) {
        if self.shared.sessions.retire(id) {
            self.shared.own.retired.push(id);
        }
    }

    /// Loses retired sessions that no lock needs.
    pub(crate) fn end_retired(&mut self) {
        let mut place = 0;
        while let Some(id) = self.shared.own.retired.get(place).copied() {
            if self.session(id).is_some_and(|session| session.is_needed()) {
                place += 1;
            } else {
                self.shared.own.retired.swap_remove(place);
                // The remaining users only watch. The last one to leave revokes the lease.
                self.shared.sessions.lose(id, Loss::Expired);
            }
        }
    }
}

fn fresh(client: ClientId, number: u64) -> LeaseId {
    let bits = client.bits();
    LeaseId::from_bits(mix(mix(bits as u64, number) ^ (bits >> 64) as u64, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ids_are_unique_and_positive() {
        // E1
        let ids: alloc::collections::BTreeSet<i64> = [0, 1, 1 << 64, (1 << 64) + 1]
            .into_iter()
            .flat_map(|client| (1..=100).map(move |number| fresh(ClientId::from_bits(client), number).get()))
            .collect();
        assert_eq!((ids.len(), ids.iter().all(|id| *id > 0)), (400, true));
    }
}
