//! The waiters and holders of one lock name within one client. Waiters queue in FIFO order; the
//! store contends for the one at the head.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::answer::Answer;
use super::event::{Blocked, Event, Failure, Report};
use super::exchange::{Fact, Holding, Hopeless, Order, Terms};
use super::grant::{Grant, Loss, Release};
use super::note::{Note, Notes};
use super::request::Wait;
use super::tenure::{Due, Phase, Tenure};
use super::waiters::{Waiter, Waiters};
use crate::collections::Few;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::Instant;

/// The waiters and holders of one lock name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line<T> {
    waiters: Waiters<T>,
    holders: Few<Tenure<T>>,
    /// Acquisitions that have lost the lock, and whose guard is still alive.
    lost: Few<LockId>,
    releases: Few<PendingRelease>,
    /// The reason for the wait that was last reported to the head.
    blocked: Option<Blocked>,
    /// The waiter for which the store contends.
    contender: Option<LockId>,
}

/// A release that is not answered yet. The cleanup in the store does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PendingRelease {
    id: LockId,
    /// Deadline of the answer.
    until: Instant,
}

/// What a line needs for a step, and where its outputs go. `O` is an output of the client.
#[derive(Debug)]
pub(crate) struct Desk<'a, T, O> {
    pub(crate) now: Instant,
    /// How long before the end of validity a holder is warned, if set.
    pub(crate) at_risk: Option<Duration>,
    pub(crate) release_within: Duration,
    pub(crate) is_stopping: bool,
    pub(crate) out: &'a mut VecDeque<O>,
    pub(crate) orders: &'a mut VecDeque<Order<T>>,
    /// Acquisitions that had their last event.
    pub(crate) ended: &'a mut Vec<LockId>,
    pub(crate) notes: &'a mut Notes,
    /// The servers' last replies, for reports.
    pub(crate) answers: Answers<'a>,
}

/// Returns the servers' last replies when a report needs them.
pub(crate) struct Answers<'a>(pub(crate) &'a dyn Fn() -> Box<[Answer]>);

impl core::fmt::Debug for Answers<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Answers")
    }
}

impl<T, O> Desk<'_, T, O> {
    /// Makes a note, if anybody wants notes.
    #[inline]
    fn note(&mut self, note: impl FnOnce(&Self) -> Note) {
        if self.notes.are_kept() {
            let note = note(self);
            self.notes.push(note);
        }
    }

    fn note_not_released(&mut self, lock: LockId, answers: Box<[Answer]>) {
        self.note(|desk| Note::NotReleased { lock, answers: desk.notes.failures(desk.now, answers) });
    }

    /// Ends an acquisition. Its id is never used again.
    fn forget(&mut self, id: LockId) {
        self.ended.push(id);
    }
}

impl<T, O: From<(LockId, Event)>> Desk<'_, T, O> {
    fn emit(&mut self, id: LockId, event: Event) {
        self.out.push_back((id, event).into());
    }

    /// Emits the last event of an acquisition.
    pub(super) fn end(&mut self, id: LockId, event: Event) {
        self.emit(id, event);
        self.forget(id);
    }
}

impl<T: Terms> Line<T> {
    pub(crate) const fn new() -> Self {
        Self {
            waiters: Waiters::new(),
            holders: Few::None,
            lost: Few::None,
            releases: Few::None,
            blocked: None,
            contender: None,
        }
    }

    /// Returns true if nobody waits, holds, or has a guard.
    pub(crate) fn is_over(&self) -> bool {
        self.is_quiet() && self.waiters.is_empty() && self.lost.is_empty()
    }

