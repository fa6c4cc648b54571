//! What a world knows of one acquisition.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::event::{Event, Grant};
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
    /// Claim an offer as soon as it comes.
    pub(super) claim: bool,
    /// Give it back this long after the grant.
    pub(super) hold: Option<Duration>,
    /// Look and write this often while it is held.
    pub(super) write_every: Option<Duration>,
}

impl Record {
    pub(super) const fn new(name: Arc<[u8]>, claim: bool, hold: Option<Duration>) -> Self {
        Self { name, events: Vec::new(), times: Vec::new(), grant: None, claim, hold, write_every: None }
    }

    /// Its name, to be shown.
    pub(super) fn shown(&self) -> String {
        format!("{}", self.name.escape_ascii())
    }
}
