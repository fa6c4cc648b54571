//! Cleanup: deletes the keys that attempts and holds leave in the store, one cleanup for each
//! lease. While a create may still be executed late, the deleted key is watched for another TTL,
//! and from then on until the lease is revoked: a partitioned member may hold a create even longer.
//! The lease of a single lock is revoked without that wait. A lost session ends its cleanups,
//! because its keys end with the lease.
// E3, E6, U1

use super::{Etcd, EtcdCall, EtcdContention, EtcdEnv};
use crate::etcd::locks_output::WatchId;
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, Refusal, Reply, Request, SeenRevisions};
use crate::lock::{PendingCleanup, Release, Retry, SessionId};
use crate::time::Instant;

/// A call about the key of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtcdCleanupCall {
    session: SessionId,
    kind: EtcdCleanupKind,
    emitted: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EtcdCleanupKind {
    /// The create of an abandoned attempt.
    Create,
    /// An abandoned write of the key.
    Put,
    Look,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EtcdCleanupStep {
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
pub(super) struct EtcdCleanup {
    pub(super) session: SessionId,
    next: EtcdCleanupStep,
    /// The key may remain after its use: a create may be late, or a delete was not confirmed.
    unsettled: bool,
    /// The server refused the last request.
    refused: bool,
    /// A watch has reported a write, or opened, since the request in flight left: its reply may be
    /// outdated.
    overtaken: bool,
    retry: Retry,
}

impl EtcdCleanup {
    const fn new(session: SessionId) -> Self {
        let (next, retry) = (EtcdCleanupStep::Paused, Retry::new(None));
        Self { session, next, unsettled: false, refused: false, overtaken: false, retry }
    }

    /// Returns true if a request is in flight whose reply shows whether the key exists.
    pub(super) const fn is_busy(&self) -> bool {
        self.retry.is_in_flight()
    }

    pub(super) fn watches(&self, id: WatchId) -> bool {
        matches!(self.next, EtcdCleanupStep::Watch { watch: Some(watch), .. } if watch == id)
    }

    /// Sets the next action, and closes a watch that it does not need.
    fn set(&mut self, env: &mut EtcdEnv, next: EtcdCleanupStep) {
        let stays = matches!(next, EtcdCleanupStep::Watch { .. });
        if let EtcdCleanupStep::Watch { watch: Some(watch), .. } = self.next
            && !stays
        {
            env.close_watch(watch);
        }
        (self.next, self.refused) = (next, false);
    }

    fn sent(&mut self) {
        self.overtaken = false;
        self.retry.sent(());
    }

    /// Notes that the reply to the request in flight may be outdated. Returns false if there is
    /// none.
    const fn overtake(&mut self) -> bool {
        self.overtaken = self.is_busy();
        self.overtaken
    }

    /// Requests another watch after a pause.
    pub(super) fn watch_refused(&mut self, env: &EtcdEnv) {
        if let EtcdCleanupStep::Watch { watch, .. } = &mut self.next {
            *watch = None;
        }
        env.back_off(&mut self.retry);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.is_busy() {
            return None;
        }
        match self.next {
            EtcdCleanupStep::Look | EtcdCleanupStep::Delete(_) => self.retry.due(),
            EtcdCleanupStep::Watch { until, .. } => self.retry.due().or(until),
            EtcdCleanupStep::Paused | EtcdCleanupStep::Nothing => None,
        }
    }

    /// Only an open-ended watch or a refused request does not keep the lease alive. A shutdown need
    /// not wait for a watch or a refused request; a request in flight may still be executed, and
    /// needs a lease.
    pub(super) fn pending(&self) -> PendingCleanup {
        let (open_ended, done) = match self.next {
            EtcdCleanupStep::Watch { until: None, .. } => (true, true),
            EtcdCleanupStep::Watch { until: Some(_), .. } | EtcdCleanupStep::Nothing => (false, true),
            EtcdCleanupStep::Paused | EtcdCleanupStep::Look | EtcdCleanupStep::Delete(_) => (false, false),
        };
        PendingCleanup {
            session: self.session,
            needs_session: self.is_busy() || !(self.refused || open_ended),
            delays_shutdown: self.is_busy() || !(self.refused || done),
        }
    }
}

impl Etcd {
    /// Does the work of cleanups that is due.
    pub(super) fn work_due(&mut self, env: &mut EtcdEnv) {
        let due = |cleanup: &&EtcdCleanup| cleanup.deadline().is_some_and(|at| at <= env.now);
        let sessions: alloc::vec::Vec<_> =
            self.own.cleanups.iter().filter(due).map(|cleanup| cleanup.session).collect();
        for session in sessions {
            self.work(env, session);
        }
    }

    /// Ends the cleanups of a lost lease, whose keys end with it.
    pub(super) fn session_lost(&mut self, env: &mut EtcdEnv, session: SessionId) {
        let gone = env.session(session).is_none_or(|found| found.is_gone());
        let of_lease = |call: &EtcdCall| matches!(call, EtcdCall::CleanUp(call) if call.session == session);
        let deletes = |call: &EtcdCall| matches!(call, EtcdCall::CleanUp(call) if call.kind == EtcdCleanupKind::Delete);
        // A delete in flight still decides a release, unless the lease is gone.
        let ends = gone || !self.calls.iter().any(|call| of_lease(call) && deletes(call));
        if ends {
            self.calls.forget(of_lease);
        }
        for cleanup in self.own.cleanups.iter_mut().filter(|cleanup| cleanup.session == session) {
            if ends {
                cleanup.retry.forget_call();
                cleanup.set(env, EtcdCleanupStep::Nothing);
            }
            cleanup.unsettled = false;
        }
        if gone {
            self.deleted(env, session, false, false);
        }
        self.drop_finished();
    }

    pub(super) fn cleanup_answered(&mut self, env: &mut EtcdEnv, call: EtcdCleanupCall, reply: &Reply) {
        let session = call.session;
        let Some(cleanup) = self.own.cleanups.iter_mut().find(|cleanup| cleanup.session == session) else { return };
        cleanup.retry.forget_call();
        let overtaken = cleanup.overtaken;
        match reply {
            Reply::Done(Found::Queue { own, done, others, .. }) => {
                // Retry a failed delete once immediately, then back off.
                if call.kind == EtcdCleanupKind::Delete && own.is_some() {
                    cleanup.retry.failed(env.now);
                } else {
                    cleanup.retry.succeeded();
                }
                cleanup.retry.set_due(cleanup.retry.tries().checked_sub(2).map(|tries| env.now + env.pause(tries)));
                let deleted = *done && call.kind == EtcdCleanupKind::Delete;
                if let Some(cached) = self.own.watch_cache.as_mut().filter(|_| deleted) {
                    cached.released(env.now, env.now.since(call.emitted));
                }
                if own.is_none() {
                    self.deleted(env, session, deleted, *others);
                }
                self.seen(env, session, call.kind, *own);
                if own.is_none() && overtaken {
                    self.read_cleanup(env, session);
                }
            }
            Reply::Refused(Refusal::LeaseNotFound) => env.lost_lease(session),
            // The create was not executed, and there was nothing else to clean up.
            Reply::Refused(_) | Reply::NotSent(_) if call.kind == EtcdCleanupKind::Create && !cleanup.unsettled => {
                cleanup.set(env, EtcdCleanupStep::Nothing);
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                let unknown = matches!(reply, Reply::Unknown(_));
                cleanup.unsettled |= unknown && call.kind == EtcdCleanupKind::Create;
                cleanup.refused =
                    matches!(call.kind, EtcdCleanupKind::Look | EtcdCleanupKind::Delete) && reply.is_refusal();
                // The user may lack access for good. The lease gets no other keys, and ends once
                // no lock needs it.
                // E3
                if cleanup.refused {
                    env.shared.sessions.retire(session);
                }
                env.back_off(&mut cleanup.retry);
                // A lost lease is revoked once its cleanups end, so one attempt suffices.
                if env.session(session).is_none_or(|found| found.is_lost()) {
                    cleanup.set(env, EtcdCleanupStep::Nothing);
                }
                if unknown && call.kind == EtcdCleanupKind::Delete {
                    self.delete_unknown(call.emitted, |remains| remains.session == session);
                }
            }
        }
        self.drop_finished();
        self.enter_cleared(env, session);
    }

    fn cleanup(&mut self, session: SessionId) -> &mut EtcdCleanup {
        let place = self.own.cleanups.iter().position(|cleanup| cleanup.session == session).unwrap_or_else(|| {
            self.own.cleanups.push(EtcdCleanup::new(session));
            self.own.cleanups.len() - 1
        });
        &mut self.own.cleanups[place]
    }

    /// Schedules the deletion of a key that was last changed at `modified`.
    pub(super) fn schedule_key(&mut self, env: &mut EtcdEnv, session: SessionId, modified: i64) {
        self.schedule(env, session, EtcdCleanupStep::Delete(modified));
    }

    pub(super) fn schedule_look(&mut self, env: &mut EtcdEnv, session: SessionId) {
        self.schedule(env, session, EtcdCleanupStep::Look);
    }

    fn schedule(&mut self, env: &mut EtcdEnv, session: SessionId, next: EtcdCleanupStep) {
        let cleanup = self.cleanup(session);
        cleanup.set(env, next);
        cleanup.retry.set_due(None);
        cleanup.retry.succeeded();
        self.work(env, session);
    }

    /// Takes over a call in flight for an abandoned key.
    pub(super) fn schedule_call(&mut self, env: &mut EtcdEnv, session: SessionId, serial: u64, kind: EtcdCleanupKind) {
        self.cleanup(session).set(env, EtcdCleanupStep::Look);
        self.await_cleanup(env, session, serial, kind);
    }

    fn await_cleanup(&mut self, env: &EtcdEnv, session: SessionId, serial: u64, kind: EtcdCleanupKind) {
        self.cleanup(session).sent();
        self.calls.put(serial, EtcdCall::CleanUp(EtcdCleanupCall { session, kind, emitted: env.now }));
    }

    /// Notes that the key may exist. An attempt in progress will find out.
    pub(super) fn schedule_unsettled(&mut self, env: &EtcdEnv, session: SessionId) {
        if !env.session(session).is_some_and(|found| found.is_gone()) {
            self.cleanup(session).unsettled = true;
        }
    }

    /// Pauses the cleanup while the key is in use again.
    pub(super) fn pause_cleanup(&mut self, env: &mut EtcdEnv, session: SessionId) {
        let Some(cleanup) = self.own.cleanups.iter_mut().find(|cleanup| cleanup.session == session) else { return };
        // An unconfirmed key may still exist after that use.
        cleanup.unsettled |= matches!(cleanup.next, EtcdCleanupStep::Look | EtcdCleanupStep::Delete(_));
        cleanup.set(env, EtcdCleanupStep::Paused);
        self.own.cleanups.retain(|cleanup| cleanup.session != session || cleanup.unsettled);
    }

    /// Resumes the cleanup when the key is no longer in use.
    pub(super) fn resume_cleanup(&mut self, env: &mut EtcdEnv, session: SessionId) {
        match self.own.cleanups.iter().find(|cleanup| cleanup.session == session).map(|cleanup| cleanup.next) {
            Some(EtcdCleanupStep::Paused) => self.schedule_look(env, session),
            // A waiter that was to adopt the key has left.
            Some(_) => self.work(env, session),
            None => {}
        }
    }

    fn work(&mut self, env: &mut EtcdEnv, session: SessionId) {
        let Some(lease) = env.lease(session) else { return };
        let (queue, now) = (self.key.clone(), env.now);
        let cleanup = self.cleanup(session);
        if !cleanup.retry.is_ready(now) {
            return;
        }
        let again = cleanup.retry.is_due(now);
        let (kind, request) = match &mut cleanup.next {
            EtcdCleanupStep::Look => (EtcdCleanupKind::Look, Request::look(queue, lease)),
            EtcdCleanupStep::Delete(modified) => {
                (EtcdCleanupKind::Delete, Request::Delete { queue, lease, modified: *modified })
            }
            // Read once more at the end of the watch.
            EtcdCleanupStep::Watch { until: Some(until), .. } if *until <= now => {
                (EtcdCleanupKind::Look, Request::look(queue, lease))
            }
            EtcdCleanupStep::Watch { watch: watch @ None, .. } => {
                *watch = Some(env.watch_key(queue.key(lease)));
                return cleanup.retry.set_due(None);
            }
            EtcdCleanupStep::Watch { .. } if again => (EtcdCleanupKind::Look, Request::look(queue, lease)),
            EtcdCleanupStep::Watch { .. } | EtcdCleanupStep::Paused | EtcdCleanupStep::Nothing => return,
        };
        self.send_request(env, session, kind, request);
    }

    fn send_request(&mut self, env: &mut EtcdEnv, session: SessionId, kind: EtcdCleanupKind, request: Request) {
        let serial = env.send(session, request);
        self.await_cleanup(env, session, serial, kind);
    }

    /// Chooses the next action after a reply about the key.
    fn seen(&mut self, env: &mut EtcdEnv, session: SessionId, kind: EtcdCleanupKind, own: Option<SeenRevisions>) {
        let found = env.session(session);
        let lost = found.is_none_or(|found| found.is_lost());
        let until = found.is_some_and(|found| found.shared && !found.retired).then(|| env.now + env.ttl(session));
        let cleanup = self.cleanup(session);
        let next = match (own, cleanup.next) {
            (Some(own), _) => EtcdCleanupStep::Delete(own.modified),
            // A late create is unlikely by now, but no time is long enough to exclude it.
            (None, EtcdCleanupStep::Watch { until: Some(until), watch }) if until <= env.now => {
                env.shared.sessions.retire(session);
                EtcdCleanupStep::Watch { watch, until: None }
            }
            (None, watch @ EtcdCleanupStep::Watch { .. }) => watch,
            (None, _) if cleanup.unsettled && !lost => {
                // The lease of one lock ends as soon as that lock does not need it.
                if until.is_none() {
                    env.shared.sessions.retire(session);
                }
                EtcdCleanupStep::Watch { watch: None, until }
            }
            (None, _) => EtcdCleanupStep::Nothing,
        };
        cleanup.set(env, next);
        // If the head waits for this read, it adopts the key instead.
        if kind != EtcdCleanupKind::Look || own.is_none() || !self.head_waits_for(session) {
            self.work(env, session);
        }
    }

    /// Returns true if the head of the local queue waits for this cleanup.
    fn head_waits_for(&self, session: SessionId) -> bool {
        matches!(&self.contention, EtcdContention::Entering(entry) if entry.session == session)
    }

    /// Reads the watched key, which may have changed before the watch opened.
    pub(super) fn read_cleanup(&mut self, env: &mut EtcdEnv, session: SessionId) {
        if self.cleanup(session).overtake() {
            return;
        }
        let queue = self.key.clone();
        let Some(lease) = env.lease(session) else { return };
        self.send_request(env, session, EtcdCleanupKind::Look, Request::look(queue, lease));
    }

    pub(super) fn cleanup_changed(&mut self, env: &mut EtcdEnv, session: SessionId, kv: &KeyValue, gone: bool) {
        if !gone && !self.cleanup(session).overtake() {
            self.schedule(env, session, EtcdCleanupStep::Delete(kv.mod_revision));
        }
    }

    /// Returns the session whose cleanup has this watch.
    pub(super) fn cleanup_that_watches(&self, watch: WatchId) -> Option<SessionId> {
        self.own.cleanups.iter().find(|cleanup| cleanup.watches(watch)).map(|cleanup| cleanup.session)
    }

    fn drop_finished(&mut self) {
        self.own.cleanups.retain(|cleanup| {
            cleanup.is_busy()
                || cleanup.unsettled
                || !matches!(cleanup.next, EtcdCleanupStep::Nothing | EtcdCleanupStep::Paused)
        });
    }

    /// Resolves the releases of a key that was deleted or found absent.
    pub(super) fn deleted(&mut self, env: &mut EtcdEnv, session: SessionId, done: bool, others: bool) {
        let outcome = match (done, others) {
            (true, _) => Release::Released,
            (false, true) => Release::Taken,
            (false, false) => Release::Expired,
        };
        self.resolve(env, outcome, |remains| remains.session == session);
    }
}
