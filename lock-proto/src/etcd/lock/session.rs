//! A session: one lease, kept alive until it is revoked or lost (requirements E1, T1, T2).

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::Context;
use super::sessions::SessionId;
use crate::etcd::config::Config;
use crate::etcd::request::{Found, LeaseId, Refusal, Reply, Request};
use crate::jitter::{doubled, jitter};
use crate::lock::{Answer, ErrorClass, Loss, Retry};
use crate::time::Instant;

/// The first pause before something that failed is tried again, and the longest.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// The pause after `tries` failures.
pub(super) fn pause(seed: u64, n: u64, tries: u32) -> Duration {
    let (first, max) = PAUSE;
    let pause = doubled(first, tries, max);
    pause + jitter(seed, n, pause / 2)
}

/// After how long what is watched is read again, see [`Config::recheck`].
pub(super) fn recheck(config: &Config, seed: u64, now: Instant) -> Duration {
    config.store.recheck - jitter(seed, now.as_nanos(), config.store.recheck / 4)
}

/// One lease of this client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    id: SessionId,
    pub(crate) lease: LeaseId,
    /// The one that all locks without a lease of their own share.
    pub(crate) shared: bool,
    /// The names that depend on it, and whether they need it alive: one that only watches for a late key does not.
    pub(crate) users: BTreeMap<u32, bool>,
    /// Nothing new is hung on it, and it ends when nobody needs it any more: a create whose end nobody knows may still land.
    pub(crate) retired: bool,
    /// What was asked for, in seconds.
    asked: i64,
    /// What was granted last.
    granted: Duration,
    state: State,
    retry: Retry<Call>,
    /// An earlier grant may have landed.
    may_exist: bool,
    /// Kept alive until told otherwise.
    renewing: bool,
    /// A sign of life is wanted that is emitted at this instant or later.
    wanted: Option<Instant>,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Granting,
    /// An earlier grant had landed, it is not known when: a sign of life decides.
    Checking,
    Alive,
    /// Over for its users, who may still have guards out; its keys are left alone until those come back (requirement H6).
    Lost(Loss),
    Revoking,
    Over,
}

/// The request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    serial: u64,
    emitted: Instant,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Grant,
    KeepAlive,
    Revoke,
}

/// What its users are told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum News {
    /// Granted.
    Alive,
    /// Kept alive by a request emitted at this instant.
    Renewed(Instant),
    /// A sign of life that was emitted at this instant was not confirmed.
    Unrenewed(Instant, Answer),
    /// It could not be granted so far; it goes on trying.
    Trouble(Answer),
    /// It will not be granted.
    Refused(Answer),
    /// It is lost.
    Lost(Loss),
}

