//! A session: one lease, kept alive until it is revoked or lost.
// E1, T1, T2

use core::time::Duration;

use super::{Context, Keys};
use crate::etcd::config::Config;
use crate::etcd::request::{Found, LeaseId, Refusal, Reply, Request};
use crate::jitter::jitter;
use crate::lock::{self, Answer, ErrorClass, Loss, Retry, Session as _, SessionId, Users, pause};
use crate::time::Instant;

/// A lease of the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    id: SessionId,
    pub(crate) lease: LeaseId,
    /// Shared by all locks without a lease of their own.
    pub(crate) shared: bool,
    /// Its locks, and whether each needs it alive; a lock that watches for a late create does not.
    pub(crate) users: Users,
    /// Takes no new keys: a create with an unknown outcome may still be executed.
    pub(crate) retired: bool,
    requested: Duration,
    /// The TTL that the server last granted.
    granted: Duration,
    state: State,
    retry: Retry<Call>,
    /// An earlier grant may have been executed.
    may_exist: bool,
    renewing: bool,
    /// The lock needs a keep-alive sent at or after this instant.
    renew_from: Option<Instant>,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Granting,
    /// The lease exists, but the time of its grant is unknown. A keep-alive decides.
    Checking,
    Alive,
    /// Lost for its users. Its keys stay until the users drop their guards.
    // H6
    Lost(Loss),
    Revoking,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    serial: u64,
    emitted: Instant,
    kind: CallKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CallKind {
    Grant,
    KeepAlive,
    Revoke,
}

/// What the locks of a session are notified of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEvent {
    Alive,
    /// A keep-alive sent at this instant renewed the lease.
    Renewed(Instant),
    /// A keep-alive sent at this instant was not confirmed.
    Unrenewed(Instant, Answer),
    /// A grant failed; the session retries.
    GrantFailed(Answer),
    Refused(Answer),
    Lost(Loss),
}

