//! Watching a lock without its guard.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::name::Name;
use super::shared::Shared;
use super::ticket::{HoldState, Ticket, wait_for};
use lock_proto::Loss;

/// Watches a lock without its guard. Cheap to clone, and keeps neither the lock nor the client.
#[derive(Clone)]
pub struct Observer {
    pub(super) shared: Arc<Shared>,
    pub(super) ticket: Arc<Ticket>,
}

impl Observer {
    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.ticket.name
    }

    /// Returns true if the observed guard certainly holds the lock now. Once false, it stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.ticket.is_held(self.shared.now())
    }

    /// How long the lock is certainly held if no further renewal succeeds.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.ticket.remaining(self.shared.now())
    }

    /// Waits until the hold ends. Returns the reason if the lock was lost, `None` if it was
    /// released.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> Option<Loss> {
        wait_for(&self.ticket.changed, || match self.shared.hold_state(&self.ticket) {
            HoldState::Held => None,
            HoldState::Lost(loss) => Some(Some(loss)),
            HoldState::Returned => Some(None),
        })
        .await
    }

    /// Waits until renewals fail and the end of validity is near, or until the hold ends. Wind the
    /// work down then. After a later renewal has succeeded, a new call waits again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn at_risk(&self) {
        self.until(|| self.is_at_risk()).await;
    }

    /// Returns true if renewals fail and the end of validity is near, or the hold has ended.
    pub(super) fn is_at_risk(&self) -> bool {
        self.ticket.is_at_risk(self.shared.is_forked()) || !self.is_held()
    }

    /// Waits for a condition, checked whenever the hold changes.
    pub(super) async fn until(&self, mut holds: impl FnMut() -> bool) {
        wait_for(&self.ticket.changed, || holds().then_some(())).await;
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("name", &Name(self.name()))
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
