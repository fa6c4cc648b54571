//! The stages of one acquisition, from the request to the last event.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use lock_proto::Event;
use lock_proto::Instant;

/// The stage of an acquisition, as its application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It is waiting for the lock.
    Waiting,
    /// The lock is offered but not claimed.
    Offered,
    /// The lock is held.
    Held,
    /// It has received `Lost` but has not released the lock.
    Lost,
    /// It is releasing the lock and has no result yet.
    Releasing,
    /// It has ended or was abandoned; no more events may follow.
    Over,
}

impl Stage {
    /// Returns true if the application has a guard, whether the lock is held or lost.
    #[must_use]
    pub const fn has_guard(self) -> bool {
        matches!(self, Self::Held | Self::Lost)
    }
}

/// The checker's view of one acquisition that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acquisition {
    pub(super) key: Arc<[u8]>,
    pub(super) stage: Stage,
    pub(super) requested_at: Instant,
    pub(super) serial: u64,
    /// When the acquisition must have learned of an end (wait, validity or release), in true time.
    pub(super) due: Option<Instant>,
    pub(super) lost: bool,
    /// The grant, in the order of the store.
    pub(super) granted: Option<Granted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) fence: Option<u64>,
    pub(super) order: u64,
}

impl Acquisition {
    pub(super) fn holds(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Offered | Stage::Held) && self.due.is_some_and(|until| until > now)
    }

    /// Returns the stage that `event` leads to, or an error if it may not come now. `stopping`: the
    /// client was shut down.
    pub(super) fn next(&self, event: &Event, stopping: bool) -> Result<Stage, String> {
        use Stage::{Held, Lost, Offered, Over, Releasing, Waiting};
        let stage = self.stage;
        match (event, stage) {
            (Event::Blocked(_), Waiting) => Ok(Waiting),
            (Event::Granted(_), Waiting) => Ok(Offered),
            (Event::Withdrawn, Offered)
            // A shutdown may withdraw an offer.
            | (Event::Failed(_), Waiting | Offered)
            | (Event::Released(_), Releasing) => Ok(Over),
            (Event::Renewed { .. } | Event::AtRisk { .. }, Offered | Held)
            | (Event::Extended | Event::ExtendFailed(_), Held)
            | (Event::Proclaimed { .. } | Event::ProclaimFailed(_), Held) => Ok(stage),
            (Event::Lost(_), Offered | Held) => Ok(Lost),
            // The client stops before the guard is returned.
            (Event::Released(_), Lost) if stopping => Ok(Over),
            // The hold was over, or nearly so, when it was released; overdue events come first.
            (Event::AtRisk { .. } | Event::ProclaimFailed(_), Releasing) => Ok(Releasing),
            (Event::Lost(_), Releasing) if !self.lost => Ok(Releasing),
            (
                Event::Blocked(_)
                | Event::Granted(_)
                | Event::Withdrawn
                | Event::Failed(_)
                | Event::Renewed { .. }
                | Event::Extended
                | Event::ExtendFailed(_)
                | Event::AtRisk { .. }
                | Event::Lost(_)
                | Event::Released(_)
                | Event::Proclaimed { .. }
                | Event::ProclaimFailed(_),
                Waiting | Offered | Held | Lost | Releasing | Over,
            ) => Err(format!("{event:?} came at the stage {stage:?}")),
        }
    }
}
