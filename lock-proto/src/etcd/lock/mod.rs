//! The machine of one name in one client: who waits, who contends, who holds, and what is owed.
//!
//! Waiters of the same name queue first in, first out, and have one key in the store's queue between them (requirement E7). At any time
//! the client has at most one live key under a name for each of its leases: that of the contender, or that of the hold.

mod cleanup;
mod context;
mod enter;
mod held;
mod hold;
mod wait_deletes;
mod watch_cache;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use cleanup::{Debt, GiveBack};
pub(crate) use context::{Context, Watched};
use enter::Enter;
use hold::{Hold, Phase};
use wait_deletes::Contender;
use watch_cache::Kept;

use super::message::KeyValue;
use super::request::{Queue, Reply};
use super::seam::WatchId;
use super::session::News;
use super::sessions::SessionId;
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::Waits;
use crate::lock::{Answer, Blocked, ErrorClass, Event, Failure, Loss, Release, Renew, Report, ServerError, Wait};
use crate::time::Instant;

pub use hold::OwnerKey;

/// Which lease an acquisition hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LeaseKind {
    /// The client's.
    Shared,
    /// One of its own, of so many seconds.
    Own(i64),
}

/// One acquisition that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub(crate) id: LockId,
    pub(crate) lease: LeaseKind,
    pub(crate) renew: Renew,
    pub(crate) wait: Wait,
    pub(crate) since: Instant,
    /// What its key is to hold: a candidate's proposal.
    pub(crate) value: Bytes,
    /// It is a candidate: taking over is always written to the store, where others observe it.
    pub(crate) candidate: bool,
}

impl Waiter {
    fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::For(limit) => Some(self.since + limit),
            Wait::Try | Wait::Forever => None,
        }
    }
}

/// What the client does about the name right now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Nothing: nobody waits.
    Idle,
    /// The head's lease is being granted.
    Leasing(SessionId),
    /// On the way into the queue.
    Entering(Enter),
    /// In the queue, behind somebody else.
    Waiting(Contender),
    Held(Box<Hold>),
}

/// A hold that was lost, for as long as its guard is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LostHold {
    id: LockId,
    session: SessionId,
    /// The last change of its key; `None` if the key is gone, or is given back already.
    modified: Option<i64>,
    valid_until: Instant,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lock {
    queue: Queue,
    waiters: VecDeque<Waiter>,
    /// When waits run out, of those that do.
    waits: Waits,
    stage: Stage,
    lost: Vec<LostHold>,
    debts: Vec<Debt>,
    giving_back: Vec<GiveBack>,
    /// What was last heard, for reports.
    answer: Answer,
    blocked: Option<Blocked>,
    tries: u32,
    /// The watches of the last wait.
    kept: Option<Box<Kept>>,
    /// What it last used: the sessions know of it.
    pub(crate) joined: Vec<(SessionId, bool)>,
}

impl Lock {
    pub(crate) fn new(queue: Queue) -> Self {
        Self {
            queue,
            waiters: VecDeque::new(),
            waits: Waits::new(),
            stage: Stage::Idle,
            lost: Vec::new(),
            debts: Vec::new(),
            giving_back: Vec::new(),
            answer: Answer::Silent,
            blocked: None,
            tries: 0,
            kept: None,
            joined: Vec::new(),
        }
    }

