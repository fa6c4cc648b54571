//! Waiting in the store's queue, with a watch on the predecessor and on the own node.
// ZK3

use alloc::boxed::Box;

use super::{Contention, Context, Lock, Node, Nodes};
use crate::id::CallOwner;
use crate::lock::{Answer, Blocked, ErrorClass, Expiry, Progress, SessionId, Wait};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, Op, ReplyBody, WatchKind};
use crate::zookeeper::request::{Reply, class};

/// A watch on the data of a node, which ends with its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Watch {
    None,
    Requested(u64),
    Open,
}

impl Watch {
    /// Requests the watch by a read: `exists` would leave one behind if the node is gone.
    pub(super) fn request(ctx: &mut Context, session: SessionId, path: &str) -> Self {
        ctx.send(session, Op::GetData { path: path.into(), watch: true }).map_or(Self::None, Self::Requested)
    }

    pub(super) fn awaits(self, serial: u64) -> bool {
        self == Self::Requested(serial)
    }
}

/// A contender that waits behind another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    session: SessionId,
    node: Node,
    own_watch: Watch,
    ahead: Ahead,
    /// When to read the queue without a report.
    recheck: Instant,
}

/// What is known of the nodes ahead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Ahead {
    /// The queue must be read, or is being read by this call.
    Unread(Option<u64>),
    /// The next older node, and whether it was the first one at the last reading.
    Behind { path: Box<str>, is_first: bool, watch: Watch },
    /// None is left. The session must prove that it is alive.
    First,
}

impl Progress<Nodes> for Contender {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, serial: u64) -> bool {
        let ahead = match &self.ahead {
            Ahead::Unread(call) => *call == Some(serial),
            Ahead::Behind { watch, .. } => watch.awaits(serial),
            Ahead::First => false,
        };
        ahead || self.own_watch.awaits(serial)
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.ahead {
            Ahead::Unread(Some(_)) | Ahead::First => None,
            Ahead::Unread(None) | Ahead::Behind { .. } => Some(self.recheck),
        }
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, serial: u64, reply: &Reply) {
        lock.wait_answered(ctx, serial, reply);
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.wait_due(ctx);
    }

    fn up(lock: &mut Lock, ctx: &mut Context) {
        if let Contention::Waiting(contender) = &mut lock.contention {
            contender.own_watch = Watch::None;
        }
        lock.read_queue(ctx);
    }

    fn renewed(lock: &mut Lock, ctx: &mut Context) {
        lock.take_turn(ctx);
    }

    fn abandon(self, lock: &mut Lock, ctx: &mut Context) {
        lock.stop_watching(ctx, &self);
        lock.schedule_delete(ctx, self.session, self.node.path);
    }
}

impl Lock {
    /// Waits with a node whose place is unknown: the queue is read once the session is up.
    pub(super) fn join(&mut self, ctx: &mut Context, session: SessionId, node: Node) {
        let recheck = ctx.recheck_at();
        let (own_watch, ahead) = (Watch::None, Ahead::Unread(None));
        self.contention = Contention::Waiting(Contender { session, node, own_watch, ahead, recheck });
        self.read_queue(ctx);
    }

    /// Waits behind this node. The own node is watched first, so that a report of the
    /// predecessor's deletion proves that the own node was there when it was read or deleted.
    pub(super) fn wait_behind(
        &mut self,
        ctx: &mut Context,
        session: SessionId,
        node: Node,
        path: Box<str>,
        is_first: bool,
    ) {
        self.store.answer = Answer::Taken(Expiry::Unknown);
        if self.waiters.head().is_some_and(|head| head.wait == Wait::Try) {
            self.contention = Contention::Idle;
            self.schedule_delete(ctx, session, node.path);
            self.end_try(ctx);
            // If the waiter that tried has already left, contend for the next one.
            if matches!(self.contention, Contention::Idle) {
                self.start(ctx);
            }
            return;
        }
        let known = match &self.contention {
            Contention::Waiting(contender) => contender.own_watch,
            Contention::Idle | Contention::Opening(_) | Contention::Entering(_) => Watch::None,
        };
        let own_watch = if known == Watch::Open { known } else { Watch::request(ctx, session, &node.path) };
        let watch = Watch::request(ctx, session, &path);
        let ahead = Ahead::Behind { path, is_first, watch };
        let recheck = ctx.recheck_at();
        self.contention = Contention::Waiting(Contender { session, node, own_watch, ahead, recheck });
        self.notify_blocked(ctx, Blocked::Held);
    }

    /// Reads the queue, from scratch.
    fn read_queue(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        // After a reconnect, no watch is left.
        if !ctx.is_up(contender.session) {
            (contender.ahead, contender.own_watch) = (Ahead::Unread(None), Watch::None);
            return;
        }
        let list = Op::GetChildren { path: (*self.key.path).into(), watch: false };
        contender.ahead = Ahead::Unread(ctx.send(contender.session, list));
    }

