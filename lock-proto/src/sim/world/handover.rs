//! How locks go from one client to another: by a wake-up, or by a look now and then.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// How often a lock that one client gave back went to another that was waiting for it, by what made
/// that one ask. A poll hides a wake-up that was lost, so on a calm network there are nearly none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handovers {
    /// The store had told it of the release.
    pub woken: u64,
    /// Its own timer.
    pub polled: u64,
    /// Something else: it had just begun to wait, or the answer to an earlier request.
    pub other: u64,
}

impl Handovers {
    pub(super) const fn add(&mut self, cause: Cause) {
        match cause {
            Cause::WakeUp => self.woken += 1,
            Cause::Timer => self.polled += 1,
            Cause::Asked | Cause::Received => self.other += 1,
        }
    }
}

/// Why a machine was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By its application.
    Asked,
    /// Something came from a server.
    Received,
    /// The news of a release.
    WakeUp,
    /// A time has come.
    Timer,
}

/// Why a client last asked for each lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reasons {
    /// A release was told of, and the lock was not asked for since.
    news: BTreeSet<Vec<u8>>,
    asked: BTreeMap<Vec<u8>, Cause>,
}

impl Reasons {
    /// The store tells of a release.
    pub(super) fn news(&mut self, lock: Vec<u8>) {
        self.news.insert(lock);
    }

    /// It asks for the lock.
    pub(super) fn asks(&mut self, lock: &[u8], cause: Cause) {
        let cause = if self.news.remove(lock) { Cause::WakeUp } else { cause };
        self.asked.insert(lock.to_vec(), cause);
    }

    /// It was granted the lock.
    pub(super) fn granted(&mut self, lock: &[u8]) -> Cause {
        self.asked.remove(lock).unwrap_or(Cause::Received)
    }
}
