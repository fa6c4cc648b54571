//! Maintaining a hold: writes, reads and watches of its key.
// E6 to E9, H2

use bytes::Bytes;

use super::{Env, Etcd, EtcdCall, Hold, Keys, Watched};
use crate::etcd::message::KeyValue;
use crate::etcd::reading::Reading;
use crate::etcd::request::{Found, LeaseId, Queue, Refusal, Reply, Request, Seen};
use crate::lock::{Keep, Loss, Write, Written};
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

impl OwnerKey {
    /// Creates the key of a holder, for a client of your own. `mod_revision` proves ownership.
    #[must_use]
    pub const fn new(key: Bytes, create_revision: i64, mod_revision: i64, lease: LeaseId) -> Self {
        Self { key, create_revision, mod_revision, revision: mod_revision, lease }
    }
}

/// The watch on the key of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldWatch {
    pub(super) own: Option<Watched>,
    /// Tracks whether the key still exists, in case the watch missed its deletion.
    pub(super) reading: Reading,
    /// The last change of this client that was confirmed. A later one may be another client's.
    written: i64,
}

impl HoldWatch {
    /// `own` is an open watch on the key, which this client last changed at `written`. It was read
    /// at `revision`.
    pub(super) const fn new(own: Option<Watched>, revision: i64, written: i64) -> Self {
        Self { own, reading: Reading::new(revision, 0), written }
    }
}

impl Keep<Keys> for HoldWatch {
    fn work(queued: &mut Etcd, env: &mut Env) {
        let Some(hold) = &mut queued.hold else { return };
        reattach(hold, env);
        if hold.watch.own.is_none()
            && hold.watch_at <= env.now
            && let Some(lease) = env.lease(hold.session)
        {
            // E9
            hold.watch.own = Some(Watched::new(env, queued.key.key(lease)));
        }
        queued.recheck_key(env);
    }

    fn deadline(hold: &Hold) -> Option<Instant> {
        let open = hold.watch.own.is_none().then_some(hold.watch_at);
        soonest([open, hold.watch.reading.retry.deadline()])
    }

    /// Reads the result of a put that ended Unknown.
    // E7
    fn write(queued: &mut Etcd, env: &mut Env, value: Option<Bytes>) -> bool {
        let Some(hold) = &queued.hold else { return false };
        let Some(lease) = env.lease(hold.session) else { return false };
        let (queue, Seen { created: before, modified }) = (queued.key.clone(), hold.node);
        let (call, request) = match value {
            Some(value) => (EtcdCall::Write, Request::Put { queue, lease, value, modified, before }),
            None => (EtcdCall::Read, Request::look(queue, lease)),
        };
        queued.calls.put(env.send(hold.session, request), call);
        true
    }

    fn owner(queue: &Queue, hold: &Hold, env: &Env) -> Option<OwnerKey> {
        let lease = env.lease(hold.session)?;
        Some(OwnerKey {
            key: queue.key(lease),
            create_revision: hold.node.created,
            mod_revision: hold.node.modified,
            revision: hold.grants.revision,
            lease,
        })
    }
}

impl Etcd {
    /// Rereads the key if the watch may have missed its deletion.
    pub(super) fn recheck_key(&mut self, env: &mut Env) {
        let Some(hold) = &mut self.hold else { return };
        let missed = hold.watch.own.is_some_and(|own| own.is_ahead_of(hold.watch.reading.known));
        if !missed {
            return hold.watch.reading.retry.set_due(None);
        }
        if !hold.watch.reading.retry.is_ready(env.now) {
            return;
        }
        let Some(lease) = env.lease(hold.session) else { return };
        // The watch reports changes from this revision on.
        let opened = hold.watch.own.and_then(|own| own.open).unwrap_or(0);
        let request = Request::look(self.key.clone(), lease);
        self.calls.put(env.send(hold.session, request), EtcdCall::Check);
        hold.watch.reading.sent(opened);
    }

    pub(super) fn own_key_changed(&mut self, env: &mut Env, revision: i64, kv: &KeyValue, gone: bool) {
        let Some(hold) = &self.hold else { return };
        if env.lease(hold.session).is_none_or(|lease| self.key.key(lease) != kv.key) {
            // `etcd grpc-proxy` may report a change that belongs to another watch.
            return;
        }
        if gone && revision > hold.node.created {
            return self.lost(env, Loss::Gone);
        }
        if !gone {
            self.key_seen(env, kv.mod_revision);
        }
    }

    /// Handles the reply to a write or read of the key. `for_watch`: the read is that of the watch,
    /// which can be in flight at the same time.
    pub(super) fn hold_answered(&mut self, env: &mut Env, for_watch: bool, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        if for_watch {
            hold.watch.reading.retry.forget_call();
        }
        if let Reply::Refused(Refusal::LeaseNotFound) = reply {
            env.lost_lease(hold.session);
            return;
        }
        let (revision, done, own) = match reply {
            Reply::Done(Found::Queue { revision, done, own, .. }) => (*revision, *done, *own),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                return self.hold_unanswered(env, for_watch, reply);
            }
        };
        let Some(own) = own.filter(|own| own.created == hold.node.created) else {
            return self.lost(env, Loss::Gone);
        };
        let reading = &mut hold.watch.reading;
        reading.known = reading.known.max(revision);
        if for_watch {
            // Read again if the watch was reopened since.
            reading.known = reading.known.max(reading.min_revision);
            self.key_seen(env, own.modified);
            return self.recheck_key(env);
        }
        let Some(write) = &hold.write else { return };
        // If the revision was outdated, or a put ended Unknown, the one just read serves. A put
        // that failed disproves the known one, which may be too high if the store was restored.
        let known = if done || write.is_looking() { hold.node.modified } else { 0 };
        hold.node.modified = own.modified.max(known);
        let put = !write.is_looking() && done;
        if put {
            hold.watch.written = own.modified;
        }
        self.write_answered(env, if put { Written::Done(revision) } else { Written::Read });
        if let Some(hold) = &mut self.hold {
            reattach(hold, env);
        }
    }

    fn key_seen(&mut self, env: &Env, modified: i64) {
        let Some(hold) = &mut self.hold else { return };
        hold.node.modified = hold.node.modified.max(modified);
        reattach(hold, env);
    }

    fn hold_unanswered(&mut self, env: &mut Env, for_watch: bool, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        self.answer = reply.answer();
        let Some(write) = hold.write.as_ref().filter(|_| !for_watch) else {
            // A long pause: the server may be overloaded by many holders.
            hold.watch.reading.retry.set_due(Some(env.now + env.pause(4)));
            return;
        };
        let written = match reply {
            Reply::Refused(_) if reply.is_refusal() => Written::Refused,
            Reply::Unknown(_) if !write.is_looking() => Written::Unknown,
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => Written::Failed,
        };
        self.write_answered(env, written);
    }
}

/// Attaches the key to its lease again if another client wrote it. While a write is pending, its
/// reply shows whether that was this one.
fn reattach(hold: &mut Hold, env: &Env) {
    if hold.write.is_none() && hold.node.modified > hold.watch.written {
        hold.write = Some(Write::new(env.now, hold.value.clone()).due(env.now + env.pause(0)));
    }
}
