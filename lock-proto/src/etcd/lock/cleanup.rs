//! Cleanup: deletes the keys that attempts and holds leave in the store, one cleanup for each
//! lease. While a create may still be executed late, the deleted key is watched for another TTL,
//! and from then on until the lease is revoked: a partitioned member may hold a create even longer.
//! The lease of a single lock is revoked without that wait. A lost session ends its cleanups,
//! because its keys end with the lease.
// E3, E6, U1

use super::{Contention, Env, Etcd, EtcdCall, Keys};
use crate::etcd::locks_output::WatchId;
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, Refusal, Reply, Request, Seen};
use crate::lock::{self, Release, Retry, SessionEvent, SessionId};
use crate::time::Instant;

/// A call about the key of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CleanupCall {
    session: SessionId,
    kind: CleanupKind,
    emitted: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CleanupKind {
    /// The create of an abandoned attempt.
    Create,
    /// An abandoned write of the key.
    Put,
    Look,
    Delete,
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
    /// A watch has reported a write, or opened, since the request in flight left: its reply may be
    /// outdated.
    overtaken: bool,
    retry: Retry,
}

impl Cleanup {
    const fn new(session: SessionId) -> Self {
        let (next, retry) = (NextStep::Paused, Retry::new(None));
        Self { session, next, unsettled: false, refused: false, overtaken: false, retry }
    }

    /// Returns true if a request is in flight whose reply shows whether the key exists.
    pub(super) const fn is_busy(&self) -> bool {
        self.retry.is_in_flight()
    }

    pub(super) fn watches(&self, id: WatchId) -> bool {
        matches!(self.next, NextStep::Watch { watch: Some(watch), .. } if watch == id)
    }

