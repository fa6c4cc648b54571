//! A node that is first in its queue, its current holder, and those it is handed over to.
// E6, E7, E8, ZK4, H2, H5

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;

use super::answer::Answer;
use super::context::Context;
use super::event::{Event, Failure, Report};
use super::grant::Fence;
use super::queue::{Keep as _, QueueStore};
use super::queued::{Bid, Contention, QueueContext, QueueLock};
use super::request::Renew;
use super::retry::Retry;
use super::sessions::SessionId;
use super::store::Store;
use super::tenure::{Phase, Tenure};
use super::tuning::check_value;
use super::waiters::Waiter;
use crate::error::Misuse;
use crate::id::LockId;
use crate::time::{Instant, soonest};

/// A held node and its current holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold<S: QueueStore> {
    pub(crate) session: SessionId,
    pub(crate) node: S::Node,
    pub(crate) value: Bytes,
    pub(crate) grants: LocalGrants,
    pub(crate) tenure: Tenure<Bid>,
    /// The watch on the node. `watch_at` is when to request it.
    pub(crate) watch: S::Watch,
    pub(crate) watch_at: Instant,
    /// The application guards transactions by the version of the node.
    pub(crate) guarded: bool,
    pub(crate) write: Option<Write>,
    pub(crate) extending: Extends,
}

/// A new value for the node of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    value: Bytes,
    /// The value of the last write. `value` may have changed since.
    sent: Bytes,
    /// Deadline of a proclaim; `None` for a take-over.
    proclaim: Option<Instant>,
    requested_at: Instant,
    /// The version may have changed: the node is read first.
    look: bool,
    retry: Retry<u64>,
}

/// The reply to the write of a node, or to the read that precedes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was executed, at this revision.
    Done(i64),
    /// A read: the node has the version just recorded, but not the new value.
    Read,
    /// The version was outdated.
    Outdated,
    /// It may have been executed.
    Unknown,
    /// The server refuses it for good.
    Refused,
    /// It was not executed.
    Failed,
    /// There was no connection. The next one continues.
    NotSent,
}

impl Write {
    pub(crate) const fn new(now: Instant, value: Bytes) -> Self {
        let sent = Bytes::new();
        Self { value, sent, proclaim: None, requested_at: now, look: false, retry: Retry::new(None) }
    }

    /// Writes after a pause.
    pub(crate) const fn due(mut self, at: Instant) -> Self {
        self.retry.set_due(Some(at));
        self
    }

    /// Returns the write in flight, if it is not a read.
    pub(crate) fn in_flight(&self) -> Option<u64> {
        self.retry.call().filter(|_| !self.look)
    }

    pub(crate) const fn is_looking(&self) -> bool {
        self.look
    }
}

impl<S: QueueStore> Hold<S> {
    pub(crate) fn is_prepared(&self) -> bool {
        self.tenure.phase != Phase::Preparing
    }

    pub(super) fn awaits(&self, serial: u64) -> bool {
        let write = self.write.as_ref().and_then(|write| write.retry.call());
        write == Some(serial) || self.watch.awaits(serial)
    }

    /// Returns true if the lock may be handed over to `next`.
    // A8
    pub(super) fn may_hand_over(&self, now: Instant, next: &Waiter<Bid>) -> bool {
        let shared = self.tenure.waiter.terms.session.is_none() && next.terms.session.is_none();
        self.write.is_none() && shared && self.grants.may_hand_over(now)
    }

    pub(super) fn deadline(&self, ctx: &QueueContext<S>) -> Instant {
        let write = self.write.as_ref();
        let proclaim = write.and_then(|write| write.proclaim);
        let up = ctx.is_up(self.session);
        let send = write.and_then(|write| write.retry.deadline()).filter(|_| up);
        soonest([S::Watch::deadline(self).filter(|_| up), proclaim, send]).unwrap_or(Instant::MAX)
    }
}

impl<S: QueueStore> QueueLock<S> {
    /// Returns the node of this acquisition if it holds the lock.
    pub(crate) fn owner(&self, id: LockId, ctx: &QueueContext<S>) -> Option<S::Owner> {
        let hold = self.hold.as_ref().filter(|hold| hold.tenure.id() == id && hold.is_prepared())?;
        S::Watch::owner(&self.key, hold, ctx)
    }

    /// Returns the node, whose version the client changes before the next hand-over.
    pub(crate) fn owner_guard(&mut self, ctx: &QueueContext<S>, id: LockId) -> Result<S::Owner, Misuse> {
        self.held_by(id)?.guarded = true;
        self.owner(id, ctx).ok_or(Misuse::NotHeld(id))
    }

