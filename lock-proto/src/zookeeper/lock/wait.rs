//! Waiting in the store's queue. A contender watches its predecessor, and its own node once only the
//! holder is ahead.
// ZK3

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::cleanup::CleanupTarget;
use super::tail::Tail;
use super::{
    HeldNode, OwnerNode, ZooKeeper, ZooKeeperCall, ZooKeeperContention, ZooKeeperEnv, ZooKeeperName, ZooKeeperSession,
};
use crate::lock::{Answer, Blocked, CallTable, ContentionStage, Expiry, QueueStore as _, SessionId};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, Names, Op, ReplyBody, WatchKind};
use crate::zookeeper::path::Child;
use crate::zookeeper::request::Reply;

/// A watch on the data of a node, which ends with its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeWatch {
    None,
    Requested,
    Open,
}

impl NodeWatch {
    /// Requests the watch by a read: `exists` would leave one behind if the node is gone.
    pub(super) fn request(
        env: &mut ZooKeeperEnv,
        calls: &mut CallTable<ZooKeeperCall>,
        session: SessionId,
        path: &str,
        purpose: ZooKeeperCall,
    ) -> Self {
        let Some(call) = env.send(session, Op::GetData { path: path.into(), watch: true }) else { return Self::None };
        calls.replace(call, purpose);
        Self::Requested
    }

    /// The node was written. A read in flight is executed after that, and shows it: a server that
    /// reports events for ever causes no more requests.
    // ZK9
    pub(super) fn triggered(
        &mut self,
        env: &mut ZooKeeperEnv,
        calls: &mut CallTable<ZooKeeperCall>,
        session: SessionId,
        path: &str,
        purpose: ZooKeeperCall,
    ) {
        if *self != Self::Requested {
            *self = Self::request(env, calls, session, path, purpose);
        }
    }

    pub(super) const fn answered(reply: &Reply) -> Self {
        if let Reply::Done(ReplyBody::Data { .. }) = reply { Self::Open } else { Self::None }
    }
}

/// A contender that waits behind another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZooKeeperContender {
    pub(super) session: SessionId,
    node: OwnerNode,
    own_watch: NodeWatch,
    /// A list of the queue is in flight.
    lists: bool,
    ahead: QueuePlace,
    /// Its number directly followed the last one that the client knew.
    followed: bool,
    /// When to read the queue without a report.
    recheck: Instant,
}

/// What is known of the nodes ahead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum QueuePlace {
    /// The queue must be read.
    Unread,
    /// The next older node, and whether it was the first one at the last reading.
    Behind { path: Box<str>, is_first: bool, watch: NodeWatch },
    /// None is left. The session must prove that it is alive.
    First,
}

impl ZooKeeperContender {
    /// A contender whose place is unknown until the queue is listed.
    pub(super) fn new(env: &ZooKeeperEnv, session: SessionId, node: OwnerNode, lists: bool, followed: bool) -> Self {
        Self {
            session,
            node,
            own_watch: NodeWatch::None,
            lists,
            ahead: QueuePlace::Unread,
            followed,
            recheck: env.recheck_at(),
        }
    }

    pub(super) const fn stage(&self) -> ContentionStage {
        match self.ahead {
            QueuePlace::Behind { is_first: true, .. } | QueuePlace::First => ContentionStage::Next,
            QueuePlace::Behind { is_first: false, .. } | QueuePlace::Unread => ContentionStage::Waiting,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.lists && self.ahead != QueuePlace::First).then_some(self.recheck)
    }

    /// Removes the watch on the predecessor, unless an observer needs it.
    fn unwatch(self, env: &mut ZooKeeperEnv) {
        if let QueuePlace::Behind { path, watch: NodeWatch::Open | NodeWatch::Requested, .. } = self.ahead
            && !env.operations.queries().any(|(op, query)| query.watches(op, &path))
        {
            env.unwatch(self.session, path, WatchKind::Data);
        }
    }
}

impl ZooKeeper {
    /// Nobody waits any more, or the session is lost.
    pub(super) fn leave_queue(&mut self, env: &mut ZooKeeperEnv, contender: ZooKeeperContender) {
        let (session, path) = (contender.session, contender.node.path.clone());
        contender.unwatch(env);
        self.schedule(env, session, CleanupTarget::Node(path));
    }

    /// Reads the queue without a report.
    pub(super) fn reread(&mut self, env: &mut ZooKeeperEnv) {
        if let ZooKeeperContention::Waiting(contender) = &mut self.contention {
            contender.recheck = env.recheck_at();
        }
        self.list(env);
    }