    pub(crate) const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Nothing is left to do or to remember.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Idle)
            && self.waiters.is_empty()
            && self.lost.is_empty()
            && self.debts.is_empty()
            && self.giving_back.is_empty()
            && self.kept.is_none()
    }

    /// Nothing is left that a shutdown has to wait for: what could still land hangs on a lease that is revoked next.
    pub(crate) fn is_drained(&self) -> bool {
        matches!(self.stage, Stage::Idle) && self.giving_back.is_empty() && self.debts.iter().all(Debt::is_only_a_watch)
    }

    pub(crate) const fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Held(_))
    }

    /// The sessions that its keys hang on, and whether each must stay alive for it.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (SessionId, bool)> {
        let all = self.guarded().chain(self.debts.iter().map(|debt| debt.session));
        all.map(|session| (session, self.needs(session)))
    }

    /// Those of attempts and guards.
    fn guarded(&self) -> impl Iterator<Item = SessionId> {
        let stage = match &self.stage {
            Stage::Idle => None,
            Stage::Leasing(session) => Some(*session),
            Stage::Entering(enter) => Some(enter.session),
            Stage::Waiting(contender) => Some(contender.session),
            Stage::Held(hold) => Some(hold.session),
        };
        stage.into_iter().chain(self.lost.iter().map(|lost| lost.session))
    }

    fn needs(&self, session: SessionId) -> bool {
        self.guarded().any(|own| own == session)
            || self.debts.iter().any(|debt| debt.session == session && !debt.is_for_good())
    }

    /// The end of validity, if this acquisition holds the lock.
    pub(crate) fn valid_until(&self, id: LockId, sessions: &super::sessions::Sessions) -> Option<Instant> {
        match &self.stage {
            Stage::Held(hold) if hold.id() == id && hold.phase == Phase::Held => {
                Some(hold.until(sessions.get(hold.session)?.until()))
            }
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) | Stage::Waiting(_) | Stage::Held(_) => None,
        }
    }

    /// The key that this acquisition holds.
    pub(crate) fn owner(&self, id: LockId, sessions: &super::sessions::Sessions) -> Option<OwnerKey> {
        match &self.stage {
            Stage::Held(hold) if hold.id() == id && hold.phase != Phase::Preparing => {
                Some(hold.owner_key(&self.queue, sessions.get(hold.session)?.lease))
            }
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) | Stage::Waiting(_) | Stage::Held(_) => None,
        }
    }

    // --- verbs ---

    pub(crate) fn acquire(&mut self, ctx: &mut Context<'_>, waiter: Waiter) {
        let first = self.waiters.is_empty() && matches!(self.stage, Stage::Idle);
        if !first && waiter.wait == Wait::Try {
            // Busy in this client: no attempt is made (requirement A5).
            let report = Report { waited: Duration::ZERO, nodes: Box::default() };
            return ctx.end(waiter.id, Event::Failed(Failure::TimedOut(report)));
        }
        self.waits.begin(waiter.id, waiter.deadline());
        let id = waiter.id;
        self.waiters.push_back(waiter);
        if first {
            self.start(ctx);
        } else {
            ctx.tell(id, Event::Blocked(Blocked::Local));
        }
    }

    /// The guard comes back: `release`.
    pub(crate) fn release(&mut self, ctx: &mut Context<'_>, id: LockId) -> Result<(), Misuse> {
        if !self.has_guard(id) {
            return Err(Misuse::NotHeld(id));
        }
        self.return_guard(ctx, id, true);
        Ok(())
    }

    /// Whether it has the lock, was offered it, or has lost it. Who waits is not looked through: there may be many.
    fn has_guard(&self, id: LockId) -> bool {
        matches!(&self.stage, Stage::Held(hold) if hold.id() == id && hold.phase != Phase::Preparing)
            || self.lost.iter().any(|lost| lost.id == id)
    }

    /// Whatever state the acquisition is in, it is over: what `Drop` calls.
    pub(crate) fn abandon(&mut self, ctx: &mut Context<'_>, id: LockId) {
        if self.has_guard(id) {
            self.return_guard(ctx, id, false);
        } else if let Some(place) = self.giving_back.iter().position(|back| back.id == id) {
            self.giving_back.swap_remove(place);
            ctx.ended.push(id);
        } else if let Some(place) = self.waiters.iter().position(|waiter| waiter.id == id) {
            self.leave_queue(ctx, place);
            ctx.ended.push(id);
        } else {
            self.return_guard(ctx, id, false);
        }
    }

    /// Answers who waits, gives back what is held (requirement U2).
    pub(crate) fn shut_down(&mut self, ctx: &mut Context<'_>) {
        self.close_kept(ctx);
        self.waits.clear();
        while let Some(waiter) = self.waiters.pop_back() {
            ctx.end(waiter.id, Event::Failed(Failure::ShuttingDown));
        }
        self.nobody_waits(ctx);
        while let Some(lost) = self.lost.first() {
            self.return_guard(ctx, lost.id, true);
        }
        if let Stage::Held(hold) = &self.stage {
            let id = hold.id();
            match hold.phase {
                Phase::Held => {
                    ctx.tell(id, Event::Lost(Loss::ShutDown));
                    self.return_guard(ctx, id, true);
                }
                Phase::Offered | Phase::Preparing => {
                    ctx.end(id, Event::Failed(Failure::ShuttingDown));
                    self.give_back(ctx, None);
                }
            }
        }
    }

    /// The end of a shutdown: who still waits for a release is answered.
    pub(crate) fn stop(&mut self, ctx: &mut Context<'_>) {
        for back in self.giving_back.drain(..) {
            ctx.end(back.id, Event::Released(Release::Unknown));
        }
    }

    // --- facts ---

    pub(crate) fn reply(&mut self, ctx: &mut Context<'_>, serial: u64, reply: &Reply) {
        if let Some(place) = self.debts.iter().position(|debt| debt.awaits(serial)) {
            return self.debt_answered(ctx, place, reply);
        }
        match &self.stage {
            Stage::Entering(enter) if enter.awaits(serial) => self.enter_answered(ctx, reply),
            Stage::Waiting(contender) if contender.awaits(serial) => self.look_answered(ctx, reply),
            Stage::Held(hold) if hold.awaits(serial) => self.hold_answered(ctx, serial, reply),
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) | Stage::Waiting(_) | Stage::Held(_) => {}
        }
    }

    /// Something happened to a session that this name depends on.
    pub(crate) fn session(&mut self, ctx: &mut Context<'_>, session: SessionId, news: &News) {
        if let News::Lost(_) | News::Refused(_) = news {
            self.debts_lost(ctx, session);
        }
        match (&mut self.stage, news) {
            (Stage::Leasing(own), News::Alive) if *own == session => self.enter(ctx, session),
            (Stage::Leasing(own), News::Trouble(answer)) if *own == session => {
                self.answer = answer.clone();
                self.tell_blocked(ctx, Blocked::Unreachable);
                self.end_try(ctx);
            }
            (Stage::Leasing(own), News::Refused(answer)) if *own == session => {
                self.answer = answer.clone();
                self.stage = Stage::Idle;
                self.fail_all(ctx, &Failure::Refused);
            }
            (Stage::Leasing(own), News::Lost(_)) if *own == session => self.start(ctx),
            (Stage::Entering(enter), News::Lost(_)) if enter.session == session => self.start(ctx),
            (Stage::Waiting(contender), News::Lost(_)) if contender.session == session => {
                contender.close(ctx);
                self.start(ctx);
            }
            (Stage::Held(hold), News::Lost(loss)) if hold.session == session => {
                let loss = *loss;
                self.lose(ctx, loss);
            }
            (Stage::Held(hold), News::Renewed(emitted)) if hold.session == session => {
                let emitted = *emitted;
                self.renewed(ctx, emitted);
            }
            (Stage::Held(hold), News::Unrenewed(emitted, answer)) if hold.session == session => {
                self.unrenewed(ctx, *emitted, answer);
            }
            (
                Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) | Stage::Waiting(_) | Stage::Held(_),
                News::Alive
                | News::Renewed(_)
                | News::Unrenewed(..)
                | News::Trouble(_)
                | News::Refused(_)
                | News::Lost(_),
            ) => {}
        }
    }

    /// The watch is open: everything after `revision` is told.
    pub(crate) fn watching(&mut self, ctx: &mut Context<'_>, watch: WatchId, revision: i64) {
        if let Some(watched) = self.watched(watch) {
            watched.open = Some(revision);
        }
        if let Some(place) = self.debts.iter().position(|debt| debt.watches(watch)) {
            return self.read_debt(ctx, place);
        }
        match &mut self.stage {
            Stage::Waiting(contender) => {
                contender.opened(ctx.now, watch);
                self.look(ctx);
            }
            Stage::Held(_) => self.look_after(ctx),
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) => {}
        }
    }

    /// A watched key has changed.
    pub(crate) fn changed(&mut self, ctx: &mut Context<'_>, watch: WatchId, revision: i64, kv: &KeyValue, gone: bool) {
        if let Some(place) = self.debts.iter().position(|debt| debt.watches(watch)) {
            return self.debt_changed(ctx, place, kv, gone);
        }
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.is(watch)) {
            return kept.told(watch, revision, gone);
        }
        match &mut self.stage {
            Stage::Waiting(contender) => {
                if contender.changed(watch, revision, kv, gone) {
                    self.look(ctx);
                }
            }
            Stage::Held(hold) => {
                if hold.own.is_some_and(|own| own.id == watch) {
                    self.own_key_changed(ctx, revision, kv, gone);
                }
            }
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) => {}
        }
    }

    /// The watch is not open at present.
    pub(crate) fn deaf(&mut self, ctx: &mut Context<'_>, watch: WatchId) {
        if self.kept.as_ref().is_some_and(|kept| kept.is(watch)) {
            return self.close_kept(ctx);
        }
        if let Some(watched) = self.watched(watch) {
            watched.open = None;
        }
        if let Stage::Waiting(contender) = &mut self.stage {
            contender.poll_later(ctx.now);
        }
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self, ctx: &mut Context<'_>) {
        self.end_waits(ctx);
        match &self.stage {
            Stage::Entering(_) => self.enter_due(ctx),
            Stage::Waiting(_) => self.look(ctx),
            Stage::Held(_) => self.watch_over(ctx),
            Stage::Idle | Stage::Leasing(_) => {}
        }
        self.debts_due(ctx);
        self.end_releases(ctx);
        self.close_kept_due(ctx);
    }

    /// The next thing to happen by itself, and what it is.
    pub(crate) fn deadline(&self, ctx: &Context<'_>) -> Option<(Instant, &'static str)> {
        let stage = match &self.stage {
            Stage::Idle | Stage::Leasing(_) => None,
            Stage::Entering(enter) => enter.deadline().map(|at| (at, "next attempt")),
            Stage::Waiting(contender) => contender.deadline().map(|at| (at, "another look at the queue")),
            Stage::Held(hold) => Some((hold.deadline(ctx), "a hold")),
        };
        let waits = self.waits.next_end().map(|at| (at, "end of a wait"));
        let releases = self.giving_back.iter().map(|back| back.until).min().map(|at| (at, "end of a release"));
        let debts = self.debts.iter().filter_map(Debt::deadline).min().map(|at| (at, "what is owed"));
        let kept = self.kept.as_ref().map(|kept| (kept.until, "watches that are kept"));
        [stage, waits, releases, debts, kept].into_iter().flatten().min()
    }

    // --- inside ---

    fn watched(&mut self, watch: WatchId) -> Option<&mut Watched> {
        match &mut self.stage {
            Stage::Waiting(contender) => contender.watched(watch),
            Stage::Held(hold) => hold.own.as_mut().filter(|own| own.id == watch),
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) => None,
        }
    }

    fn report(&self, now: Instant, since: Instant) -> Report {
        Report { waited: now.since(since), nodes: Box::new([self.answer.clone()]) }
    }

    /// Ends the waits that have run out.
    fn end_waits(&mut self, ctx: &mut Context<'_>) {
        while let Some(id) = self.waits.pop_due(ctx.now) {
            let Some(place) = self.waiters.iter().position(|waiter| waiter.id == id) else { continue };
            let report = self.report(ctx.now, self.waiters[place].since);
            self.leave_queue(ctx, place);
            ctx.end(id, Event::Failed(Failure::TimedOut(report)));
        }
    }

    /// Takes a waiter out of the queue.
    fn leave_queue(&mut self, ctx: &mut Context<'_>, place: usize) {
        let Some(waiter) = self.waiters.remove(place) else { return };
        self.waits.end(waiter.id, waiter.deadline());
        if place == 0 {
            self.new_head(ctx, waiter.lease);
        }
    }

    /// The next one to get the lock.
    fn next_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.waits.end(waiter.id, waiter.deadline());
        Some(waiter)
    }

    /// Puts a waiter back to the front, who had been next.
    fn back_to_front(&mut self, waiter: Waiter) {
        self.waits.begin(waiter.id, waiter.deadline());
        self.waiters.push_front(waiter);
    }

    /// Tells the head why it waits, when that changes.
    fn tell_blocked(&mut self, ctx: &mut Context<'_>, why: Blocked) {
        if let Some(head) = self.waiters.front()
            && self.blocked.replace(why) != Some(why)
        {
            ctx.tell(head.id, Event::Blocked(why));
        }
    }

    /// The only attempt of a try has failed.
    fn end_try(&mut self, ctx: &mut Context<'_>) {
        let Some(head) = self.waiters.front().filter(|head| head.wait == Wait::Try) else { return };
        let (id, report) = (head.id, self.report(ctx.now, head.since));
        self.leave_queue(ctx, 0);
        ctx.end(id, Event::Failed(Failure::TimedOut(report)));
    }

    /// Nobody can have the lock: all waiters are told why.
    fn fail_all(&mut self, ctx: &mut Context<'_>, failure: &dyn Fn(Report) -> Failure) {
        self.waits.clear();
        while let Some(waiter) = self.waiters.pop_front() {
            let report = self.report(ctx.now, waiter.since);
            ctx.end(waiter.id, Event::Failed(failure(report)));
        }
        self.nobody_waits(ctx);
    }

    /// A key that is no contender's stands in the way (requirement E2).
    fn fail_foreign(&mut self, ctx: &mut Context<'_>, key: &[u8]) {
        let text = alloc::format!("the key {} is in the way, and is not of this lock", key.escape_ascii());
        self.answer = Answer::Rejected(ServerError { class: ErrorClass::KeyInUse, text: text.into() });
        self.fail_all(ctx, &Failure::KeyInUse);
    }
}
