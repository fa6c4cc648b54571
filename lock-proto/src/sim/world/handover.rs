//! How locks go from one client to another: by wake-up or by polling.

use alloc::collections::{BTreeMap, BTreeSet};
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
    pub(super) const fn add(&mut self, cause: Cause) {
        match cause {
            Cause::WakeUp => self.woken += 1,
            Cause::Timer => self.polled += 1,
            Cause::Application | Cause::Received => self.other += 1,
        }
    }
}

/// Why a machine was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
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
    causes: BTreeMap<Vec<u8>, Cause>,
}

impl Reasons {
    pub(super) fn notified(&mut self, lock: Vec<u8>) {
        self.notified.insert(lock);
    }

    pub(super) fn requested(&mut self, lock: &[u8], cause: Cause) {
        let cause = if self.notified.remove(lock) { Cause::WakeUp } else { cause };
        self.causes.insert(lock.to_vec(), cause);
    }

    pub(super) fn granted(&mut self, lock: &[u8]) -> Cause {
        self.causes.remove(lock).unwrap_or(Cause::Received)
    }
}
