//! The protected resource, which checks fencing tokens.

/// Remembers the greatest fencing token and, only for the checker, the newest grant that wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resource {
    greatest: u64,
    newest: u64,
}

impl Resource {
    /// Returns whether the write is accepted, and whether it is stale: after one of a newer grant.
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
