//! What is owed to the store: keys that must go, whatever becomes of whoever put them there (requirements E3, E6, U1).
//!
//! There is one debt for each lease under whose key something may be left. It ends by a confirmed delete; if a create of ours may still
//! be under way, the key is watched after that, and what appears is deleted: for one more TTL, and if it may still be under way then (a
//! member can sit on a request for as long as it is cut off), until the lease is revoked, which is then done as soon as nothing else
//! hangs on it. A key on a lease that is gone is gone with it, so a lost session clears its debts, and what is left of them goes when its
//! lease is revoked.

use super::sessions::SessionId;
use super::{Contention, Context, Lock};
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, Refusal, Reply, Request, Seen};
use crate::etcd::seam::WatchId;
use crate::lock::{Release, Retry};
use crate::time::Instant;

/// A request about the key that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CleanupCall {
    serial: u64,
    emitted: Instant,
    kind: Kind,
    /// The key was written meanwhile, as was told on another way: the answer may be older.
    overtaken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// An attempt that nobody waits for any more.
    Create,
    /// A write of the key that nobody waits for any more.
    Put,
    Look,
    Delete,
}

impl CleanupCall {
    const fn new(serial: u64, emitted: Instant, kind: Kind) -> Self {
        Self { serial, emitted, kind, overtaken: false }
    }

    pub(super) const fn create(serial: u64) -> Self {
        Self::new(serial, Instant::ZERO, Kind::Create)
    }

    pub(super) const fn put(serial: u64) -> Self {
        Self::new(serial, Instant::ZERO, Kind::Put)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Todo {
    /// The key is in use: nothing to do until it is left.
    Rest,
    /// Find out whether it is there.
    Look,
    /// Delete it, if its last change is this one.
    Delete(i64),
    /// It is gone, but may come back: watch it until then, or as long as the lease lives.
    Watch {
        watch: Option<WatchId>,
        until: Option<Instant>,
    },
    Nothing,
}

/// What is owed under one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cleanup {
    pub(super) session: SessionId,
    todo: Todo,
    /// The key may be there when it is left, whatever comes: a create may yet land, or an end was not confirmed.
    unsettled: bool,
    retry: Retry<CleanupCall>,
}

impl Cleanup {
    const fn new(session: SessionId) -> Self {
        Self { session, todo: Todo::Rest, unsettled: false, retry: Retry::new(None) }
    }

    pub(super) fn awaits(&self, serial: u64) -> bool {
        self.retry.call().is_some_and(|call| call.serial == serial)
    }

    /// A request is under way whose answer says whether the key is there.
    pub(super) const fn is_busy(&self) -> bool {
        self.retry.is_in_flight()
    }

    pub(super) const fn is_only_a_watch(&self) -> bool {
        !self.is_busy() && matches!(self.todo, Todo::Watch { .. } | Todo::Nothing)
    }

    /// A watch for as long as the lease lives: the sooner that ends, the better.
    pub(super) const fn is_for_good(&self) -> bool {
        !self.is_busy() && matches!(self.todo, Todo::Watch { until: None, .. })
    }

    pub(super) fn watches(&self, id: WatchId) -> bool {
        matches!(self.todo, Todo::Watch { watch: Some(watch), .. } if watch == id)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.is_busy() {
            return None;
        }
        match self.todo {
            Todo::Look | Todo::Delete(_) => self.retry.due(),
            Todo::Watch { until, .. } => until.max(self.retry.due().filter(|_| until.is_some())),
            Todo::Rest | Todo::Nothing => None,
        }
    }

    /// From now on this is to be done. A watch that is not part of it any more is closed.
    fn set(&mut self, ctx: &mut Context, todo: Todo) {
        let stays = matches!(todo, Todo::Watch { .. });
        if let Todo::Watch { watch: Some(watch), .. } = self.todo
            && !stays
        {
            ctx.close_watch(watch);
        }
        self.todo = todo;
    }
}

impl Lock {
    fn cleanup(&mut self, session: SessionId) -> &mut Cleanup {
        let place = self.store.cleanups.iter().position(|cleanup| cleanup.session == session).unwrap_or_else(|| {
            self.store.cleanups.push(Cleanup::new(session));
            self.store.cleanups.len() - 1
        });
        &mut self.store.cleanups[place]
    }

    /// The key is there, its last change is `modified`, and it must go.
    pub(super) fn schedule_key(&mut self, ctx: &mut Context, session: SessionId, modified: i64) {
        self.schedule(ctx, session, Todo::Delete(modified));
    }

    /// The key was there, and nobody wants it any more.
    pub(super) fn schedule_look(&mut self, ctx: &mut Context, session: SessionId) {
        self.schedule(ctx, session, Todo::Look);
    }

    fn schedule(&mut self, ctx: &mut Context, session: SessionId, todo: Todo) {
        let cleanup = self.cleanup(session);
        cleanup.set(ctx, todo);
        cleanup.retry.set_due(None);
        cleanup.retry.succeeded();
        self.work(ctx, session);
    }

