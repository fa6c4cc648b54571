//! Maintaining a hold: writes, reads and watches of its key, and renewal of its lease.
// E6 to E9, H2

use alloc::boxed::Box;

use bytes::Bytes;

use super::hold::{OwnerKey, Write, WriteCall};
use super::session::answer;
use super::{Context, Lock, Watched};
use crate::error::Misuse;
use crate::etcd::message::KeyValue;
use crate::etcd::request::{Found, Refusal, Reply, Request};
use crate::id::LockId;
use crate::lock::{Answer, ErrorClass, Event, Loss, Renew, Report, Retry};
use crate::time::Instant;

impl Lock {
    pub(crate) fn proclaim(&mut self, ctx: &mut Context, id: LockId, value: Bytes) -> Result<(), Misuse> {
        let until = ctx.now + ctx.config.release_within;
        let hold = self.held_by(id)?;
        // A second proclaim replaces the first, and its result counts for both.
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

    /// Returns the key, which the client changes before the next hand-over.
    pub(crate) fn owner_guard(&mut self, ctx: &Context, id: LockId) -> Result<OwnerKey, Misuse> {
        let queue = self.key.clone();
        let hold = self.held_by(id)?;
        hold.guarded = true;
        let lease = ctx.lease(hold.session).ok_or(Misuse::NotHeld(id))?;
        Ok(hold.owner_key(&queue, lease))
    }

    /// Prepares a new holder (writes its value, extends the lease), then offers it the lock.
    pub(super) fn take_over(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        hold.extending.clear();
        let waiter = &hold.tenure.waiter;
        if hold.guarded || hold.value != waiter.terms.value || (waiter.terms.candidate && hold.grants.count > 0) {
            let value = waiter.terms.value.clone();
            hold.write = Some(Write::new(ctx.now, value));
            // Other work on the inherited hold may be due too.
            return self.watch(ctx);
        }
        self.prepared(ctx);
    }

    fn prepared(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        // The lease was renewed during the wait. From now on the holder has one full TTL.
        // H3
        if hold.tenure.waiter.renew == Renew::Manual && hold.extending.is_empty() {
            hold.extending.push(ctx.now);
            ctx.shared.sessions.stop_renewing(hold.session);
            ctx.shared.sessions.extend.push(hold.session);
            return;
        }
        self.offer(ctx);
    }

    /// Watches the key of a long hold, rereads it if needed, and sends a pending write.
    pub(super) fn keep(&mut self, ctx: &mut Context) {
        if let Some(hold) = &mut self.hold
            && hold.own.is_none()
            && hold.watch_at <= ctx.now
            && let Some(lease) = ctx.lease(hold.session)
        {
            // E9
            hold.own = Some(Watched::new(ctx, self.key.key(lease)));
        }
        self.recheck_key(ctx);
        self.write(ctx);
    }

    /// Rereads the key if the watch may have missed its deletion.
    pub(super) fn recheck_key(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        let missed = hold.own.is_some_and(|own| own.is_ahead_of(hold.reading.known));
        if !missed {
            return hold.reading.retry.set_due(None);
        }
        if !hold.reading.retry.is_ready(ctx.now) {
            return;
        }
        let Some(lease) = ctx.lease(hold.session) else { return };
        // The watch reports changes from this revision on.
        let opened = hold.own.and_then(|own| own.open).unwrap_or(0);
        let request = Request::Look { queue: self.key.clone(), lease, before: None, ahead: None };
        hold.reading.sent(ctx.send(hold.session, request), opened);
    }

    pub(super) fn own_key_changed(&mut self, ctx: &mut Context, revision: i64, kv: &KeyValue, gone: bool) {
        let Some(hold) = &mut self.hold else { return };
        if gone && revision > hold.key.created {
            return self.lose(ctx, Loss::Gone);
        }
        let ours = hold.write.is_some() || kv.mod_revision <= hold.key.modified;
        if !gone && !ours {
            // Another client wrote the key: attach it to our lease again.
            let value = hold.value.clone();
            hold.key.modified = kv.mod_revision;
            hold.write = Some(Write { retry: Retry::new(Some(ctx.now + ctx.pause(0))), ..Write::new(ctx.now, value) });
        }
    }

    /// Sends the pending write, or fails a proclaim that has timed out.
    fn write(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        let Some(write) = &mut hold.write else { return };
        if write.proclaim.is_some_and(|until| until <= ctx.now) {
            let report =
                Report { waited: ctx.now.since(write.requested_at), nodes: Box::new([self.store.answer.clone()]) };
            // The put may have been executed. A later write resolves that first.
            write.proclaim = None;
            let id = hold.tenure.id();
            if !write.retry.is_in_flight() {
                hold.write = None;
            }
            ctx.emit(id, Event::ProclaimFailed(report));
            return;
        }
        if !write.retry.is_ready(ctx.now) {
            return;
        }
        let Some(lease) = ctx.lease(hold.session) else { return };
        let request = Request::Put {
            queue: self.key.clone(),
            lease,
            value: write.value.clone(),
            modified: hold.key.modified,
            before: hold.key.created,
        };
        write.sent = Some(write.value.clone());
        write.retry.sent(WriteCall::Put(ctx.send(hold.session, request)));
    }

    pub(super) fn hold_answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        // A read for the watch and a write can be in flight at the same time.
        let for_watch = hold.reading.answered(serial);
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
        hold.reading.known = hold.reading.known.max(revision);
        if for_watch {
            // The watch itself reports changes by others. Read again if it was reopened since.
            hold.reading.known = hold.reading.known.max(hold.reading.min_revision);
            return self.recheck_key(ctx);
        }
        let Some(write) = &mut hold.write else { return };
        let put = matches!(write.retry.answered(|_| true), Some(WriteCall::Put(_)));
        hold.key.modified = own.modified;
        if !(put && done) {
            // The revision was outdated, or a put ended Unknown. Retry with the revision just read.
            return self.write(ctx);
        }
        write.retry.succeeded();
        hold.value = write.sent.take().unwrap_or_default();
        if hold.value != write.value {
            return self.write(ctx);
        }
        let proclaimed = write.proclaim.is_some();
        hold.write = None;
        if !hold.is_prepared() {
            // Transactions guarded by the old revision now fail, and this reply proves ownership.
            // E6, E8
            hold.guarded = false;
            hold.grants.revision = revision;
            hold.grants.count = 0;
            return self.prepared(ctx);
        }
        if proclaimed {
            let id = hold.tenure.id();
            ctx.emit(id, Event::Proclaimed { revision });
        }
    }