    /// Sets the next action, and closes a watch that it does not need.
    fn set(&mut self, env: &mut Env, next: NextStep) {
        let stays = matches!(next, NextStep::Watch { .. });
        if let NextStep::Watch { watch: Some(watch), .. } = self.next
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
    pub(super) fn watch_refused(&mut self, env: &Env) {
        if let NextStep::Watch { watch, .. } = &mut self.next {
            *watch = None;
        }
        env.back_off(&mut self.retry);
    }
}

impl lock::Cleanup<Keys> for Cleanup {
    fn session(&self) -> SessionId {
        self.session
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

    fn timeout(queued: &mut Etcd, env: &mut Env) {
        let due = |cleanup: &&Self| cleanup.deadline().is_some_and(|at| at <= env.now);
        let sessions: alloc::vec::Vec<_> = queued.cleanups.iter().filter(due).map(|cleanup| cleanup.session).collect();
        for session in sessions {
            queued.work(env, session);
        }
    }

    /// Ends the cleanups of a lost lease, whose keys end with it.
    fn lost(queued: &mut Etcd, env: &mut Env, session: SessionId, _: &SessionEvent) {
        let gone = env.session(session).is_none_or(|found| found.is_gone());
        let of_lease = |call: &EtcdCall| matches!(call, EtcdCall::CleanUp(call) if call.session == session);
        let deletes = |call: &EtcdCall| matches!(call, EtcdCall::CleanUp(call) if call.kind == CleanupKind::Delete);
        // A delete in flight still decides a release, unless the lease is gone.
        let ends = gone || !queued.calls.iter().any(|call| of_lease(call) && deletes(call));
        if ends {
            queued.calls.forget(of_lease);
        }
        for cleanup in queued.cleanups.iter_mut().filter(|cleanup| cleanup.session == session) {
            if ends {
                cleanup.retry.forget_call();
                cleanup.set(env, NextStep::Nothing);
            }
            cleanup.unsettled = false;
        }
        if gone {
            queued.deleted(env, session, false, false);
        }
        queued.drop_finished();
    }
}

impl Etcd {
    pub(super) fn cleanup_answered(&mut self, env: &mut Env, call: CleanupCall, reply: &Reply) {
        let session = call.session;
        let Some(cleanup) = self.cleanups.iter_mut().find(|cleanup| cleanup.session == session) else { return };
        cleanup.retry.forget_call();
        let overtaken = cleanup.overtaken;
        match reply {
            Reply::Done(Found::Queue { own, done, others, .. }) => {
                // Retry a failed delete once immediately, then back off.
                if call.kind == CleanupKind::Delete && own.is_some() {
                    cleanup.retry.failed(env.now);
                } else {
                    cleanup.retry.succeeded();
                }
                cleanup.retry.set_due(cleanup.retry.tries().checked_sub(2).map(|tries| env.now + env.pause(tries)));
                let deleted = *done && call.kind == CleanupKind::Delete;
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
            Reply::Refused(_) | Reply::NotSent(_) if call.kind == CleanupKind::Create && !cleanup.unsettled => {
                cleanup.set(env, NextStep::Nothing);
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                let unknown = matches!(reply, Reply::Unknown(_));
                cleanup.unsettled |= unknown && call.kind == CleanupKind::Create;
                cleanup.refused = matches!(call.kind, CleanupKind::Look | CleanupKind::Delete) && reply.is_refusal();
                // The user may lack access for good. The lease gets no other keys, and ends once
                // no lock needs it.
                // E3
                if cleanup.refused {
                    env.shared.sessions.retire(session);
                }
                env.back_off(&mut cleanup.retry);
                // A lost lease is revoked once its cleanups end, so one attempt suffices.
                if env.session(session).is_none_or(|found| found.is_lost()) {
                    cleanup.set(env, NextStep::Nothing);
                }
                if unknown && call.kind == CleanupKind::Delete {
                    self.delete_unknown(call.emitted, |remains| remains.session == session);
                }
            }
        }
        self.drop_finished();
        self.enter_cleared(env, session);
    }

    fn cleanup(&mut self, session: SessionId) -> &mut Cleanup {
        let place = self.cleanups.iter().position(|cleanup| cleanup.session == session).unwrap_or_else(|| {
            self.cleanups.push(Cleanup::new(session));
            self.cleanups.len() - 1
        });
        &mut self.cleanups[place]
    }

    /// Schedules the deletion of a key that was last changed at `modified`.
    pub(super) fn schedule_key(&mut self, env: &mut Env, session: SessionId, modified: i64) {
        self.schedule(env, session, NextStep::Delete(modified));
    }

    pub(super) fn schedule_look(&mut self, env: &mut Env, session: SessionId) {
        self.schedule(env, session, NextStep::Look);
    }

    fn schedule(&mut self, env: &mut Env, session: SessionId, next: NextStep) {
        let cleanup = self.cleanup(session);
        cleanup.set(env, next);
        cleanup.retry.set_due(None);
        cleanup.retry.succeeded();
        self.work(env, session);
    }

    /// Takes over a call in flight for an abandoned key.
    pub(super) fn schedule_call(&mut self, env: &mut Env, session: SessionId, serial: u64, kind: CleanupKind) {
        self.cleanup(session).set(env, NextStep::Look);
        self.await_cleanup(env, session, serial, kind);
    }

    fn await_cleanup(&mut self, env: &Env, session: SessionId, serial: u64, kind: CleanupKind) {
        self.cleanup(session).sent();
        self.calls.put(serial, EtcdCall::CleanUp(CleanupCall { session, kind, emitted: env.now }));
    }

    /// Notes that the key may exist. An attempt in progress will find out.
    pub(super) fn schedule_unsettled(&mut self, env: &Env, session: SessionId) {
        if !env.session(session).is_some_and(|found| found.is_gone()) {
            self.cleanup(session).unsettled = true;
        }
    }

    /// Pauses the cleanup while the key is in use again.
    pub(super) fn pause_cleanup(&mut self, env: &mut Env, session: SessionId) {
        let Some(cleanup) = self.cleanups.iter_mut().find(|cleanup| cleanup.session == session) else { return };
        // An unconfirmed key may still exist after that use.
        cleanup.unsettled |= matches!(cleanup.next, NextStep::Look | NextStep::Delete(_));
        cleanup.set(env, NextStep::Paused);
        self.cleanups.retain(|cleanup| cleanup.session != session || cleanup.unsettled);
    }

    /// Resumes the cleanup when the key is no longer in use.
    pub(super) fn resume_cleanup(&mut self, env: &mut Env, session: SessionId) {
        match self.cleanups.iter().find(|cleanup| cleanup.session == session).map(|cleanup| cleanup.next) {
            Some(NextStep::Paused) => self.schedule_look(env, session),
            // A waiter that was to adopt the key has left.
            Some(_) => self.work(env, session),
            None => {}
        }
    }

    fn work(&mut self, env: &mut Env, session: SessionId) {
        let Some(lease) = env.lease(session) else { return };
        let (queue, now) = (self.key.clone(), env.now);
        let cleanup = self.cleanup(session);
        if !cleanup.retry.is_ready(now) {
            return;
        }
        let again = cleanup.retry.is_due(now);
        let (kind, request) = match &mut cleanup.next {
            NextStep::Look => (CleanupKind::Look, Request::look(queue, lease)),
            NextStep::Delete(modified) => (CleanupKind::Delete, Request::Delete { queue, lease, modified: *modified }),
            // Read once more at the end of the watch.
            NextStep::Watch { until: Some(until), .. } if *until <= now => {
                (CleanupKind::Look, Request::look(queue, lease))
            }
            NextStep::Watch { watch: watch @ None, .. } => {
                *watch = Some(env.watch_key(queue.key(lease)));
                return cleanup.retry.set_due(None);
            }
            NextStep::Watch { .. } if again => (CleanupKind::Look, Request::look(queue, lease)),
            NextStep::Watch { .. } | NextStep::Paused | NextStep::Nothing => return,
        };
        self.send_request(env, session, kind, request);
    }

    fn send_request(&mut self, env: &mut Env, session: SessionId, kind: CleanupKind, request: Request) {
        let serial = env.send(session, request);
        self.await_cleanup(env, session, serial, kind);
    }

    /// Chooses the next action after a reply about the key.
    fn seen(&mut self, env: &mut Env, session: SessionId, kind: CleanupKind, own: Option<Seen>) {
        let found = env.session(session);
        let lost = found.is_none_or(|found| found.is_lost());
        let until = found.is_some_and(|found| found.shared && !found.retired).then(|| env.now + env.ttl(session));
        let cleanup = self.cleanup(session);
        let next = match (own, cleanup.next) {
            (Some(own), _) => NextStep::Delete(own.modified),
            // A late create is unlikely by now, but no time is long enough to exclude it.
            (None, NextStep::Watch { until: Some(until), watch }) if until <= env.now => {
                env.shared.sessions.retire(session);
                NextStep::Watch { watch, until: None }
            }
            (None, watch @ NextStep::Watch { .. }) => watch,
            (None, _) if cleanup.unsettled && !lost => {
                // The lease of one lock ends as soon as that lock does not need it.
                if until.is_none() {
                    env.shared.sessions.retire(session);
                }
                NextStep::Watch { watch: None, until }
            }
            (None, _) => NextStep::Nothing,
        };
        cleanup.set(env, next);
        // If the head waits for this read, it adopts the key instead.
        if kind != CleanupKind::Look || own.is_none() || !self.head_waits_for(session) {
            self.work(env, session);
        }
    }

    /// Returns true if the head of the local queue waits for this cleanup.
    fn head_waits_for(&self, session: SessionId) -> bool {
        matches!(&self.contention, Contention::Entering(enter) if enter.session == session)
    }

    /// Reads the watched key, which may have changed before the watch opened.
    pub(super) fn read_cleanup(&mut self, env: &mut Env, session: SessionId) {
        if self.cleanup(session).overtake() {
            return;
        }
        let queue = self.key.clone();
        let Some(lease) = env.lease(session) else { return };
        self.send_request(env, session, CleanupKind::Look, Request::look(queue, lease));
    }

    pub(super) fn cleanup_changed(&mut self, env: &mut Env, session: SessionId, kv: &KeyValue, gone: bool) {
        if !gone && !self.cleanup(session).overtake() {
            self.schedule(env, session, NextStep::Delete(kv.mod_revision));
        }
    }

    /// Returns the session whose cleanup has this watch.
    pub(super) fn cleanup_that_watches(&self, watch: WatchId) -> Option<SessionId> {
        self.cleanups.iter().find(|cleanup| cleanup.watches(watch)).map(|cleanup| cleanup.session)
    }

    fn drop_finished(&mut self) {
        self.cleanups.retain(|cleanup| {
            cleanup.is_busy() || cleanup.unsettled || !matches!(cleanup.next, NextStep::Nothing | NextStep::Paused)
        });
    }

    /// Resolves the releases of a key that was deleted or found absent.
    pub(super) fn deleted(&mut self, env: &mut Env, session: SessionId, done: bool, others: bool) {
        let outcome = match (done, others) {
            (true, _) => Release::Released,
            (false, true) => Release::Taken,
            (false, false) => Release::Expired,
        };
        self.resolve(env, outcome, |remains| remains.session == session);
    }
}
