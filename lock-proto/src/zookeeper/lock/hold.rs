//! A node that is first in its queue, its current holder, and those it is handed over to.
// ZK4, H2, H5

use alloc::boxed::Box;

use bytes::Bytes;

use super::session::SessionEvent;
use super::wait::Watch;
use super::{Bid, Context, Lock, Node, Waiter};
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::{ErrorClass, Event, Extends, Fence, LocalGrants, Loss, Phase, Renew, Report, SessionId, Tenure};
use crate::time::{Instant, soonest};
use crate::zookeeper::codec::{ErrorCode, MultiOp, Op, ReplyBody};
use crate::zookeeper::request::{Reply, class};

/// The node of a holder. Transactions of the application that `check` its path and version are
/// executed only while it still holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OwnerNode {
    /// The absolute path of the node, with the chroot.
    pub path: Box<str>,
    /// The transaction that created it. It grows each time another client takes the lock.
    pub czxid: i64,
    /// The version of its data.
    pub version: i32,
}

/// A held node and its current holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub(super) session: SessionId,
    pub(super) node: Node,
    value: Bytes,
    pub(super) grants: LocalGrants,
    pub(super) tenure: Tenure<Bid>,
    /// The watch on the node. `watch_at` is when to request it.
    watch: Watch,
    watch_at: Instant,
    /// The application guards transactions by the version of the node.
    guarded: bool,
    write: Option<Write>,
    pub(super) extending: Extends,
}

/// A new value for the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    value: Bytes,
    /// Deadline of a proclaim; `None` for a take-over.
    proclaim: Option<Instant>,
    requested_at: Instant,
    /// The version may have changed: it must be read first.
    look: bool,
    /// The request in flight, and the value that it writes.
    call: Option<(u64, Option<Bytes>)>,
    due: Option<Instant>,
    tries: u32,
}

impl Write {
    const fn new(now: Instant, value: Bytes) -> Self {
        Self { value, proclaim: None, requested_at: now, look: false, call: None, due: None, tries: 0 }
    }
}

impl Hold {
    pub(super) fn new(ctx: &Context, session: SessionId, node: Node, tenure: Tenure<Bid>, watch: Watch) -> Self {
        let third = ctx.config.validity(ctx.ttl(session)) / 3;
        Self {
            session,
            value: tenure.waiter.terms.value.clone(),
            grants: LocalGrants::new(node.czxid, ctx.now + ctx.config.handover_window),
            node,
            tenure,
            watch,
            watch_at: ctx.now + ctx.config.store.watch_own_after.unwrap_or(third),
            guarded: false,
            write: None,
            extending: Extends::new(),
        }
    }

    fn is_prepared(&self) -> bool {
        self.tenure.phase != Phase::Preparing
    }

    pub(super) fn awaits(&self, serial: u64) -> bool {
        let write = self.write.as_ref().and_then(|write| write.call.as_ref());
        self.watch.awaits(serial) || write.is_some_and(|(call, _)| *call == serial)
    }

    pub(super) fn fence(&self) -> Fence {
        self.grants.fence()
    }

    fn owner_node(&self) -> OwnerNode {
        OwnerNode { path: self.node.path.clone(), czxid: self.node.czxid, version: self.node.version }
    }

    /// Returns true if the lock may be handed over to `next`.
    // A8
    pub(super) fn may_hand_over(&self, now: Instant, next: &Waiter) -> bool {
        let shared = self.tenure.waiter.terms.session.is_none() && next.terms.session.is_none();
        self.write.is_none() && shared && self.grants.may_hand_over(now)
    }

    pub(super) fn deadline(&self, ctx: &Context) -> Instant {
        let up = ctx.session(self.session).is_some_and(|session| session.is_up());
        let watch = Some(self.watch_at).filter(|_| up && self.watch == Watch::None);
        let write = self.write.as_ref();
        let proclaim = write.and_then(|write| write.proclaim);
        let send = write.filter(|write| up && write.call.is_none()).map(|write| write.due.unwrap_or(ctx.now));
        soonest([watch, proclaim, send]).unwrap_or(Instant::MAX)
    }
}