    fn hold_unanswered(&mut self, ctx: &mut Context, for_watch: bool, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        self.store.answer = answer(reply);
        let Some(write) = hold.write.as_mut().filter(|_| !for_watch) else {
            // A long pause: the server may be overloaded by many holders.
            hold.reading.retry.set_due(Some(ctx.now + ctx.pause(4)));
            return;
        };
        let put = matches!(write.retry.answered(|_| true), Some(WriteCall::Put(_)));
        let refused = matches!(reply, Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused);
        let id = hold.tenure.id();
        if refused && write.proclaim.is_some() {
            let report =
                Report { waited: ctx.now.since(write.requested_at), nodes: Box::new([self.store.answer.clone()]) };
            hold.write = None;
            return ctx.emit(id, Event::ProclaimFailed(report));
        }
        if matches!(reply, Reply::Unknown(_)) && put {
            let Some(lease) = ctx.lease(hold.session) else { return };
            let request = Request::Look { queue: self.key.clone(), lease, before: None, ahead: None };
            write.retry.sent(WriteCall::Look(ctx.send(hold.session, request)));
            return;
        }
        write.retry.failed(ctx.now + ctx.pause(write.retry.tries()));
    }

    pub(super) fn renewed(&mut self, ctx: &mut Context, emitted: Instant) {
        let Some(hold) = &mut self.hold else { return };
        let valid_until = hold.tenure.valid_until(ctx.until(hold.session));
        hold.tenure.renewed();
        let answered = hold.extending.take_answered(emitted);
        if answered > 0 && !hold.is_prepared() && hold.write.is_none() {
            return self.offer(ctx);
        }
        if hold.is_prepared() {
            let id = hold.tenure.id();
            ctx.emit(id, Event::Renewed { valid_until });
            (0..answered).for_each(|_| ctx.emit(id, Event::Extended));
        }
    }

    pub(super) fn unrenewed(&mut self, ctx: &mut Context, emitted: Instant, answer: &Answer) {
        let Some(hold) = &mut self.hold else { return };
        if !hold.tenure.is_held() {
            return;
        }
        let id = hold.tenure.id();
        hold.extending.fail(ctx, id, emitted, answer);
    }
}
