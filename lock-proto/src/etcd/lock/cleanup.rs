//! Cleanup: deletes the keys that attempts and holds leave in the store, one cleanup for each
//! lease. While a create may still be executed late, the deleted key is watched for another TTL,
//! and from then on until the lease is revoked: a partitioned member may hold a create even longer.
//! The lease of a single lock is revoked without that wait. A lost session ends its cleanups,
//! because its keys end with the lease.
// E3, E6, U1

use super::{Contention, Context, Keys, Lock};
use crate::etcd::locks_output::WatchId;
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, Refusal, Reply, Request, Seen};
use crate::lock::{self, Release, Retry, SessionEvent, SessionId};
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CleanupCall {
    serial: u64,
    emitted: Instant,
    kind: Kind,
    /// A watch has reported a write, or opened, in the meantime: the reply may be outdated.
    overtaken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// The create of an abandoned attempt.
    Create,
    /// An abandoned write of the key.
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
enum NextStep {
    /// The key is in use; cleanup resumes after that.
    Paused,
    Look,
    /// Delete the key if this was its last change.
    Delete(i64),
    /// The key is gone but may reappear: watch it until then, or while the lease exists.
    Watch {
        watch: Option<WatchId>,
        until: Option<Instant>,
    },
    Nothing,
}

/// Cleanup of the key of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cleanup {
    pub(super) session: SessionId,
    next: NextStep,
    /// The key may remain after its use: a create may be late, or a delete was not confirmed.
    unsettled: bool,
    /// The server refused the last request.
    refused: bool,
    retry: Retry<CleanupCall>,
}

impl Cleanup {
    const fn new(session: SessionId) -> Self {
        Self { session, next: NextStep::Paused, unsettled: false, refused: false, retry: Retry::new(None) }
    }

    /// Returns true if a request is in flight whose reply shows whether the key exists.
    pub(super) const fn is_busy(&self) -> bool {
        self.retry.is_in_flight()
    }

    pub(super) fn watches(&self, id: WatchId) -> bool {
        matches!(self.next, NextStep::Watch { watch: Some(watch), .. } if watch == id)
    }

    /// Sets the next action, and closes a watch that it does not need.
    fn set(&mut self, ctx: &mut Context, next: NextStep) {
        let stays = matches!(next, NextStep::Watch { .. });
        if let NextStep::Watch { watch: Some(watch), .. } = self.next
            && !stays
        {
            ctx.close_watch(watch);
        }
        (self.next, self.refused) = (next, false);
    }

    /// Notes that the reply to the request in flight may be outdated. Returns false if there is
    /// none.
    fn overtake(&mut self) -> bool {
        let call = self.retry.call();
        if let Some(call) = call {
            self.retry.sent(CleanupCall { overtaken: true, ..call });
        }
        call.is_some()
    }

    /// Requests another watch after a pause.
    pub(super) fn watch_refused(&mut self, ctx: &Context) {
        if let NextStep::Watch { watch, .. } = &mut self.next {
            *watch = None;
        }
        ctx.back_off(&mut self.retry);
    }
}

