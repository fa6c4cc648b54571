//! Entering the store's queue: one transaction creates the key, or adopts an existing one.
// E3, E6

use super::cleanup::EtcdCleanupKind;
use super::{Etcd, EtcdCall, EtcdContention, EtcdEnv};
use crate::etcd::request::{Ahead, Found, Older, Refusal, Reply, Request, SeenRevisions};
use crate::lock::{Answer, Blocked, Expiry, SessionId, Wait};
use crate::time::Instant;
use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EtcdEntry {
    pub(super) session: SessionId,
    pub(super) step: EtcdEntryStep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum EtcdEntryStep {
    /// Waiting for cleanup of the key.
    Clearing,
    InFlight,
    Paused(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EtcdEntryAction {
    Create,
    /// Take ownership of an existing key of this client by a guarded put.
    // E6
    Adopt,
    /// The key was created with these revisions; find its predecessor.
    Search(SeenRevisions),
}

impl EtcdEntry {
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self.step {
            EtcdEntryStep::Paused(until) => Some(until),
            EtcdEntryStep::Clearing | EtcdEntryStep::InFlight => None,
        }
    }
}

impl Etcd {
    /// Enters the store's queue, once cleanup of the key has finished.
    pub(super) fn enter(&mut self, env: &mut EtcdEnv, session: SessionId) {
        let (Some(head), Some(lease)) = (self.head.as_ref(), env.lease(session)) else {
            self.contention = EtcdContention::Idle;
            return;
        };
        let (value, alone) = (head.terms.value.clone(), head.wait == Wait::Try);
        if env.session(session).is_some_and(|found| found.retired) {
            self.resume_cleanup(env, session);
            return self.start(env);
        }
        if self.own.cleanups.iter().any(|cleanup| cleanup.session == session && cleanup.is_busy()) {
            self.contention = EtcdContention::Entering(EtcdEntry { session, step: EtcdEntryStep::Clearing });
            return;
        }
        let cached = self.own.watch_cache.as_ref().filter(|_| !alone);
        if let Some(until) = cached.and_then(|cached| cached.pause(env.now)) {
            self.contention = EtcdContention::Entering(EtcdEntry { session, step: EtcdEntryStep::Paused(until) });
            return;
        }
        let (expects, long) = cached.and_then(|cached| cached.expects(session)).unzip();
        let long = long.unwrap_or(false);
        self.pause_cleanup(env, session);
        let request = Request::Create { queue: self.key.clone(), lease, value: value.clone(), alone, expects, long };
        self.attempt(env, session, request, EtcdEntryAction::Create, value);
    }

    pub(super) fn adopt(&mut self, env: &mut EtcdEnv, session: SessionId, own: SeenRevisions) {
        let (Some(head), Some(lease)) = (self.head.as_ref(), env.lease(session)) else {
            self.contention = EtcdContention::Idle;
            return;
        };
        let value = head.terms.value.clone();
        let request = Request::Put {
            queue: self.key.clone(),
            lease,
            value: value.clone(),
            modified: own.modified,
            before: own.created,
        };
        self.attempt(env, session, request, EtcdEntryAction::Adopt, value);
    }

    /// Reads the predecessor of a key that was created behind others.
    fn search(&mut self, env: &mut EtcdEnv, session: SessionId, own: SeenRevisions, value: Bytes) {
        let Some(lease) = env.lease(session) else { return };
        let request = Request::Look { queue: self.key.clone(), lease, before: Some(own.created), ahead: None };
        self.attempt(env, session, request, EtcdEntryAction::Search(own), value);
    }

    fn attempt(
        &mut self,
        env: &mut EtcdEnv,
        session: SessionId,
        request: Request,
        action: EtcdEntryAction,
        value: Bytes,
    ) {
        self.calls.put(env.send(session, request), EtcdCall::Enter { session, action, value });
        self.contention = EtcdContention::Entering(EtcdEntry { session, step: EtcdEntryStep::InFlight });
    }

    /// Nobody waits any more, or the session is lost.
    pub(super) fn leave_entry(&mut self, env: &mut EtcdEnv, session: SessionId) {
        let entry = self.calls.take(|call| matches!(call, EtcdCall::Enter { .. }));
        if env.is_lost(session) {
            return;
        }
        match entry {
            Some((serial, EtcdCall::Enter { action: EtcdEntryAction::Create, .. })) => {
                self.schedule_call(env, session, serial, EtcdCleanupKind::Create);
            }
            Some((serial, EtcdCall::Enter { action: EtcdEntryAction::Adopt, .. })) => {
                self.schedule_call(env, session, serial, EtcdCleanupKind::Put);
            }
            Some((_, EtcdCall::Enter { action: EtcdEntryAction::Search(own), .. })) => {
                self.schedule_key(env, session, own.modified);
            }
            Some(_) | None => self.resume_cleanup(env, session),
        }
    }

    pub(super) fn enter_cleared(&mut self, env: &mut EtcdEnv, session: SessionId) {
        if let EtcdContention::Entering(EtcdEntry { session: own, step: EtcdEntryStep::Clearing }) = &self.contention
            && *own == session
        {
            self.enter(env, session);
        }
    }

    pub(super) fn enter_answered(
        &mut self,
        env: &mut EtcdEnv,
        session: SessionId,
        action: EtcdEntryAction,
        value: Bytes,
        reply: &Reply,
    ) {
        if let Reply::Done(Found::Queue { done: true, own: Some(_), .. }) = reply
            && matches!(action, EtcdEntryAction::Create | EtcdEntryAction::Adopt)
        {
            // A created key shows that the one of an earlier hold is gone. An adopted key was
            // handed over within this client, so its releases succeeded.
            // U1
            self.deleted(env, session, action == EtcdEntryAction::Adopt, false);
        }
        match reply {
            Reply::Done(Found::Queue { done: true, own: Some(own), older: None, others: true, .. })
                if action == EtcdEntryAction::Create =>
            {
                self.search(env, session, *own, value);
            }
            // The key was deleted or written since its creation.
            Reply::Done(Found::Queue { own, .. }) if matches!(action, EtcdEntryAction::Search(created) if *own != Some(created)) => {
                match own {
                    Some(own) => self.adopt(env, session, *own),
                    None => self.enter(env, session),
                }
            }
            Reply::Done(Found::Queue { revision, done: true, own: Some(own), older, rest, all, long, .. }) => {
                self.tries = 0;
                match older {
                    None => self.win(env, session, *own, *revision, value, None),
                    Some(older) if self.key.is_foreign(&older.key) => {
                        self.schedule_key(env, session, own.modified);
                        self.contention = EtcdContention::Idle;
                        self.fail_foreign_key(env, &older.key);
                    }
                    Some(older) => {
                        let next = Older { key: older.key.clone(), created: older.create_revision };
                        let ahead = Ahead { next, rest: all.then(|| rest.clone()) };
                        self.join(env, session, *own, *revision, value, ahead);
                        if *long {
                            self.watch_earlier(env, rest);
                            self.list_once(env);
                        }
                    }
                }
            }
            // The key exists, and this attempt did not create it.
            Reply::Done(Found::Queue { done: false, own: Some(own), .. }) if action == EtcdEntryAction::Create => {
                self.adopt(env, session, *own);
            }
            Reply::Done(Found::Queue { done: false, own: None, older: Some(older), .. }) => {
                self.contention = EtcdContention::Idle;
                self.resume_cleanup(env, session);
                if self.key.is_foreign(&older.key) {
                    return self.fail_foreign_key(env, &older.key);
                }
                self.answer = Answer::Taken(Expiry::Unknown);
                if !self.end_try(env) {
                    // The waiter that tried has already left.
                    self.start(env);
                }
            }
            Reply::Refused(Refusal::LeaseNotFound) => {
                self.contention = EtcdContention::Opening(session);
                env.lost_lease(session);
            }
            Reply::Refused(_) if reply.is_refusal() => {
                self.contention = EtcdContention::Idle;
                match action {
                    EtcdEntryAction::Create => self.resume_cleanup(env, session),
                    EtcdEntryAction::Adopt => self.schedule_look(env, session),
                    EtcdEntryAction::Search(own) => self.schedule_key(env, session, own.modified),
                }
                self.fail_refused(env, reply.answer());
            }
            // The outcome is unclear; the next attempt finds out.
            Reply::Done(_) | Reply::Refused(_) | Reply::NotSent(_) | Reply::Unknown(_) => {
                // A create may still be executed. In the other cases the key exists.
                if action != EtcdEntryAction::Create || matches!(reply, Reply::Unknown(_)) {
                    self.schedule_unsettled(env, session);
                }
                let until = env.now + env.pause(self.tries);
                self.tries = self.tries.saturating_add(1);
                self.contention = EtcdContention::Entering(EtcdEntry { session, step: EtcdEntryStep::Paused(until) });
                // With a reply, the key has changed meanwhile.
                if !matches!(reply, Reply::Done(_)) {
                    self.answer = reply.answer();
                    env.blocked(Blocked::Unreachable);
                    self.end_try(env);
                }
            }
        }
    }
}
