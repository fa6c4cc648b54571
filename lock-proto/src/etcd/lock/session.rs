//! A session: one lease, kept alive until it is revoked or lost.
// E1, T1, T2

use alloc::format;
use core::time::Duration;

use super::{Context, Keys};
use crate::etcd::config::Config;
use crate::etcd::request::{Found, LeaseId, Refusal, Reply, Request};
use crate::lock::{self, Answer, End, Loss, SessionCall, SessionEvent, SessionStore, State, refusal, renew_at};
use crate::time::Instant;

/// The least number of attempts to revoke a lease before it is left to expire.
const MIN_REVOKES: u32 = 8;

pub(crate) type Session = lock::Session<Keys>;

/// The lease of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub(crate) id: LeaseId,
    /// An earlier grant may have been executed.
    may_exist: bool,
    /// The kind of the last call.
    kind: CallKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CallKind {
    Grant,
    KeepAlive,
    Revoke,
}

impl Session {
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.state, State::Alive)
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
        self.retry.is_in_flight() && self.own.kind == CallKind::Grant
    }

    fn work(&mut self, ctx: &mut Context) {
        if !self.retry.is_due(ctx.now) {
            return;
        }
        let lease = self.own.id;
        let (kind, request) = match self.state {
            State::Opening => (CallKind::Grant, Request::Grant { lease, ttl: self.requested.as_secs() as i64 }),
            State::Checking | State::Alive => (CallKind::KeepAlive, Request::KeepAlive { lease, ttl: self.granted }),
            State::Ending => (CallKind::Revoke, Request::Revoke { lease }),
            State::Lost(_) | State::Over(_) => return,
        };
        let serial = ctx.send_for(self.id, request, self.request_timeout(&ctx.config));
        self.retry.sent(SessionCall { serial, emitted: ctx.now });
        self.own.kind = kind;
    }

    /// Schedules the next request, and sends it if it is due.
    fn work_at(&mut self, ctx: &mut Context, due: Instant) {
        self.retry.set_due(Some(due));
        self.work(ctx);
    }

    /// Retries once immediately, then backs off.
    fn retry_once(&mut self, ctx: &mut Context) {
        if self.retry.tries() > 0 {
            return ctx.back_off(&mut self.retry);
        }
        self.retry.failed(ctx.now);
        self.work(ctx);
    }

    fn back_off_within(&mut self, ctx: &Context, limit: Duration) {
        self.retry.failed(ctx.now + ctx.pause(self.retry.tries()).min(limit));
    }

    /// Returns true if the lease has ended by itself, or has no keys because it was never
    /// confirmed. The last keep-alive left before `until`, so its TTL ends within another one.
    fn may_give_up(&self, now: Instant) -> bool {
        self.retry.tries() >= MIN_REVOKES && self.until + self.granted <= now
    }

    fn grant_answered(&mut self, ctx: &mut Context, call: SessionCall, reply: &Reply) -> Option<SessionEvent> {
        match reply {
            Reply::Done(Found::Lease { ttl }) => Some(self.begin(ctx, call.emitted, *ttl)),
            Reply::Done(_) => {
                ctx.back_off(&mut self.retry);
                None
            }
            Reply::Refused(Refusal::LeaseExists) if self.own.may_exist => {
                self.state = State::Checking;
                self.work_at(ctx, ctx.now);
                None
            }
            Reply::Refused(Refusal::LeaseExists) => {
                self.own.id = ctx.fresh_lease();
                self.retry_once(ctx);
                None
            }
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => Some(self.open_failed(ctx, reply)),
        }
    }

    fn keep_alive_answered(&mut self, ctx: &mut Context, call: SessionCall, reply: &Reply) -> Option<SessionEvent> {
        match reply {
            Reply::Done(Found::Lease { ttl }) if *ttl > 0 => {
                if self.state == State::Checking {
                    return Some(self.begin(ctx, call.emitted, *ttl));
                }
                self.record_alive(ctx, call.emitted, *ttl);
                Some(SessionEvent::Renewed(call.emitted))
            }
            // The lease expired before it could be used.
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) if self.state == State::Checking => {
                self.state = State::Opening;
                self.retry_once(ctx);
                None
            }
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => self.lose(Loss::Gone),
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) if self.state == State::Checking => {
                Some(self.open_failed(ctx, reply))
            }
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                self.keep_alive_again(ctx, call.emitted);
                Some(SessionEvent::Unrenewed(call.emitted, reply.answer()))
            }
        }
    }

    /// Repeats a keep-alive that failed, soon if a lock waits for it.
    fn keep_alive_again(&mut self, ctx: &mut Context, emitted: Instant) {
        let wait = self.granted / 12;
        match self.renew_from {
            None => self.retry.set_due(Some(ctx.now + wait)),
            // An extension requested since then still needs its own keep-alive.
            Some(at) if emitted < at => self.work_at(ctx, ctx.now),
            Some(_) => self.back_off_within(ctx, wait),
        }
    }

    /// Uses a lease that exists, unless its TTL is too short. etcd grants at least what was
    /// requested.
    fn begin(&mut self, ctx: &mut Context, emitted: Instant, ttl: i64) -> SessionEvent {
        if let Err(invalid) = ctx.config.lease_ttl(Duration::from_secs(ttl.unsigned_abs())) {
            self.own.may_exist = true;
            let error = refusal(&format!("the lease that it grants is too short: {invalid}"));
            return self.refuse(ctx, Answer::Rejected(error));
        }
        self.record_alive(ctx, emitted, ttl);
        SessionEvent::Alive
    }

    /// The lease was not granted, or could not be checked.
    fn open_failed(&mut self, ctx: &mut Context, reply: &Reply) -> SessionEvent {
        let answer = reply.answer();
        if reply.is_refusal() {
            return self.refuse(ctx, answer);
        }
        self.own.may_exist |= matches!(reply, Reply::Unknown(_));
        // The channel connects only for a request: a longer pause would delay the next attempt.
        self.back_off_within(ctx, ctx.config.reconnect.max);
        SessionEvent::Down(answer)
    }

    fn refuse(&mut self, ctx: &mut Context, answer: Answer) -> SessionEvent {
        self.state = State::Lost(if self.own.may_exist { Loss::Expired } else { Loss::Gone });
        if self.users.is_empty() {
            self.revoke(ctx);
        }
        SessionEvent::Refused(answer)
    }

    /// Records that the lease is alive for `ttl` seconds from `emitted`, and schedules its renewal.
    // T1
    fn record_alive(&mut self, ctx: &mut Context, emitted: Instant, ttl: i64) {
        // `work` sends what this state requires.
        self.state = State::Alive;
        self.granted = Duration::from_secs(ttl.unsigned_abs());
        let validity = ctx.config.drift.validity(self.granted);
        self.prolong(emitted, validity);
        let due = if self.renew_from.is_some() {
            Some(ctx.now)
        } else if self.renewing {
            // etcd's gRPC proxy replies when it renews the lease itself, every third of the TTL: a
            // keep-alive should arrive shortly before. A slow server has half of the validity.
            let late = (ctx.now + self.granted / 4).min(emitted + validity / 2);
            Some(renew_at(ctx.seed ^ self.own.id.get().unsigned_abs(), emitted, self.granted).max(late))
        } else {
            None
        };
        self.retry.set_due(due);
        self.work(ctx);
    }
}

