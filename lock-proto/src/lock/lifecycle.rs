//! State machine for one lock name within one client, for any store. Waiters queue in FIFO
//! order; only the one at the head contends with other clients.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::context::Context;
use super::event::{Blocked, Event, Failure, Report};
use super::grant::{Loss, Release};
use super::request::Wait;
use super::store::Store;
use super::tenure::{Due, Phase};
use super::waiters::{Waiter, Waiters};
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::Instant;

/// State machine for one lock name within one client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock<S: Store> {
    pub(crate) key: S::Key,
    pub(crate) waiters: Waiters<S::Terms>,
    pub(crate) contention: S::Contention,
    pub(crate) hold: Option<S::Hold>,
    /// Holds that were lost while their guard is still alive.
    pub(crate) lost: Vec<Ended<S>>,
    pub(crate) releases: Vec<PendingRelease<S>>,
    /// Attempts since the last grant.
    pub(crate) tries: u32,
    /// The reason for the wait that was last reported to the head.
    pub(crate) blocked: Option<Blocked>,
    pub(crate) store: S,
}

/// A hold that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended<S: Store> {
    pub(crate) id: LockId,
    pub(crate) valid_until: Instant,
    pub(crate) remains: S::Remains,
}

/// A release that is not answered yet. The cleanup in the store does not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PendingRelease<S: Store> {
    pub(crate) id: LockId,
    /// Deadline of the answer.
    until: Instant,
    pub(crate) store: S::Releasing,
}

impl<S: Store> Lock<S> {
    /// Creates the machine of a lock that is not in use.
    #[must_use]
    pub fn new(key: S::Key) -> Self {
        Self {
            key,
            waiters: Waiters::new(),
            contention: S::Contention::default(),
            hold: None,
            lost: Vec::new(),
            releases: Vec::new(),
            tries: 0,
            blocked: None,
            store: S::new(),
        }
    }

    /// Returns true if the lock has no remaining work and can be dropped.
    pub fn is_over(&self) -> bool {
        self.is_quiet() && self.waiters.is_empty() && self.lost.is_empty() && self.store.is_over()
    }

    /// Returns true if a shutdown has nothing left to wait for.
    pub(crate) fn is_drained(&self, ctx: &Context<S>) -> bool {
        self.is_quiet() && self.store.is_drained(ctx)
    }

    fn is_quiet(&self) -> bool {
        self.hold.is_none() && self.is_idle() && self.releases.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.contention == S::Contention::default()
    }

    /// Returns the end of validity, if this acquisition holds the lock.
    pub fn valid_until(&self, id: LockId, ctx: &Context<S>) -> Option<Instant> {
        let hold = self.hold.as_ref().filter(|hold| S::tenure(hold).is_held() && S::tenure(hold).id() == id)?;
        Some(S::tenure(hold).valid_until(S::terms(hold, ctx).until))
    }

