//! The lock on a register: one name within one client.
//!
//! There is at most one request in flight. After each input, [`Cas::proceed`] decides on the next one
//! from what is known of the register and what is wanted: renew the hold, free what an ended hold
//! or a cancelled attempt has left, or take the lock for the waiter at the head.

mod held;
mod known;
mod query;
mod replies;
mod shared;
mod watch;

use alloc::boxed::Box;
use core::mem;
use core::time::Duration;

use bytes::Bytes;
use held::HeldRecord;
use known::{Known, OpenWrites, SentRecord};
pub use shared::RegisterShared;
use watch::KeyWatch;

use super::config::{Config, RegisterSettings};
use super::flaw::RegisterFlaw;
use super::output::Output;
use super::record::{Entry, Record, Writer};
use super::request::Request;
use crate::collections::Few;
use crate::error::Misuse;
use crate::id::{CallOwner, LockId, NodeId};
use crate::jitter::{doubled, jitter};
use crate::lock::{
    self, Acquire, Answer, Blocked, DEFAULT_TTL, Fact, Grant, Holding, Loss, Order, Release, Report, Store, Terms,
    Token, Wait, Waiter, check_name,
};
use crate::time::{Instant, When, sooner, soonest};

/// State machine for one lock name within one client, without a hub.
pub type RegisterLock = lock::Lock<Cas>;

/// What the locks of a client share in a step.
pub(crate) type RegisterEnv = lock::Env<Cas>;

/// The terms of an acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stake {
    /// In whole ms.
    pub(super) ttl: Duration,
    /// The value of a candidate; empty for a lock.
    pub(super) value: Bytes,
}

impl Terms for Stake {
    /// A record may outlive a holder by its own TTL, but not by much more.
    // RG8
    fn may_follow(&self, holder: &Self) -> bool {
        2 * self.ttl >= holder.ttl
    }
}

/// The store machine of one lock name, on anything with compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cas {
    key: Bytes,
    /// The waiter for which the client contends.
    head: Option<Waiter<Stake>>,
    hold: Option<HeldRecord>,
    /// The lost hold whose guard is alive, and whose record may still be there.
    // H6
    kept: Option<KeptRecord>,
    /// Lost holds whose guard is alive, and whose record is not there any more.
    left: Few<LockId>,
    releases: Few<RecordRelease>,
    known: Known,
    open: Option<OpenWrites>,
    call: Option<RegisterCall>,
    /// Nothing is sent before.
    pause: When,
    /// The record, if it is this client's, is to be freed. Given up at this time, when other clients
    /// may take the lock anyway.
    frees: Option<Instant>,
    /// How long others go first once it is free.
    yields: Duration,
    /// Conflicts since a write or a wait.
    conflicts: u32,
    /// Waits since the last grant.
    polls: u32,
    /// While the head waits.
    watch: KeyWatch,
    /// The last reply, for reports.
    answer: Answer,
}

/// The request in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RegisterCall {
    serial: u64,
    departed: Instant,
    deadline: Instant,
    purpose: RegisterPurpose,
}

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RegisterPurpose {
    Read,
    Write { intent: Intent, record: Record, expected: Option<Box<Entry>> },
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Intent {
    Take,
    Renew,
    Free,
}

/// What a lost hold has left in the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KeptRecord {
    id: LockId,
    /// The end of its validity.
    valid_until: Instant,
    /// A TTL after its last write. Then the next waiter need not wait for the guard any more.
    until: Instant,
}

/// A release that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RecordRelease {
    id: LockId,
    valid_until: Instant,
    /// A write that left before then may have freed the record.
    in_time: bool,
}

impl Store for Cas {
    type Key = Bytes;
    type Terms = Stake;
    type Settings = RegisterSettings;
    type Shared = RegisterShared;
    type Output = Output;

    fn new(key: Bytes) -> Self {
        Self {
            key,
            head: None,
            hold: None,
            kept: None,
            left: Few::None,
            releases: Few::None,
            known: Known::default(),
            open: None,
            call: None,
            pause: When::Now,
            frees: None,
            yields: Duration::ZERO,
            conflicts: 0,
            polls: 0,
            watch: KeyWatch::Off,
            answer: Answer::Silent,
        }
    }

