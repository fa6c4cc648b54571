//! A key that is first in its queue, and the local holders it is handed over to.
// E7, E8, H5

use bytes::Bytes;

use super::{Bid, Context, LeaseKind, Waiter, Watched};
use crate::etcd::reading::Reading;
use crate::etcd::request::{LeaseId, Queue, Seen};
use crate::lock::{Extends, Fence, LocalGrants, Phase, Retry, SessionId, Tenure};
use crate::time::{Instant, soonest};

/// The key of a holder. Transactions of the application that compare `mod_revision` are executed
/// only while it still holds the lock.
// E8
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OwnerKey {
    /// The key: `name/<lease id>`.
    pub key: Bytes,
    /// Creation revision of the key.
    pub create_revision: i64,
    /// Revision of the key's last change.
    pub mod_revision: i64,
    /// The revision that proved ownership (`ETCD_LOCK_REV` of `etcdctl lock`). It grows each time
    /// another client takes the lock.
    pub revision: i64,
    /// The lease of the key.
    pub lease: LeaseId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    pub(super) value: Bytes,
    /// The value of the last put. `value` may have changed since.
    pub(super) sent: Option<Bytes>,
    /// Deadline of a proclaim; `None` for a take-over.
    pub(super) proclaim: Option<Instant>,
    pub(super) requested_at: Instant,
    pub(super) retry: Retry<WriteCall>,
}

impl Write {
    pub(super) const fn new(now: Instant, value: Bytes) -> Self {
        Self { value, sent: None, proclaim: None, requested_at: now, retry: Retry::new(None) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteCall {
    Put(u64),
    /// Reads the result of a put that ended Unknown.
    // E7
    Look(u64),
}

/// A held key, its lease and its current holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub(super) session: SessionId,
    pub(super) key: Seen,
    pub(super) value: Bytes,
    pub(super) grants: LocalGrants,
    pub(super) tenure: Tenure<Bid>,
    /// The watch on the hold's key. `watch_at` is when to open it.
    pub(super) own: Option<Watched>,
    pub(super) watch_at: Instant,
    /// Tracks whether the key still exists, in case the watch missed its deletion.
    pub(super) reading: Reading,
    /// The application guards transactions by the current revision of the key.
    pub(super) guarded: bool,
    pub(super) write: Option<Write>,
    pub(super) extending: Extends,
}

impl Hold {
    pub(super) fn new(
        ctx: &Context,
        session: SessionId,
        key: Seen,
        revision: i64,
        value: Bytes,
        tenure: Tenure<Bid>,
        own: Option<Watched>,
    ) -> Self {
        let ttl = ctx.ttl(session);
        Self {
            session,
            key,
            value,
            grants: LocalGrants::new(revision, ctx.now + ctx.config.handover_window),
            tenure,
            own,
            watch_at: ctx.now + ctx.config.store.watch_own_after.unwrap_or(ttl / 3),
            reading: Reading::new(revision, 0),
            guarded: false,
            write: None,
            extending: Extends::new(),
        }
    }

    pub(super) fn is_prepared(&self) -> bool {
        self.tenure.phase != Phase::Preparing
    }

    pub(super) fn awaits(&self, serial: u64) -> bool {
        let write = self.write.as_ref().and_then(|write| write.retry.call()).is_some_and(|call| match call {
            WriteCall::Put(own) | WriteCall::Look(own) => own == serial,
        });
        write || self.reading.awaits(serial)
    }

    /// Returns the fencing token.
    // E8
    pub(super) fn fence(&self) -> Fence {
        self.grants.fence()
    }

    pub(super) fn owner_key(&self, queue: &Queue, lease: LeaseId) -> OwnerKey {
        OwnerKey {
            key: queue.key(lease),
            create_revision: self.key.created,
            mod_revision: self.key.modified,
            revision: self.grants.revision,
            lease,
        }
    }

    /// Returns true if the lock may be handed over to `next`.
    // A8
    pub(super) fn may_hand_over(&self, now: Instant, next: &Waiter) -> bool {
        self.write.is_none()
            && self.tenure.waiter.terms.lease == LeaseKind::Shared
            && next.terms.lease == LeaseKind::Shared
            && self.grants.may_hand_over(now)
    }

    pub(super) fn deadline(&self) -> Instant {
        let watch = if self.own.is_none() { self.watch_at } else { Instant::MAX };
        let write = self.write.as_ref().and_then(|write| soonest([write.retry.deadline(), write.proclaim]));
        soonest([Some(watch), self.reading.retry.deadline(), write]).unwrap_or(Instant::MAX)
    }
}