    pub(crate) fn proclaim(&mut self, ctx: &mut QueueContext<S>, id: LockId, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        let until = ctx.now + ctx.config.release_within;
        let hold = self.held_by(id)?;
        // A second proclaim replaces the first, and its result counts for both.
        let write = hold.write.get_or_insert_with(|| Write::new(ctx.now, Bytes::new()));
        if write.proclaim.is_none() {
            write.requested_at = ctx.now;
        }
        write.value = value;
        write.proclaim = Some(until);
        self.write(ctx);
        Ok(())
    }

    /// Takes the lock for the head of the local queue, whose node is the first: `revision` proves
    /// that.
    pub(crate) fn take(
        &mut self,
        ctx: &mut QueueContext<S>,
        session: SessionId,
        node: S::Node,
        revision: i64,
        value: Bytes,
        watch: S::Watch,
    ) {
        let Some(waiter) = self.waiters.pop() else { return self.nobody_waits(ctx) };
        self.contention = Contention::Idle;
        self.store.answer = Answer::Silent;
        self.blocked = None;
        self.tries = 0;
        // The server knows the session, in which it has created this node.
        ctx.shared.sessions.unknown = 0;
        let third = S::validity(&ctx.config, ctx.ttl(session)) / 3;
        self.hold = Some(Hold {
            session,
            node,
            value,
            grants: LocalGrants::new(revision, ctx.now + ctx.config.handover_window),
            tenure: Tenure::new(ctx.now, waiter),
            watch,
            watch_at: ctx.now + ctx.config.store.watch_own_after.unwrap_or(third),
            guarded: false,
            write: None,
            extending: Extends::new(),
        });
        self.take_over(ctx);
    }

    /// Prepares a new holder (writes its value, renews the session), then offers it the lock.
    pub(super) fn take_over(&mut self, ctx: &mut QueueContext<S>) {
        let Some(hold) = &mut self.hold else { return };
        hold.extending.clear();
        let terms = &hold.tenure.waiter.terms;
        if hold.guarded || hold.value != terms.value || (terms.candidate && hold.grants.count > 0) {
            hold.write = Some(Write::new(ctx.now, terms.value.clone()));
            // Other work on the inherited hold may be due too.
            return self.watch(ctx);
        }
        self.prepared(ctx);
    }

    fn prepared(&mut self, ctx: &mut QueueContext<S>) {
        let Some(hold) = &mut self.hold else { return };
        // The session was renewed during the wait. From now on the holder has one full TTL.
        // H3
        if hold.tenure.waiter.renew == Renew::Manual && hold.extending.is_empty() {
            hold.extending.push(ctx.now);
            ctx.shared.sessions.stop_renewing(hold.session);
            ctx.shared.sessions.extend.push(hold.session);
            return;
        }
        self.offer(ctx);
    }

    /// Sends a pending write, and watches the node of a long hold.
    pub(crate) fn keep(&mut self, ctx: &mut QueueContext<S>) {
        self.write(ctx);
        S::Watch::work(self, ctx);
    }

    /// Sends the pending write, or fails a proclaim that has timed out.
    fn write(&mut self, ctx: &mut QueueContext<S>) {
        let write = self.hold.as_ref().and_then(|hold| hold.write.as_ref());
        if let Some(write) = write.filter(|write| write.proclaim.is_some_and(|until| until <= ctx.now)) {
            // The value may have been written. The reply, or a read, decides.
            let is_open = write.retry.is_in_flight() || write.look;
            self.proclaim_failed(ctx, is_open);
        }
        let Some(hold) = &mut self.hold else { return };
        let Some(write) = hold.write.as_ref().filter(|write| write.retry.is_ready(ctx.now)) else { return };
        let value = (!write.look).then(|| write.value.clone());
        let sent = S::Watch::write(&self.key, ctx, hold, value);
        if let (Some(call), Some(write)) = (sent, &mut hold.write) {
            write.sent = write.value.clone();
            write.retry.sent(call);
        }
    }

    /// Fails a proclaim. `is_open`: the outcome of its write is still unknown.
    fn proclaim_failed(&mut self, ctx: &mut QueueContext<S>, is_open: bool) {
        let Some(hold) = &mut self.hold else { return };
        let Some(write) = &mut hold.write else { return };
        let waited = ctx.now.since(write.requested_at);
        write.proclaim = None;
        if !is_open {
            hold.write = None;
        }
        let id = hold.tenure.id();
        let report = Report { waited, nodes: Box::new([self.store.answer.clone()]) };
        ctx.emit(id, Event::ProclaimFailed(report));
    }