    fn key(&self) -> &Bytes {
        &self.key
    }

    fn terms_of(config: &Config, request: &Acquire) -> Result<(Bytes, Stake), Misuse> {
        check_name(&request.name)?;
        let ttl = config.check_ttl(request.ttl.unwrap_or(DEFAULT_TTL), request.renew)?;
        Ok((RegisterShared::key(config, &request.name), Stake { ttl, value: Bytes::new() }))
    }

    fn order(&mut self, env: &mut RegisterEnv, order: Order<Stake>) {
        match order {
            Order::Contend(head) => self.contend(env, head),
            Order::Claim(_) => {
                if let Some(hold) = &mut self.hold {
                    hold.is_claimed = true;
                }
            }
            Order::Extend(_) => {
                if let Some(hold) = &mut self.hold {
                    hold.extend(env.now);
                    self.pause = When::Now;
                }
            }
            Order::HandOver { to, .. } => {
                if let Some(hold) = &mut self.hold {
                    hold.hand_over(env, &to, self.known.record());
                    self.offer(env);
                }
            }
            Order::Leave { id, loss } => self.leave(env, id, loss),
            Order::End { id, answer, yields, .. } => self.end(env, id, answer, yields),
            Order::GiveUp(id) => {
                if let Some(place) = self.releases.iter().position(|release| release.id == id) {
                    self.releases.remove(place);
                    env.report(Fact::Released(id, Release::Unknown, self.answers()));
                }
            }
            Order::ShutDown => self.yields = Duration::ZERO,
        }
        self.proceed(env);
    }

    fn timeout(&mut self, env: &mut RegisterEnv) {
        if self.call.as_ref().is_some_and(|call| call.deadline <= env.now) {
            self.call_timed_out(env);
        }
        if let Some(hold) = &mut self.hold {
            let since = hold.failed_proclaims(env.now.back(env.config.release_within));
            let id = hold.id;
            for since in since {
                let report = Report { waited: env.now.since(since), nodes: self.answers() };
                env.report(Fact::ProclaimFailed(id, report));
            }
        }
        if self.frees.is_some_and(|until| until <= env.now) {
            // Other clients need not wait any longer.
            self.give_up(env);
        }
        self.proceed(env);
    }

    #[inline]
    fn deadline(&self, env: &RegisterEnv) -> Option<(Instant, &'static str)> {
        let call = self.call.as_ref().map(|call| (call.deadline, "reply"));
        let next = if call.is_some() { None } else { self.next_at().instant().map(|at| (at, "next request")) };
        let proclaims = self.hold.as_ref().and_then(|hold| hold.first_proclaim());
        let proclaims = proclaims.map(|since| (since + env.config.release_within, "end of a proclamation"));
        sooner(sooner(call, next), sooner(proclaims, self.frees.map(|at| (at, "end of a release"))))
    }

    fn holding(&self, _: &RegisterEnv, id: LockId) -> Option<Holding> {
        self.hold.as_ref().filter(|hold| hold.id == id).map(HeldRecord::holding)
    }

    fn answers(&self) -> Box<[Answer]> {
        Box::new([self.answer.clone()])
    }

    fn after_step(&mut self, env: &mut RegisterEnv) {
        if self.is_over() {
            env.shared.memory.put(&self.key, mem::take(&mut self.known));
        }
    }

    fn is_drained(&self, _: &RegisterEnv) -> bool {
        self.head.is_none() && self.hold.is_none() && self.releases.is_empty() && self.frees.is_none()
    }

    fn is_over(&self) -> bool {
        let is_idle = self.head.is_none() && self.hold.is_none() && self.releases.is_empty() && self.frees.is_none();
        is_idle && self.call.is_none() && self.kept.is_none() && self.left.is_empty()
    }
}

impl Cas {
    /// Contends for this waiter, or for nobody.
    fn contend(&mut self, env: &mut RegisterEnv, head: Option<Waiter<Stake>>) {
        if self.known == Known::default() {
            self.known = env.shared.memory.take(&self.key);
        }
        let before = mem::replace(&mut self.head, head);
        if self.head.is_none() {
            return self.nobody_waits(env);
        }
        if before.is_some() {
            self.pause = When::Now;
        }
    }

