//! One acquisition, from its wish to its last event.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use crate::lock::Event;
use crate::time::Instant;

/// Where an acquisition stands, by what its application has done and was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It waits for the lock.
    Waiting,
    /// The lock is offered, and not claimed yet.
    Offered,
    /// The lock is held.
    Held,
    /// It was told that the lock is lost, and has not given it back.
    Lost,
    /// It asked to give the lock back, and has no answer yet.
    Releasing,
    /// Nothing more may be told of it: it has ended, or was abandoned.
    Over,
}

impl Stage {
    /// Its application has a guard, of a lock that is held or lost.
    #[must_use]
    pub const fn is_out(self) -> bool {
        matches!(self, Self::Held | Self::Lost)
    }
}

/// What the checker knows of one acquisition that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) key: Arc<[u8]>,
    pub(super) stage: Stage,
    /// When it was wanted.
    pub(super) asked: Instant,
    /// Grows with every wish.
    pub(super) serial: u64,
    /// When it must have been told of an end, in true time: of the wait, of the validity, of the release.
    pub(super) due: Option<Instant>,
    /// It was told `Lost`.
    pub(super) lost: bool,
    /// What it was granted, in the order of the store.
    pub(super) granted: Option<Granted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) fence: Option<u64>,
    pub(super) order: u64,
}

impl Life {
    /// Whether it believes to hold the lock at `now`.
    pub(super) fn holds(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Offered | Stage::Held) && self.due.is_some_and(|until| until > now)
    }

    /// Whether `event` may come now, and where it leads.
    pub(super) fn next(&self, event: &Event) -> Result<Stage, String> {
        use Stage::{Held, Lost, Offered, Over, Releasing, Waiting};
        let stage = self.stage;
        match (event, stage) {
            (Event::Blocked(_), Waiting) => Ok(Waiting),
            (Event::Granted(_), Waiting) => Ok(Offered),
            (Event::Withdrawn, Offered)
            // An offer that a shutdown took back was not acquired.
            | (Event::Failed(_), Waiting | Offered)
            | (Event::Released(_), Releasing) => Ok(Over),
            (Event::Renewed { .. } | Event::AtRisk { .. }, Offered | Held)
            | (Event::Extended | Event::ExtendFailed(_), Held)
            | (Event::Proclaimed { .. } | Event::ProclaimFailed(_), Held) => Ok(stage),
            (Event::Lost(_), Offered | Held) => Ok(Lost),
            // It was over, or about to be, when it was given back, and what is due is said first.
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