    /// Handles the reply to the pending write.
    pub(crate) fn write_answered(&mut self, ctx: &mut QueueContext<S>, reply: Written) {
        let Some(hold) = &mut self.hold else { return };
        let prepared = hold.is_prepared();
        let Some(write) = &mut hold.write else { return };
        write.retry.forget_call();
        // A proclaim that was reported as failed, and was not written after all.
        let given_up = prepared && write.proclaim.is_none() && write.value != hold.value;
        match reply {
            Written::Refused | Written::Failed | Written::NotSent | Written::Read if given_up => hold.write = None,
            Written::Done(revision) => {
                write.retry.succeeded();
                hold.value = write.sent.clone();
                if hold.value == write.value {
                    return self.written(ctx, revision);
                }
                if prepared && write.proclaim.is_none() {
                    // The proclaim that replaced it has failed meanwhile.
                    hold.write = None;
                }
            }
            Written::Read => write.look = false,
            Written::Outdated => write.look = true,
            Written::Unknown => {
                write.look = true;
                // Retry once immediately, then back off.
                let pause = write.retry.tries().checked_sub(1).map(|tries| ctx.pause(tries));
                write.retry.failed(ctx.now + pause.unwrap_or_default());
            }
            // Not if the refused value is that of an earlier proclaim.
            Written::Refused if write.proclaim.is_some() && write.sent == write.value => {
                return self.proclaim_failed(ctx, false);
            }
            // The value that the next holder needs cannot be stored.
            Written::Refused if !prepared => return self.fail_prepared(ctx, Failure::Refused),
            Written::Refused | Written::Failed => {
                write.look = false;
                ctx.back_off(&mut write.retry);
            }
            Written::NotSent => {}
        }
        self.write(ctx);
    }

    fn written(&mut self, ctx: &mut QueueContext<S>, revision: i64) {
        let Some(hold) = &mut self.hold else { return };
        let proclaimed = hold.write.take().is_some_and(|write| write.proclaim.is_some());
        if !hold.is_prepared() {
            // Transactions guarded by the old version now fail.
            // E6, E8
            hold.guarded = false;
            if S::WRITE_PROVES {
                (hold.grants.revision, hold.grants.count) = (revision, 0);
            }
            return self.prepared(ctx);
        }
        if proclaimed {
            let id = hold.tenure.id();
            ctx.emit(id, Event::Proclaimed { revision });
        }
    }

    /// A write of the session that was emitted at this instant renewed it.
    pub(crate) fn renewed(&mut self, ctx: &mut QueueContext<S>, emitted: Instant) {
        let Some(hold) = &mut self.hold else { return };
        let valid_until = hold.tenure.valid_until(ctx.until(hold.session));
        hold.tenure.report(valid_until);
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

    /// A renewal that was emitted at this instant was not confirmed.
    pub(crate) fn unrenewed(&mut self, ctx: &mut QueueContext<S>, emitted: Instant, answer: &Answer) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenure.is_held()) else { return };
        let id = hold.tenure.id();
        hold.extending.fail(ctx, id, emitted, answer);
    }
}

/// The times of the extensions that are not answered, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Extends(Vec<Instant>);

impl Extends {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, at: Instant) {
        self.0.push(at);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes those that a renewal emitted at this instant answers, and returns their number.
    pub(crate) fn take_answered(&mut self, emitted: Instant) -> usize {
        let answered = self.0.partition_point(|at| *at <= emitted);
        self.0.drain(..answered);
        answered
    }

    /// Answers those that a renewal emitted at this instant should have confirmed.
    pub(crate) fn fail<S: Store>(&mut self, ctx: &mut Context<S>, id: LockId, emitted: Instant, answer: &Answer) {
        let answered = self.0.partition_point(|at| *at <= emitted);
        for requested_at in self.0.drain(..answered) {
            let report = Report { waited: ctx.now.since(requested_at), nodes: Box::new([answer.clone()]) };
            ctx.emit(id, Event::ExtendFailed(report));
        }
    }
}

/// Low bits of a fencing token, which count the grants since ownership was proven.
// E8, ZK4
const GRANT_BITS: u32 = 16;

/// Grants to consecutive holders within this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocalGrants {
    /// What proved ownership: a revision or transaction of the store.
    pub(crate) revision: i64,
    /// Number of hand-overs since `revision`.
    pub(crate) count: u64,
    /// After this time, the lock is released even if local waiters remain.
    until: Instant,
}

impl LocalGrants {
    pub(crate) const fn new(revision: i64, until: Instant) -> Self {
        Self { revision, count: 0, until }
    }

    /// Returns the fencing token: the proof's revision, then the number of grants since.
    // E8, ZK4
    pub(crate) fn fence(&self) -> Fence {
        Fence(self.revision.unsigned_abs() << GRANT_BITS | self.count)
    }

    /// Returns true if there may be another hand-over.
    // A8
    pub(crate) fn may_hand_over(&self, now: Instant) -> bool {
        now < self.until && self.count + 1 < 1 << GRANT_BITS
    }
}