    fn nobody_waits(&mut self, env: &mut RegisterEnv) {
        self.unwatch(env);
        (self.polls, self.conflicts) = (0, 0);
        let in_flight = self.call.as_ref().map(|call| matches!(call.purpose, RegisterPurpose::Write { .. }));
        if in_flight == Some(false) && self.frees.is_none() {
            self.call = None;
        }
        let may_apply = in_flight == Some(true) || self.open.as_ref().is_some_and(OpenWrites::may_apply);
        if self.frees.is_some() {
            return;
        }
        self.pause = When::Now;
        if self.kept.is_none() {
            if may_apply || self.known.is_held_by(env.shared.client) {
                self.free_soon(env);
            } else {
                self.open = None;
            }
        }
    }

    /// The record, if it is this client's, is to be freed.
    fn free_soon(&mut self, env: &RegisterEnv) {
        let ttl_of = |call: &RegisterCall| match &call.purpose {
            RegisterPurpose::Write { record, .. } => Some(record.ttl),
            RegisterPurpose::Read => None,
        };
        let open = self.open.as_ref().and_then(OpenWrites::longest_ttl);
        let ttls = [self.call.as_ref().and_then(ttl_of), self.known.record().map(|record| record.ttl), open];
        let ttl = ttls.into_iter().flatten().max().unwrap_or(DEFAULT_TTL);
        self.frees = Some(env.now + env.config.takeover_after(ttl));
        self.pause = When::Now;
        self.conflicts = 0;
    }

    /// A hold is lost, and its guard alive: its record stays.
    // H6
    fn leave(&mut self, env: &RegisterEnv, id: LockId, loss: Loss) {
        let Some(hold) = self.hold.take() else { return };
        let may_be_there = match loss {
            Loss::Taken | Loss::Gone => false,
            Loss::Expired | Loss::MaxHold | Loss::ShutDown | Loss::EqualNodes => true,
        };
        if may_be_there {
            let until = hold.last_sent + env.config.takeover_after(hold.stake.ttl.max(self.longest_ttl()));
            self.kept = Some(KeptRecord { id, valid_until: hold.until, until });
        } else {
            self.left.push(id);
        }
    }

    fn longest_ttl(&self) -> Duration {
        self.known.record().map_or(Duration::ZERO, |record| record.ttl)
    }

    /// The hold of this acquisition has ended, and its guard was returned. `yields`: others go first.
    fn end(&mut self, env: &mut RegisterEnv, id: LockId, answer: bool, yields: bool) {
        let held = self.hold.take_if(|hold| hold.id == id);
        let kept = self.kept.take_if(|kept| kept.id == id);
        let valid_until = held.as_ref().map(|hold| hold.until).or_else(|| kept.map(|kept| kept.valid_until));
        if let Some(hold) = held.filter(|_| yields) {
            self.yields = HANDOVER_PAUSE + hold.round_trip.min(env.config.poll_interval().every);
        }
        if answer {
            let valid_until = valid_until.unwrap_or(Instant::ZERO);
            self.releases.push(RecordRelease { id, valid_until, in_time: false });
        }
        if let Some(place) = self.left.iter().position(|left| *left == id) {
            self.left.remove(place);
        }
        if valid_until.is_some() {
            self.free_soon(env);
        } else if self.frees.is_none() {
            self.answer_releases(env, self.outcome(env));
        }
    }

    /// Returns what a release would find, as far as is known.
    fn outcome(&self, env: &RegisterEnv) -> Release {
        match self.known.record() {
            Some(record) if record.held && record.writer.client != env.shared.client => Release::Taken,
            Some(_) | None => Release::Expired,
        }
    }

    /// Nothing is left to be freed.
    fn freed(&mut self, env: &mut RegisterEnv, outcome: Release) {
        self.frees = None;
        self.conflicts = 0;
        self.pause = When::At(env.now + mem::take(&mut self.yields));
        self.answer_releases(env, outcome);
    }