    /// The session continues on a new connection: all watches are gone.
    pub(super) fn go_on(&mut self, env: &mut ZooKeeperEnv, session: SessionId) {
        match &mut self.contention {
            ZooKeeperContention::Idle => {}
            ZooKeeperContention::Opening(_) => ZooKeeperName::enter(self, env, session),
            ZooKeeperContention::Entering(_) => self.search(env),
            ZooKeeperContention::Waiting(contender) => {
                contender.own_watch = NodeWatch::None;
                self.calls.forget(|call| *call == ZooKeeperCall::WatchOwn);
                env.blocked(Blocked::Held);
                self.read_queue(env);
            }
        }
    }

    pub(super) fn own_watch_answered(&mut self, env: &mut ZooKeeperEnv, reply: &Reply) {
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        contender.own_watch = NodeWatch::answered(reply);
        match reply {
            Reply::Refused(ErrorCode::NO_NODE) => self.reenter(env),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => self.take_turn(env),
        }
    }

    pub(super) fn watch_ahead_answered(&mut self, env: &mut ZooKeeperEnv, reply: &Reply) {
        let ZooKeeperContention::Waiting(ZooKeeperContender { ahead: QueuePlace::Behind { watch, .. }, .. }) =
            &mut self.contention
        else {
            return;
        };
        *watch = NodeWatch::answered(reply);
        match reply {
            Reply::Refused(ErrorCode::NO_NODE) => self.predecessor_gone(env),
            // The predecessor may be another user's.
            Reply::Refused(_) => self.list_answered(env, reply),
            Reply::Done(_) | Reply::Unknown(_) | Reply::NotSent(_) => {}
        }
    }

    /// The node or its queue was deleted: enters again, at the end.
    fn reenter(&mut self, env: &mut ZooKeeperEnv) {
        if let ZooKeeperContention::Waiting(contender) = mem::take(&mut self.contention) {
            let session = contender.session;
            contender.unwatch(env);
            self.enter(env, session);
        }
    }

    /// Reads the queue. The place in it is unknown until then.
    pub(super) fn read_queue(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        contender.ahead = QueuePlace::Unread;
        self.calls.forget(|call| *call == ZooKeeperCall::WatchAhead);
        self.list(env);
    }

    fn list(&mut self, env: &mut ZooKeeperEnv) {
        let Some(session) = self.contending_in() else { return };
        let sent = self.send_list(env, session);
        if let ZooKeeperContention::Waiting(contender) = &mut self.contention {
            contender.lists = sent;
        }
    }

    /// Takes a place that is known without a list of the queue. A single attempt lists it if
    /// another node is ahead, which may be gone.
    // ZK10
    pub(super) fn placed(&mut self, env: &mut ZooKeeperEnv, ahead: Option<QueuePlace>) {
        match ahead {
            Some(QueuePlace::First) => self.win(env),
            Some(QueuePlace::Behind { path, is_first, .. }) if !self.tries_once() => {
                self.wait_behind(env, path, is_first);
            }
            Some(QueuePlace::Behind { .. } | QueuePlace::Unread) | None => self.read_queue(env),
        }
    }

    /// Decides by a list of the queue that is younger than the node whether it is first.
    pub(super) fn list_answered(&mut self, env: &mut ZooKeeperEnv, reply: &Reply) {
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        contender.lists = false;
        match reply {
            Reply::Done(ReplyBody::Children(names)) => self.judge(env, names),
            Reply::Refused(_) if reply.is_refusal() => self.fail_refused(env, reply.answer()),
            Reply::Refused(ErrorCode::NO_NODE) => self.reenter(env),
            // The next connection goes on.
            Reply::Unknown(_) | Reply::NotSent(_) => {}
            Reply::Done(_) | Reply::Refused(_) => {
                contender.recheck = env.now + env.pause(self.tries);
                self.tries = self.tries.saturating_add(1);
                self.answer = reply.answer();
                self.end_try(env);
            }
        }
    }