impl Session {
    pub(crate) fn new(id: SessionId, lease: LeaseId, shared: bool, ttl: Duration, now: Instant) -> Self {
        Self {
            id,
            lease,
            shared,
            users: Users::new(),
            retired: false,
            requested: ttl,
            granted: ttl,
            state: State::Granting,
            retry: Retry::new(Some(now)),
            may_exist: false,
            renewing: true,
            renew_from: None,
            until: Instant::ZERO,
        }
    }

    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.state, State::Alive)
    }

    pub(crate) fn request_timeout(&self, config: &Config) -> Duration {
        config.request_timeout.min(self.granted / 5)
    }

    fn work(&mut self, ctx: &mut Context) {
        if !self.retry.is_due(ctx.now) {
            return;
        }
        let lease = self.lease;
        let (kind, request) = match self.state {
            State::Granting => (CallKind::Grant, Request::Grant { lease, ttl: self.requested.as_secs() as i64 }),
            State::Checking | State::Alive => (CallKind::KeepAlive, Request::KeepAlive { lease, ttl: self.granted }),
            State::Revoking => (CallKind::Revoke, Request::Revoke { lease }),
            State::Lost(_) | State::Over => return,
        };
        let serial = ctx.send_for(self.id, request, self.request_timeout(&ctx.config));
        self.retry.sent(Call { serial, emitted: ctx.now, kind });
    }

    /// Schedules the next request, and sends it if it is due.
    fn work_at(&mut self, ctx: &mut Context, due: Instant) {
        self.retry.set_due(Some(due));
        self.work(ctx);
    }

    /// Retries once immediately, then backs off.
    fn retry_once(&mut self, ctx: &mut Context) {
        if self.retry.tries() > 0 {
            return self.back_off(ctx);
        }
        self.retry.failed(ctx.now);
        self.work(ctx);
    }

    fn back_off(&mut self, ctx: &Context) {
        self.retry.failed(ctx.now + pause(ctx.seed, ctx.now.as_nanos(), self.retry.tries()));
    }

    /// Returns the end of validity of a `ttl` that was requested at `emitted`.
    // T1
    fn valid(emitted: Instant, ttl: Duration, config: &Config) -> Instant {
        emitted + ttl.saturating_sub(ttl / config.drift.divisor + config.drift.margin)
    }

    /// Handles a reply. Replies to obsolete calls return `None`.
    pub(crate) fn answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) -> Option<SessionEvent> {
        let call = self.retry.answered(|call| call.serial == serial)?;
        match (call.kind, self.state) {
            (CallKind::Grant, State::Granting) => self.grant_answered(ctx, call, reply),
            (CallKind::Grant, State::Revoking) => {
                let landed = !matches!(reply, Reply::NotSent(_) | Reply::Refused(Refusal::Error(_)));
                if landed || self.may_exist {
                    self.work_at(ctx, ctx.now);
                } else {
                    self.state = State::Over;
                }
                None
            }
            (CallKind::KeepAlive, State::Alive | State::Checking) => self.keep_alive_answered(ctx, call, reply),
            (CallKind::Revoke, State::Revoking) => {
                match reply {
                    // If the server refuses for good, the lease expires by itself.
                    Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => self.state = State::Over,
                    Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                        self.state = State::Over;
                    }
                    Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => self.back_off(ctx),
                }
                None
            }
            (CallKind::Grant | CallKind::KeepAlive | CallKind::Revoke, _) => None,
        }
    }

    fn grant_answered(&mut self, ctx: &mut Context, call: Call, reply: &Reply) -> Option<SessionEvent> {
        match reply {
            Reply::Done(Found::Lease { ttl }) => {
                self.record_alive(ctx, call.emitted, *ttl);
                Some(SessionEvent::Alive)
            }
            Reply::Done(_) => {
                self.back_off(ctx);
                None
            }
            Reply::Refused(Refusal::LeaseExists) if self.may_exist => {
                self.state = State::Checking;
                self.work_at(ctx, ctx.now);
                None
            }
            Reply::Refused(Refusal::LeaseExists) => {
                self.lease = ctx.fresh_lease();
                self.retry_once(ctx);
                None
            }
            Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                self.state = State::Lost(if self.may_exist { Loss::Expired } else { Loss::Gone });
                Some(SessionEvent::Refused(Answer::Rejected(error.clone())))
            }
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                self.may_exist |= matches!(reply, Reply::Unknown(_));
                self.back_off(ctx);
                Some(SessionEvent::GrantFailed(answer(reply)))
            }
        }
    }

    fn keep_alive_answered(&mut self, ctx: &mut Context, call: Call, reply: &Reply) -> Option<SessionEvent> {
        match reply {
            Reply::Done(Found::Lease { ttl }) if *ttl > 0 => {
                let granted = self.state == State::Checking;
                self.record_alive(ctx, call.emitted, *ttl);
                Some(if granted { SessionEvent::Alive } else { SessionEvent::Renewed(call.emitted) })
            }
            // The lease expired before it could be used.
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) if self.state == State::Checking => {
                self.state = State::Granting;
                self.retry_once(ctx);
                None
            }
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => self.lose(Loss::Gone),
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                // An extend requested since then still needs its own keep-alive.
                let another = self.renew_from.is_some_and(|at| call.emitted < at);
                self.work_at(ctx, if another { ctx.now } else { ctx.now + self.granted / 12 });
                Some(SessionEvent::Unrenewed(call.emitted, answer(reply)))
            }
        }
    }

    /// Records that the lease is alive for `ttl` seconds from `emitted`, and schedules its renewal.
    fn record_alive(&mut self, ctx: &mut Context, emitted: Instant, ttl: i64) {
        // After a late reply the renewal is due at once. `work` sends what this state requires.
        self.state = State::Alive;
        self.granted = Duration::from_secs(ttl.unsigned_abs());
        self.until = self.until.max(Self::valid(emitted, self.granted, &ctx.config));
        self.retry.succeeded();
        self.renew_from = self.renew_from.filter(|at| emitted < *at);
        let third = self.granted / 3;
        let due = if self.renew_from.is_some() {
            Some(ctx.now)
        } else if self.renewing {
            Some(
                emitted
                    + third.saturating_sub(jitter(
                        ctx.seed ^ self.lease.get().unsigned_abs(),
                        emitted.as_nanos(),
                        third / 10,
                    )),
            )
        } else {
            None
        };
        self.retry.set_due(due);
        self.work(ctx);
    }
}