impl Lock {
    /// Returns the node of this acquisition if it holds the lock.
    pub(crate) fn owner(&self, id: LockId) -> Option<OwnerNode> {
        let hold = self.hold.as_ref().filter(|hold| hold.tenure.id() == id && hold.is_prepared())?;
        Some(hold.owner_node())
    }

    /// Returns the node, whose version the client changes before the next hand-over.
    pub(crate) fn owner_guard(&mut self, id: LockId) -> Result<OwnerNode, Misuse> {
        let hold = self.held_by(id)?;
        hold.guarded = true;
        Ok(hold.owner_node())
    }

    pub(super) fn proclaim(&mut self, ctx: &mut Context, id: LockId, value: Bytes) -> Result<(), Misuse> {
        let until = ctx.now + ctx.config.release_within;
        let hold = self.held_by(id)?;
        // A second proclaim replaces the first, and its result counts for both.
        let write = hold.write.get_or_insert_with(|| Write::new(ctx.now, Bytes::new()));
        write.value = value;
        write.proclaim = Some(until);
        self.write(ctx);
        Ok(())
    }

    /// Prepares a new holder (writes its value, renews the session), then offers it the lock.
    pub(super) fn take_over(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        hold.extending.clear();
        let terms = &hold.tenure.waiter.terms;
        // A candidate writes in any case, so that observers see the new leader.
        if hold.guarded || hold.value != terms.value || (terms.candidate && hold.grants.count > 0) {
            hold.write = Some(Write::new(ctx.now, terms.value.clone()));
            // Other work on the inherited hold may be due too.
            return self.watch(ctx);
        }
        self.prepared(ctx);
    }

    fn prepared(&mut self, ctx: &mut Context) {
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

    /// Watches the node of a long hold, and sends a pending write.
    pub(super) fn keep(&mut self, ctx: &mut Context) {
        if let Some(hold) = &mut self.hold
            && hold.watch == Watch::None
            && hold.watch_at <= ctx.now
        {
            hold.watch = Watch::request(ctx, hold.session, &hold.node.path);
        }
        self.write(ctx);
    }

    /// Sends the pending write, or fails a proclaim that has timed out.
    fn write(&mut self, ctx: &mut Context) {
        let Some(hold) = &mut self.hold else { return };
        let Some(write) = &mut hold.write else { return };
        if write.proclaim.is_some_and(|until| until <= ctx.now) {
            let report =
                Report { waited: ctx.now.since(write.requested_at), nodes: Box::new([self.store.answer.clone()]) };
            // The value may have been written. A later write resolves that first.
            write.proclaim = None;
            if write.call.is_none() {
                hold.write = None;
            }
            let id = hold.tenure.id();
            return ctx.emit(id, Event::ProclaimFailed(report));
        }
        if write.call.is_some() || write.due.is_some_and(|at| at > ctx.now) {
            return;
        }
        let path = hold.node.path.clone();
        write.call = if write.look {
            ctx.send(hold.session, Op::GetData { path, watch: false }).map(|call| (call, None))
        } else {
            let data = write.value.clone();
            let op = MultiOp::SetData { path, data: data.clone(), version: hold.node.version };
            ctx.send(hold.session, Op::Write(op)).map(|call| (call, Some(data)))
        };
    }

    pub(super) fn hold_answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        if let Reply::Failed(ErrorCode::NO_NODE) = reply {
            return self.lose(ctx, Loss::Gone);
        }
        if hold.watch.awaits(serial) {
            hold.watch = Watch::None;
            match reply {
                Reply::Done(ReplyBody::Data { stat, .. }) => {
                    hold.watch = Watch::Open;
                    if hold.write.is_none() {
                        // Another client may have written the node.
                        hold.node.version = stat.version;
                    }
                }
                Reply::Done(_) | Reply::Failed(_) => hold.watch_at = ctx.now + ctx.config.store.recheck,
                Reply::Unknown(_) | Reply::NotSent(_) => {}
            }
            return;
        }
        let Some(write) = &mut hold.write else { return };
        let Some((_, sent)) = write.call.take() else { return };
        match reply {
            Reply::Done(ReplyBody::Data { stat, .. }) => {
                hold.node.version = stat.version;
                write.look = false;
            }
            Reply::Done(ReplyBody::Stat(stat)) => {
                hold.node.version = stat.version;
                hold.value = sent.unwrap_or_default();
                if hold.value == write.value {
                    let (proclaimed, revision) = (write.proclaim.is_some(), stat.mzxid);
                    hold.write = None;
                    return self.written(ctx, proclaimed, revision);
                }
            }
            Reply::Failed(ErrorCode::BAD_VERSION) => write.look = true,
            Reply::Failed(code) if class(*code) == ErrorClass::Refused && write.proclaim.is_some() => {
                let report = Report { waited: ctx.now.since(write.requested_at), nodes: Box::new([reply.answer()]) };
                let id = hold.tenure.id();
                hold.write = None;
                return ctx.emit(id, Event::ProclaimFailed(report));
            }
            Reply::Done(_) | Reply::Failed(_) => {
                write.due = Some(ctx.now + ctx.pause(write.tries));
                write.tries = write.tries.saturating_add(1);
            }
            Reply::Unknown(_) => write.look = true,
            Reply::NotSent(_) => {}
        }
        if !matches!(reply, Reply::Done(_)) {
            self.store.answer = reply.answer();
        }
        self.write(ctx);
    }

