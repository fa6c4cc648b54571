//! Waiting in the store's queue. A contender watches its predecessor, and its own node once only the
//! holder is ahead.
// ZK3

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::cleanup::Target;
use super::tail::Tail;
use super::{Contention, Context, Lock, Nodes, OwnerNode, Session};
use crate::lock::{Answer, Blocked, Expiry, Keep as _, Progress, Queued, SessionId, Store as _};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, Names, Op, ReplyBody, WatchKind};
use crate::zookeeper::path::Child;
use crate::zookeeper::request::Reply;

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

    /// The node was written. A read in flight is executed after that, and shows it: a server that
    /// reports events for ever causes no more requests.
    // ZK9
    pub(super) fn triggered(&mut self, ctx: &mut Context, session: SessionId, path: &str) {
        if !matches!(self, Self::Requested(_)) {
            *self = Self::request(ctx, session, path);
        }
    }

    pub(super) const fn answered(reply: &Reply) -> Self {
        if let Reply::Done(ReplyBody::Data { .. }) = reply { Self::Open } else { Self::None }
    }
}

/// A contender that waits behind another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    session: SessionId,
    node: OwnerNode,
    own_watch: Watch,
    /// The call that reads the queue.
    list: Option<u64>,
    ahead: Ahead,
    /// When to read the queue without a report.
    recheck: Instant,
}

/// What is known of the nodes ahead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ahead {
    /// The queue must be read.
    Unread,
    /// The next older node, and whether it was the first one at the last reading.
    Behind { path: Box<str>, is_first: bool, watch: Watch },
    /// None is left. The session must prove that it is alive.
    First,
}

impl Contender {
    /// A contender whose place is unknown until the call `list` is answered.
    pub(super) fn new(ctx: &Context, session: SessionId, node: OwnerNode, list: Option<u64>) -> Self {
        Self { session, node, own_watch: Watch::None, list, ahead: Ahead::Unread, recheck: ctx.recheck_at() }
    }

    /// Removes the watch on the predecessor, unless an observer needs it.
    fn unwatch(self, ctx: &mut Context) {
        if let Ahead::Behind { path, watch: Watch::Open | Watch::Requested(_), .. } = self.ahead
            && !ctx.shared.queries.iter().any(|query| query.watches(&path))
        {
            ctx.unwatch(self.session, path, WatchKind::Data);
        }
    }
}

impl Progress<Nodes> for Contender {
    fn session(&self) -> SessionId {
        self.session
    }

    fn is_next(&self) -> bool {
        matches!(self.ahead, Ahead::Behind { is_first: true, .. } | Ahead::First)
    }

    fn awaits(&self, serial: u64) -> bool {
        let ahead = matches!(&self.ahead, Ahead::Behind { watch, .. } if watch.awaits(serial));
        ahead || self.list == Some(serial) || self.own_watch.awaits(serial)
    }

    fn deadline(&self) -> Option<Instant> {
        (self.list.is_none() && self.ahead != Ahead::First).then_some(self.recheck)
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Contention::Waiting(contender) = &mut lock.contention else { return };
        if contender.own_watch.awaits(serial) {
            contender.own_watch = Watch::answered(reply);
            return match reply {
                Reply::Refused(ErrorCode::NO_NODE) => lock.reenter(ctx),
                Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => lock.take_turn(ctx),
            };
        }
        if contender.list.take_if(|call| *call == serial).is_some() {
            return lock.list_answered(ctx, reply);
        }
        let Ahead::Behind { watch, .. } = &mut contender.ahead else { return };
        *watch = Watch::answered(reply);
        match reply {
            Reply::Refused(ErrorCode::NO_NODE) => lock.predecessor_gone(ctx),
            // The predecessor may be another user's.
            Reply::Refused(_) => lock.list_answered(ctx, reply),
            Reply::Done(_) | Reply::Unknown(_) | Reply::NotSent(_) => {}
        }
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut lock.contention else { return };
        contender.recheck = ctx.recheck_at();
        contender.list = ctx.send(contender.session, lock.key.list());
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
        let (session, path) = (self.session, self.node.path.clone());
        self.unwatch(ctx);
        lock.schedule(ctx, session, Target::Node(path));
    }
}

impl Lock {
    /// The node or its queue was deleted: enters again, at the end.
    fn reenter(&mut self, ctx: &mut Context) {
        if let Contention::Waiting(contender) = mem::take(&mut self.contention) {
            let session = contender.session;
            contender.unwatch(ctx);
            self.enter(ctx, session);
        }
    }

    /// Reads the queue. The place in it is unknown until then.
    pub(super) fn read_queue(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        contender.ahead = Ahead::Unread;
        contender.list = ctx.send(contender.session, self.key.list());
    }

    /// Takes a place that is known without a list of the queue. A single attempt lists it if
    /// another node is ahead, which may be gone.
    // ZK10
    pub(super) fn placed(&mut self, ctx: &mut Context, ahead: Option<Ahead>) {
        match ahead {
            Some(Ahead::First) => self.win(ctx),
            Some(Ahead::Behind { path, is_first, .. }) if !self.waiters.head_tries_once() => {
                self.wait_behind(ctx, path, is_first);
            }
            Some(Ahead::Behind { .. } | Ahead::Unread) | None => self.read_queue(ctx),
        }
    }