impl SessionStore<Keys> for Lease {
    fn new(ctx: &mut Context) -> Self {
        Self { id: ctx.fresh_lease(), may_exist: false, kind: CallKind::Grant }
    }

    fn deadline(session: &Session) -> Option<(Instant, &'static str)> {
        if session.is_unused() {
            return Some((Instant::ZERO, "end of a lease"));
        }
        let expiry = session.is_alive().then_some((session.until, "end of a lease"));
        let due = session.retry.deadline().map(|at| (at, "lease"));
        [expiry, due].into_iter().flatten().min()
    }

    fn timeout(session: &mut Session, ctx: &mut Context) -> Option<SessionEvent> {
        if session.is_unused() || (session.is_alive() && session.until <= ctx.now) {
            let event = session.lose(Loss::Expired);
            if session.users.is_empty() {
                session.revoke(ctx);
            }
            return event;
        }
        session.work(ctx);
        None
    }

    fn renew(session: &mut Session, ctx: &mut Context) {
        session.work_at(ctx, ctx.now);
    }

    /// Handles a reply. Replies to obsolete calls return `None`.
    fn answered(session: &mut Session, ctx: &mut Context, call: SessionCall, reply: &Reply) -> Option<SessionEvent> {
        match (session.own.kind, session.state) {
            (CallKind::Grant, State::Opening) => session.grant_answered(ctx, call, reply),
            (CallKind::Grant, State::Ending) => {
                // A lease that exists already is not ours.
                let landed = !matches!(reply, Reply::NotSent(_) | Reply::Refused(_));
                if landed || session.own.may_exist {
                    session.work_at(ctx, ctx.now);
                } else {
                    session.state = State::Over(End::Confirmed);
                }
                None
            }
            (CallKind::KeepAlive, State::Alive | State::Checking) => session.keep_alive_answered(ctx, call, reply),
            (CallKind::Revoke, State::Ending) => {
                match reply {
                    Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => {
                        session.state = State::Over(End::Confirmed);
                    }
                    // If the server refuses for good, the lease expires by itself.
                    Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_)
                        if reply.is_refusal() || session.may_give_up(ctx.now) =>
                    {
                        session.state = State::Over(End::Unconfirmed);
                    }
                    Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => ctx.back_off(&mut session.retry),
                }
                None
            }
            (CallKind::Grant | CallKind::KeepAlive | CallKind::Revoke, _) => None,
        }
    }

    fn may_exist(session: &Session) -> bool {
        session.is_granting() || session.own.may_exist
    }

    fn end(session: &mut Session, ctx: &mut Context) {
        // Wait for the reply to a grant in flight: it could be executed after the revoke.
        if !session.is_granting() {
            session.retry.forget_call();
        }
        session.retry.succeeded();
        session.work_at(ctx, ctx.now);
    }
}
