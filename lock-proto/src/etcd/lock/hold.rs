//! One key that is first in its queue, and the holders that it is passed on to (requirements E7, E8, H5).

use alloc::vec::Vec;
use bytes::Bytes;

use super::sessions::SessionId;
use super::{Bid, Context, LeaseKind, Waiter, Watched};
use crate::etcd::reading::Reading;
use crate::etcd::request::{LeaseId, Queue, Seen};
use crate::lock::{Fence, Phase, Retry, Tenure};
use crate::time::{Instant, soonest};

/// Low bits of a fencing token that count the grants of one turn (requirement E8).
const GRANT_BITS: u32 = 16;

/// The key that a holder has, for transactions of its own on the same etcd: they are executed only while it still holds the lock
/// if they compare `mod_revision` (requirement E8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OwnerKey {
    /// The key: `name/<lease id>`.
    pub key: Bytes,
    /// The revision of its creation.
    pub create_revision: i64,
    /// The revision of its last change.
    pub mod_revision: i64,
    /// The revision at which ownership was proven: what `etcdctl lock` calls `ETCD_LOCK_REV`. It grows with every turn of any client.
    pub revision: i64,
    /// The lease that it hangs on.
    pub lease: LeaseId,
}

/// A write of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    pub(super) value: Bytes,
    /// The value of the last put. Another may be wanted by now.
    pub(super) sent: Option<Bytes>,
    /// Whoever proclaims waits for an answer until then; `None` for taking over.
    pub(super) proclaim: Option<Instant>,
    pub(super) asked: Instant,
    pub(super) retry: Retry<WriteCall>,
}

impl Write {
    /// One that is wanted from now on.
    pub(super) const fn new(now: Instant, value: Bytes) -> Self {
        Self { value, sent: None, proclaim: None, asked: now, retry: Retry::new(None) }
    }
}

/// The request under way for a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteCall {
    Put(u64),
    /// A put ended Unknown: read what came of it (requirement E7).
    Look(u64),
}

/// The holders of this client in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    /// The revision that proves ownership.
    pub(super) revision: i64,
    /// Grants since then.
    pub(super) grants: u64,
    /// When the lock is released even if others of this client wait.
    end: Instant,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub(super) session: SessionId,
    pub(super) key: Seen,
    pub(super) value: Bytes,
    pub(super) turn: Turn,
    pub(super) tenure: Tenure<Bid>,
    /// The watch on the own key, and when it is to be opened.
    pub(super) own: Option<Watched>,
    pub(super) watch_at: Instant,
    /// Whether the key is still there, where the watch may have missed its end.
    pub(super) reading: Reading,
    /// Somebody guards transactions by the key as it is.
    pub(super) guarded: bool,
    pub(super) write: Option<Write>,
    /// When full lives were asked for that are not answered, in order.
    pub(super) extending: Vec<Instant>,
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
            turn: Turn { revision, grants: 0, end: ctx.now + ctx.config.turn },
            tenure,
            own,
            watch_at: ctx.now + ctx.config.store.watch_own_after.unwrap_or(ttl / 3),
            reading: Reading::new(revision, 0),
            guarded: false,
            write: None,
            extending: Vec::new(),
        }
    }

    /// The holder has been notified.
    pub(super) fn is_prepared(&self) -> bool {
        self.tenure.phase != Phase::Preparing
    }

    /// How many of the extends a sign of life answers that was emitted at this instant.
    pub(super) fn asked_by(&self, emitted: Instant) -> usize {
        self.extending.partition_point(|asked| *asked <= emitted)
    }

    pub(super) fn awaits(&self, serial: u64) -> bool {
        let write = self.write.as_ref().and_then(|write| write.retry.call()).is_some_and(|call| match call {
            WriteCall::Put(own) | WriteCall::Look(own) => own == serial,
        });
        write || self.reading.awaits(serial)
    }

    /// The fencing token: the proof's revision and the number of the grant since (requirement E8).
    pub(super) fn fence(&self) -> Fence {
        Fence(self.turn.revision.unsigned_abs() << GRANT_BITS | self.turn.grants)
    }

    pub(super) fn owner_key(&self, queue: &Queue, lease: LeaseId) -> OwnerKey {
        OwnerKey {
            key: queue.key(lease),
            create_revision: self.key.created,
            mod_revision: self.key.modified,
            revision: self.turn.revision,
            lease,
        }
    }

    /// Whether the turn may go on with `next` (requirement A8).
    pub(super) fn may_hand_over(&self, now: Instant, next: &Waiter) -> bool {
        self.write.is_none()
            && self.tenure.waiter.terms.lease == LeaseKind::Shared
            && next.terms.lease == LeaseKind::Shared
            && now < self.turn.end
            && self.turn.grants + 1 < 1 << GRANT_BITS
    }

    /// When the watch on the own key is to be opened, the key to be read, or written.
    pub(super) fn deadline(&self) -> Instant {
        let watch = if self.own.is_none() { self.watch_at } else { Instant::MAX };
        let write = self.write.as_ref().and_then(|write| soonest([write.retry.deadline(), write.proclaim]));
        soonest([Some(watch), self.reading.retry.deadline(), write]).unwrap_or(Instant::MAX)
    }
}