    fn answer_releases(&mut self, env: &mut RegisterEnv, outcome: Release) {
        while let Some(release) = self.releases.remove(0) {
            // The reply to the write was lost.
            // U1
            let is_own = release.in_time && matches!(outcome, Release::Expired | Release::Taken);
            let outcome = if is_own { Release::Released } else { outcome };
            let answers = if outcome == Release::Unknown { self.answers() } else { Box::default() };
            env.report(Fact::Released(release.id, outcome, answers));
        }
    }

    /// The record is left to its TTL.
    fn give_up(&mut self, env: &mut RegisterEnv) {
        self.open = None;
        self.freed(env, Release::Unknown);
    }

    /// Changes the value of the holder.
    pub(super) fn proclaim(&mut self, env: &mut RegisterEnv, value: Bytes) {
        if let Some(hold) = &mut self.hold {
            hold.proclaim(env.now, value);
            self.pause = When::Now;
        }
        self.proceed(env);
    }

    /// Offers the lock to its holder, unless a write has to be confirmed first.
    fn offer(&mut self, env: &mut RegisterEnv) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.is_ready()) else { return };
        hold.is_offered = true;
        env.number += 1;
        let grant = Grant {
            token: Token { client: env.shared.client, number: env.number },
            fence: Some(hold.fence_token()),
            fence_ahead_ms: hold.fence_ahead_ms(env.shared.time_of_day(env.now)),
            ttl: hold.stake.ttl,
            valid_until: hold.until,
        };
        env.report(Fact::Granted(hold.id, grant));
    }

    // --- requests ---

    /// Returns when the next request is due.
    fn next_at(&self) -> When {
        let due = match &self.hold {
            Some(hold) => hold.due_at(),
            None if self.frees.is_some() || self.head.is_some() => When::Now,
            None => When::Never,
        };
        due.max(self.pause)
    }

    /// Sends the next request, if one is due.
    fn proceed(&mut self, env: &mut RegisterEnv) {
        if self.call.is_some() || !self.next_at().is_due(env.now) {
            return;
        }
        // The same expectation again decides on the writes before.
        // RG4
        let repeats = self.open.as_ref().is_some_and(|open| !open.is_refuted);
        if self.hold.is_some() {
            return if repeats || self.known.is_fresh { self.write(env, Intent::Renew) } else { self.read(env) };
        }
        if self.frees.is_some() {
            // The write is refused if the record has changed. A read may be stale.
            let may_write = self.known.is_fresh || self.open.is_none();
            if repeats || may_write && self.known.is_held_by(env.shared.client) {
                self.write(env, Intent::Free);
            } else {
                self.read(env);
            }
            return;
        }
        if !self.known.is_fresh {
            return self.read(env);
        }
        let at = self.takeable_at(env);
        if at <= env.now { self.write(env, Intent::Take) } else { self.wait_until(env, at) }
    }

    /// Returns when the lock may be taken for the head, by what is known.
    fn takeable_at(&self, env: &RegisterEnv) -> Instant {
        let at = self.known.takeable_at(env.shared.client);
        let may_be_kept = self.open.is_some() || self.known.is_held_by(env.shared.client);
        self.kept.filter(|_| may_be_kept).map_or(at, |kept| at.max(kept.until))
    }

    /// The lock is held until then, unless it is renewed or released.
    fn wait_until(&mut self, env: &mut RegisterEnv, at: Instant) {
        self.answer = Answer::Taken(lock::Expiry::UnlessRenewed(at.since(env.now)));
        self.conflicts = 0;
        self.wait(env, Blocked::Held, Some(at));
    }

    /// The head waits for its next attempt, or has made its only one.
    // RG7
    fn wait(&mut self, env: &mut RegisterEnv, why: Blocked, at: Option<Instant>) {
        self.known.is_fresh = false;
        if self.head.as_ref().is_some_and(|head| head.wait == Wait::Try) {
            self.pause = When::Never;
            return env.report(Fact::NotTaken);
        }
        env.blocked(why);
        let poll = env.config.poll_interval();
        let every = doubled(poll.every, self.polls, poll.max);
        self.polls = self.polls.saturating_add(1);
        let n = env.serial;
        let next = env.now + every.saturating_sub(jitter(env.seed, n, every / 4));
        let end = at.map(|at| at + jitter(env.seed ^ 1, n, EXPIRY_SPREAD.min(every)));
        self.pause = soonest([Some(next), end]).into();
        if why == Blocked::Held {
            self.watch(env);
        }
    }

    fn watch(&mut self, env: &mut RegisterEnv) {
        let seen = self.known.revision();
        if self.watch.follow(seen) {
            env.shared.watched.insert(self.key.clone());
            env.out.push_back(Output::Watch { key: self.key.clone(), seen: seen.cloned() });
        }
    }

    fn unwatch(&mut self, env: &mut RegisterEnv) {
        if self.watch.end() {
            env.shared.watched.remove(&self.key);
            env.unwatch(&self.key);
        }
    }

    fn read(&mut self, env: &mut RegisterEnv) {
        if self.pause != When::Now {
            self.watch.poll();
        }
        let timeout = env.config.request_timeout;
        self.send(env, Request::Read { key: self.key.clone() }, RegisterPurpose::Read, timeout);
    }

    fn write(&mut self, env: &mut RegisterEnv, intent: Intent) {
        let expected = match &self.open {
            Some(open) if !open.is_refuted => open.expected.clone(),
            Some(_) | None => self.known.entry.clone(),
        };
        let Some(record) = self.next_record(env, intent, expected.as_deref()) else { return };
        let config = &env.config;
        let timeout = match intent {
            Intent::Take => config.request_timeout.min(config.drift.validity(record.ttl)),
            Intent::Renew => config.request_timeout.min(record.ttl / 5),
            Intent::Free => config.request_timeout,
        };
        if let Some(hold) = &mut self.hold {
            hold.sends(env.now, config);
        }
        let request = Request::Write { key: self.key.clone(), record: record.clone(), expected: expected.clone() };
        self.send(env, request, RegisterPurpose::Write { intent, record, expected }, timeout);
    }

    /// Returns the record to write in place of the expected one.
    // RG0, RG5
    fn next_record(&self, env: &RegisterEnv, intent: Intent, expected: Option<&Entry>) -> Option<Record> {
        let before = expected.map(|entry| &entry.record);
        let time = env.shared.time_of_day(env.now);
        let version = before.map_or_else(|| time.max(1), |record| record.version.saturating_add(1));
        let fence = before.map_or(0, |record| record.fence);
        let seen = fence.max(self.known.fence);
        let stake = self.hold.as_ref().map(|hold| &hold.stake).or_else(|| self.head.as_ref().map(|head| &head.terms));
        let (held, fence, stake) = match intent {
            Intent::Take if env.config.has(RegisterFlaw::FenceFromRecord) => {
                (true, fence.saturating_add(1), stake?.clone())
            }
            Intent::Take => (true, seen.saturating_add(1).max(time), stake?.clone()),
            Intent::Renew => (true, self.hold.as_ref()?.fence, stake?.clone()),
            Intent::Free => {
                let ttl = before.map_or(DEFAULT_TTL, |record| record.ttl);
                (false, if before.is_some() { seen } else { seen.max(time) }, Stake { ttl, value: Bytes::new() })
            }
        };
        let writer = Writer { client: env.shared.client, number: env.serial + 1 };
        let mut record = Record {
            version,
            writer,
            held,
            fence,
            ttl: stake.ttl,
            label: env.config.label_text().into(),
            value: stake.value,
        };
        if env.config.has(RegisterFlaw::AlikeRecords) {
            (record.version, record.writer.number) = (1, 1);
        }
        Some(record)
    }

    fn send(&mut self, env: &mut RegisterEnv, request: Request, purpose: RegisterPurpose, timeout: Duration) {
        let call = env.next_call(CallOwner::Lock(env.slot), NodeId::new(0));
        self.pause = When::Now;
        let (departed, deadline) = (env.now, env.now + timeout);
        self.call = Some(RegisterCall { serial: call.serial, departed, deadline, purpose });
        env.out.push_back(Output::Send { call, request, timeout });
    }
}

/// How long this client stays away after a release, so that others get the lock.
const HANDOVER_PAUSE: Duration = Duration::from_millis(5);

/// Range over which waiters for the same expiry are spread.
const EXPIRY_SPREAD: Duration = Duration::from_millis(10);
