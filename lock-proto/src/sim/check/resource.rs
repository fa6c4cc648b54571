//! What a lock protects: a resource that looks at fencing tokens.

/// Remembers the greatest fencing token, and (for the checker alone) the newest grant whose write it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    greatest: u64,
    newest: u64,
}

impl Resource {
    /// Whether the write is taken, and whether it should not have been: it came after one of a newer grant.
    pub(super) fn write(&mut self, fence: Option<u64>, order: u64) -> (bool, bool) {
        if fence.is_some_and(|fence| fence < self.greatest) {
            return (false, false);
        }
        self.greatest = self.greatest.max(fence.unwrap_or(0));
        let stale = order < self.newest;
        self.newest = self.newest.max(order);
        (true, stale)
    }
}
