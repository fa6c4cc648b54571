//! A node that is first in its queue, its current holder, and those it is handed over to.
// E6, E7, E8, ZK4, H2, H5

use alloc::boxed::Box;
use alloc::vec::{self, Vec};

use bytes::Bytes;

use super::queued::{Bid, QueueEnv, Queued};
use super::retry::Retry;
use super::sessions::SessionId;
use super::store::QueueStore;
use crate::id::LockId;
use crate::lock::answer::Answer;
use crate::lock::event::Report;
use crate::lock::exchange::{Fact, Holding};
use crate::lock::grant::{Fence, Grant, Loss, Token};
use crate::lock::request::Renew;
use crate::lock::waiters::Waiter;
use crate::time::{Instant, nanos, soonest};

/// A held node and its current holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueHold<S: QueueStore> {
    /// The acquisition that has it.
    pub(crate) id: LockId,
    bid: Bid,
    renew: Renew,
    /// The grant was reported.
    prepared: bool,
    /// When the holder got it; once it is prepared, when the grant was reported.
    pub(crate) since: Instant,
    pub(crate) session: SessionId,
    pub(crate) node: S::Node,
    pub(crate) value: Bytes,
    pub(crate) grants: LocalGrants,
    /// When to watch the node.
    pub(crate) watch_at: Instant,
    /// The application guards transactions by the version of the node.
    pub(crate) guarded: bool,
    pub(crate) write: Option<HoldWrite>,
    pub(crate) extending: Extends,
}

/// A new value for the node of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldWrite {
    value: Bytes,
    /// The value of the last write. `value` may have changed since.
    sent: Bytes,
    /// Deadline of a proclaim; `None` for a take-over.
    proclaim: Option<Instant>,
    requested_at: Instant,
    /// The version may have changed: the node is read first.
    look: bool,
    retry: Retry,
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

impl HoldWrite {
    pub(crate) const fn new(now: Instant, value: Bytes) -> Self {
        let sent = Bytes::new();
        Self { value, sent, proclaim: None, requested_at: now, look: false, retry: Retry::new(None) }
    }

    /// Writes after a pause.
    pub(crate) const fn due(mut self, at: Instant) -> Self {
        self.retry.set_due(Some(at));
        self
    }

    /// Returns true if the write is in flight, not the read that precedes it.
    pub(crate) const fn is_in_flight(&self) -> bool {
        self.retry.is_in_flight() && !self.look
    }

    pub(crate) const fn is_looking(&self) -> bool {
        self.look
    }
}

impl<S: QueueStore> QueueHold<S> {
    /// Returns what is known of it now.
    pub(super) fn holding(&self, env: &QueueEnv<S>) -> Holding {
        let until = env.until(self.session);
        // Warning and claim window are fractions of what the TTL proves (`S::validity`).
        let ttl = nanos(S::validity(&env.config, env.ttl(self.session)));
        // A8
        let may_follow = self.write.is_none() && !env.is_lost(self.session);
        let hands_over_until = self.grants.hands_over_until().filter(|_| may_follow).map(|end| end.min(until));
        Holding { until, ttl, hands_over_until }
    }

    /// Returns the end of validity for the holder, whose hold time may be limited.
    pub(super) fn valid_until(&self, env: &QueueEnv<S>) -> Instant {
        let until = env.until(self.session);
        match self.renew {
            Renew::AtMost(most) if self.prepared => until.min(self.since + most),
            Renew::AtMost(_) | Renew::Auto | Renew::Manual => until,
        }
    }

    /// Returns when to send the write, or to fail the proclaim.
    pub(super) fn write_at(&self, is_up: bool) -> Option<Instant> {
        let write = self.write.as_ref()?;
        soonest([write.proclaim, write.retry.deadline().filter(|_| is_up)])
    }
}

impl<S: QueueStore> Queued<S> {
    /// Returns the node of this acquisition if it holds the lock.
    pub(crate) fn owner(&self, id: LockId, env: &QueueEnv<S>) -> Option<S::Owner> {
        let hold = self.hold.as_ref().filter(|hold| hold.id == id && hold.prepared)?;
        S::owner(&self.key, hold, env)
    }

    /// Returns the node, whose version the client changes before the next hand-over.
    pub(crate) fn owner_guard(&mut self, env: &QueueEnv<S>, id: LockId) -> Option<S::Owner> {
        if let Some(hold) = &mut self.hold {
            hold.guarded = true;
        }
        self.owner(id, env)
    }

