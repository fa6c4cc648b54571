//! From the grant to its end: offers, passing on, proclaiming, loss, and giving back (requirements E6-E9, H2-H6, U1).

use alloc::boxed::Box;
use core::mem;

use bytes::Bytes;

use super::cleanup::{DebtCall, GiveBack};
use super::hold::{Hold, OwnerKey, Phase, Write, WriteCall};
use super::{Context, Lock, LostHold, Stage, Watched};
use crate::error::Misuse;
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, Refusal, Reply, Request};
use crate::etcd::session::answer;
use crate::id::LockId;
use crate::lock::{Answer, ErrorClass, Event, Failure, Grant, Loss, Release, Renew, Report, Token};
use crate::time::Instant;

impl Lock {
    // --- verbs ---

    pub(crate) fn claim(&mut self, ctx: &mut Context<'_>, id: LockId) -> Result<(), Misuse> {
        match &mut self.stage {
            Stage::Held(hold) if hold.id() == id && hold.phase == Phase::Offered => {
                hold.phase = Phase::Held;
                self.watch_over(ctx);
                Ok(())
            }
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) | Stage::Waiting(_) | Stage::Held(_) => {
                Err(Misuse::NotHeld(id))
            }
        }
    }

    fn holder(&mut self, id: LockId) -> Result<&mut Hold, Misuse> {
        match &mut self.stage {
            Stage::Held(hold) if hold.id() == id && hold.phase == Phase::Held => Ok(hold),
            Stage::Idle | Stage::Leasing(_) | Stage::Entering(_) | Stage::Waiting(_) | Stage::Held(_) => {
                Err(Misuse::NotHeld(id))
            }
        }
    }

    /// The session to be extended.
    pub(crate) fn extend(&mut self, now: Instant, id: LockId) -> Result<super::SessionId, Misuse> {
        let hold = self.holder(id)?;
        hold.extending.push(now);
        Ok(hold.session)
    }

    pub(crate) fn proclaim(&mut self, ctx: &mut Context<'_>, id: LockId, value: Bytes) -> Result<(), Misuse> {
        let until = ctx.now + ctx.config.release_within;
        let hold = self.holder(id)?;
        // One after the other: a second one takes the place of the first, whose answer it is too.
        match &mut hold.write {
            Some(write) => {
                write.value = value;
                write.proclaim = Some(until);
            }
            None => {
                hold.write = Some(Write { proclaim: Some(until), ..Write::new(ctx.now, value) });
            }
        }
        self.write(ctx);
        Ok(())
    }

    /// The key, and the promise that it changes before the lock is passed on.
    pub(crate) fn owner_guard(&mut self, ctx: &Context<'_>, id: LockId) -> Result<OwnerKey, Misuse> {
        let queue = self.queue.clone();
        let hold = self.holder(id)?;
        hold.guarded = true;
        let lease = ctx.lease(hold.session).ok_or(Misuse::NotHeld(id))?;
        Ok(hold.owner_key(&queue, lease))
    }

    // --- the grant ---

    /// The holder of the key is a new one: write its value, or give it a full life, if that is needed, then tell it.
    pub(super) fn take_over(&mut self, ctx: &mut Context<'_>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        hold.phase = Phase::Preparing;
        hold.since = ctx.now;
        hold.warned = false;
        hold.extending.clear();
        if hold.guarded || hold.value != hold.waiter.value || (hold.waiter.candidate && hold.grants > 0) {
            let value = hold.waiter.value.clone();
            hold.write = Some(Write::new(ctx.now, value));
            // Not the write alone: what was passed on may have more that is due.
            return self.watch_over(ctx);
        }
        self.prepared(ctx);
    }

    fn prepared(&mut self, ctx: &mut Context<'_>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        // Kept alive while it waited; from now on it has one full life (requirement H3).
        if hold.waiter.renew == Renew::Manual && hold.extending.is_empty() {
            hold.extending.push(ctx.now);
            ctx.sessions.stop_renewing(hold.session);
            ctx.extend.push(hold.session);
            return;
        }
        hold.phase = Phase::Offered;
        hold.since = ctx.now;
        hold.extending.clear();
        *ctx.number += 1;
        let valid_until = hold.until(ctx.sessions.get(hold.session).map_or(Instant::ZERO, |found| found.until()));
        let grant = Grant {
            token: Token { client: ctx.client, number: *ctx.number },
            fence: Some(hold.fence()),
            fence_ahead_ms: 0,
            ttl: ctx.ttl(hold.session),
            valid_until,
        };
        let id = hold.id();
        ctx.tell(id, Event::Granted(grant));
        self.watch_over(ctx);
    }

    /// Does what is due for the hold.
    pub(super) fn watch_over(&mut self, ctx: &mut Context<'_>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let (now, ttl) = (ctx.now, ctx.ttl(hold.session));
        let until = hold.until(ctx.until(hold.session));
        let id = hold.id();
        match hold.phase {
            Phase::Preparing if hold.waiter.deadline().is_some_and(|end| end <= now) => {
                let since = hold.waiter.since;
                let report = self.report(now, since);
                ctx.tell(id, Event::Failed(Failure::TimedOut(report)));
                return self.return_guard(ctx, id, false);
            }
            Phase::Offered if hold.since + ttl / 3 <= now => {
                ctx.tell(id, Event::Withdrawn);
                return self.return_guard(ctx, id, false);
            }
            Phase::Held | Phase::Offered if until <= now => {
                // The session's own end comes as news of the session.
                if hold.max_hold_end().is_some_and(|end| end <= now) {
                    // The lease is this hold's alone. It is not renewed from now on, so the key outlives the limit by a TTL at most,
                    // even if the guard never comes back (requirement H6).
                    ctx.sessions.lose(hold.session, Loss::MaxHold);
                    return self.lose(ctx, Loss::MaxHold);
                }
            }
            Phase::Held if !hold.warned && until.back(Hold::at_risk(ctx.config, ttl)) <= now => {
                hold.warned = true;
                ctx.tell(id, Event::AtRisk { valid_until: until });
            }
            Phase::Preparing | Phase::Offered | Phase::Held => {}
        }
        if let Stage::Held(hold) = &mut self.stage
            && hold.own.is_none()
            && hold.watch_at <= now
            && let Some(lease) = ctx.lease(hold.session)
        {
            // The hold has become a long one (requirement E9).
            hold.own = Some(Watched::new(ctx, self.queue.key(lease)));
        }
        self.look_after(ctx);
        self.write(ctx);
    }

    /// Reads whether the own key is there, if the watch may have missed its end.
    pub(super) fn look_after(&mut self, ctx: &mut Context<'_>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let missed = hold.own.is_some_and(|own| own.is_ahead_of(hold.known));
        if !missed {
            hold.look_again = None;
            return;
        }
        if hold.look.is_some() || hold.look_again.is_some_and(|at| at > ctx.now) {
            return;
        }
        let Some(lease) = ctx.lease(hold.session) else { return };
        hold.look_again = None;
        hold.looked_for = hold.own.and_then(|own| own.open).unwrap_or(0);
        let request = Request::Look { queue: self.queue.clone(), lease, before: None };
        hold.look = Some(ctx.send(hold.session, request));
    }

    pub(super) fn own_key_changed(&mut self, ctx: &mut Context<'_>, revision: i64, kv: &KeyValue, gone: bool) {
        let Stage::Held(hold) = &mut self.stage else { return };
        if gone && revision > hold.key.created {
            return self.lose(ctx, Loss::Gone);
        }
        let ours = hold.write.is_some() || kv.mod_revision <= hold.key.modified;
        if !gone && !ours {
            // Somebody else has written the key: it must hang on our lease again.
            let value = hold.value.clone();
            hold.key.modified = kv.mod_revision;
            hold.write = Some(Write { again: Some(ctx.now + ctx.pause(0)), ..Write::new(ctx.now, value) });
        }
    }

    // --- writing the key ---

    /// Sends the write that is wanted, or gives a proclaim up whose time is over.
    fn write(&mut self, ctx: &mut Context<'_>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let Some(write) = &mut hold.write else { return };
        if write.proclaim.is_some_and(|until| until <= ctx.now) {
            let report = Report { waited: ctx.now.since(write.asked), nodes: Box::new([self.answer.clone()]) };
            // It may have been done; the next write reads first.
            write.proclaim = None;
            let id = hold.waiter.id;
            if write.call.is_none() {
                hold.write = None;
            }
            ctx.tell(id, Event::ProclaimFailed(report));
            return;
        }
        if write.call.is_some() || write.again.is_some_and(|at| at > ctx.now) {
            return;
        }
        let Some(lease) = ctx.lease(hold.session) else { return };
        write.again = None;
        let request = Request::Put {
            queue: self.queue.clone(),
            lease,
            value: write.value.clone(),
            modified: hold.key.modified,
            before: hold.key.created,
        };
        write.sent = Some(write.value.clone());
        write.call = Some(WriteCall::Put(ctx.send(hold.session, request)));
    }

    /// The answer to a reading or a write of the held key.
    pub(super) fn hold_answered(&mut self, ctx: &mut Context<'_>, serial: u64, reply: &Reply) {
        let Stage::Held(hold) = &mut self.stage else { return };
        // A reading for the watch and a write may be under way at one time.
        let for_watch = hold.look.take_if(|look| *look == serial).is_some();
        if let Reply::Refused(Refusal::LeaseNotFound) = reply {
            ctx.lost_lease(hold.session);
            return;
        }
        let (revision, done, own) = match reply {
            Reply::Done(Found::Queue { revision, done, own, .. }) => (*revision, *done, *own),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                return self.hold_unanswered(ctx, for_watch, reply);
            }
        };
        let Some(own) = own.filter(|own| own.created == hold.key.created) else {
            return self.lose(ctx, Loss::Gone);
        };
        hold.known = hold.known.max(revision);
        if for_watch {
            // A change by somebody else is told by the watch itself. It may have been opened anew meanwhile: then once more.
            hold.known = hold.known.max(hold.looked_for);
            return self.look_after(ctx);
        }
        let Some(write) = &mut hold.write else { return };
        let put = matches!(write.call.take(), Some(WriteCall::Put(_)));
        hold.key.modified = own.modified;
        if !(put && done) {
            // Written by somebody else meanwhile, or by a put of ours that ended Unknown: once more, guarded by what was read.
            return self.write(ctx);
        }
        write.tries = 0;
        hold.value = write.sent.take().unwrap_or_default();
        if hold.value != write.value {
            // Another value was proclaimed meanwhile.
            return self.write(ctx);
        }
        let proclaimed = write.proclaim.is_some();
        hold.write = None;
        if hold.phase == Phase::Preparing {
            // Whoever guarded by the key as it was is out, and this reply proves the ownership (requirements E6, E8).
            hold.guarded = false;
            hold.revision = revision;
            hold.grants = 0;
            return self.prepared(ctx);
        }
        if proclaimed {
            let id = hold.id();
            ctx.tell(id, Event::Proclaimed { revision });
        }
    }

    /// A reading or a write of the held key has no proper answer.
    fn hold_unanswered(&mut self, ctx: &mut Context<'_>, for_watch: bool, reply: &Reply) {
        let Stage::Held(hold) = &mut self.stage else { return };
        self.answer = answer(reply);
        let Some(write) = hold.write.as_mut().filter(|_| !for_watch) else {
            // There is no hurry: many holders may find the server busy at the same time.
            hold.look_again = Some(ctx.now + ctx.pause(4));
            return;
        };
        let put = matches!(write.call.take(), Some(WriteCall::Put(_)));
        let refused = matches!(reply, Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused);
        let id = hold.waiter.id;
        if refused && write.proclaim.is_some() {
            let report = Report { waited: ctx.now.since(write.asked), nodes: Box::new([self.answer.clone()]) };
            hold.write = None;
            return ctx.tell(id, Event::ProclaimFailed(report));
        }
        if matches!(reply, Reply::Unknown(_)) && put {
            let Some(lease) = ctx.lease(hold.session) else { return };
            let request = Request::Look { queue: self.queue.clone(), lease, before: None };
            write.call = Some(WriteCall::Look(ctx.send(hold.session, request)));
            return;
        }
        write.again = Some(ctx.now + ctx.pause(write.tries));
        write.tries = write.tries.saturating_add(1);
    }

    // --- the session's news ---

    pub(super) fn renewed(&mut self, ctx: &mut Context<'_>, emitted: Instant) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let valid_until = hold.until(ctx.until(hold.session));
        hold.warned = false;
        let answered = hold.asked_by(emitted);
        if answered > 0 && hold.phase == Phase::Preparing && hold.write.is_none() {
            return self.prepared(ctx);
        }
        hold.extending.drain(..answered);
        if hold.phase != Phase::Preparing {
            let id = hold.id();
            ctx.tell(id, Event::Renewed { valid_until });
            (0..answered).for_each(|_| ctx.tell(id, Event::Extended));
        }
    }

    pub(super) fn unrenewed(&mut self, ctx: &mut Context<'_>, emitted: Instant, answer: &Answer) {
        let Stage::Held(hold) = &mut self.stage else { return };
        if hold.phase != Phase::Held {
            return;
        }
        let (id, answered) = (hold.id(), hold.asked_by(emitted));
        for asked in hold.extending.drain(..answered) {
            let report = Report { waited: ctx.now.since(asked), nodes: Box::new([answer.clone()]) };
            ctx.tell(id, Event::ExtendFailed(report));
        }
    }

    // --- the end ---

    /// The hold is lost: its holder is told before anything else, and the waiters contend anew.
    pub(super) fn lose(&mut self, ctx: &mut Context<'_>, loss: Loss) {
        let Stage::Held(hold) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        let id = hold.id();
        let valid_until = hold.until(ctx.until(hold.session));
        let session = hold.session;
        let lease_lost = ctx.sessions.get(session).is_none_or(|found| found.is_lost());
        let left = (loss != Loss::Gone).then_some(hold.key.modified);
        if let Some(own) = hold.own {
            ctx.close_watch(own.id);
        }
        self.close_kept(ctx);
        match hold.phase {
            Phase::Held => {
                ctx.tell(id, Event::Lost(loss));
                self.lost.push(LostHold { id, session, modified: left, valid_until });
            }
            Phase::Offered => ctx.end(id, Event::Withdrawn),
            Phase::Preparing => self.back_to_front(hold.waiter),
        }
        match left {
            _ if lease_lost => {}
            Some(modified) => self.owe_key(ctx, session, modified),
            // An earlier create may yet land, now that the key is gone.
            None => self.wake_debt(ctx, session),
        }
        self.start(ctx);
    }

    /// The guard of a holder, or of one that was told `Lost`, comes back.
    pub(super) fn return_guard(&mut self, ctx: &mut Context<'_>, id: LockId, answer: bool) {
        if let Some(place) = self.lost.iter().position(|lost| lost.id == id) {
            let lost = self.lost.swap_remove(place);
            let gone = ctx.sessions.get(lost.session).is_none_or(|found| found.is_gone());
            let Some(modified) = lost.modified.filter(|_| !gone) else {
                return match answer {
                    true => ctx.end(id, Event::Released(Release::Expired)),
                    false => ctx.ended.push(id),
                };
            };
            self.await_release(ctx, &lost, answer);
            // The key hangs on a lease of its own time: no attempt since has used it.
            return self.owe_key(ctx, lost.session, modified);
        }
        let Stage::Held(hold) = &mut self.stage else { return };
        if hold.id() != id {
            return;
        }
        let alive = ctx.is_alive(hold.session) && !ctx.stopping;
        if alive && self.waiters.front().is_some_and(|next| hold.may_pass_on(ctx.now, next)) {
            if answer {
                ctx.tell(id, Event::Released(Release::Released));
            }
            ctx.ended.push(id);
            let Some(next) = self.next_waiter() else { return };
            if let Stage::Held(hold) = &mut self.stage {
                hold.waiter = next;
                hold.grants += 1;
            }
            return self.take_over(ctx);
        }
        if !answer {
            ctx.ended.push(id);
        }
        self.give_back(ctx, answer.then_some(id));
    }

    /// Gives the key back to the store. `answer` is who waits for the outcome.
    pub(super) fn give_back(&mut self, ctx: &mut Context<'_>, answer: Option<LockId>) {
        let Stage::Held(hold) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        let (session, modified) = (hold.session, hold.key.modified);
        let valid_until = hold.until(ctx.until(session));
        self.keep_own(ctx, hold.own);
        if let Some(id) = answer {
            self.await_release(ctx, &LostHold { id, session, modified: Some(modified), valid_until }, true);
        }
        match hold.write.and_then(|write| write.call) {
            // A write under way may change the key first: its answer says what to delete.
            Some(WriteCall::Put(serial)) => self.owe_call(ctx, session, DebtCall::put(serial)),
            Some(WriteCall::Look(_)) | None => self.owe_key(ctx, session, modified),
        }
        // The turn is over: whoever waits here goes to the end of the queue.
        self.start(ctx);
    }

    fn await_release(&mut self, ctx: &mut Context<'_>, hold: &LostHold, answer: bool) {
        if !answer {
            return ctx.ended.push(hold.id);
        }
        let until = ctx.now + ctx.config.release_within;
        let LostHold { id, session, valid_until, .. } = *hold;
        self.giving_back.push(GiveBack { id, session, until, valid_until, maybe: false });
    }
}
