//! Entering the store's queue: one transaction creates the key, or adopts an existing one.
// E3, E6

use super::cleanup::CleanupCall;
use super::{Contention, Context, Keys, Lock};
use crate::etcd::request::{Ahead, Found, Older, Refusal, Reply, Request, Seen};
use crate::lock::{Answer, Blocked, Expiry, Progress, SessionId, Wait};
use crate::time::Instant;
use bytes::Bytes;
use core::mem;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enter {
    pub(super) session: SessionId,
    pub(super) step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Waiting for cleanup of the key.
    Clearing,
    InFlight {
        serial: u64,
        action: Action,
        value: Bytes,
    },
    Paused(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Create,
    /// Take ownership of an existing key of this client by a guarded put.
    // E6
    Adopt,
    /// The key was created with these revisions; find its predecessor.
    Search(Seen),
}

impl Progress<Keys> for Enter {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, call: u64) -> bool {
        matches!(&self.step, Step::InFlight { serial, .. } if *serial == call)
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.step {
            Step::Paused(until) => Some(*until),
            Step::Clearing | Step::InFlight { .. } => None,
        }
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, _: u64, reply: &Reply) {
        lock.enter_answered(ctx, reply);
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        if let Contention::Entering(Self { session, .. }) = lock.contention {
            lock.enter(ctx, session);
        }
    }

    fn abandon(self, lock: &mut Lock, ctx: &mut Context) {
        let Self { session, step } = self;
        match step {
            Step::InFlight { serial, action: Action::Create, .. } => {
                lock.schedule_call(ctx, session, CleanupCall::create(serial));
            }
            Step::InFlight { serial, action: Action::Adopt, .. } => {
                lock.schedule_call(ctx, session, CleanupCall::put(serial));
            }
            Step::InFlight { action: Action::Search(own), .. } => lock.schedule_key(ctx, session, own.modified),
            Step::Clearing | Step::Paused(_) => lock.resume_cleanup(ctx, session),
        }
    }
}

impl Lock {
    /// Enters the store's queue, once cleanup of the key has finished.
    pub(super) fn enter(&mut self, ctx: &mut Context, session: SessionId) {
        let (Some(head), Some(lease)) = (self.waiters.head(), ctx.lease(session)) else {
            self.contention = Contention::Idle;
            return;
        };
        let (value, alone) = (head.terms.value.clone(), head.wait == Wait::Try);
        if ctx.session(session).is_some_and(|found| found.retired) {
            self.resume_cleanup(ctx, session);
            return self.start(ctx);
        }
        if self.store.cleanups.iter().any(|cleanup| cleanup.session == session && cleanup.is_busy()) {
            self.contention = Contention::Entering(Enter { session, step: Step::Clearing });
            return;
        }
        let cached = self.store.own.watch_cache.as_ref().filter(|_| !alone);
        if let Some(until) = cached.and_then(|cached| cached.pause(ctx.now)) {
            self.contention = Contention::Entering(Enter { session, step: Step::Paused(until) });
            return;
        }
        let (expects, long) = cached.and_then(|cached| cached.expects(session)).unzip();
        let long = long.unwrap_or(false);
        self.pause_cleanup(ctx, session);
        let request = Request::Create { queue: self.key.clone(), lease, value: value.clone(), alone, expects, long };
        self.attempt(ctx, session, request, Action::Create, value);
    }