    /// Changes the value of the node.
    pub(crate) fn proclaim(&mut self, env: &mut QueueEnv<S>, value: Bytes) {
        let until = env.now + env.config.release_within;
        let Some(hold) = &mut self.hold else { return };
        // A second proclaim replaces the first, and its result counts for both.
        let write = hold.write.get_or_insert_with(|| HoldWrite::new(env.now, Bytes::new()));
        if write.proclaim.is_none() {
            write.requested_at = env.now;
        }
        write.value = value;
        write.proclaim = Some(until);
        self.write(env);
    }

    /// Renews the session with a full TTL from now.
    pub(super) fn extend(&mut self, env: &mut QueueEnv<S>, id: LockId) {
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.id == id) {
            hold.extending.push(env.now);
            env.shared.sessions.extend.push(hold.session);
        }
    }

    /// The hold is lost. It ends when the line says so.
    pub(crate) fn lost(&self, env: &mut QueueEnv<S>, loss: Loss) {
        if let Some(hold) = &self.hold {
            env.report(Fact::Lost(hold.id, loss));
        }
    }

    /// Takes the lock for the head of the local queue, whose node is the first: `revision` proves
    /// that.
    pub(crate) fn take(
        &mut self,
        env: &mut QueueEnv<S>,
        session: SessionId,
        node: S::Node,
        revision: i64,
        value: Bytes,
    ) {
        let Some(Waiter { id, terms: bid, renew, .. }) = self.head.take() else { return S::leave(self, env) };
        self.contention = S::Contention::default();
        self.answer = Answer::Silent;
        self.tries = 0;
        // The server knows the session, in which it has created this node.
        env.shared.sessions.unknown = 0;
        let third = S::validity(&env.config, env.ttl(session)) / 3;
        let hold = self.hold.insert(QueueHold {
            id,
            bid,
            renew,
            prepared: false,
            since: env.now,
            session,
            node,
            value,
            grants: LocalGrants::new(revision, env.now + env.config.handover_window),
            watch_at: env.now + env.config.store.watch_own_after.unwrap_or(third),
            guarded: false,
            write: None,
            extending: Extends::new(),
        });
        env.report(Fact::Taken(id, hold.holding(env)));
        self.take_over(env);
    }

    /// Gives the hold to the next waiter of this client.
    pub(super) fn hand_over(&mut self, env: &mut QueueEnv<S>, from: LockId, to: Waiter<Bid>) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.id == from) else { return };
        (hold.id, hold.bid, hold.renew) = (to.id, to.terms, to.renew);
        (hold.prepared, hold.since) = (false, env.now);
        hold.grants.count += 1;
        self.take_over(env);
    }

    /// Prepares a new holder (writes its value, renews the session), then reports the grant.
    fn take_over(&mut self, env: &mut QueueEnv<S>) {
        let Some(hold) = &mut self.hold else { return };
        hold.extending.clear();
        if hold.guarded || hold.value != hold.bid.value || (hold.bid.candidate && hold.grants.count > 0) {
            hold.write = Some(HoldWrite::new(env.now, hold.bid.value.clone()));
            // Other work on the inherited hold may be due too.
            return self.keep(env);
        }
        self.prepared(env);
    }

    fn prepared(&mut self, env: &mut QueueEnv<S>) {
        let Some(hold) = &mut self.hold else { return };
        // The session was renewed during the wait. From now on the holder has one full TTL.
        // H3
        if hold.renew == Renew::Manual && hold.extending.is_empty() {
            hold.extending.push(env.now);
            env.shared.sessions.stop_renewing(hold.session);
            env.shared.sessions.extend.push(hold.session);
            return;
        }
        self.granted(env);
    }

    /// Reports the grant, which is complete.
    fn granted(&mut self, env: &mut QueueEnv<S>) {
        let Some(hold) = &mut self.hold else { return };
        hold.extending.clear();
        (hold.prepared, hold.since) = (true, env.now);
        env.number += 1;
        let token = Token { client: env.shared.client, number: env.number };
        let (fence, ttl) = (hold.grants.fence(), env.ttl(hold.session));
        let grant = Grant::new(token, Some(fence), ttl, env.until(hold.session));
        env.report(Fact::Granted(hold.id, grant));
        self.keep(env);
    }

    /// Does the work that is due: first of all, sends the pending write.
    pub(crate) fn keep(&mut self, env: &mut QueueEnv<S>) {
        self.write(env);
        S::timeout(self, env);
    }

    /// Sends the pending write, or fails a proclaim that has timed out.
    fn write(&mut self, env: &mut QueueEnv<S>) {
        let write = self.hold.as_ref().and_then(|hold| hold.write.as_ref());
        if let Some(write) = write.filter(|write| write.proclaim.is_some_and(|until| until <= env.now)) {
            // The value may have been written. The reply, or a read, decides.
            let is_open = write.retry.is_in_flight() || write.look;
            self.proclaim_failed(env, is_open);
        }
        let write = self.hold.as_ref().and_then(|hold| hold.write.as_ref());
        let Some(write) = write.filter(|write| write.retry.is_ready(env.now)) else { return };
        let value = (!write.look).then(|| write.value.clone());
        if S::write(self, env, value)
            && let Some(write) = self.hold.as_mut().and_then(|hold| hold.write.as_mut())
        {
            write.sent = write.value.clone();
            write.retry.sent(());
        }
    }

    /// Fails a proclaim. `is_open`: the outcome of its write is still unknown.
    fn proclaim_failed(&mut self, env: &mut QueueEnv<S>, is_open: bool) {
        let Some(hold) = &mut self.hold else { return };
        let Some(write) = &mut hold.write else { return };
        let waited = env.now.since(write.requested_at);
        write.proclaim = None;
        if !is_open {
            hold.write = None;
        }
        let report = Report { waited, nodes: Box::new([self.answer.clone()]) };
        env.report(Fact::ProclaimFailed(hold.id, report));
    }

    /// Handles the reply to the pending write.
    pub(crate) fn write_answered(&mut self, env: &mut QueueEnv<S>, reply: Written) {
        let Some(hold) = &mut self.hold else { return };
        let prepared = hold.prepared;
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
                    return self.written(env, revision);
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
                let pause = write.retry.tries().checked_sub(1).map(|tries| env.pause(tries));
                write.retry.failed(env.now + pause.unwrap_or_default());
            }
            // Not if the refused value is that of an earlier proclaim.
            Written::Refused if write.proclaim.is_some() && write.sent == write.value => {
                return self.proclaim_failed(env, false);
            }
            // The value that the next holder needs cannot be stored.
            Written::Refused if !prepared => return env.report(Fact::PrepareRefused(hold.id)),
            Written::Refused | Written::Failed => {
                write.look = false;
                env.back_off(&mut write.retry);
            }
            Written::NotSent => {}
        }
        self.write(env);
    }

    fn written(&mut self, env: &mut QueueEnv<S>, revision: i64) {
        let Some(hold) = &mut self.hold else { return };
        let proclaimed = hold.write.take().is_some_and(|write| write.proclaim.is_some());
        if !hold.prepared {
            // Transactions guarded by the old version now fail.
            // E6, E8
            hold.guarded = false;
            if S::WRITE_PROVES {
                (hold.grants.revision, hold.grants.count) = (revision, 0);
            }
            return self.prepared(env);
        }
        if proclaimed {
            env.report(Fact::Proclaimed(hold.id, revision));
        }
    }

    /// A write of the session that was emitted at this instant renewed it.
    pub(crate) fn renewed(&mut self, env: &mut QueueEnv<S>, emitted: Instant) {
        let Some(hold) = &mut self.hold else { return };
        let answered = hold.extending.take_answered(emitted).len();
        if hold.prepared {
            env.report(Fact::Renewed(hold.id, answered));
        } else if answered > 0 && hold.write.is_none() {
            self.granted(env);
        }
    }

    /// A renewal that was emitted at this instant was not confirmed.
    pub(crate) fn unrenewed(&mut self, env: &mut QueueEnv<S>, emitted: Instant, answer: &Answer) {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.prepared) else { return };
        for requested_at in hold.extending.take_answered(emitted) {
            let report = Report { waited: env.now.since(requested_at), nodes: Box::new([answer.clone()]) };
            env.report(Fact::ExtendFailed(hold.id, report));
        }
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

    /// Removes and returns those that a renewal emitted at this instant answers.
    fn take_answered(&mut self, emitted: Instant) -> vec::Drain<'_, Instant> {
        let answered = self.0.partition_point(|at| *at <= emitted);
        self.0.drain(..answered)
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

    /// Returns until when there may be another hand-over.
    // A8
    pub(crate) fn hands_over_until(&self) -> Option<Instant> {
        (self.count + 1 < 1 << GRANT_BITS).then_some(self.until)
    }
}