impl lock::Cleanup<Keys> for Cleanup {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, serial: u64) -> bool {
        self.retry.call().is_some_and(|call| call.serial == serial)
    }

    fn deadline(&self) -> Option<Instant> {
        if self.is_busy() {
            return None;
        }
        match self.next {
            NextStep::Look | NextStep::Delete(_) => self.retry.due(),
            NextStep::Watch { until, .. } => self.retry.due().or(until),
            NextStep::Paused | NextStep::Nothing => None,
        }
    }

    /// Returns true if only an open-ended watch or a refused request is left. Neither keeps the
    /// lease alive.
    fn is_open_ended(&self) -> bool {
        !self.is_busy() && (self.refused || matches!(self.next, NextStep::Watch { until: None, .. }))
    }

    /// Returns true if a shutdown need not wait: at most a watch or a refused request is left. A
    /// request in flight may still be executed, and needs a lease.
    fn is_drained(&self) -> bool {
        !self.is_busy() && (self.refused || matches!(self.next, NextStep::Watch { .. } | NextStep::Nothing))
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, place: usize, reply: &Reply) {
        let Some(cleanup) = lock.store.cleanups.get_mut(place) else { return };
        let Some(call) = cleanup.retry.answered(|_| true) else { return };
        let session = cleanup.session;
        match reply {
            Reply::Done(Found::Queue { own, done, others, .. }) => {
                // Retry a failed delete once immediately, then back off.
                if call.kind == Kind::Delete && own.is_some() {
                    cleanup.retry.failed(ctx.now);
                } else {
                    cleanup.retry.succeeded();
                }
                cleanup.retry.set_due(cleanup.retry.tries().checked_sub(2).map(|tries| ctx.now + ctx.pause(tries)));
                let deleted = *done && call.kind == Kind::Delete;
                if let Some(cached) = lock.store.own.watch_cache.as_mut().filter(|_| deleted) {
                    cached.released(ctx.now, ctx.now.since(call.emitted));
                }
                if own.is_none() {
                    lock.deleted(ctx, session, deleted, *others);
                }
                lock.seen(ctx, session, call.kind, *own);
                if own.is_none() && call.overtaken {
                    lock.read_cleanup(ctx, place);
                }
            }
            Reply::Refused(Refusal::LeaseNotFound) => ctx.lost_lease(session),
            // The create was not executed, and there was nothing else to clean up.
            Reply::Refused(_) | Reply::NotSent(_) if call.kind == Kind::Create && !cleanup.unsettled => {
                cleanup.set(ctx, NextStep::Nothing);
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                let unknown = matches!(reply, Reply::Unknown(_));
                cleanup.unsettled |= unknown && call.kind == Kind::Create;
                cleanup.refused = matches!(call.kind, Kind::Look | Kind::Delete) && reply.is_refusal();
                // The user may lack access for good. The lease gets no other keys, and ends once
                // no lock needs it.
                // E3
                if cleanup.refused {
                    ctx.shared.sessions.retire(session);
                }
                ctx.back_off(&mut cleanup.retry);
                // A lost lease is revoked once its cleanups end, so one attempt suffices.
                if ctx.session(session).is_none_or(|found| found.is_lost()) {
                    cleanup.set(ctx, NextStep::Nothing);
                }
                if unknown && call.kind == Kind::Delete {
                    lock.delete_unknown(call.emitted, |remains| remains.session == session);
                }
            }
        }
        lock.drop_finished();
        lock.enter_cleared(ctx, session);
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        let due = |cleanup: &&Self| cleanup.deadline().is_some_and(|at| at <= ctx.now);
        let sessions: alloc::vec::Vec<_> =
            lock.store.cleanups.iter().filter(due).map(|cleanup| cleanup.session).collect();
        for session in sessions {
            lock.work(ctx, session);
        }
    }

    /// Ends the cleanups of a lost lease, whose keys end with it.
    fn lost(lock: &mut Lock, ctx: &mut Context, session: SessionId, _: &SessionEvent) {
        let gone = ctx.session(session).is_none_or(|found| found.is_gone());
        for cleanup in lock.store.cleanups.iter_mut().filter(|cleanup| cleanup.session == session) {
            // A delete in flight still decides a release, unless the lease is gone.
            if gone || cleanup.retry.call().is_none_or(|call| call.kind != Kind::Delete) {
                cleanup.retry.forget_call();
                cleanup.set(ctx, NextStep::Nothing);
            }
            cleanup.unsettled = false;
        }
        if gone {
            lock.deleted(ctx, session, false, false);
        }
        lock.drop_finished();
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

    /// Schedules the deletion of a key that was last changed at `modified`.
    pub(super) fn schedule_key(&mut self, ctx: &mut Context, session: SessionId, modified: i64) {
        self.schedule(ctx, session, NextStep::Delete(modified));
    }

    pub(super) fn schedule_look(&mut self, ctx: &mut Context, session: SessionId) {
        self.schedule(ctx, session, NextStep::Look);
    }

    fn schedule(&mut self, ctx: &mut Context, session: SessionId, next: NextStep) {
        let cleanup = self.cleanup(session);
        cleanup.set(ctx, next);
        cleanup.retry.set_due(None);
        cleanup.retry.succeeded();
        self.work(ctx, session);
    }

    /// Takes over a call in flight for an abandoned key.
    pub(super) fn schedule_call(&mut self, ctx: &mut Context, session: SessionId, call: CleanupCall) {
        let cleanup = self.cleanup(session);
        cleanup.set(ctx, NextStep::Look);
        cleanup.retry.sent(CleanupCall { emitted: ctx.now, ..call });
    }

    /// Notes that the key may exist. An attempt in progress will find out.
    pub(super) fn schedule_unsettled(&mut self, ctx: &Context, session: SessionId) {
        if !ctx.session(session).is_some_and(|found| found.is_gone()) {
            self.cleanup(session).unsettled = true;
        }
    }

    /// Pauses the cleanup while the key is in use again.
    pub(super) fn pause_cleanup(&mut self, ctx: &mut Context, session: SessionId) {
        let Some(cleanup) = self.store.cleanups.iter_mut().find(|cleanup| cleanup.session == session) else { return };
        // An unconfirmed key may still exist after that use.
        cleanup.unsettled |= matches!(cleanup.next, NextStep::Look | NextStep::Delete(_));
        cleanup.set(ctx, NextStep::Paused);
        self.store.cleanups.retain(|cleanup| cleanup.session != session || cleanup.unsettled);
    }

    /// Resumes the cleanup when the key is no longer in use.
    pub(super) fn resume_cleanup(&mut self, ctx: &mut Context, session: SessionId) {
        match self.store.cleanups.iter().find(|cleanup| cleanup.session == session).map(|cleanup| cleanup.next) {
            Some(NextStep::Paused) => self.schedule_look(ctx, session),
            // A waiter that was to adopt the key has left.
            Some(_) => self.work(ctx, session),
            None => {}
        }
    }

    fn work(&mut self, ctx: &mut Context, session: SessionId) {
        let Some(lease) = ctx.lease(session) else { return };
        let (queue, now) = (self.key.clone(), ctx.now);
        let cleanup = self.cleanup(session);
        if !cleanup.retry.is_ready(now) {
            return;
        }
        let again = cleanup.retry.is_due(now);
        let (kind, request) = match &mut cleanup.next {
            NextStep::Look => (Kind::Look, Request::look(queue, lease)),
            NextStep::Delete(modified) => (Kind::Delete, Request::Delete { queue, lease, modified: *modified }),
            // Read once more at the end of the watch.
            NextStep::Watch { until: Some(until), .. } if *until <= now => (Kind::Look, Request::look(queue, lease)),
            NextStep::Watch { watch: watch @ None, .. } => {
                *watch = Some(ctx.watch_key(queue.key(lease)));
                return cleanup.retry.set_due(None);
            }
            NextStep::Watch { .. } if again => (Kind::Look, Request::look(queue, lease)),
            NextStep::Watch { .. } | NextStep::Paused | NextStep::Nothing => return,
        };
        self.send_request(ctx, session, kind, request);
    }

    fn send_request(&mut self, ctx: &mut Context, session: SessionId, kind: Kind, request: Request) {
        let serial = ctx.send(session, request);
        self.cleanup(session).retry.sent(CleanupCall::new(serial, ctx.now, kind));
    }

    /// Chooses the next action after a reply about the key.
    fn seen(&mut self, ctx: &mut Context, session: SessionId, kind: Kind, own: Option<Seen>) {
        let found = ctx.session(session);
        let lost = found.is_none_or(|found| found.is_lost());
        let until = found.is_some_and(|found| found.shared && !found.retired).then(|| ctx.now + ctx.ttl(session));
        let cleanup = self.cleanup(session);
        let next = match (own, cleanup.next) {
            (Some(own), _) => NextStep::Delete(own.modified),
            // A late create is unlikely by now, but no time is long enough to exclude it.
            (None, NextStep::Watch { until: Some(until), watch }) if until <= ctx.now => {
                ctx.shared.sessions.retire(session);
                NextStep::Watch { watch, until: None }
            }
            (None, watch @ NextStep::Watch { .. }) => watch,
            (None, _) if cleanup.unsettled && !lost => {
                // The lease of one lock ends as soon as that lock does not need it.
                if until.is_none() {
                    ctx.shared.sessions.retire(session);
                }
                NextStep::Watch { watch: None, until }
            }
            (None, _) => NextStep::Nothing,
        };
        cleanup.set(ctx, next);
        // If the head waits for this read, it adopts the key instead.
        if kind != Kind::Look || own.is_none() || !self.head_waits_for(session) {
            self.work(ctx, session);
        }
    }

    /// Returns true if the head of the local queue waits for this cleanup.
    fn head_waits_for(&self, session: SessionId) -> bool {
        matches!(&self.contention, Contention::Entering(enter) if enter.session == session)
    }

    /// Reads the watched key, which may have changed before the watch opened.
    pub(super) fn read_cleanup(&mut self, ctx: &mut Context, place: usize) {
        let Some(cleanup) = self.store.cleanups.get_mut(place) else { return };
        if cleanup.overtake() {
            return;
        }
        let (session, queue) = (cleanup.session, self.key.clone());
        let Some(lease) = ctx.lease(session) else { return };
        self.send_request(ctx, session, Kind::Look, Request::look(queue, lease));
    }

    pub(super) fn cleanup_changed(&mut self, ctx: &mut Context, place: usize, kv: &KeyValue, gone: bool) {
        if gone {
            return;
        }
        let Some(cleanup) = self.store.cleanups.get_mut(place) else { return };
        if cleanup.overtake() {
            return;
        }
        let NextStep::Watch { .. } = cleanup.next else { return };
        let session = cleanup.session;
        self.schedule(ctx, session, NextStep::Delete(kv.mod_revision));
    }

    fn drop_finished(&mut self) {
        self.store.cleanups.retain(|cleanup| {
            cleanup.is_busy() || cleanup.unsettled || !matches!(cleanup.next, NextStep::Nothing | NextStep::Paused)
        });
    }

    /// Resolves the releases of a key that was deleted or found absent.
    pub(super) fn deleted(&mut self, ctx: &mut Context, session: SessionId, done: bool, others: bool) {
        let outcome = match (done, others) {
            (true, _) => Release::Released,
            (false, true) => Release::Taken,
            (false, false) => Release::Expired,
        };
        self.resolve(ctx, outcome, |remains| remains.session == session);
    }
}