    fn written(&mut self, ctx: &mut Context, proclaimed: bool, revision: i64) {
        let Some(hold) = &mut self.hold else { return };
        if !hold.is_prepared() {
            // Transactions guarded by the old version now fail.
            hold.guarded = false;
            return self.prepared(ctx);
        }
        if proclaimed {
            let id = hold.tenure.id();
            ctx.emit(id, Event::Proclaimed { revision });
        }
    }

    /// The watch on the node was triggered.
    pub(super) fn own_node_changed(&mut self, ctx: &mut Context, changed: bool) {
        let Some(hold) = &mut self.hold else { return };
        if !changed {
            return self.lose(ctx, Loss::Gone);
        }
        hold.watch = Watch::request(ctx, hold.session, &hold.node.path);
    }

    /// Handles an event of the session of the hold.
    pub(super) fn hold_session(&mut self, ctx: &mut Context, event: &SessionEvent) {
        let Some(hold) = &mut self.hold else { return };
        match event {
            SessionEvent::Lost(loss) => self.lose(ctx, *loss),
            SessionEvent::Ended(_) => self.lose(ctx, Loss::Gone),
            SessionEvent::Gone(slot) if *slot == ctx.slot => self.lose(ctx, Loss::Gone),
            SessionEvent::Renewed(emitted) => self.renewed(ctx, *emitted),
            SessionEvent::Unrenewed(emitted, answer) if hold.tenure.is_held() => {
                let id = hold.tenure.id();
                hold.extending.fail(ctx, id, *emitted, answer);
            }
            SessionEvent::Up => {
                if hold.watch == Watch::Open {
                    // The node was watched before.
                    hold.watch_at = ctx.now;
                }
                hold.watch = Watch::None;
                self.keep(ctx);
            }
            SessionEvent::Alive
            | SessionEvent::Down(_)
            | SessionEvent::Refused(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_) => {}
        }
    }

    fn renewed(&mut self, ctx: &mut Context, emitted: Instant) {
        let Some(hold) = &mut self.hold else { return };
        let valid_until = hold.tenure.valid_until(ctx.until(hold.session));
        hold.tenure.renewed();
        let waits = !hold.is_prepared() && hold.write.is_none() && !hold.extending.is_empty();
        let answered = hold.extending.take_answered(emitted);
        if waits && answered > 0 {
            return self.offer(ctx);
        }
        if hold.is_prepared() {
            let id = hold.tenure.id();
            ctx.emit(id, Event::Renewed { valid_until });
            (0..answered).for_each(|_| ctx.emit(id, Event::Extended));
        }
    }
}
