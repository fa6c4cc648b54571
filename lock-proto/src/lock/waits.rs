//! When waits run out.

use alloc::collections::BTreeSet;

use crate::id::LockId;
use crate::time::Instant;

/// The ends of the waits that have one, earliest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waits(BTreeSet<(Instant, LockId)>);

impl Waits {
    pub(crate) const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// A wait begins, which may have an end.
    pub(crate) fn begin(&mut self, id: LockId, end: Option<Instant>) {
        if let Some(end) = end {
            self.0.insert((end, id));
        }
    }

    /// The wait that began so is over.
    pub(crate) fn end(&mut self, id: LockId, end: Option<Instant>) {
        if let Some(end) = end {
            self.0.remove(&(end, id));
        }
    }

    /// All are over.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// When the next one runs out.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.0.first().map(|(end, _)| *end)
    }

    /// Takes out one that has run out.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<LockId> {
        self.next_end().filter(|end| *end <= now)?;
        self.0.pop_first().map(|(_, id)| id)
    }
}