impl Session {
    pub(crate) fn new(id: SessionId, lease: LeaseId, shared: bool, seconds: i64, now: Instant) -> Self {
        Self {
            id,
            lease,
            shared,
            users: BTreeMap::new(),
            retired: false,
            asked: seconds,
            granted: Duration::from_secs(seconds.unsigned_abs()),
            state: State::Granting,
            retry: Retry::new(Some(now)),
            may_exist: false,
            renewing: true,
            wanted: None,
            until: Instant::ZERO,
        }
    }

    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.state, State::Alive)
    }

    pub(crate) const fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_) | State::Revoking | State::Over)
    }

    /// The server said that there is no such lease (any more): nor is there a key on it.
    pub(crate) const fn is_gone(&self) -> bool {
        matches!(self.state, State::Lost(Loss::Gone) | State::Over)
    }

    /// The end of validity of all that hangs on it.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Life without a sign of life.
    pub(crate) const fn ttl(&self) -> Duration {
        self.granted
    }

    /// How long a request about it or its keys may stay unanswered.
    pub(crate) fn request_timeout(&self, config: &Config) -> Duration {
        config.request_timeout.min(self.granted / 5)
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let expiry = self.is_alive().then_some((self.until, "end of a lease"));
        let due = self.retry.deadline().map(|at| (at, "lease"));
        [expiry, due].into_iter().flatten().min()
    }

    /// A full life from now on, also for one that is not kept alive by itself.
    pub(crate) fn extend(&mut self, ctx: &mut Context) -> Option<News> {
        self.wanted = Some(ctx.now);
        self.work_at(ctx, ctx.now);
        None
    }

    /// From now on it lives only as long as it is extended.
    pub(crate) const fn stop_renewing(&mut self) {
        self.renewing = false;
    }

    /// The server said so, or the clock.
    pub(crate) fn lose(&mut self, loss: Loss) -> Option<News> {
        if !matches!(self.state, State::Granting | State::Checking | State::Alive) {
            return None;
        }
        self.state = State::Lost(loss);
        self.retry = Retry::new(None);
        Some(News::Lost(loss))
    }

    /// Nobody depends on it any more. A shared one lives on until the client ends.
    pub(crate) fn unused(&mut self, ctx: &mut Context) -> Option<News> {
        let lives_on = self.shared && matches!(self.state, State::Granting | State::Checking | State::Alive);
        if lives_on { None } else { self.revoke(ctx) }
    }

    /// Ends it, with whatever hangs on it.
    pub(crate) fn revoke(&mut self, ctx: &mut Context) -> Option<News> {
        let granting = self.retry.call().is_some_and(|call| call.what == What::Grant);
        match self.state {
            State::Granting if !granting && !self.may_exist => self.state = State::Over,
            State::Lost(Loss::Gone) => self.state = State::Over,
            State::Granting | State::Checking | State::Alive | State::Lost(_) => {
                self.state = State::Revoking;
                // A grant under way is answered first: revoked before, it could still land.
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

    pub(crate) fn timeout(&mut self, ctx: &mut Context) -> Option<News> {
        if self.is_alive() && self.until <= ctx.now {
            let news = self.lose(Loss::Expired);
            if self.users.is_empty() {
                self.revoke(ctx);
            }
            return news;
        }
        self.work(ctx);
        None
    }

    /// Sends what is due.
    fn work(&mut self, ctx: &mut Context) {
        if !self.retry.is_due(ctx.now) {
            return;
        }
        let lease = self.lease;
        let (what, request) = match self.state {
            State::Granting => (What::Grant, Request::Grant { lease, ttl: self.asked }),
            State::Checking | State::Alive => (What::KeepAlive, Request::KeepAlive { lease }),
            State::Revoking => (What::Revoke, Request::Revoke { lease }),
            State::Lost(_) | State::Over => return,
        };
        let serial = ctx.send_for(self.id, request, self.request_timeout(&ctx.config));
        self.retry.sent(Call { serial, emitted: ctx.now, what });
    }

    /// Sends the next request then, and not before.
    fn work_at(&mut self, ctx: &mut Context, due: Instant) {
        self.retry.set_due(Some(due));
        self.work(ctx);
    }

    /// At once, but not in a circle.
    fn again(&mut self, ctx: &mut Context) {
        if self.retry.tries() > 0 {
            return self.back_off(ctx);
        }
        self.retry.failed(ctx.now);
        self.work(ctx);
    }

    fn back_off(&mut self, ctx: &Context) {
        self.retry.failed(ctx.now + pause(ctx.seed, ctx.now.as_nanos(), self.retry.tries()));
    }

    /// Until when a life of `ttl` counts that was asked for at `emitted` (requirement T1).
    fn valid(emitted: Instant, ttl: Duration, config: &Config) -> Instant {
        emitted + ttl.saturating_sub(ttl / config.drift.divisor + config.drift.margin)
    }

    /// The answer to a request of this session; `None` if it is nobody's business.
    pub(crate) fn answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) -> Option<News> {
        let call = self.retry.answered(|call| call.serial == serial)?;
        match (call.what, self.state) {
            (What::Grant, State::Granting) => self.grant_answered(ctx, call, reply),
            (What::Grant, State::Revoking) => {
                let landed = !matches!(reply, Reply::NotSent(_) | Reply::Refused(Refusal::Error(_)));
                if landed || self.may_exist {
                    self.work_at(ctx, ctx.now);
                } else {
                    self.state = State::Over;
                }
                None
            }
            (What::KeepAlive, State::Alive | State::Checking) => self.sign_answered(ctx, call, reply),
            (What::Revoke, State::Revoking) => {
                match reply {
                    // Refused for good: it is not kept alive, so it ends by itself.
                    Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => self.state = State::Over,
                    Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                        self.state = State::Over;
                    }
                    Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => self.back_off(ctx),
                }
                None
            }
            (What::Grant | What::KeepAlive | What::Revoke, _) => None,
        }
    }

    fn grant_answered(&mut self, ctx: &mut Context, call: Call, reply: &Reply) -> Option<News> {
        match reply {
            Reply::Done(Found::Lease { ttl }) => {
                self.live(ctx, call.emitted, *ttl);
                Some(News::Alive)
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
                self.again(ctx);
                None
            }
            Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                self.state = State::Lost(if self.may_exist { Loss::Expired } else { Loss::Gone });
                Some(News::Refused(Answer::Rejected(error.clone())))
            }
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                self.may_exist |= matches!(reply, Reply::Unknown(_));
                self.back_off(ctx);
                Some(News::Trouble(answer(reply)))
            }
        }
    }

    fn sign_answered(&mut self, ctx: &mut Context, call: Call, reply: &Reply) -> Option<News> {
        match reply {
            Reply::Done(Found::Lease { ttl }) if *ttl > 0 => {
                let granted = self.state == State::Checking;
                self.live(ctx, call.emitted, *ttl);
                Some(if granted { News::Alive } else { News::Renewed(call.emitted) })
            }
            // It has ended before it was of use.
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) if self.state == State::Checking => {
                self.state = State::Granting;
                self.again(ctx);
                None
            }
            Reply::Done(_) | Reply::Refused(Refusal::LeaseNotFound) => self.lose(Loss::Gone),
            Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                // Whoever asked for one since then has not got theirs yet.
                let another = self.wanted.is_some_and(|at| call.emitted < at);
                self.work_at(ctx, if another { ctx.now } else { ctx.now + self.granted / 12 });
                Some(News::Unrenewed(call.emitted, answer(reply)))
            }
        }
    }

    /// Records that the lease is alive for `ttl` seconds from `emitted` on, and plans its renewal.
    fn live(&mut self, ctx: &mut Context, emitted: Instant, ttl: i64) {
        // A late answer makes the renewal due at once: it is sent below, as this state demands.
        self.state = State::Alive;
        self.granted = Duration::from_secs(ttl.unsigned_abs());
        self.until = self.until.max(Self::valid(emitted, self.granted, &ctx.config));
        self.retry.succeeded();
        self.wanted = self.wanted.filter(|at| emitted < *at);
        let third = self.granted / 3;
        let due = if self.wanted.is_some() {
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

/// A failure, as an acquisition is told.
pub(super) fn answer(reply: &Reply) -> Answer {
    match reply {
        Reply::Done(_) => Answer::Granted,
        Reply::Refused(Refusal::Error(error)) => Answer::Rejected(error.clone()),
        Reply::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) => Answer::Silent,
        Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
        Reply::NotSent(cause) => Answer::Unreachable(cause.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_pause_doubles_up_to_its_limit_and_is_up_to_half_longer() {
        for (tries, ms) in [(0, 20), (1, 40), (2, 80), (6, 1_280), (7, 2_000), (u32::MAX, 2_000)] {
            let least = Duration::from_millis(ms);
            let pauses: Vec<_> = (0..200).map(|n| pause(n, 7, tries)).collect();
            assert!(pauses.iter().all(|pause| (least..=least * 3 / 2).contains(pause)), "{tries} {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause > least * 4 / 3), "{tries}");
        }
    }
}
