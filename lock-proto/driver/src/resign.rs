//! Resigning in two steps: stop the work, then give up the leadership.
// E10

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::election::Leadership;
use super::observer::Observer;
use lock_proto::Instant;
use lock_proto::{Loss, Release};

/// Stop request for the work of a leader.
#[derive(Default)]
pub(super) struct StopRequest {
    /// When it was made, in nanoseconds. 0 if it was not.
    made_at: AtomicU64,
}

impl StopRequest {
    fn since(&self) -> Option<Instant> {
        match self.made_at.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }
}

impl Observer {
    /// Wakes the watchers of this hold now, and again a TTL after `requested`.
    pub(super) fn wake_watchers(&self, requested: Instant) {
        self.shared.verb(|core, now, batch| {
            if self.ticket.is_held(now) {
                batch.changed.push(Arc::clone(&self.ticket));
                core.alarms.push((requested + self.ticket.terms().ttl, Arc::clone(&self.ticket)));
            }
        });
    }
}

impl Leadership {
    /// Runs `work` while this client leads, then resigns.
    ///
    /// `work` receives a signal that is raised when it should stop: by a [`ResignHandle`], or
    /// because renewals fail and the leadership will soon be lost. The leader resigns only when
    /// `work` has completed, so that the next leader does not begin earlier. After a request by a
    /// [`ResignHandle`], `work` has one TTL to complete; then it is dropped. If the
    /// leadership is lost, it is dropped at once.
    ///
    /// The output follows the resignation, which takes up to the setting `release_within` (2 s) if
    /// no server answers. To act on a loss at once, await [`Observer::lost`] in another task.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and resigns in the background.
    pub async fn lead<W: Future>(self, work: impl FnOnce(StopSignal) -> W) -> LeadershipEnd<W::Output> {
        let signal = StopSignal { observer: self.guard.observer(), stop: Arc::clone(&self.stop) };
        let work = work(signal);
        let ttl = self.guard.ttl();
        let hold = &self.guard.hold;
        let output = hold
            .run(work, || {
                let late = || self.stop.since().is_some_and(|requested| hold.now() >= requested + ttl);
                hold.loss().map(LeadError::Lost).or_else(|| late().then_some(LeadError::Late))
            })
            .await;
        LeadershipEnd { output, release: self.resign().await }
    }

    /// A handle to stop the work of [`lead`](Self::lead) from elsewhere.
    #[must_use]
    pub fn resign_handle(&self) -> ResignHandle {
        ResignHandle { signal: StopSignal { observer: self.guard.observer(), stop: Arc::clone(&self.stop) } }
    }
}

/// What [`Leadership::lead`] returns: the output of the work, and the outcome of the resignation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the work may have been ended by the loss of the leadership"]
pub struct LeadershipEnd<T> {
    /// The output of the work, or why it was ended.
    pub output: Result<T, LeadError>,
    /// The outcome of the resignation.
    pub release: Release,
}

/// Why the work of a leader was dropped before it completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LeadError {
    /// The leadership was lost.
    #[error("the leadership was lost: {0}")]
    Lost(Loss),
    /// The work did not complete within one TTL after a [`ResignHandle`] asked it to stop.
    #[error("the work did not stop within the TTL of the leadership")]
    Late,
}

/// Stops the work of [`Leadership::lead`]. Cheap to clone. Does not keep the client alive.
#[derive(Clone)]
pub struct ResignHandle {
    signal: StopSignal,
}

impl ResignHandle {
    /// Raises the [`StopSignal`]. Later calls do nothing. Does not wait: the leader resigns when
    /// the work has completed, or a TTL later.
    pub fn resign(&self) {
        self.signal.raise();
    }
}

impl fmt::Debug for ResignHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResignHandle").field("requested", &self.signal.stop.since()).finish_non_exhaustive()
    }
}

/// Signals the work of a leader to stop.
#[derive(Clone)]
pub struct StopSignal {
    observer: Observer,
    stop: Arc<StopRequest>,
}

impl StopSignal {
    /// Returns true if the work should stop.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.stop.since().is_some() || self.observer.is_at_risk()
    }

    /// Waits until the work should stop.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn raised(&self) {
        self.observer.until(|| self.is_raised()).await;
    }

    fn raise(&self) {
        let now = self.observer.shared.now();
        // 0 means never.
        let nanos = now.as_nanos().max(1);
        if self.stop.made_at.compare_exchange(0, nanos, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.observer.wake_watchers(now);
        }
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopSignal").field("raised", &self.is_raised()).finish_non_exhaustive()
    }
}