    /// A request is under way for a key that nobody wants any more.
    pub(super) fn schedule_call(&mut self, ctx: &mut Context, session: SessionId, call: CleanupCall) {
        let cleanup = self.cleanup(session);
        cleanup.set(ctx, Todo::Look);
        cleanup.retry.sent(CleanupCall { emitted: ctx.now, ..call });
    }

    /// The key is there, or may yet be, and an attempt goes on that will find out.
    pub(super) fn schedule_unsettled(&mut self, ctx: &Context, session: SessionId) {
        if !ctx.session(session).is_some_and(|found| found.is_gone()) {
            self.cleanup(session).unsettled = true;
        }
    }

    /// The key is wanted again: what is owed rests until it is left.
    pub(super) fn rest_cleanup(&mut self, ctx: &mut Context, session: SessionId) {
        let Some(cleanup) = self.store.cleanups.iter_mut().find(|cleanup| cleanup.session == session) else { return };
        // What has not been found out yet may be there still when the key is left.
        cleanup.unsettled |= matches!(cleanup.todo, Todo::Look | Todo::Delete(_));
        cleanup.set(ctx, Todo::Rest);
        self.store.cleanups.retain(|cleanup| cleanup.session != session || cleanup.unsettled);
    }

    /// The key is left, and it is not known whether it is there.
    pub(super) fn wake_cleanup(&mut self, ctx: &mut Context, session: SessionId) {
        if self.store.cleanups.iter().any(|cleanup| cleanup.session == session && cleanup.todo == Todo::Rest) {
            self.schedule_look(ctx, session);
        }
    }

    /// Sends what is to be sent now.
    fn work(&mut self, ctx: &mut Context, session: SessionId) {
        let Some(lease) = ctx.lease(session) else { return };
        let (queue, now) = (self.key.clone(), ctx.now);
        let cleanup = self.cleanup(session);
        if !cleanup.retry.is_ready(now) {
            return;
        }
        let (kind, request) = match &mut cleanup.todo {
            Todo::Look => (Kind::Look, Request::Look { queue, lease, before: None, ahead: None }),
            Todo::Delete(modified) => (Kind::Delete, Request::Delete { queue, lease, modified: *modified }),
            Todo::Watch { watch: watch @ None, .. } => {
                *watch = Some(ctx.open_watch(queue.key(lease)));
                return;
            }
            // Once more at its end.
            Todo::Watch { until: Some(until), .. } if *until <= now => {
                (Kind::Look, Request::Look { queue, lease, before: None, ahead: None })
            }
            Todo::Watch { .. } | Todo::Rest | Todo::Nothing => return,
        };
        self.ask(ctx, session, kind, request);
    }

    fn ask(&mut self, ctx: &mut Context, session: SessionId, kind: Kind, request: Request) {
        let serial = ctx.send(session, request);
        self.cleanup(session).retry.sent(CleanupCall::new(serial, ctx.now, kind));
    }

    pub(super) fn cleanups_due(&mut self, ctx: &mut Context) {
        let due = |cleanup: &&Cleanup| cleanup.deadline().is_some_and(|at| at <= ctx.now);
        let sessions: alloc::vec::Vec<_> =
            self.store.cleanups.iter().filter(due).map(|cleanup| cleanup.session).collect();
        for session in sessions {
            self.work(ctx, session);
        }
    }

    pub(super) fn cleanup_answered(&mut self, ctx: &mut Context, place: usize, reply: &Reply) {
        let Some(cleanup) = self.store.cleanups.get_mut(place) else { return };
        let Some(call) = cleanup.retry.answered(|_| true) else { return };
        let session = cleanup.session;
        match reply {
            Reply::Done(Found::Queue { own, done, others, .. }) => {
                // A delete that was not done is tried again at once, but not in a circle.
                if call.kind == Kind::Delete && own.is_some() {
                    cleanup.retry.failed(ctx.now);
                } else {
                    cleanup.retry.succeeded();
                }
                cleanup.retry.set_due(cleanup.retry.tries().checked_sub(2).map(|tries| ctx.now + ctx.pause(tries)));
                let deleted = *done && call.kind == Kind::Delete;
                if let Some(kept) = self.store.kept.as_mut().filter(|_| deleted) {
                    kept.released(ctx.now, ctx.now.since(call.emitted));
                }
                if own.is_none() {
                    self.deleted(ctx, session, deleted, *others);
                }
                self.seen(ctx, session, call.kind, *own);
                if own.is_none() && call.overtaken {
                    self.read_cleanup(ctx, place);
                }
            }
            // A create or a write that was not executed leaves what was there before.
            Reply::Refused(_) | Reply::NotSent(_) if call.kind == Kind::Create && !cleanup.unsettled => {
                cleanup.set(ctx, Todo::Nothing);
            }
            Reply::Refused(Refusal::LeaseNotFound) => ctx.lost_lease(session),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                if let Reply::Unknown(_) = reply {
                    cleanup.unsettled |= call.kind == Kind::Create;
                    for release in self.releases.iter_mut().map(|release| &mut release.store) {
                        let ours = release.session == session && call.emitted < release.valid_until;
                        release.maybe |= ours && call.kind == Kind::Delete;
                    }
                }
                cleanup.retry.failed(ctx.now + ctx.pause(cleanup.retry.tries()));
                // A lost lease is revoked when nothing is left of it: that is tried once, and ends it all.
                if ctx.session(session).is_none_or(|found| found.is_lost()) {
                    cleanup.set(ctx, Todo::Nothing);
                }
            }
        }
        self.drop_paid();
        self.enter_cleared(ctx, session);
    }

