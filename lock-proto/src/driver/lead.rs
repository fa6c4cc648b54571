//! To resign in two steps: the work is asked to stop, it ends, and only then the office is given up (requirement E10).

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::election::Leadership;
use super::guard::{Observer, loss};
use crate::lock::{Loss, Release};
use crate::time::Instant;

/// Whether, and when, the work was asked to stop.
#[derive(Default)]
pub(super) struct Stop {
    /// Nanoseconds; 0 while it was not.
    asked: AtomicU64,
}

impl Stop {
    fn since(&self) -> Option<Instant> {
        match self.asked.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }
}

impl Observer {
    pub(super) fn now(&self) -> Instant {
        self.shared.now()
    }

    /// Has whoever watches this hold look again: now, and once more a TTL after `asked`.
    pub(super) fn wake_watchers(&self, asked: Instant) {
        self.shared.verb(|core, _, batch| {
            batch.changed.push(Arc::clone(&self.ticket));
            core.add_alarm(asked + self.ticket.terms().ttl, &self.ticket);
        });
    }
}

impl Leadership {
    /// Runs `work` for as long as the office is held, and then resigns.
    ///
    /// `work` is given a signal that is raised when it should come to its end: because a [`Resigner`] asked for it, or because renewals
    /// fail and the office will soon be lost. It ends when it is ready; only then the office is given up, so that the next leader does
    /// not begin before. After a [`Resigner`] has asked, it may take as long as the TTL of the lease: then it is dropped where it stands. So it is,
    /// at once, when the office is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and resigns in the background.
    pub async fn lead<W: Future>(self, work: impl FnOnce(StopSignal) -> W) -> Led<W::Output> {
        let signal = StopSignal { observer: self.guard.observer(), stop: Arc::clone(&self.stop) };
        let work = work(signal);
        let ttl = self.guard.ttl();
        let hold = &self.guard.hold;
        let output = hold
            .run(work, |now| {
                let late = || self.stop.since().is_some_and(|asked| now >= asked + ttl);
                loss(&hold.ticket, now).map(Overran::Lost).or_else(|| late().then_some(Overran::Late))
            })
            .await;
        Led { output, release: self.resign().await }
    }

    /// Asks, from elsewhere, that the work of [`lead`](Self::lead) come to its end.
    #[must_use]
    pub fn resigner(&self) -> Resigner {
        Resigner { signal: StopSignal { observer: self.guard.observer(), stop: Arc::clone(&self.stop) } }
    }
}

/// What [`Leadership::lead`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the work may have been ended by the loss of the office"]
pub struct Led<T> {
    /// What the work returned, or why it was ended.
    pub output: Result<T, Overran>,
    /// What became of the office.
    pub release: Release,
}

/// Why the work of a leader was ended before it was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Overran {
    /// The office was lost.
    #[error("the office was lost: {0}")]
    Lost(#[source] Loss),
    /// Asked to stop, it went on for longer than the TTL of the lease.
    #[error("it was asked to stop, and went on for longer than the TTL of the lease")]
    Late,
}

/// Asks the work of [`Leadership::lead`] to come to its end. Cheap to clone, and keeps neither the office nor the client.
#[derive(Clone)]
pub struct Resigner {
    signal: StopSignal,
}

impl Resigner {
    /// Raises the [`StopSignal`]. The office is given up when the work has ended.
    pub fn resign(&self) {
        self.signal.ask();
    }
}

impl fmt::Debug for Resigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resigner").field("asked", &self.signal.stop.since()).finish_non_exhaustive()
    }
}

/// Tells the work of a leader that it should come to its end.
#[derive(Clone)]
pub struct StopSignal {
    observer: Observer,
    stop: Arc<Stop>,
}

impl StopSignal {
    /// Whether the work should come to its end.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.stop.since().is_some() || self.observer.is_at_risk()
    }

    /// Waits until the work should come to its end.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn raised(&self) {
        self.observer.until(|| self.is_raised()).await;
    }

    fn ask(&self) {
        let now = self.observer.now();
        // 0 stands for never.
        let nanos = now.as_nanos().max(1);
        if self.stop.asked.compare_exchange(0, nanos, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.observer.wake_watchers(now);
        }
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopSignal").field("raised", &self.is_raised()).finish_non_exhaustive()
    }
}