    fn judge(&mut self, env: &mut ZooKeeperEnv, names: &Names) {
        let Some(session) = self.contending_in() else { return };
        self.delete_late(env, session, names);
        let ZooKeeperContention::Waiting(ZooKeeperContender { node, followed, .. }) = &self.contention else { return };
        let own = self.key.name_of(&node.path);
        let mut queue = Vec::new();
        for name in names.iter() {
            match self.key.classify(name) {
                Child::Contender(sequence) => queue.push((sequence, name)),
                Child::Foreign(name) => {
                    return self.fail_foreign(env, &format_args!("the node {}", self.key.child(name)));
                }
            }
        }
        queue.sort_unstable();
        let Some(place) = queue.iter().position(|(_, name)| own == Some(*name)) else { return self.reenter(env) };
        if let Some((_, name)) = place.checked_sub(1).and_then(|ahead| queue.get(ahead)) {
            return self.wait_behind(env, self.key.child(name), place == 1);
        }
        let newest = queue.last().filter(|_| queue.len() > 1);
        let behind = newest.map(|(number, name)| (*number, self.key.child(name), queue.len() == 2));
        self.own.tail = Some(Box::new(Tail::new(node, behind, *followed)));
        self.win(env);
    }

    /// Waits behind this node. If it is the first, the client also watches its own node, and
    /// requests that watch first: a report of the predecessor's deletion then proves that its own
    /// node still existed. Otherwise the queue is read before the lock is taken.
    fn wait_behind(&mut self, env: &mut ZooKeeperEnv, path: Box<str>, is_first: bool) {
        self.answer = Answer::Taken(Expiry::Unknown);
        if self.tries_once() {
            ZooKeeperName::leave(self, env);
            self.end_try(env);
            return;
        }
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if is_first && contender.own_watch != NodeWatch::Open {
            let path = &contender.node.path;
            contender.own_watch = NodeWatch::request(env, &mut self.calls, session, path, ZooKeeperCall::WatchOwn);
        }
        let watch = NodeWatch::request(env, &mut self.calls, session, &path, ZooKeeperCall::WatchAhead);
        contender.ahead = QueuePlace::Behind { path, is_first, watch };
        contender.recheck = env.recheck_at();
        env.blocked(Blocked::Held);
    }

    /// Handles a triggered watch on the client's own node or the predecessor.
    pub(super) fn contender_watched(&mut self, env: &mut ZooKeeperEnv, path: &str, changed: bool) {
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if *contender.node.path == *path {
            if !changed {
                return self.reenter(env);
            }
            return contender.own_watch.triggered(env, &mut self.calls, session, path, ZooKeeperCall::WatchOwn);
        }
        if let QueuePlace::Behind { path: predecessor, watch, .. } = &mut contender.ahead
            && **predecessor == *path
        {
            if !changed {
                return self.predecessor_gone(env);
            }
            watch.triggered(env, &mut self.calls, session, path, ZooKeeperCall::WatchAhead);
        }
    }

    /// The predecessor was deleted. If it was the first, no older node is left: none can appear.
    // ZK3
    fn predecessor_gone(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        if let QueuePlace::Behind { is_first: true, .. } = contender.ahead {
            contender.ahead = QueuePlace::First;
            self.calls.forget(|call| *call == ZooKeeperCall::WatchAhead);
            return self.take_turn(env);
        }
        self.read_queue(env);
    }

    /// Takes the lock if no older node is left, and the client watches its own node.
    pub(super) fn take_turn(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Waiting(contender) = &self.contention else { return };
        match (&contender.ahead, contender.own_watch) {
            (QueuePlace::First, NodeWatch::Open) => self.win(env),
            (QueuePlace::First, NodeWatch::None) => self.read_queue(env),
            (QueuePlace::Unread | QueuePlace::Behind { .. } | QueuePlace::First, _) => {}
        }
    }

    /// Takes the lock once the session is proven to be alive. No older node is left.
    // ZK1
    fn win(&mut self, env: &mut ZooKeeperEnv) {
        let ZooKeeperContention::Waiting(contender) = &mut self.contention else { return };
        let session = contender.session;
        if !env.session(session).is_some_and(|found| found.proves_hold(env.now)) {
            // Answered by `Renewed`.
            contender.ahead = QueuePlace::First;
            return env.session_step(session, ZooKeeperSession::prove);
        }
        let (node, watch, followed) = (contender.node.clone(), contender.own_watch, contender.followed);
        let Some(value) = self.head.as_ref().map(|head| head.terms.value.clone()) else { return };
        if let Some(session) = env.shared.sessions.get_mut(session) {
            session.own.nodes.insert(env.slot, node.path.clone());
        }
        // All that is known of the nodes behind.
        self.own.tail.get_or_insert_with(|| Box::new(Tail::new(&node, None, followed)));
        let czxid = node.czxid;
        if let Some((serial, _)) = self.calls.take(|call| *call == ZooKeeperCall::WatchOwn) {
            self.calls.put(serial, ZooKeeperCall::WatchHeld);
        }
        self.calls.forget(ZooKeeperCall::contends);
        self.take(env, session, HeldNode { owner: node, watch }, czxid, value);
    }
}
