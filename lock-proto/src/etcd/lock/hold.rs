//! Maintaining a hold: writes, reads and watches of its key.
// E6 to E9, H2

use bytes::Bytes;

use super::{Etcd, EtcdCall, EtcdEnv, EtcdHold, WatchedKey};
use crate::etcd::message::KeyValue;
use crate::etcd::reading::QueueReading;
use crate::etcd::request::{Found, LeaseId, Refusal, Reply, Request, SeenRevisions};
use crate::lock::{HoldWrite, Loss, Written};
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

/// The key of a hold, and the watch on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldKey {
    pub(super) seen: SeenRevisions,
    pub(super) watch: Option<WatchedKey>,
    /// Tracks whether the key still exists, in case the watch missed its deletion.
    pub(super) reading: QueueReading,
    /// The last change of this client that was confirmed. A later one may be another client's.
    written: i64,
}

impl HeldKey {
    /// `watch` is an open watch on the key, which was read at `revision`. This client has made the
    /// last change.
    pub(super) const fn new(seen: SeenRevisions, watch: Option<WatchedKey>, revision: i64) -> Self {
        Self { seen, watch, reading: QueueReading::new(revision, 0), written: seen.modified }
    }

    pub(super) fn deadline(hold: &EtcdHold) -> Option<Instant> {
        let open = hold.node.watch.is_none().then_some(hold.watch_at);
        soonest([open, hold.node.reading.retry.deadline()])
    }
}

impl Etcd {
    /// Watches the key of a long hold, and does whatever else is due to keep it.
    pub(super) fn watch_own_key(&mut self, env: &mut EtcdEnv) {
        let Some(hold) = &mut self.hold else { return };
        reattach(hold, env);
        if hold.node.watch.is_none()
            && hold.watch_at <= env.now
            && let Some(lease) = env.lease(hold.session)
        {
            // E9
            hold.node.watch = Some(WatchedKey::new(env, self.key.key(lease)));
        }
        self.recheck_key(env);
    }

    /// Rereads the key if the watch may have missed its deletion.
    pub(super) fn recheck_key(&mut self, env: &mut EtcdEnv) {
        let Some(hold) = &mut self.hold else { return };
        let missed = hold.node.watch.is_some_and(|own| own.is_ahead_of(hold.node.reading.known));
        if !missed {
            return hold.node.reading.retry.set_due(None);
        }
        if !hold.node.reading.retry.is_ready(env.now) {
            return;
        }
        let Some(lease) = env.lease(hold.session) else { return };
        // The watch reports changes from this revision on.
        let opened = hold.node.watch.and_then(|own| own.open).unwrap_or(0);
        let request = Request::look(self.key.clone(), lease);
        self.calls.put(env.send(hold.session, request), EtcdCall::Check);
        hold.node.reading.sent(opened);
    }

    pub(super) fn own_key_changed(&mut self, env: &mut EtcdEnv, revision: i64, kv: &KeyValue, gone: bool) {
        let Some(hold) = &self.hold else { return };
        if env.lease(hold.session).is_none_or(|lease| self.key.key(lease) != kv.key) {
            // `etcd grpc-proxy` may report a change that belongs to another watch.
            return;
        }
        if gone && revision > hold.node.seen.created {
            return self.lost(env, Loss::Gone);
        }
        if !gone {
            self.key_seen(env, kv.mod_revision);
        }
    }

    /// Handles the reply to a write or read of the key. `for_watch`: the read is that of the watch,
    /// which can be in flight at the same time.
    pub(super) fn hold_answered(&mut self, env: &mut EtcdEnv, for_watch: bool, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        if for_watch {
            hold.node.reading.retry.forget_call();
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
        let Some(own) = own.filter(|own| own.created == hold.node.seen.created) else {
            return self.lost(env, Loss::Gone);
        };
        let reading = &mut hold.node.reading;
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
        let known = if done || write.is_looking() { hold.node.seen.modified } else { 0 };
        hold.node.seen.modified = own.modified.max(known);
        let put = !write.is_looking() && done;
        if put {
            hold.node.written = own.modified;
        }
        self.write_answered(env, if put { Written::Done(revision) } else { Written::Read });
        if let Some(hold) = &mut self.hold {
            reattach(hold, env);
        }
    }

    fn key_seen(&mut self, env: &EtcdEnv, modified: i64) {
        let Some(hold) = &mut self.hold else { return };
        hold.node.seen.modified = hold.node.seen.modified.max(modified);
        reattach(hold, env);
    }

    fn hold_unanswered(&mut self, env: &mut EtcdEnv, for_watch: bool, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        self.answer = reply.answer();
        let Some(write) = hold.write.as_ref().filter(|_| !for_watch) else {
            // A long pause: the server may be overloaded by many holders.
            hold.node.reading.retry.set_due(Some(env.now + env.pause(4)));
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
fn reattach(hold: &mut EtcdHold, env: &EtcdEnv) {
    if hold.write.is_none() && hold.node.seen.modified > hold.node.written {
        hold.write = Some(HoldWrite::new(env.now, hold.value.clone()).due(env.now + env.pause(0)));
    }
}
