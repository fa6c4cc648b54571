//! Finds acquisitions that wait for a lock that their own client holds. Locks are not reentrant: a
//! task that acquires a name that it holds waits for itself, without a limit for ever.
// D9

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::ticket::Ticket;
use lock_proto::{Instant, LockId};

/// A wait is logged after one to two of these.
const PERIOD: Duration = Duration::from_secs(1);

/// Looks at all waits of a client now and then, as long as there are any. A timer for each of a
/// thousand waiters would cost more.
#[derive(Default)]
pub(super) struct OwnWaits {
    check: Option<Instant>,
    /// The waits of the last check.
    seen: BTreeSet<LockId>,
    /// The names that were logged, for as long as somebody waits: a queue of many tasks is logged
    /// once.
    logged: BTreeSet<Arc<[u8]>>,
}

impl OwnWaits {
    /// An acquisition waits for another one of this client.
    pub(super) fn began(&mut self, now: Instant) {
        self.check.get_or_insert(now + PERIOD);
    }

    pub(super) const fn next_check(&self) -> Option<Instant> {
        self.check
    }

    /// Returns the waits to log.
    pub(super) fn check(&mut self, now: Instant, tickets: &[Option<Arc<Ticket>>]) -> Vec<Arc<Ticket>> {
        let (mut waits, mut held) = (Vec::new(), BTreeSet::new());
        for ticket in tickets.iter().flatten() {
            if ticket.waits_in_client() {
                waits.push(ticket);
            } else if ticket.has_guard() {
                held.insert(&ticket.name);
            }
        }
        let names: BTreeSet<_> = waits.iter().map(|ticket| &ticket.name).collect();
        self.logged.retain(|name| names.contains(name));
        let mut found = Vec::new();
        for ticket in &waits {
            let is_old = self.seen.contains(&ticket.lock) && held.contains(&ticket.name);
            if is_old && self.logged.insert(Arc::clone(&ticket.name)) {
                found.push(Arc::clone(ticket));
            }
        }
        self.seen = waits.iter().map(|ticket| ticket.lock).collect();
        let goes_on = waits.iter().any(|ticket| !self.logged.contains(&ticket.name));
        self.check = goes_on.then(|| now + PERIOD);
        found
    }
}