    /// Decides by a list of the queue that is younger than the node whether it is first.
    fn list_answered(&mut self, ctx: &mut Context, reply: &Reply) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        match reply {
            Reply::Done(ReplyBody::Children(names)) => self.judge(ctx, names),
            Reply::Refused(_) if reply.is_refusal() => self.fail_refused(ctx, reply.answer()),
            Reply::Refused(ErrorCode::NO_NODE) => self.reenter(ctx),
            // The next connection goes on.
            Reply::Unknown(_) | Reply::NotSent(_) => {}
            Reply::Done(_) | Reply::Refused(_) => {
                contender.recheck = ctx.now + ctx.pause(self.tries);
                self.tries = self.tries.saturating_add(1);
                self.store.answer = reply.answer();
                self.end_try(ctx);
            }
        }
    }

    fn judge(&mut self, ctx: &mut Context, names: &Names) {
        let Some(session) = self.contention.session() else { return };
        self.delete_late(ctx, session, names);
        let Contention::Waiting(Contender { node, .. }) = &self.contention else { return };
        let own = self.key.name_of(&node.path);
        let mut queue = Vec::new();
        for name in names.iter() {
            match self.key.classify(name) {
                Child::Contender(sequence) => queue.push((sequence, name)),
                Child::Foreign(name) => {
                    return self.fail_foreign(ctx, &format_args!("the node {}", self.key.child(name)));
                }
            }
        }
        queue.sort_unstable();
        let Some(place) = queue.iter().position(|(_, name)| own == Some(*name)) else { return self.reenter(ctx) };
        if let Some((_, name)) = place.checked_sub(1).and_then(|ahead| queue.get(ahead)) {
            return self.wait_behind(ctx, self.key.child(name), place == 1);
        }
        let newest = queue.last().filter(|_| queue.len() > 1);
        let behind = newest.map(|(number, name)| (*number, self.key.child(name), queue.len() == 2));
        self.store.own.tail = Some(Box::new(Tail::new(node, behind)));
        self.win(ctx);
    }

    /// Waits behind this node. If it is the first, the client also watches its own node, and
    /// requests that watch first: a report of the predecessor's deletion then proves that its own
    /// node still existed. Otherwise the queue is read before the lock is taken.
    fn wait_behind(&mut self, ctx: &mut Context, path: Box<str>, is_first: bool) {
        self.store.answer = Answer::Taken(Expiry::Unknown);
        if self.waiters.head_tries_once() {
            Queued::nobody_waits(self, ctx);
            self.end_try(ctx);
            return;
        }
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if is_first && contender.own_watch != Watch::Open {
            contender.own_watch = Watch::request(ctx, session, &contender.node.path);
        }
        let watch = Watch::request(ctx, session, &path);
        contender.ahead = Ahead::Behind { path, is_first, watch };
        contender.recheck = ctx.recheck_at();
        self.notify_blocked(ctx, Blocked::Held);
    }

    /// Handles a triggered watch on the client's own node or the predecessor.
    pub(super) fn contender_watched(&mut self, ctx: &mut Context, path: &str, changed: bool) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if *contender.node.path == *path {
            if !changed {
                return self.reenter(ctx);
            }
            contender.own_watch.triggered(ctx, session, path);
            return;
        }
        if let Ahead::Behind { path: predecessor, watch, .. } = &mut contender.ahead
            && **predecessor == *path
        {
            if !changed {
                return self.predecessor_gone(ctx);
            }
            watch.triggered(ctx, session, path);
        }
    }

    /// The predecessor was deleted. If it was the first, no older node is left: none can appear.
    // ZK3
    fn predecessor_gone(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        if let Ahead::Behind { is_first: true, .. } = contender.ahead {
            contender.ahead = Ahead::First;
            return self.take_turn(ctx);
        }
        self.read_queue(ctx);
    }

    /// Takes the lock if no older node is left, and the client watches its own node.
    fn take_turn(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &self.contention else { return };
        match (&contender.ahead, contender.own_watch) {
            (Ahead::First, Watch::Open) => self.win(ctx),
            (Ahead::First, Watch::None) => self.read_queue(ctx),
            (Ahead::Unread | Ahead::Behind { .. } | Ahead::First, _) => {}
        }
    }

    /// Takes the lock once the session is proven to be alive. No older node is left.
    // ZK1
    fn win(&mut self, ctx: &mut Context) {
        let Contention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if !ctx.session(session).is_some_and(|found| found.proves_hold(ctx.now)) {
            // Answered by `Renewed`.
            contender.ahead = Ahead::First;
            return ctx.session_step(session, Session::prove);
        }
        let (node, watch) = (contender.node.clone(), contender.own_watch);
        let Some(value) = self.waiters.head().map(|head| head.terms.value.clone()) else { return };
        if let Some(session) = ctx.shared.sessions.get_mut(session) {
            session.own.nodes.insert(ctx.slot, node.path.clone());
        }
        // All that is known of the nodes behind.
        self.store.own.tail.get_or_insert_with(|| Box::new(Tail::new(&node, None)));
        let czxid = node.czxid;
        self.take(ctx, session, node, czxid, value, watch);
    }
}
