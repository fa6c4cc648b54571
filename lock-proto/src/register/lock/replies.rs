//! What follows from the replies of the store.
// RG4, RG6

use alloc::boxed::Box;
use core::time::Duration;

use super::{
    Cas, HANDOVER_PAUSE, HeldRecord, Intent, OpenWrites, RegisterCall, RegisterEnv, RegisterPurpose, SentRecord,
};
use crate::fault::{Breach, Fault};
use crate::jitter::{doubled, jitter};
use crate::lock::{Answer, Blocked, ErrorClass, Expiry, Fact, Hopeless, Loss, Release, Report};
use crate::register::flaw::RegisterFlaw;
use crate::register::record::{Entry, Revision};
use crate::register::request::Reply;
use crate::time::{Instant, When};

impl Cas {
    /// Handles the reply to the call with this serial. That to any other call is dropped.
    pub(crate) fn reply(&mut self, env: &mut RegisterEnv, serial: u64, reply: &Reply) {
        if let Some(call) = self.call.take_if(|call| call.serial == serial) {
            self.answered(env, call, reply);
            self.proceed(env);
        }
    }

    /// The reply has not come. It may still be made.
    pub(super) fn call_timed_out(&mut self, env: &mut RegisterEnv) {
        if let Some(call) = self.call.take() {
            self.answered(env, call, &Reply::Unknown(Fault::TimedOut.into()));
        }
    }

    /// The key may have changed.
    // RG7
    pub(crate) fn changed(&mut self, env: &mut RegisterEnv) {
        if self.watch.report(self.call.is_some()) {
            env.shared.watched.remove(&self.key);
            if self.hold.is_none() && self.frees.is_none() {
                self.pause = When::Now;
            }
            self.proceed(env);
        }
    }

    fn answered(&mut self, env: &mut RegisterEnv, call: RegisterCall, reply: &Reply) {
        let RegisterCall { departed, purpose, .. } = call;
        match (purpose, reply) {
            (RegisterPurpose::Read, Reply::Record(entry)) => self.seen(env, departed, Some(entry.clone())),
            (RegisterPurpose::Read, Reply::Absent) => self.seen(env, departed, None),
            (RegisterPurpose::Write { intent, record, .. }, Reply::Written(revision)) => {
                self.written(env, intent, &SentRecord { departed, record }, revision);
            }
            (RegisterPurpose::Write { expected, .. }, Reply::Conflict) => self.conflict(env, expected),
            (_, Reply::NotSent(cause)) => self.failed(env, Answer::Unreachable(cause.clone())),
            (RegisterPurpose::Read, Reply::Unknown(cause)) => self.failed(env, Answer::Unknown(cause.clone())),
            (RegisterPurpose::Read, Reply::Rejected(error)) => self.failed(env, Answer::Rejected(error.clone())),
            (RegisterPurpose::Write { .. }, Reply::Rejected(error)) if error.class != ErrorClass::Unclear => {
                self.failed(env, Answer::Rejected(error.clone()));
            }
            (RegisterPurpose::Read, Reply::Written(_) | Reply::Conflict) => self.failed(env, wrong_reply()),
            (RegisterPurpose::Write { intent, record, expected }, reply) => {
                self.undecided(env, intent, SentRecord { departed, record }, expected);
                let answer = match reply {
                    Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
                    Reply::Rejected(error) => Answer::Rejected(error.clone()),
                    Reply::Record(_) | Reply::Absent | Reply::Written(_) | Reply::Conflict | Reply::NotSent(_) => {
                        wrong_reply()
                    }
                };
                self.failed(env, answer);
            }
        }
    }

    fn written(&mut self, env: &mut RegisterEnv, intent: Intent, sent: &SentRecord, revision: &Revision) {
        self.answer = Answer::Granted;
        self.conflicts = 0;
        self.open = None;
        self.known.wrote(env.now, sent.record.clone(), revision.clone(), &env.config);
        match intent {
            Intent::Take => self.taken(env, sent),
            Intent::Renew => {
                let Some(hold) = &mut self.hold else { return };
                let (extended, proclaimed) = hold.confirmed(env, sent);
                if hold.is_offered {
                    let id = hold.id;
                    env.report(Fact::Renewed(id, extended));
                    let version = i64::try_from(sent.record.version).unwrap_or(i64::MAX);
                    (0..proclaimed).for_each(|_| env.report(Fact::Proclaimed(id, version)));
                } else {
                    self.offer(env);
                }
            }
            Intent::Free => self.freed(env, Release::Released),
        }
    }

    fn taken(&mut self, env: &mut RegisterEnv, sent: &SentRecord) {
        // The record of a lost hold is replaced.
        if let Some(kept) = self.kept.take() {
            self.left.push(kept.id);
        }
        if sent.departed + env.config.drift.validity(sent.record.ttl) <= env.now {
            // It took too long. The record is this client's, and taken again.
            if self.head.is_none() {
                self.free_soon(env);
            }
            return;
        }
        let Some(waiter) = self.head.take() else { return self.free_soon(env) };
        // What an earlier hold has left is replaced.
        // U1
        self.frees = None;
        self.answer_releases(env, Release::Expired);
        self.polls = 0;
        self.unwatch(env);
        let hold = self.hold.insert(HeldRecord::new(env, sent, &waiter));
        env.report(Fact::Taken(waiter.id, hold.holding()));
        self.offer(env);
    }