    pub(super) fn adopt(&mut self, ctx: &mut Context, session: SessionId, own: Seen) {
        let (Some(head), Some(lease)) = (self.waiters.head(), ctx.lease(session)) else {
            self.contention = Contention::Idle;
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
        self.attempt(ctx, session, request, Action::Adopt, value);
    }

    /// Reads the predecessor of a key that was created behind others.
    fn search(&mut self, ctx: &mut Context, session: SessionId, own: Seen, value: Bytes) {
        let Some(lease) = ctx.lease(session) else { return };
        let request = Request::Look { queue: self.key.clone(), lease, before: Some(own.created), ahead: None };
        self.attempt(ctx, session, request, Action::Search(own), value);
    }

    fn attempt(&mut self, ctx: &mut Context, session: SessionId, request: Request, action: Action, value: Bytes) {
        let step = Step::InFlight { serial: ctx.send(session, request), action, value };
        self.contention = Contention::Entering(Enter { session, step });
    }

    pub(super) fn enter_cleared(&mut self, ctx: &mut Context, session: SessionId) {
        if let Contention::Entering(Enter { session: own, step: Step::Clearing }) = &self.contention
            && *own == session
        {
            self.enter(ctx, session);
        }
    }

    pub(super) fn enter_answered(&mut self, ctx: &mut Context, reply: &Reply) {
        let Contention::Entering(enter) = &mut self.contention else { return };
        let session = enter.session;
        let Step::InFlight { action, value, .. } = mem::replace(&mut enter.step, Step::Clearing) else { return };
        if let Reply::Done(Found::Queue { done: true, own: Some(_), .. }) = reply
            && matches!(action, Action::Create | Action::Adopt)
        {
            // A created key shows that the one of an earlier hold is gone. An adopted key was
            // handed over within this client, so its releases succeeded.
            // U1
            self.deleted(ctx, session, action == Action::Adopt, false);
        }
        match reply {
            Reply::Done(Found::Queue { done: true, own: Some(own), older: None, others: true, .. })
                if action == Action::Create =>
            {
                self.search(ctx, session, *own, value);
            }
            // The key was deleted or written since its creation.
            Reply::Done(Found::Queue { own, .. }) if matches!(action, Action::Search(created) if *own != Some(created)) => {
                match own {
                    Some(own) => self.adopt(ctx, session, *own),
                    None => self.enter(ctx, session),
                }
            }
            Reply::Done(Found::Queue { revision, done: true, own: Some(own), older, rest, all, long, .. }) => {
                self.tries = 0;
                match older {
                    None => self.win(ctx, session, *own, *revision, value, None),
                    Some(older) if self.key.is_foreign(&older.key) => {
                        self.schedule_key(ctx, session, own.modified);
                        self.contention = Contention::Idle;
                        self.fail_foreign_key(ctx, &older.key);
                    }
                    Some(older) => {
                        let next = Older { key: older.key.clone(), created: older.create_revision };
                        let ahead = Ahead { next, rest: all.then(|| rest.clone()) };
                        self.join(ctx, session, *own, *revision, value, ahead);
                        if *long {
                            self.watch_earlier(ctx, rest);
                            self.list_once(ctx);
                        }
                    }
                }
            }
            // The key exists, and this attempt did not create it.
            Reply::Done(Found::Queue { done: false, own: Some(own), .. }) if action == Action::Create => {
                self.adopt(ctx, session, *own);
            }
            Reply::Done(Found::Queue { done: false, own: None, older: Some(older), .. }) => {
                self.contention = Contention::Idle;
                self.resume_cleanup(ctx, session);
                if self.key.is_foreign(&older.key) {
                    return self.fail_foreign_key(ctx, &older.key);
                }
                self.store.answer = Answer::Taken(Expiry::Unknown);
                self.end_try(ctx);
                // If the waiter that tried has already left, contend for the next one.
                if matches!(self.contention, Contention::Idle) {
                    self.start(ctx);
                }
            }
            Reply::Refused(Refusal::LeaseNotFound) => {
                self.contention = Contention::Opening(session);
                ctx.lost_lease(session);
            }
            Reply::Refused(_) if reply.is_refusal() => {
                self.contention = Contention::Idle;
                match action {
                    Action::Create => self.resume_cleanup(ctx, session),
                    Action::Adopt => self.schedule_look(ctx, session),
                    Action::Search(own) => self.schedule_key(ctx, session, own.modified),
                }
                self.fail_refused(ctx, reply.answer());
            }
            // The outcome is unclear; the next attempt finds out.
            Reply::Done(_) | Reply::Refused(_) | Reply::NotSent(_) | Reply::Unknown(_) => {
                // A create may still be executed. In the other cases the key exists.
                if action != Action::Create || matches!(reply, Reply::Unknown(_)) {
                    self.schedule_unsettled(ctx, session);
                }
                let until = ctx.now + ctx.pause(self.tries);
                self.tries = self.tries.saturating_add(1);
                self.contention = Contention::Entering(Enter { session, step: Step::Paused(until) });
                // With a reply, the key has changed meanwhile.
                if !matches!(reply, Reply::Done(_)) {
                    self.store.answer = reply.answer();
                    self.notify_blocked(ctx, Blocked::Unreachable);
                    self.end_try(ctx);
                }
            }
        }
    }
}
