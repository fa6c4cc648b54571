//! What the handles need of a back end's machine, so that they are the same types for all of them.

use core::time::Duration;

use bytes::Bytes;

use crate::error::Misuse;
#[cfg(feature = "grpc")]
use crate::etcd::{self, ElectionEvent, QueryId};
use crate::id::LockId;
use crate::lock::{Acquire, Event};
use crate::time::Instant;

/// A machine, and what it left for the driver to do.
///
/// The driver knows which machine it has; to the handles it is a `dyn Engine`.
pub(super) trait Engine: Send + 'static {
    fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse>;
    /// Stands for election; `None` if the store has no elections.
    fn campaign(&mut self, _: Instant, _: &Acquire, _: Bytes) -> Option<Result<LockId, Misuse>> {
        None
    }
    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;
    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;
    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse>;
    fn abandon(&mut self, now: Instant, lock: LockId);
    fn shutdown(&mut self, now: Instant, within: Duration);
    fn handle_timeout(&mut self, now: Instant);
    fn next_deadline(&self) -> Option<Instant>;
    fn holds_any(&self) -> bool;
    /// Requests that have left and have no answer yet, as far as it is worth counting them.
    fn in_flight(&self) -> usize;
    /// The configured time for a release.
    fn release_within(&self) -> Duration;

    /// The next thing to be told to a handle. What comes before it and only the driver can do is kept for the driver.
    fn poll_told(&mut self) -> Option<Told>;
    /// Whether there is something that only the driver can do.
    fn needs_driver(&mut self) -> bool;

    /// The machine that can do what only etcd can.
    #[cfg(feature = "grpc")]
    fn etcd(&mut self) -> Option<&mut etcd::Client> {
        None
    }
}

/// What a handle is told.
pub(super) enum Told {
    Lock(LockId, Event),
    #[cfg(feature = "grpc")]
    Election(QueryId, ElectionEvent),
}

/// The verbs and the questions that every machine has, for an engine with the machine as its `client`.
macro_rules! common {
    () => {
        fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
            self.client.acquire(now, want)
        }

        fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
            self.client.claim(now, lock)
        }

        fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
            self.client.extend(now, lock)
        }

        fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
            self.client.release(now, lock)
        }

        fn abandon(&mut self, now: Instant, lock: LockId) {
            self.client.abandon(now, lock);
        }

        fn shutdown(&mut self, now: Instant, within: Duration) {
            self.client.shutdown(now, within);
        }

        fn handle_timeout(&mut self, now: Instant) {
            self.client.handle_timeout(now);
        }

        fn next_deadline(&self) -> Option<Instant> {
            self.client.next_deadline()
        }

        fn holds_any(&self) -> bool {
            self.client.holds_any()
        }

        fn release_within(&self) -> Duration {
            self.client.config().release_within
        }
    };
}
pub(super) use common;