    pub(super) fn wait_due(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        if contender.deadline().is_some_and(|at| at <= ctx.now) {
            contender.recheck = ctx.recheck_at();
            self.read_queue(ctx);
        }
    }

    pub(super) fn wait_answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if contender.own_watch.awaits(serial) {
            match reply {
                Reply::Done(ReplyBody::Data { .. }) => contender.own_watch = Watch::Open,
                Reply::Failed(ErrorCode::NO_NODE) => return self.enter(ctx, session),
                Reply::Done(_) | Reply::Failed(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                    contender.own_watch = Watch::None;
                }
            }
            return self.take_turn(ctx);
        }
        match &mut contender.ahead {
            Ahead::Behind { watch, .. } => match reply {
                Reply::Done(ReplyBody::Data { .. }) => *watch = Watch::Open,
                Reply::Failed(ErrorCode::NO_NODE) => self.predecessor_gone(ctx),
                // The predecessor is another user's.
                Reply::Failed(code) if class(*code) == ErrorClass::Refused => {
                    let node = contender.node.clone();
                    self.judge_answered(ctx, session, node, reply);
                }
                Reply::Done(_) | Reply::Failed(_) | Reply::Unknown(_) | Reply::NotSent(_) => *watch = Watch::None,
            },
            Ahead::Unread(_) => match reply {
                Reply::Unknown(_) | Reply::NotSent(_) => contender.ahead = Ahead::Unread(None),
                Reply::Done(_) | Reply::Failed(_) => {
                    let node = contender.node.clone();
                    self.judge_answered(ctx, session, node, reply);
                }
            },
            Ahead::First => {}
        }
    }

    /// Handles a triggered watch on the own node or the predecessor.
    pub(super) fn contender_watched(&mut self, ctx: &mut Context, path: &str, changed: bool) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if *contender.node.path == *path {
            if !changed {
                // Somebody has deleted it: to the end of the queue.
                return self.enter(ctx, session);
            }
            contender.own_watch = Watch::request(ctx, session, path);
            return;
        }
        match &mut contender.ahead {
            Ahead::Behind { path: predecessor, watch, .. } if **predecessor == *path => {
                if changed {
                    *watch = Watch::request(ctx, session, path);
                } else {
                    self.predecessor_gone(ctx);
                }
            }
            Ahead::Behind { .. } | Ahead::Unread(_) | Ahead::First => {}
        }
    }

    /// The predecessor was deleted. If it was the first, no older node is left: none can appear.
    // ZK3
    fn predecessor_gone(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        match &contender.ahead {
            Ahead::Behind { is_first: true, .. } => {
                contender.ahead = Ahead::First;
                self.take_turn(ctx);
            }
            Ahead::Behind { is_first: false, .. } | Ahead::Unread(_) | Ahead::First => self.read_queue(ctx),
        }
    }

    /// Takes the lock if no older node is left, the own node is watched, and the session is proven
    /// to be alive.
    // ZK1
    fn take_turn(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &self.contention else { return };
        if contender.ahead != Ahead::First {
            return;
        }
        match contender.own_watch {
            Watch::Open => {}
            Watch::Requested(_) => return,
            Watch::None => return self.read_queue(ctx),
        }
        let session = contender.session;
        if ctx.until(session) <= ctx.now {
            // Answered by `Renewed`.
            ctx.shared.sessions.extend.push(session);
            return;
        }
        let (node, watch) = (contender.node.clone(), contender.own_watch);
        self.win(ctx, session, node, Some(watch));
    }

    /// Leaves the queue: the watch on the predecessor goes, unless an observer needs it.
    pub(super) fn stop_watching(&self, ctx: &mut Context, contender: &Contender) {
        let Ahead::Behind { path, watch: Watch::Open | Watch::Requested(_), .. } = &contender.ahead else { return };
        if ctx.shared.queries.iter().any(|(_, query)| query.watches(path)) {
            return;
        }
        let op = Op::RemoveWatches { path: path.clone(), kind: WatchKind::Data };
        let _not_awaited = ctx.send_for(CallOwner::Nobody, contender.session, op);
    }

    /// Takes the lock. No older node is left.
    pub(super) fn win(&mut self, ctx: &mut Context, session: SessionId, node: Node, watch: Option<Watch>) {
        if ctx.until(session) <= ctx.now {
            // The reply came too late to prove anything.
            let recheck = ctx.recheck_at();
            let (own_watch, ahead) = (watch.unwrap_or(Watch::None), Ahead::First);
            self.contention = Contention::Waiting(Contender { session, node, own_watch, ahead, recheck });
            ctx.shared.sessions.extend.push(session);
            return;
        }
        let Some(value) = self.waiters.head().map(|head| head.terms.value.clone()) else { return };
        if let Some(session) = ctx.shared.sessions.get_mut(session) {
            session.own.nodes.insert(ctx.slot, node.path.clone());
        }
        let czxid = node.czxid;
        self.take(ctx, session, node, czxid, value, watch.unwrap_or(Watch::None));
    }
}