impl lock::Session<Keys> for Session {
    type Event = SessionEvent;

    fn users(&self) -> &Users {
        &self.users
    }

    fn users_mut(&mut self) -> &mut Users {
        &mut self.users
    }

    fn is_known(event: &SessionEvent) -> Option<bool> {
        match event {
            SessionEvent::Lost(Loss::Gone) => Some(false),
            SessionEvent::Renewed(_) => Some(true),
            SessionEvent::Alive
            | SessionEvent::Unrenewed(..)
            | SessionEvent::GrantFailed(_)
            | SessionEvent::Refused(_)
            | SessionEvent::Lost(_) => None,
        }
    }

    /// Requests about keys can always be sent.
    fn is_up(&self) -> bool {
        true
    }

    fn until(&self) -> Instant {
        self.until
    }

    fn ttl(&self) -> Duration {
        self.granted
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_) | State::Revoking | State::Over)
    }

    /// Returns true if the server reported that the lease does not exist. Its keys are gone too.
    fn is_gone(&self) -> bool {
        matches!(self.state, State::Lost(Loss::Gone) | State::Over)
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let expiry = self.is_alive().then_some((self.until, "end of a lease"));
        let due = self.retry.deadline().map(|at| (at, "lease"));
        [expiry, due].into_iter().flatten().min()
    }

    /// Renews the lease for a full TTL, even if it is not renewed automatically.
    fn extend(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        self.renew_from = Some(ctx.now);
        self.work_at(ctx, ctx.now);
        None
    }

    /// Stops the automatic renewal. The lease then lives as long as it is extended.
    fn stop_renewing(&mut self) {
        self.renewing = false;
    }

    fn lose(&mut self, loss: Loss) -> Option<SessionEvent> {
        if !matches!(self.state, State::Granting | State::Checking | State::Alive) {
            return None;
        }
        self.state = State::Lost(loss);
        self.retry = Retry::new(None);
        Some(SessionEvent::Lost(loss))
    }

    /// Handles the departure of the last user. A shared session lives until the client shuts down.
    fn unused(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        let lives_on = self.shared && matches!(self.state, State::Granting | State::Checking | State::Alive);
        if lives_on { None } else { self.revoke(ctx) }
    }

    fn revoke(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        let granting = self.retry.call().is_some_and(|call| call.kind == CallKind::Grant);
        match self.state {
            State::Granting if !granting && !self.may_exist => self.state = State::Over,
            State::Lost(Loss::Gone) => self.state = State::Over,
            State::Granting | State::Checking | State::Alive | State::Lost(_) => {
                self.state = State::Revoking;
                // Wait for the reply to a grant in flight: it could be executed after the revoke.
                if !granting {
                    self.retry.forget_call();
                }
                self.retry.succeeded();
                self.work_at(ctx, ctx.now);
            }
            State::Revoking | State::Over => {}
        }
        None
    }

    fn timeout(&mut self, ctx: &mut Context) -> Option<SessionEvent> {
        if self.is_alive() && self.until <= ctx.now {
            let event = self.lose(Loss::Expired);
            if self.users.is_empty() {
                self.revoke(ctx);
            }
            return event;
        }
        self.work(ctx);
        None
    }
}

pub(crate) fn answer(reply: &Reply) -> Answer {
    match reply {
        Reply::Done(_) => Answer::Granted,
        Reply::Refused(Refusal::Error(error)) => Answer::Rejected(error.clone()),
        Reply::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) => Answer::Silent,
        Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
        Reply::NotSent(cause) => Answer::Unreachable(cause.clone()),
    }
}
