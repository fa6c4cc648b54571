//! The leases of a client: a shared one, and one for each lock with a separate TTL.
// E1

use core::time::Duration;

use super::EtcdEnv;
use crate::etcd::request::{LeaseId, Request};
use crate::id::{CallOwner, ClientId, NodeId};
use crate::jitter::mix;
use crate::lock::SessionId;

impl EtcdEnv {
    /// Returns an unused lease id: a hash of the client's random id and a counter.
    // E1
    pub(crate) fn fresh_lease(&mut self) -> LeaseId {
        fresh(self.shared.client, self.shared.next_id())
    }

    /// Sends a request of a session, and returns the serial of its call.
    pub(crate) fn send_for(&mut self, session: SessionId, request: Request, timeout: Duration) -> u64 {
        self.call(CallOwner::Session(session.0), NodeId(0), request, timeout)
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