    /// Returns true if a shutdown has nothing to wait for here.
    pub(crate) fn is_quiet(&self) -> bool {
        self.holders.is_empty() && self.releases.is_empty() && self.contender.is_none()
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Takes over what the store knows of the holds now.
    #[inline]
    pub(crate) fn refresh(&mut self, holding: impl Fn(LockId) -> Option<Holding>) {
        for tenure in self.holders.iter_mut() {
            if let Some(holding) = holding(tenure.id()) {
                tenure.holding = holding;
            }
        }
    }

    fn holder(&mut self, id: LockId) -> Option<&mut Tenure<T>> {
        self.holders.iter_mut().find(|tenure| tenure.id() == id)
    }

    /// Returns the end of validity, if this acquisition holds the lock.
    pub(crate) fn valid_until(&self, id: LockId, holding: Option<Holding>) -> Option<Instant> {
        let tenure = self.holders.iter().find(|tenure| tenure.id() == id && tenure.is_held())?;
        Some(tenure.valid_until(holding?.until))
    }

    /// Checks that this acquisition holds the lock.
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if not.
    pub(crate) fn check_held(&self, id: LockId) -> Result<(), Misuse> {
        let held = self.holders.iter().any(|tenure| tenure.id() == id && tenure.is_held());
        if held { Ok(()) } else { Err(Misuse::NotHeld(id)) }
    }

    /// Returns true if the acquisition has the lock, was offered it, or has lost it. Skips the
    /// queue.
    fn has_guard(&self, id: LockId) -> bool {
        let offered = |tenure: &Tenure<T>| tenure.id() == id && tenure.phase != Phase::Preparing;
        self.holders.iter().any(offered) || self.lost.contains(&id)
    }

    /// Returns the next deadline and its reason.
    #[inline]
    pub(crate) fn deadline(&self, at_risk: Option<Duration>) -> Option<(Instant, &'static str)> {
        let mut next: Option<(Instant, &'static str)> = None;
        let mut or_at = |at: Instant, why: &'static str| {
            if next.is_none_or(|(first, _)| at < first) {
                next = Some((at, why));
            }
        };
        for tenure in self.holders.iter() {
            or_at(tenure.deadline(at_risk), "a hold");
        }
        if let Some(at) = self.waiters.next_end() {
            or_at(at, "end of a wait");
        }
        for release in self.releases.iter() {
            or_at(release.until, "end of a release");
        }
        next
    }

    // --- verbs ---

    /// Starts an acquisition.
    pub(crate) fn acquire<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>, waiter: Waiter<T>) {
        let first = self.waiters.is_empty() && self.holders.is_empty();
        if !first && waiter.wait == Wait::Try {
            // Already contended locally; skip the server.
            // A5
            let report = Report { waited: Duration::ZERO, nodes: Box::default() };
            return desk.end(waiter.id, Event::Failed(Failure::TimedOut(report)));
        }
        let id = waiter.id;
        self.waiters.push(waiter);
        if !first {
            desk.emit(id, Event::Blocked(Blocked::Local));
            desk.note(|_| Note::Waiting { lock: id, why: Blocked::Local, answers: Box::default() });
        }
    }

