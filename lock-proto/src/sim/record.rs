//! What a world knows of one acquisition.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::lock::{Acquire, Event, Grant, Renew};
use crate::time::Instant;

/// What was told of an acquisition, and what its application does by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The name under which it is locked, with the prefix.
    pub(super) name: Arc<[u8]>,
    pub(super) events: Vec<Event>,
    /// In true time, as many as `events`.
    pub(super) times: Vec<Instant>,
    pub(super) grant: Option<Grant>,
    pub(super) habits: Habits,
    /// The TTL that was asked for; zero if none was, or if the hold ends by itself.
    pub(super) ttl: Duration,
    /// Extends that are not answered: until when each must count at least, on the client's own
    /// clock.
    pub(super) extends: VecDeque<Instant>,
}

/// What its application does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Habits {
    /// Claim an offer as soon as it comes.
    pub(super) claim: bool,
    /// Give it back this long after the grant.
    pub(super) hold: Option<Duration>,
    /// Look and write this often while it is held.
    pub(super) write_every: Option<Duration>,
}

impl Record {
    pub(super) fn new(name: Arc<[u8]>, want: &Acquire, habits: Habits) -> Self {
        let ttl = match want.renew {
            Renew::Auto | Renew::Manual => want.ttl.unwrap_or_default(),
            Renew::AtMost(_) => Duration::ZERO,
        };
        Self { name, events: Vec::new(), times: Vec::new(), grant: None, habits, ttl, extends: VecDeque::new() }
    }

    /// Its name, to be shown.
    pub(super) fn shown(&self) -> String {
        format!("{}", self.name.escape_ascii())
    }
}
