//! A session: one lease, kept alive until it is revoked or lost.
// E1, T1, T2

use alloc::format;
use core::time::Duration;

use super::context::EtcdWatches;
use super::query::EtcdQuery;
use super::{EtcdEnv, EtcdName};
use crate::etcd::config::Config;
use crate::etcd::request::{Found, LeaseId, Refusal, Reply, Request};
use crate::lock::{
    self, Answer, Loss, QueueClient, SessionCall, SessionEnd, SessionEvent, SessionPurpose, SessionState, refusal,
    renew_at,
};
use crate::time::{Instant, When};

/// The least number of attempts to revoke a lease before it is left to expire.
const MIN_REVOKES: u32 = 8;

pub(crate) type EtcdSession = lock::QueueSession<EtcdName>;

/// The lease of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtcdLease {
    pub(crate) id: LeaseId,
    /// An earlier grant may have been executed.
    may_exist: bool,
}

impl EtcdSession {
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.state, SessionState::Alive)
    }

    pub(crate) fn request_timeout(&self, config: &Config) -> Duration {
        config.request_timeout.min(self.granted / 5)
    }

    /// Returns true if it is retired, and its remaining users only watch.
    // E3
    fn is_unused(&self) -> bool {
        self.retired && self.is_open() && !self.is_needed()
    }

    fn is_granting(&self) -> bool {
        self.retry.call().is_some_and(|call| call.purpose == SessionPurpose::Open)
    }

    fn work(&mut self, env: &mut EtcdEnv) {
        if !self.retry.is_due(env.now) {
            return;
        }
        let lease = self.own.id;
        let (purpose, request) = match self.state {
            SessionState::Opening => {
                (SessionPurpose::Open, Request::Grant { lease, ttl: self.requested.as_secs() as i64 })
            }
            SessionState::Checking | SessionState::Alive => {
                (SessionPurpose::Renew, Request::KeepAlive { lease, ttl: self.granted })
            }
            SessionState::Ending => (SessionPurpose::End, Request::Revoke { lease }),
            SessionState::Lost(_) | SessionState::Over(_) => return,
        };
        let serial = env.send_for(self.id, request, self.request_timeout(&env.config));
        self.retry.sent(SessionCall { serial, purpose, emitted: env.now });
    }

    /// Schedules the next request, and sends it if it is due.
    fn work_at(&mut self, env: &mut EtcdEnv, due: Instant) {
        self.retry.set_due(Some(due));
        self.work(env);
    }

    /// Retries once immediately, then backs off.
    fn retry_once(&mut self, env: &mut EtcdEnv) {
        if self.retry.tries() > 0 {
            return env.back_off(&mut self.retry);
        }
        self.retry.failed(env.now);
        self.work(env);
    }

    fn back_off_within(&mut self, env: &EtcdEnv, limit: Duration) {
        self.retry.failed(env.now + env.pause(self.retry.tries()).min(limit));
    }

    /// Returns true if the lease has ended by itself, or has no keys because it was never
    /// confirmed. The last keep-alive left before `until`, so its TTL ends within another one.
    fn may_give_up(&self, now: Instant) -> bool {
        self.retry.tries() >= MIN_REVOKES && self.until + self.granted <= now
    }

    fn grant_answered(&mut self, env: &mut EtcdEnv, call: SessionCall, reply: &Reply) -> Option<SessionEvent> {
        match reply {
            Reply::Done(Found::Lease { ttl }) => Some(self.begin(env, call.emitted, *ttl)),
            Reply::Done(_) => {
                env.back_off(&mut self.retry);
                None
            }
            Reply::Refused(Refusal::LeaseExists) if self.own.may_exist => {
                self.state = SessionState::Checking;
                self.work_at(env, env.now);
                None
            }
            Reply::Refused(Refusal::LeaseExists) => {
                self.own.id = env.fresh_lease();
                self.retry_once(env);
                None
            }
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => Some(self.open_failed(env, reply)),
        }
    }

    fn keep_alive_answered(&mut self, env: &mut EtcdEnv, call: SessionCall, reply: &Reply) -> Option<SessionEvent> {
        match reply {
            Reply::Done(Found::Lease { ttl }) if *ttl > 0 => {
                if self.state == SessionState::Checking {
                    return Some(self.begin(env, call.emitted, *ttl));
                }
                self.record_alive(env, call.emitted, *ttl);
                Some(SessionEvent::Renewed(call.emitted))
            }
            // The lease expired before it could be used.
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) if self.state == SessionState::Checking => {
                self.state = SessionState::Opening;
                self.retry_once(env);
                None
            }
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => self.lose(Loss::Gone),
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) if self.state == SessionState::Checking => {
                Some(self.open_failed(env, reply))
            }
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                self.keep_alive_again(env, call.emitted);
                Some(SessionEvent::Unrenewed(call.emitted, reply.answer()))
            }
        }
    }

    /// Repeats a keep-alive that failed, soon if a lock waits for it.
    fn keep_alive_again(&mut self, env: &mut EtcdEnv, emitted: Instant) {
        let wait = self.granted / 12;
        match self.renew_from {
            None => self.retry.set_due(Some(env.now + wait)),
            // An extension requested since then still needs its own keep-alive.
            Some(at) if emitted < at => self.work_at(env, env.now),
            Some(_) => self.back_off_within(env, wait),
        }
    }

    /// Uses a lease that exists, unless its TTL is too short. etcd grants at least what was
    /// requested.
    fn begin(&mut self, env: &mut EtcdEnv, emitted: Instant, ttl: i64) -> SessionEvent {
        if let Err(invalid) = env.config.lease_ttl(Duration::from_secs(ttl.unsigned_abs())) {
            self.own.may_exist = true;
            let error = refusal(&format!("the lease that it grants is too short: {invalid}"));
            return self.refuse(env, Answer::Rejected(error));
        }
        self.record_alive(env, emitted, ttl);
        SessionEvent::Alive
    }

    /// The lease was not granted, or could not be checked.
    fn open_failed(&mut self, env: &mut EtcdEnv, reply: &Reply) -> SessionEvent {
        let answer = reply.answer();
        if reply.is_refusal() {
            return self.refuse(env, answer);
        }
        self.own.may_exist |= matches!(reply, Reply::Unknown(_));
        // The channel connects only for a request: a longer pause would delay the next attempt.
        self.back_off_within(env, env.config.reconnect.max);
        SessionEvent::Down(answer)
    }

    /// Somebody waits only until `by`: a lease whose next attempt is later is requested now. `unsent`:
    /// so is one that waits for a connection, because its time may end before that is open.
    // P9
    pub(super) fn hurry(&mut self, env: &mut EtcdEnv, by: Instant, unsent: bool) -> Option<SessionEvent> {
        if !matches!(self.state, SessionState::Opening | SessionState::Checking) {
            return None;
        }
        if unsent && self.retry.is_in_flight() {
            // It may still be sent.
            self.own.may_exist |= self.is_granting();
            self.retry.forget_call();
            self.work_at(env, env.now);
        } else if self.retry.due().is_some_and(|due| due > by) {
            self.work_at(env, env.now);
        }
        None
    }

    fn refuse(&mut self, env: &mut EtcdEnv, answer: Answer) -> SessionEvent {
        self.state = SessionState::Lost(if self.own.may_exist { Loss::Expired } else { Loss::Gone });
        if self.users.is_empty() {
            self.revoke(env);
        }
        SessionEvent::Refused(answer)
    }

    /// Records that the lease is alive for `ttl` seconds from `emitted`, and schedules its renewal.
    // T1
    fn record_alive(&mut self, env: &mut EtcdEnv, emitted: Instant, ttl: i64) {
        // `work` sends what this state requires.
        self.state = SessionState::Alive;
        self.granted = Duration::from_secs(ttl.unsigned_abs());
        let validity = env.config.drift.validity(self.granted);
        self.prolong(emitted, validity);
        let due = if self.renew_from.is_some() {
            Some(env.now)
        } else if self.renewing {
            // etcd's gRPC proxy replies when it renews the lease itself, every third of the TTL: a
            // keep-alive should arrive shortly before. A slow server has half of the validity.
            let late = (env.now + self.granted / 4).min(emitted + validity / 2);
            Some(renew_at(env.seed ^ self.own.id.get().unsigned_abs(), emitted, self.granted).max(late))
        } else {
            None
        };
        self.retry.set_due(due);
        self.work(env);
    }
}