    /// Claims the offer of [`Event::Granted`], which stands for a third of the TTL.
    pub(crate) fn claim<O>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId) -> Result<(), Misuse> {
        let offered = self.holder(id).filter(|tenure| tenure.phase == Phase::Offered);
        offered.ok_or(Misuse::NotOffered(id))?.phase = Phase::Held;
        desk.orders.push_back(Order::Claim(id));
        Ok(())
    }

    /// Renews now. Each call is answered by one [`Event::Extended`] or [`Event::ExtendFailed`].
    pub(crate) fn extend<O>(&self, desk: &mut Desk<'_, T, O>, id: LockId) -> Result<(), Misuse> {
        self.check_held(id)?;
        desk.orders.push_back(Order::Extend(id));
        Ok(())
    }

    /// Releases the lock. Answered by [`Event::Released`].
    pub(crate) fn release<O>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId) -> Result<(), Misuse>
    where
        O: From<(LockId, Event)>,
    {
        if !self.has_guard(id) {
            return Err(Misuse::NotHeld(id));
        }
        self.return_guard(desk, id, true);
        Ok(())
    }

    /// Cancels the acquisition in whatever state it is in.
    pub(crate) fn abandon<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId) {
        if self.has_guard(id) {
            return self.return_guard(desk, id, false);
        }
        if let Some(place) = self.releases.iter().position(|release| release.id == id) {
            self.releases.remove(place);
            desk.orders.push_back(Order::GiveUp(id));
        } else if let Some(place) = self.waiters.position(id) {
            self.waiters.remove(place);
        } else {
            // It may be prepared for a hold.
            return self.return_guard(desk, id, false);
        }
        desk.forget(id);
    }

    /// Fails all waiters and releases the held locks. The keys of lost holds are left to their guards.
    // H6, U2
    pub(crate) fn shutdown<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>) {
        desk.orders.push_back(Order::ShutDown);
        while let Some(waiter) = self.waiters.pop_last() {
            desk.end(waiter.id, Event::Failed(Failure::ShuttingDown));
        }
        while let Some(tenure) = self.holders.first() {
            let (id, held) = (tenure.id(), tenure.is_held());
            if held {
                desk.emit(id, Event::Lost(Loss::ShutDown));
            } else {
                desk.emit(id, Event::Failed(Failure::ShuttingDown));
            }
            self.return_guard(desk, id, held);
        }
    }

    /// Answers the remaining releases at the end of a shutdown, also of guards that still exist.
    pub(crate) fn stop<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>) {
        while let Some(id) = self.lost.remove(0) {
            desk.note_not_released(id, Box::default());
            desk.end(id, Event::Released(Release::Unknown));
        }
        for release in self.releases.iter() {
            desk.orders.push_back(Order::GiveUp(release.id));
        }
    }

    // --- time ---

    /// Returns true if a hold has expired, unless its store has prolonged it since the last step. A
    /// store that shortens a validity takes a step of the lock.
    #[inline]
    pub(crate) fn seems_expired(&self, now: Instant) -> bool {
        self.holders.iter().any(|tenure| tenure.loss(now).is_some())
    }

    /// Does the work that is due, after holds have expired.
    pub(crate) fn timeout<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>) {
        // Waits end first, so that the lock is not handed over to a waiter that has timed out.
        while let Some(waiter) = self.waiters.due(desk.now).and_then(|place| self.waiters.remove(place)) {
            self.fail(desk, &waiter, Failure::TimedOut);
        }
        for release in self.releases.iter().filter(|release| release.until <= desk.now) {
            desk.orders.push_back(Order::GiveUp(release.id));
        }
    }

    /// Looks after the holds: expires them, ends a wait, withdraws an offer, tells a holder of an
    /// earlier end, or warns it.
    #[inline]
    pub(crate) fn watch<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>) {
        let mut place = 0;
        while let Some(tenure) = self.holders.get_mut(place) {
            let id = tenure.id();
            match tenure.due(desk.now, desk.at_risk) {
                Due::Nothing => place += 1,
                // The next round finds what else is due.
                Due::Shortened(valid_until) => desk.emit(id, Event::Renewed { valid_until }),
                Due::Warn(valid_until) => {
                    desk.emit(id, Event::AtRisk { valid_until });
                    desk.note(|desk| {
                        let answers = desk.notes.failures(desk.now, (desk.answers.0)());
                        Note::AtRisk { lock: id, valid_until, answers }
                    });
                }
                // The holder leaves this place.
                Due::Lost(loss) => self.lose(desk, id, loss),
                Due::TimedOut => self.fail_prepared(desk, id, Failure::TimedOut),
                Due::Withdraw => {
                    desk.emit(id, Event::Withdrawn);
                    self.return_guard(desk, id, false);
                }
            }
        }
    }

    /// Tells the store for whom to contend, if that has changed.
    #[inline]
    pub(crate) fn wish<O>(&mut self, desk: &mut Desk<'_, T, O>) {
        let head = if self.holders.is_empty() { self.waiters.head() } else { None };
        let id = head.map(|head| head.id);
        if self.contender != id {
            self.contender = id;
            self.blocked = None;
            desk.orders.push_back(Order::Contend(head.cloned()));
        }
    }

    // --- facts ---

    /// Applies what the store reports.
    pub(crate) fn apply<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>, fact: Fact) {
        match fact {
            Fact::Blocked(why) => {
                if let Some(head) = self.waiters.head()
                    && self.blocked.replace(why) != Some(why)
                {
                    desk.emit(head.id, Event::Blocked(why));
                    desk.note(|desk| Note::Waiting { lock: head.id, why, answers: (desk.answers.0)() });
                }
            }
            Fact::NotTaken => {
                if let Some(head) = self.waiters.pop() {
                    self.fail(desk, &head, Failure::TimedOut);
                }
            }
            Fact::Hopeless(why) => {
                while let Some(waiter) = self.waiters.pop() {
                    self.fail(desk, &waiter, |report| match why {
                        Hopeless::KeyInUse => Failure::KeyInUse(report),
                        Hopeless::Refused => Failure::Refused(report),
                        Hopeless::SequenceExhausted => Failure::SequenceExhausted(report),
                        Hopeless::EqualNodes(a, b) => Failure::EqualNodes(a, b),
                    });
                }
            }
            Fact::Taken(id, holding) => {
                debug_assert_eq!(self.contender, Some(id), "the lock was taken for somebody else");
                self.contender = None;
                self.blocked = None;
                if let Some(waiter) = self.waiters.pop() {
                    self.holders.push(Tenure::new(desk.now, waiter, holding));
                }
            }
            Fact::Granted(id, grant) => self.offer(desk, id, grant),
            Fact::Unprepared(id) => {
                // Before the waiter is put back: it does not wait for itself.
                let yields = !self.waiters.is_empty();
                if let Some(tenure) = self.take(id) {
                    self.waiters.push_front(tenure.waiter);
                    desk.orders.push_back(Order::End { id, loss: None, answer: false, yields });
                }
            }
            Fact::PrepareRefused(id) => self.fail_prepared(desk, id, Failure::Refused),
            Fact::Renewed(id, extended) => self.renewed(desk, id, extended),
            Fact::ExtendFailed(id, report) => desk.emit(id, Event::ExtendFailed(report)),
            Fact::Lost(id, loss) => self.lose(desk, id, loss),
            Fact::Released(id, release, answers) => self.released(desk, id, release, answers),
            Fact::Proclaimed(id, revision) => desk.emit(id, Event::Proclaimed { revision }),
            Fact::ProclaimFailed(id, report) => desk.emit(id, Event::ProclaimFailed(report)),
        }
    }

    /// Offers the lock to its holder.
    fn offer<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, mut grant: Grant) {
        let Some(tenure) = self.holder(id) else { return };
        tenure.offer(desk.now);
        grant.valid_until = tenure.valid_until(grant.valid_until);
        tenure.report(grant.valid_until);
        desk.emit(id, Event::Granted(grant));
    }

    fn renewed<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, extended: usize) {
        let Some(tenure) = self.holder(id).filter(|tenure| tenure.phase != Phase::Preparing) else { return };
        let valid_until = tenure.valid_until(tenure.holding.until);
        if extended > 0 || Some(valid_until) > tenure.reported() {
            tenure.report(valid_until);
            desk.emit(id, Event::Renewed { valid_until });
        }
        (0..extended).for_each(|_| desk.emit(id, Event::Extended));
    }

    fn released<O>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, release: Release, answers: Box<[Answer]>)
    where
        O: From<(LockId, Event)>,
    {
        let place = self.releases.iter().position(|release| release.id == id);
        if place.and_then(|place| self.releases.remove(place)).is_none() {
            return;
        }
        if release == Release::Unknown {
            desk.note_not_released(id, answers);
        }
        desk.end(id, Event::Released(release));
    }

    /// Fails a waiter that has left the queue. The report lists no servers if the lock is held in
    /// this client.
    fn fail<O>(&self, desk: &mut Desk<'_, T, O>, waiter: &Waiter<T>, failure: impl Fn(Report) -> Failure)
    where
        O: From<(LockId, Event)>,
    {
        let nodes = if self.is_held() { Box::default() } else { (desk.answers.0)() };
        let report = Report { waited: desk.now.since(waiter.since), nodes };
        desk.end(waiter.id, Event::Failed(failure(report)));
    }

    /// Fails the acquisition that the hold was prepared for.
    fn fail_prepared<O>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, failure: fn(Report) -> Failure)
    where
        O: From<(LockId, Event)>,
    {
        let Some(tenure) = self.holder(id) else { return };
        let waited = desk.now.since(tenure.waiter.since);
        let report = Report { waited, nodes: (desk.answers.0)() };
        desk.emit(id, Event::Failed(failure(report)));
        self.return_guard(desk, id, false);
    }

    /// Removes a holder.
    fn take(&mut self, id: LockId) -> Option<Tenure<T>> {
        let place = self.holders.iter().position(|tenure| tenure.id() == id)?;
        self.holders.remove(place)
    }

    /// Loses a hold: notifies its holder before anything else happens.
    fn lose<O: From<(LockId, Event)>>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, loss: Loss) {
        let Some(tenure) = self.take(id) else { return };
        let end = Order::End { id, loss: Some(loss), answer: false, yields: false };
        match tenure.phase {
            Phase::Held => {
                desk.emit(id, Event::Lost(loss));
                self.lost.push(id);
                desk.orders.push_back(Order::Leave { id, loss });
            }
            Phase::Offered => {
                desk.end(id, Event::Withdrawn);
                desk.orders.push_back(end);
            }
            // A single attempt is not repeated.
            // A5
            Phase::Preparing if tenure.waiter.wait == Wait::Try => {
                self.fail(desk, &tenure.waiter, Failure::TimedOut);
                desk.orders.push_back(end);
            }
            Phase::Preparing => {
                self.waiters.push_front(tenure.waiter);
                desk.orders.push_back(end);
            }
        }
    }

    /// Handles a returned guard, also of a lost hold. `answer`: report the outcome.
    fn return_guard<O>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, answer: bool)
    where
        O: From<(LockId, Event)>,
    {
        if let Some(place) = self.lost.iter().position(|lost| *lost == id) {
            self.lost.remove(place);
            return self.end(desk, id, answer, false);
        }
        let Some(tenure) = self.take(id) else { return };
        let follows = |next: &Waiter<T>| next.terms.may_follow(&tenure.waiter.terms);
        let hands_over = !desk.is_stopping
            && tenure.holding.hands_over_until.is_some_and(|until| desk.now < until)
            && self.waiters.head().is_some_and(follows);
        if hands_over && let Some(next) = self.waiters.pop() {
            if answer {
                desk.emit(id, Event::Released(Release::Released));
            }
            desk.forget(id);
            desk.orders.push_back(Order::HandOver { from: id, to: next.clone() });
            self.holders.push(Tenure::new(desk.now, next, tenure.holding));
            return;
        }
        let yields = !self.waiters.is_empty();
        self.end(desk, id, answer, yields);
    }

    fn end<O>(&mut self, desk: &mut Desk<'_, T, O>, id: LockId, answer: bool, yields: bool) {
        if answer {
            self.releases.push(PendingRelease { id, until: desk.now + desk.release_within });
        } else {
            desk.forget(id);
        }
        desk.orders.push_back(Order::End { id, loss: None, answer, yields });
    }
}