    /// Returns the next deadline and its reason.
    #[inline(always)]
    pub fn deadline(&self, ctx: &Context<S>) -> Option<(Instant, &'static str)> {
        let mut next = S::contention_deadline(&self.contention);
        let mut or_at = |at: Instant, why: &'static str| {
            if next.is_none_or(|(first, _)| at < first) {
                next = Some((at, why));
            }
        };
        if let Some(hold) = &self.hold {
            let (at, why) = S::hold_deadline(hold, ctx);
            or_at(at.min(S::tenure(hold).deadline(&S::terms(hold, ctx))), why);
        }
        if let Some(at) = self.waiters.next_end() {
            or_at(at, "end of a wait");
        }
        for release in &self.releases {
            or_at(release.until, "end of a release");
        }
        if let Some((at, why)) = self.store.deadline() {
            or_at(at, why);
        }
        next
    }

    /// Returns the hold of this acquisition, if it is in this phase.
    fn hold_of(&mut self, id: LockId, phase: Phase) -> Option<&mut S::Hold> {
        let of = |hold: &&mut S::Hold| S::tenure(hold).id() == id && S::tenure(hold).phase == phase;
        self.hold.as_mut().filter(of)
    }

    pub(crate) fn held_by(&mut self, id: LockId) -> Result<&mut S::Hold, Misuse> {
        self.hold_of(id, Phase::Held).ok_or(Misuse::NotHeld(id))
    }

    /// Returns true if the acquisition has the lock, was offered it, or has lost it. Skips the
    /// queue.
    fn has_guard(&self, id: LockId) -> bool {
        let tenure = self.hold.as_ref().map(S::tenure);
        tenure.is_some_and(|tenure| tenure.id() == id && tenure.phase != Phase::Preparing)
            || self.lost.iter().any(|lost| lost.id == id)
    }

    /// Starts an acquisition.
    pub fn acquire(&mut self, ctx: &mut Context<S>, waiter: Waiter<S::Terms>) {
        self.expire(ctx);
        if let Some(failure) = S::refuses(ctx) {
            return ctx.end(waiter.id, Event::Failed(failure));
        }
        let first = self.waiters.is_empty() && self.hold.is_none() && self.is_idle();
        if !first && waiter.wait == Wait::Try {
            // Already contended locally; skip the server.
            // A5
            let report = Report { waited: Duration::ZERO, nodes: Box::default() };
            return ctx.end(waiter.id, Event::Failed(Failure::TimedOut(report)));
        }
        let id = waiter.id;
        self.waiters.push(waiter);
        if first {
            S::contend(self, ctx);
        } else {
            ctx.emit(id, Event::Blocked(Blocked::Local));
        }
    }

    /// Claims the offer of [`Event::Granted`], which stands for a third of the TTL.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotOffered`] if there is no offer.
    pub fn claim(&mut self, ctx: &mut Context<S>, id: LockId) -> Result<(), Misuse> {
        self.expire(ctx);
        let hold = self.hold_of(id, Phase::Offered).ok_or(Misuse::NotOffered(id))?;
        S::tenure_mut(hold).phase = Phase::Held;
        self.watch(ctx);
        Ok(())
    }

    /// Renews now. Each call is answered by one [`Event::Extended`] or [`Event::ExtendFailed`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if the lock is not held.
    pub fn extend(&mut self, ctx: &mut Context<S>, id: LockId) -> Result<(), Misuse> {
        self.expire(ctx);
        self.held_by(id)?;
        S::extend(self, ctx);
        Ok(())
    }

    /// Releases the lock. Answered by [`Event::Released`].
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if the acquisition still waits, or was released before.
    pub fn release(&mut self, ctx: &mut Context<S>, id: LockId) -> Result<(), Misuse> {
        self.expire(ctx);
        if !self.has_guard(id) {
            return Err(Misuse::NotHeld(id));
        }
        self.return_guard(ctx, id, true);
        Ok(())
    }

    /// Cancels the acquisition in whatever state it is in. Called on drop.
    pub fn abandon(&mut self, ctx: &mut Context<S>, id: LockId) {
        self.expire(ctx);
        if self.has_guard(id) {
            self.return_guard(ctx, id, false);
        } else if let Some(place) = self.releases.iter().position(|release| release.id == id) {
            self.releases.swap_remove(place);
            ctx.forget(id);
        } else if let Some(place) = self.waiters.position(id) {
            self.leave(ctx, place);
            ctx.forget(id);
        } else {
            self.return_guard(ctx, id, false);
        }
    }

    /// Fails all waiters and releases the held lock. The keys of lost holds are left to their guards.
    // H6, U2
    pub fn shutdown(&mut self, ctx: &mut Context<S>) {
        self.expire(ctx);
        S::shutdown(self, ctx);
        while let Some(waiter) = self.waiters.pop_last() {
            ctx.end(waiter.id, Event::Failed(Failure::ShuttingDown));
        }
        self.nobody_waits(ctx);
        let Some(tenure) = self.hold.as_ref().map(S::tenure) else { return };
        let id = tenure.id();
        if tenure.is_held() {
            ctx.emit(id, Event::Lost(Loss::ShutDown));
            self.return_guard(ctx, id, true);
        } else {
            ctx.end(id, Event::Failed(Failure::ShuttingDown));
            self.release_hold(ctx, false);
        }
    }

    /// Answers the remaining releases at the end of a shutdown, also of guards that still exist.
    pub fn stop(&mut self, ctx: &mut Context<S>) {
        for lost in self.lost.drain(..) {
            ctx.end(lost.id, Event::Released(Release::Unknown));
        }
        for release in self.releases.drain(..) {
            release.end_unknown(&self.store, ctx);
        }
    }

    /// Does the work that is due at [`deadline`](Self::deadline).
    pub fn timeout(&mut self, ctx: &mut Context<S>) {
        self.expire(ctx);
        // End the waits first, so that the lock is not handed over to a waiter that has timed out.
        self.end_waits(ctx);
        self.watch(ctx);
        S::timeout(self, ctx);
        self.answer_releases(ctx);
    }

    /// Expires the hold first, so that no later event can revive it.
    // T2
    pub(crate) fn expire(&mut self, ctx: &mut Context<S>) {
        let Some(hold) = &self.hold else { return };
        let over = || S::tenure(hold).is_over(ctx.now).then_some(Loss::MaxHold);
        if let Some(loss) = S::loss(hold, ctx).or_else(over) {
            self.lose(ctx, loss);
        }
    }

    /// Emits why the head waits, if the reason has changed.
    pub(crate) fn notify_blocked(&mut self, ctx: &mut Context<S>, why: Blocked) {
        if let Some(head) = self.waiters.head()
            && self.blocked.replace(why) != Some(why)
        {
            ctx.emit(head.id, Event::Blocked(why));
        }
    }

    /// Reports on a failed wait. Lists no servers if the lock is held in this client.
    fn report(&self, ctx: &Context<S>, since: Instant) -> Report {
        let nodes = if self.hold.is_some() { Box::default() } else { S::answers(self) };
        Report { waited: ctx.now.since(since), nodes }
    }

    /// Fails the head if it makes a single attempt. Returns true if it did.
    pub(crate) fn end_try(&mut self, ctx: &mut Context<S>) -> bool {
        let Some(head) = self.waiters.head().filter(|head| head.wait == Wait::Try) else { return false };
        let (id, report) = (head.id, self.report(ctx, head.since));
        ctx.end(id, Event::Failed(Failure::TimedOut(report)));
        self.leave(ctx, 0);
        true
    }

    /// Fails every waiter, because no acquisition can succeed.
    pub(crate) fn fail_all(&mut self, ctx: &mut Context<S>, failure: impl Fn(Report) -> Failure) {
        while let Some(waiter) = self.waiters.pop() {
            let report = self.report(ctx, waiter.since);
            ctx.end(waiter.id, Event::Failed(failure(report)));
        }
        self.nobody_waits(ctx);
    }

    fn end_waits(&mut self, ctx: &mut Context<S>) {
        let mut head = None;
        while let Some(place) = self.waiters.due(ctx.now) {
            let Some(waiter) = self.waiters.remove(place) else { return };
            let report = self.report(ctx, waiter.since);
            ctx.end(waiter.id, Event::Failed(Failure::TimedOut(report)));
            if place == 0 {
                // The contention was started for the first of them.
                head.get_or_insert(waiter);
            }
        }
        if let Some(head) = head {
            self.head_left(ctx, &head);
        }
    }

    fn leave(&mut self, ctx: &mut Context<S>, place: usize) {
        if let Some(waiter) = self.waiters.remove(place)
            && place == 0
        {
            self.head_left(ctx, &waiter);
        }
    }

    fn head_left(&mut self, ctx: &mut Context<S>, head: &Waiter<S::Terms>) {
        if self.waiters.is_empty() {
            return self.nobody_waits(ctx);
        }
        self.blocked = None;
        if self.hold.is_none() {
            S::new_head(self, ctx, head);
        }
    }

    /// Cancels contention after all waiters have left.
    pub(crate) fn nobody_waits(&mut self, ctx: &mut Context<S>) {
        self.blocked = None;
        S::nobody_waits(self, ctx);
    }

    /// Offers the lock to its holder once the grant is complete.
    pub(crate) fn offer(&mut self, ctx: &mut Context<S>) {
        let Some(hold) = &mut self.hold else { return };
        let tenure = S::tenure_mut(hold);
        tenure.offer(ctx.now);
        let id = tenure.id();
        let grant = S::grant(hold, ctx);
        S::tenure_mut(hold).report(grant.valid_until);
        ctx.emit(id, Event::Granted(grant));
        self.watch(ctx);
    }

    /// Does the work due for the hold: ends a wait, withdraws an offer, tells the holder of an
    /// earlier end, warns it, renews.
    pub(crate) fn watch(&mut self, ctx: &mut Context<S>) {
        let Some(hold) = &mut self.hold else { return };
        let terms = S::terms(hold, ctx);
        let tenure = S::tenure_mut(hold);
        let id = tenure.id();
        if let Some(valid_until) = tenure.shortened(&terms) {
            ctx.emit(id, Event::Renewed { valid_until });
        }
        match tenure.due(ctx.now, &terms) {
            Due::Nothing => {}
            Due::TimedOut => return self.fail_prepared(ctx, Failure::TimedOut),
            Due::Withdraw => {
                ctx.emit(id, Event::Withdrawn);
                return self.return_guard(ctx, id, false);
            }
            Due::Warn(valid_until) => ctx.emit(id, Event::AtRisk { valid_until }),
        }
        S::keep(self, ctx);
    }

    /// Fails the acquisition that the hold was prepared for.
    pub(crate) fn fail_prepared(&mut self, ctx: &mut Context<S>, failure: fn(Report) -> Failure) {
        let Some(hold) = &self.hold else { return };
        let tenure = S::tenure(hold);
        let (id, waited) = (tenure.id(), ctx.now.since(tenure.waiter.since));
        let report = Report { waited, nodes: S::answers(self) };
        ctx.emit(id, Event::Failed(failure(report)));
        self.return_guard(ctx, id, false);
    }

    /// Loses the hold: notifies its holder first, then contends for the waiters.
    pub(crate) fn lose(&mut self, ctx: &mut Context<S>, loss: Loss) {
        let Some((hold, ended)) = self.end_hold(ctx, Some(loss)) else { return };
        let guarded = S::tenure(&hold).is_held();
        match S::tenure(&hold).phase {
            Phase::Held => {
                ctx.emit(ended.id, Event::Lost(loss));
                self.lost.push(ended.clone());
            }
            Phase::Offered => ctx.end(ended.id, Event::Withdrawn),
            Phase::Preparing => self.waiters.push_front(S::tenure(&hold).waiter.clone()),
        }
        S::lost(self, ctx, &ended, guarded);
        // A single attempt is not repeated.
        // A5
        if !self.end_try(ctx) {
            S::contend(self, ctx);
        }
    }

    /// Handles a returned guard, also of a lost hold. `answer`: report the outcome.
    pub(crate) fn return_guard(&mut self, ctx: &mut Context<S>, id: LockId, answer: bool) {
        if let Some(place) = self.lost.iter().position(|lost| lost.id == id) {
            let ended = self.lost.swap_remove(place);
            if !answer {
                ctx.forget(id);
            }
            return self.clean_up(ctx, &ended, answer);
        }
        let Some(hold) = self.hold.as_ref().filter(|hold| S::tenure(hold).id() == id) else { return };
        let hands_over =
            !ctx.is_stopping() && self.waiters.head().is_some_and(|next| S::may_hand_over(hold, next, ctx));
        if hands_over && let Some(next) = self.waiters.pop() {
            if answer {
                ctx.emit(id, Event::Released(Release::Released));
            }
            ctx.forget(id);
            return S::hand_over(self, ctx, next);
        }
        if !answer {
            ctx.forget(id);
        }
        self.release_hold(ctx, answer);
    }

    /// Ends the hold and cleans up in the store. `answer`: report the outcome to the holder.
    pub(crate) fn release_hold(&mut self, ctx: &mut Context<S>, answer: bool) {
        let Some((hold, ended)) = self.end_hold(ctx, None) else { return };
        self.clean_up(ctx, &ended, answer);
        if !self.waiters.is_empty() {
            S::handover_window_ended(self, ctx, &hold);
        }
    }

    fn end_hold(&mut self, ctx: &mut Context<S>, loss: Option<Loss>) -> Option<(S::Hold, Ended<S>)> {
        let hold = self.hold.take()?;
        let tenure = S::tenure(&hold);
        let (id, valid_until) = (tenure.id(), tenure.valid_until(S::terms(&hold, ctx).until));
        let remains = S::end(self, ctx, &hold, loss);
        Some((hold, Ended { id, valid_until, remains }))
    }

    fn clean_up(&mut self, ctx: &mut Context<S>, ended: &Ended<S>, answer: bool) {
        if answer {
            let store = S::releasing(self, ctx, ended);
            self.releases.push(PendingRelease { id: ended.id, until: ctx.now + ctx.config.release_within, store });
        }
        S::clean_up(self, ctx, ended);
        self.answer_releases(ctx);
    }

    pub(crate) fn answer_releases(&mut self, ctx: &mut Context<S>) {
        let now = ctx.now;
        self.releases.retain(|release| {
            let outcome = S::released(&release.store, ctx);
            let timed_out = || (release.until <= now).then_some(Release::Unknown);
            match outcome.or_else(timed_out) {
                None => return true,
                Some(Release::Unknown) => release.end_unknown(&self.store, ctx),
                Some(outcome) => ctx.end(release.id, Event::Released(outcome)),
            }
            false
        });
    }
}

impl<S: Store> PendingRelease<S> {
    #[cold]
    fn end_unknown(&self, store: &S, ctx: &mut Context<S>) {
        let nodes = store.not_released(&self.store, ctx);
        if !nodes.is_empty() {
            let since = self.until.back(ctx.config.release_within);
            ctx.emit(self.id, Event::NotReleased(Report { waited: ctx.now.since(since), nodes }));
        }
        ctx.end(self.id, Event::Released(Release::Unknown));
    }
}
