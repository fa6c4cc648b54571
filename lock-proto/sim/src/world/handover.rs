//! How locks go from one client to another: by wake-up or by polling.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Counts how often a released lock went to another waiting client, by the cause of that client's
/// request. A poll hides a lost wake-up, so on a calm network there are nearly none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handovers {
    /// The store notified it of the release.
    pub woken: u64,
    /// A timer of the client expired.
    pub polled: u64,
    /// Another cause: the client had just begun to wait, or got the reply to an earlier request.
    pub other: u64,
}

impl Handovers {
    pub(super) const fn add(&mut self, cause: CallCause) {
        match cause {
            CallCause::WakeUp => self.woken += 1,
            CallCause::Timer => self.polled += 1,
            CallCause::Application | CallCause::Received => self.other += 1,
        }
    }
}

/// Why a machine was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallCause {
    /// The application called it.
    Application,
    /// A server sent something.
    Received,
    /// A server notified it of a release.
    WakeUp,
    Timer,
}

/// Why a client last requested each lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reasons {
    /// Locks whose release was notified and that were not requested since.
    notified: BTreeSet<Vec<u8>>,
    causes: BTreeMap<Vec<u8>, CallCause>,
}

impl Reasons {
    pub(super) fn notified(&mut self, lock: Vec<u8>) {
        self.notified.insert(lock);
    }

    pub(super) fn requested(&mut self, lock: &[u8], cause: CallCause) {
        let cause = if self.notified.remove(lock) { CallCause::WakeUp } else { cause };
        self.causes.insert(lock.to_vec(), cause);
    }

    pub(super) fn granted(&mut self, lock: &[u8]) -> CallCause {
        self.causes.remove(lock).unwrap_or(CallCause::Received)
    }
}

/// Deletions to remember. Older ones are no longer delivered.
const DELETIONS: usize = 1_000;

/// The clients that reacted to the deletion of a key or node, to check that a release wakes one
/// waiter.
#[derive(Clone, Debug)]
pub(super) struct Woken<D> {
    /// Oldest first.
    clients: VecDeque<(D, BTreeSet<usize>)>,
}

impl<D> Default for Woken<D> {
    fn default() -> Self {
        Self { clients: VecDeque::new() }
    }
}

impl<D: PartialEq> Woken<D> {
    /// Records that a client reacted to a deletion. Returns all that did if there are several.
    pub(super) fn record(&mut self, deletion: D, client: usize) -> Option<&BTreeSet<usize>> {
        let known = self.clients.iter().rposition(|(known, _)| *known == deletion);
        let place = known.unwrap_or_else(|| {
            if self.clients.len() == DELETIONS {
                self.clients.pop_front();
            }
            self.clients.push_back((deletion, BTreeSet::new()));
            self.clients.len() - 1
        });
        let (_, clients) = self.clients.get_mut(place)?;
        clients.insert(client);
        Some(&*clients).filter(|clients| clients.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_client_that_reacts_is_reported_however_many_deletions_were_before() {
        let mut woken = Woken::default();
        // Each is smaller than all before.
        for deletion in (0..3 * DELETIONS).rev() {
            assert_eq!(woken.record(deletion, 1), None);
            assert_eq!(woken.record(deletion, 1), None);
            assert_eq!(woken.record(deletion, 2), Some(&[1, 2].into()), "{deletion}");
        }
        assert_eq!(woken.clients.len(), DELETIONS);
    }
}
