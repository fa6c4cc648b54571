//! What a world records about one acquisition.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use lock_proto::Instant;
use lock_proto::{Acquire, DEFAULT_TTL, Event, Grant, Renew, Wait};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryRecord {
    /// The key of the lock: its name with the prefix.
    pub(super) name: Arc<[u8]>,
    /// The name as the application knows it.
    pub(super) wanted_name: Arc<[u8]>,
    pub(super) requested: Instant,
    pub(super) events: Vec<Event>,
    /// The true time of each of `events`.
    pub(super) times: Vec<Instant>,
    pub(super) grant: Option<Grant>,
    pub(super) wait: Wait,
    pub(super) wanted_ttl: Duration,
    pub(super) habits: RecordHabits,
    /// The client renews the lock until its release.
    pub(super) renewed: bool,
    /// The requested TTL. Zero if none was requested, or if the hold ends by itself.
    pub(super) ttl: Duration,
    /// For each pending extend, the earliest acceptable end of validity on the client's clock.
    pub(super) extends: VecDeque<Instant>,
    /// A proclaim has no answer yet.
    pub(super) proclaims: bool,
}

/// What the application does automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHabits {
    /// Claim an offer this long after it arrives.
    pub(super) claim: Option<Duration>,
    /// Release the lock this long after the grant.
    pub(super) hold: Option<Duration>,
    /// Write to the resource at this interval while the lock is held.
    pub(super) write_every: Option<Duration>,
}

impl HistoryRecord {
    pub(super) fn new(requested: Instant, name: Arc<[u8]>, want: &Acquire, habits: RecordHabits) -> Self {
        let ttl = match want.renew {
            Renew::Auto | Renew::Manual => want.ttl.unwrap_or_default(),
            Renew::AtMost(_) => Duration::ZERO,
        };
        let renewed = want.renew == Renew::Auto;
        let wanted_name = want.name.clone();
        let wanted_ttl = want.ttl.unwrap_or(DEFAULT_TTL);
        let (events, times, extends) = (Vec::new(), Vec::new(), VecDeque::new());
        Self {
            name,
            wanted_name,
            requested,
            events,
            times,
            grant: None,
            wait: want.wait,
            wanted_ttl,
            habits,
            renewed,
            ttl,
            extends,
            proclaims: false,
        }
    }

    /// Returns the end of validity that the application was told last.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        self.events.iter().rev().find_map(end_of_validity)
    }

    /// Returns when the application was last told that it holds the lock.
    pub(super) fn confirmed(&self) -> Option<Instant> {
        let mut told = self.events.iter().zip(&self.times).rev();
        told.find(|(event, _)| end_of_validity(event).is_some()).map(|(_, at)| *at)
    }

    pub(super) fn escaped_name(&self) -> String {
        format!("{}", self.name.escape_ascii())
    }
}

/// Returns the end of validity by the client's clock, if the event has one.
pub(super) const fn end_of_validity(event: &Event) -> Option<Instant> {
    let (Event::Granted(Grant { valid_until, .. }) | Event::Renewed { valid_until }) = event else { return None };
    Some(*valid_until)
}
