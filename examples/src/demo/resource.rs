//! An exclusive resource: a number that is read and then written, with other tasks running in
//! between.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts its uses, and detects concurrent ones.
#[derive(Debug, Default)]
pub(super) struct Resource {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    value: u64,
    users: u32,
    overlaps: u32,
    greatest_fence: u64,
    writes: u32,
    rejected: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub(super) value: u64,
    pub(super) overlaps: u32,
    pub(super) writes: u32,
    pub(super) rejected: u32,
}

/// Error of a write with an outdated fencing token.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("fencing token {fence} is older than {greatest}")]
pub(super) struct Stale {
    fence: u64,
    greatest: u64,
}

impl Resource {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one, slowly. Without a lock, concurrent users overwrite each other.
    pub(super) async fn add_one(&self, fence: Option<u64>) -> Result<(), Stale> {
        let read = {
            let mut state = self.lock();
            state.users += 1;
            if state.users > 1 {
                state.overlaps += 1;
            }
            state.value
        };
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.lock().users -= 1;
        self.write(read + 1, fence)
    }

    /// Writes the value, unless the fencing token is older than one seen before.
    pub(super) fn write(&self, value: u64, fence: Option<u64>) -> Result<(), Stale> {
        let mut state = self.lock();
        if let Some(fence) = fence {
            let greatest = state.greatest_fence;
            // Equal tokens belong to the same holder.
            if fence < greatest {
                state.rejected += 1;
                return Err(Stale { fence, greatest });
            }
            state.greatest_fence = fence;
        }
        state.value = value;
        state.writes += 1;
        Ok(())
    }

    pub(super) fn value(&self) -> u64 {
        self.lock().value
    }

    pub(super) fn summary(&self) -> Summary {
        let State { value, overlaps, writes, rejected, .. } = *self.lock();
        Summary { value, overlaps, writes, rejected }
    }
}