    /// The key was seen, there or not there.
    fn seen(&mut self, ctx: &mut Context, session: SessionId, kind: Kind, own: Option<Seen>) {
        let found = ctx.session(session);
        let lost = found.is_none_or(|found| found.is_lost());
        let until = found.is_some_and(|found| !found.retired).then(|| ctx.now + ctx.ttl(session));
        let cleanup = self.cleanup(session);
        let todo = match (own, cleanup.todo) {
            (Some(own), _) => Todo::Delete(own.modified),
            // Long enough for most, but no time is long enough to be sure.
            (None, Todo::Watch { until: Some(until), watch }) if until <= ctx.now => {
                ctx.shared.sessions.retire(session);
                Todo::Watch { watch, until: None }
            }
            (None, watch @ Todo::Watch { .. }) => watch,
            (None, _) if cleanup.unsettled && !lost => Todo::Watch { watch: None, until },
            (None, _) => Todo::Nothing,
        };
        cleanup.set(ctx, todo);
        // A read that a waiter of ours has been waiting for comes first; it knows best what to do about the key.
        if kind != Kind::Look || own.is_none() || !self.clears(session) {
            self.work(ctx, session);
        }
    }

    /// Whether the head waits for this debt.
    fn clears(&self, session: SessionId) -> bool {
        matches!(&self.contention, Contention::Entering(enter) if enter.session == session)
    }

    /// Reads the key that is watched. What happened before the watch was open is not told.
    pub(super) fn read_cleanup(&mut self, ctx: &mut Context, place: usize) {
        let Some(cleanup) = self.store.cleanups.get_mut(place).filter(|cleanup| !cleanup.is_busy()) else { return };
        let (session, queue) = (cleanup.session, self.key.clone());
        let Some(lease) = ctx.lease(session) else { return };
        self.ask(ctx, session, Kind::Look, Request::Look { queue, lease, before: None, ahead: None });
    }

    pub(super) fn cleanup_changed(&mut self, ctx: &mut Context, place: usize, kv: &KeyValue, gone: bool) {
        if gone {
            return;
        }
        let Some(cleanup) = self.store.cleanups.get_mut(place) else { return };
        if let Some(call) = cleanup.retry.call() {
            cleanup.retry.sent(CleanupCall { overtaken: true, ..call });
            return;
        }
        let Todo::Watch { .. } = cleanup.todo else { return };
        let session = cleanup.session;
        self.schedule(ctx, session, Todo::Delete(kv.mod_revision));
    }

    /// The lease is lost: its keys go with it.
    pub(super) fn cleanups_lost(&mut self, ctx: &mut Context, session: SessionId) {
        let gone = ctx.session(session).is_none_or(|found| found.is_gone());
        for cleanup in self.store.cleanups.iter_mut().filter(|cleanup| cleanup.session == session) {
            // A delete under way still answers a release, unless there can be nothing to delete.
            if gone || cleanup.retry.call().is_none_or(|call| call.kind != Kind::Delete) {
                cleanup.retry.forget_call();
                cleanup.set(ctx, Todo::Nothing);
            }
            cleanup.unsettled = false;
        }
        if gone {
            self.deleted(ctx, session, false, false);
        }
        self.drop_paid();
    }

    fn drop_paid(&mut self) {
        self.store.cleanups.retain(|cleanup| {
            cleanup.is_busy() || cleanup.unsettled || !matches!(cleanup.todo, Todo::Nothing | Todo::Rest)
        });
    }

    // --- releases ---

    /// Answers the releases of a key that is gone: deleted by us, or found absent.
    pub(super) fn deleted(&mut self, ctx: &mut Context, session: SessionId, done: bool, others: bool) {
        let of_session = self.releases.iter_mut().map(|release| &mut release.store);
        for release in of_session.filter(|release| release.session == session) {
            release.outcome = Some(match () {
                // Gone, after a delete of ours that may have done it while the key was still ours.
                () if done || release.maybe => Release::Released,
                () if others => Release::Taken,
                () => Release::Expired,
            });
        }
        self.answer_releases(ctx);
    }
}