impl QueueClient<EtcdName> for EtcdWatches {
    type Session = EtcdLease;
    type Query = EtcdQuery;

    fn new_session(env: &mut EtcdEnv) -> EtcdLease {
        EtcdLease { id: env.fresh_lease(), may_exist: false }
    }

    fn session_deadline(session: &EtcdSession) -> (When, &'static str) {
        if session.is_unused() {
            return (When::Now, "end of a lease");
        }
        let expiry = When::from(session.is_alive().then_some(session.until));
        (expiry, "end of a lease").min((session.retry.deadline().into(), "lease"))
    }

    fn session_timeout(session: &mut EtcdSession, env: &mut EtcdEnv) -> Option<SessionEvent> {
        if session.is_unused() || (session.is_alive() && session.until <= env.now) {
            let event = session.lose(Loss::Expired);
            if session.users.is_empty() {
                session.revoke(env);
            }
            return event;
        }
        session.work(env);
        None
    }

    fn renew(session: &mut EtcdSession, env: &mut EtcdEnv) {
        session.work_at(env, env.now);
    }

    /// Handles a reply. Replies to obsolete calls return `None`.
    fn session_answered(
        session: &mut EtcdSession,
        env: &mut EtcdEnv,
        call: SessionCall,
        reply: &Reply,
    ) -> Option<SessionEvent> {
        match (call.purpose, session.state) {
            (SessionPurpose::Open, SessionState::Opening) => session.grant_answered(env, call, reply),
            (SessionPurpose::Open, SessionState::Ending) => {
                // A lease that exists already is not ours.
                let landed = !matches!(reply, Reply::NotSent(_) | Reply::Refused(_));
                if landed || session.own.may_exist {
                    session.work_at(env, env.now);
                } else {
                    session.state = SessionState::Over(SessionEnd::Confirmed);
                }
                None
            }
            (SessionPurpose::Renew, SessionState::Alive | SessionState::Checking) => {
                session.keep_alive_answered(env, call, reply)
            }
            (SessionPurpose::End, SessionState::Ending) => {
                match reply {
                    Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => {
                        session.state = SessionState::Over(SessionEnd::Confirmed);
                    }
                    // If the server refuses for good, the lease expires by itself.
                    Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_)
                        if reply.is_refusal() || session.may_give_up(env.now) =>
                    {
                        session.state = SessionState::Over(SessionEnd::Unconfirmed);
                    }
                    Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => env.back_off(&mut session.retry),
                }
                None
            }
            (SessionPurpose::Open | SessionPurpose::Renew | SessionPurpose::End, _) => None,
        }
    }

    fn end_session(session: &mut EtcdSession, env: &mut EtcdEnv) {
        if session.state == SessionState::Opening && !session.is_granting() && !session.own.may_exist {
            session.state = SessionState::Over(SessionEnd::Confirmed);
            return;
        }
        session.state = SessionState::Ending;
        // Wait for the reply to a grant in flight: it could be executed after the revoke.
        if !session.is_granting() {
            session.retry.forget_call();
        }
        session.retry.succeeded();
        session.work_at(env, env.now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::etcd::{Locks, LocksOutput};
    use crate::fault::Fault;
    use crate::id::ClientId;
    use crate::lock::Acquire;

    /// Returns how many grants were sent, and the call of the last one.
    fn grants(locks: &mut Locks) -> (usize, Option<crate::id::CallId>) {
        let mut calls = alloc::vec::Vec::new();
        while let Some(output) = locks.poll_output() {
            if let LocksOutput::Send { call, request: Request::Grant { .. }, .. } = output {
                calls.push(call);
            }
        }
        (calls.len(), calls.last().copied())
    }

    /// A request that waited for a connection timed out just before that was open, and a single
    /// attempt failed with it.
    #[test]
    fn lease_is_requested_again_for_an_attempt_that_cannot_wait() {
        // P9
        let now = Instant::from_millis(5);
        let config = Config::parse("etcd://h").unwrap();
        let mut locks = Locks::new(now, config, ClientId::from_bits(1), 7).unwrap();
        locks.acquire(now, &Acquire::new("a")).unwrap();
        let (sent, first) = grants(&mut locks);
        assert_eq!(sent, 1);
        let unsent = Reply::NotSent(Fault::Refused.into());
        // In flight: only if nothing has left.
        locks.ctx.env.hurry_lease(now, false);
        assert_eq!(grants(&mut locks).0, 0);
        locks.ctx.env.hurry_lease(now, true);
        let (sent, second) = grants(&mut locks);
        assert_eq!(sent, 1);
        locks.handle_reply(now, first.unwrap(), &unsent);
        assert_eq!(grants(&mut locks).0, 0, "it is not awaited any more");
        // In the pause after a failure.
        locks.handle_reply(now, second.unwrap(), &unsent);
        assert_eq!(grants(&mut locks).0, 0);
        let later = now + Duration::from_secs(9);
        locks.ctx.env.hurry_lease(later, false);
        assert_eq!(grants(&mut locks).0, 0, "it can wait");
        locks.ctx.env.hurry_lease(now, false);
        assert_eq!(grants(&mut locks).0, 1);
    }
}
