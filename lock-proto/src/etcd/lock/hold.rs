//! Maintaining a hold: writes, reads and watches of its key.
// E6 to E9, H2

use bytes::Bytes;

use super::session::answer;
use super::{Context, Hold, Lock, Watched};
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, LeaseId, Queue, Refusal, Reply, Request};
use crate::lock::{ErrorClass, Loss, Write, Written};

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

pub(super) fn owner_key(queue: &Queue, hold: &Hold, lease: LeaseId) -> Option<OwnerKey> {
    Some(OwnerKey {
        key: queue.key(lease),
        create_revision: hold.node.created,
        mod_revision: hold.node.modified,
        revision: hold.grants.revision,
        lease,
    })
}

impl Context {
    /// Writes this value to the key of a hold, or reads the result of a put that ended Unknown.
    // E7
    pub(super) fn write_key(&mut self, queue: &Queue, hold: &Hold, value: Option<Bytes>) -> Option<u64> {
        let (queue, lease, before) = (queue.clone(), self.lease(hold.session)?, hold.node.created);
        let request = match value {
            Some(value) => Request::Put { queue, lease, value, modified: hold.node.modified, before },
            None => Request::Look { queue, lease, before: None, ahead: None },
        };
        Some(self.send(hold.session, request))
    }
}

impl Lock {
    /// Watches the key of a long hold, and rereads it if needed.
    pub(super) fn watch_key(&mut self, ctx: &mut Context) {
        if let Some(hold) = &mut self.hold
            && hold.watch.own.is_none()
            && hold.watch_at <= ctx.now
            && let Some(lease) = ctx.lease(hold.session)
        {
            // E9
            hold.watch.own = Some(Watched::new(ctx, self.key.key(lease)));
        }
        self.recheck_key(ctx);
    }

    /// Rereads the key if the watch may have missed its deletion.
    pub(super) fn recheck_key(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        let missed = hold.watch.own.is_some_and(|own| own.is_ahead_of(hold.watch.reading.known));
        if !missed {
            return hold.watch.reading.retry.set_due(None);
        }
        if !hold.watch.reading.retry.is_ready(ctx.now) {
            return;
        }
        let Some(lease) = ctx.lease(hold.session) else { return };
        // The watch reports changes from this revision on.
        let opened = hold.watch.own.and_then(|own| own.open).unwrap_or(0);
        let request = Request::Look { queue: self.key.clone(), lease, before: None, ahead: None };
        hold.watch.reading.sent(ctx.send(hold.session, request), opened);
    }

    pub(super) fn own_key_changed(&mut self, ctx: &mut Context, revision: i64, kv: &KeyValue, gone: bool) {
        let Some(hold) = &mut self.hold else { return };
        if gone && revision > hold.node.created {
            return self.lose(ctx, Loss::Gone);
        }
        let ours = hold.write.is_some() || kv.mod_revision <= hold.node.modified;
        if !gone && !ours {
            // Another client wrote the key: attach it to our lease again.
            let value = hold.value.clone();
            hold.node.modified = kv.mod_revision;
            hold.write = Some(Write::new(ctx.now, value).due(ctx.now + ctx.pause(0)));
        }
    }

    pub(super) fn hold_answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        // A read for the watch and a write can be in flight at the same time.
        let for_watch = hold.watch.reading.answered(serial);
        if let Reply::Refused(Refusal::LeaseNotFound) = reply {
            ctx.lost_lease(hold.session);
            return;
        }
        let (revision, done, own) = match reply {
            Reply::Done(Found::Queue { revision, done, own, .. }) => (*revision, *done, *own),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                return self.hold_unanswered(ctx, for_watch, reply);
            }
        };
        let Some(own) = own.filter(|own| own.created == hold.node.created) else {
            return self.lose(ctx, Loss::Gone);
        };
        let reading = &mut hold.watch.reading;
        reading.known = reading.known.max(revision);
        if for_watch {
            // The watch itself reports changes by others. Read again if it was reopened since.
            reading.known = reading.known.max(reading.min_revision);
            return self.recheck_key(ctx);
        }
        let Some(write) = &hold.write else { return };
        hold.node.modified = own.modified;
        // If the revision was outdated, or a put ended Unknown, the one just read serves.
        let put = !write.is_looking() && done;
        self.write_answered(ctx, if put { Written::Done(revision) } else { Written::Read });
    }

    fn hold_unanswered(&mut self, ctx: &mut Context, for_watch: bool, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        self.store.answer = answer(reply);
        let Some(write) = hold.write.as_ref().filter(|_| !for_watch) else {
            // A long pause: the server may be overloaded by many holders.
            hold.watch.reading.retry.set_due(Some(ctx.now + ctx.pause(4)));
            return;
        };
        let written = match reply {
            Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => Written::Refused,
            Reply::Unknown(_) if !write.is_looking() => Written::Unknown,
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => Written::Failed,
        };
        self.write_answered(ctx, written);
    }
}
