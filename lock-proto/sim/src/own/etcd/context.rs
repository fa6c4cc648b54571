//! What an own lock on etcd does.

use super::calls::Calls;
use crate::own;
use lock_proto::etcd::Rpc;

/// What an [`OwnLock`](super::OwnLock) sees and does, during one call.
pub type Context<'a> = own::Context<'a, Calls>;

impl Context<'_> {
    /// Makes a call. `tag` comes back with the reply. Calls may be executed in any order, as etcd
    /// does: wait for the reply if the order counts.
    pub fn call(&mut self, tag: u64, request: impl Into<Rpc>) {
        self.progress.pending += 1;
        self.transport.call(self.now, self.info.id, tag, request.into());
    }

    /// Renews a lease, on the stream that all acquisitions of the client share.
    pub fn keep_alive(&mut self, lease: i64) {
        self.transport.keep_alive(self.now, self.info.id, lease);
    }

    /// Watches a key, from this revision on; 0 for changes from now on. The watch ends with the
    /// acquisition, or with [`unwatch`](Self::unwatch). `tag` comes back with each report.
    pub fn watch(&mut self, tag: u64, key: impl AsRef<[u8]>, from: i64) {
        self.transport.watch(self.now, self.info.id, tag, key.as_ref(), from);
    }

    /// Ends the watches with this tag. They report nothing more.
    pub fn unwatch(&mut self, tag: u64) {
        self.transport.unwatch(self.info.id, Some(tag));
    }

    /// A call needs no reply any more.
    pub(super) const fn answered(&mut self) {
        self.progress.pending = self.progress.pending.saturating_sub(1);
    }
}