    /// Another record than the expected one was proved to be there. That is no loss: it may be of an
    /// earlier write.
    fn conflict(&mut self, env: &RegisterEnv, expected: Option<Box<Entry>>) {
        self.answer = Answer::Taken(Expiry::Unknown);
        self.open.get_or_insert_with(|| OpenWrites::new(expected)).is_refuted = true;
        self.known.is_fresh = false;
        self.conflicts += 1;
        if self.conflicts > 1 {
            self.retry_soon(env);
        }
    }

    /// The outcome of a write is unknown.
    fn undecided(&mut self, env: &RegisterEnv, intent: Intent, sent: SentRecord, expected: Option<Box<Entry>>) {
        if intent == Intent::Free {
            for release in self.releases.iter_mut() {
                release.in_time |= sent.departed < release.valid_until;
            }
        }
        if env.config.has(RegisterFlaw::UnknownIsNo) {
            return;
        }
        let open = self.open.take().filter(|open| !open.is_refuted);
        self.open.insert(open.unwrap_or_else(|| OpenWrites::new(expected))).push(sent);
    }

    /// A read has shown this record, or that there is none. It may be stale.
    fn seen(&mut self, env: &mut RegisterEnv, departed: Instant, entry: Option<Entry>) {
        self.answer = Answer::Granted;
        self.known.show(env.now, departed, entry, env.shared.client, &env.config);
        let decided = self.open.take_if(|open| open.is_decided_by(self.known.entry.as_deref()));
        if self.hold.is_some() {
            self.seen_by_holder(env, decided.as_ref());
        } else if self.frees.is_some() && !self.known.is_held_by(env.shared.client) {
            if self.open.is_none() {
                let is_own = self.known.record().is_some_and(|record| record.writer.client == env.shared.client);
                let outcome = if is_own { Release::Released } else { self.outcome(env) };
                self.freed(env, outcome);
            } else if self.open.as_ref().is_some_and(|open| open.is_refuted) {
                // It is stale.
                self.known.is_fresh = false;
                self.retry_later(env);
            }
        }
    }

    fn seen_by_holder(&mut self, env: &mut RegisterEnv, decided: Option<&OpenWrites>) {
        let Some(hold) = &mut self.hold else { return };
        match self.known.record() {
            Some(record) if record.version < hold.version => {}
            Some(record) if record.held && record.writer.client == env.shared.client => {
                if let Some(sent) = decided.and_then(|open| open.writer_of(record)) {
                    hold.applied(env, sent);
                    env.report(Fact::Renewed(hold.id, 0));
                }
                return;
            }
            Some(_) => return hold.lose(env, Loss::Taken),
            None if self.open.as_ref().is_none_or(|open| !open.may_apply()) => return hold.lose(env, Loss::Gone),
            None => {}
        }
        // It is stale.
        self.known.is_fresh = false;
        self.retry_later(env);
    }

    /// The request has failed, or its outcome is unknown.
    fn failed(&mut self, env: &mut RegisterEnv, answer: Answer) {
        let is_in_use = matches!(&answer, Answer::Rejected(error) if error.class == ErrorClass::KeyInUse);
        let is_refused = answer.is_refusal();
        self.answer = answer;
        if let Some(hold) = &mut self.hold {
            let id = hold.id;
            for since in hold.unconfirmed() {
                let report = Report { waited: env.now.since(since), nodes: Box::new([self.answer.clone()]) };
                env.report(Fact::ExtendFailed(id, report));
            }
            return self.retry_later(env);
        }
        if self.frees.is_some() && is_refused {
            // U1
            return self.give_up(env);
        }
        if self.frees.is_some() || self.head.is_none() {
            return self.retry_later(env);
        }
        if is_in_use {
            self.hopeless(env, Hopeless::KeyInUse);
        } else if is_refused {
            self.hopeless(env, Hopeless::Refused);
        } else {
            self.wait(env, Blocked::Unreachable, None);
        }
    }

    fn hopeless(&mut self, env: &mut RegisterEnv, why: Hopeless) {
        self.pause = When::Never;
        env.report(Fact::Hopeless(why));
    }

    /// Reads after a short pause, longer each time. Somebody else was faster: the lock may be free again
    /// at any time, and nothing is watched.
    // RG7
    fn retry_soon(&mut self, env: &RegisterEnv) {
        self.pause_for(env, doubled(HANDOVER_PAUSE, self.conflicts - 2, self.longest_pause(env)));
    }

    /// Repeats the request after a pause.
    fn retry_later(&mut self, env: &RegisterEnv) {
        self.pause_for(env, self.longest_pause(env));
    }

    fn longest_pause(&self, env: &RegisterEnv) -> Duration {
        match &self.hold {
            Some(hold) => hold.stake.ttl / 12,
            None => env.config.poll_interval().every.min(env.config.request_timeout),
        }
    }

    fn pause_for(&mut self, env: &RegisterEnv, most: Duration) {
        self.pause = When::At(env.now + most.saturating_sub(jitter(env.seed, env.serial, most / 2)));
    }
}

fn wrong_reply() -> Answer {
    Answer::Unknown(Fault::Protocol(Breach::WrongReply).into())
}

#[cfg(test)]
impl Cas {
    /// Returns true if this record was last shown.
    pub(crate) fn shows(&self, record: &crate::register::Record) -> bool {
        self.known.record() == Some(record)
    }
}
