//! Cleanup: deletes the nodes that attempts and holds leave in a session that lives on. The nodes
//! of other sessions end with them.
// ZK6, U1

use alloc::boxed::Box;

use super::{Contention, Context, Lock, Nodes};
use crate::lock::{self, Loss, Release, Retry, SessionEvent, SessionId};
use crate::time::Instant;
use crate::zookeeper::codec::{ANY_VERSION, ErrorCode, MultiOp, Op, ReplyBody};
use crate::zookeeper::path::Guid;
use crate::zookeeper::request::Reply;

/// What is left to delete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The node of a create in flight.
    Creating {
        create: u64,
        guid: Guid,
    },
    /// The node of this name, if the create was executed. The first write on the next connection
    /// decides that.
    Search(Guid),
    Node(Box<str>),
}

/// Deletion of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cleanup {
    session: SessionId,
    target: Target,
    /// The request in flight, and when it was made.
    retry: Retry<(u64, Instant)>,
}

impl lock::Cleanup<Nodes> for Cleanup {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, serial: u64) -> bool {
        self.retry.call().is_some_and(|(call, _)| call == serial)
    }

    fn deadline(&self) -> Option<Instant> {
        self.retry.deadline()
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, place: usize, reply: &Reply) {
        let Some(cleanup) = lock.store.cleanups.get_mut(place) else { return };
        let Some((_, emitted)) = cleanup.retry.answered(|_| true) else { return };
        match (&cleanup.target, reply) {
            (Target::Creating { .. }, Reply::Done(ReplyBody::Created { path, .. })) => {
                cleanup.target = Target::Node(path.clone());
            }
            (Target::Creating { guid, .. }, Reply::Unknown(_)) => cleanup.target = Target::Search(*guid),
            (Target::Creating { .. }, Reply::Done(_) | Reply::Failed(_) | Reply::NotSent(_)) => {
                lock.store.cleanups.swap_remove(place);
                return;
            }
            (Target::Search(guid), Reply::Done(ReplyBody::Children(names))) => {
                let own = lock.key.own(*guid);
                let Some(name) = names.iter().find(|name| name.starts_with(&own)) else {
                    lock.store.cleanups.swap_remove(place);
                    return;
                };
                cleanup.target = Target::Node(lock.key.child(name));
            }
            (Target::Search(_), Reply::Failed(ErrorCode::NO_NODE)) => {
                lock.store.cleanups.swap_remove(place);
                return;
            }
            (Target::Node(path), Reply::Done(_) | Reply::Failed(ErrorCode::NO_NODE)) => {
                let outcome = if let Reply::Done(_) = reply { Release::Released } else { Release::Expired };
                lock.store.own.deleted(ctx.now, path);
                let path = Some(path.clone());
                lock.store.cleanups.swap_remove(place);
                return lock.resolve(ctx, outcome, |remains| remains.left == path);
            }
            (Target::Node(path), Reply::Unknown(_)) => {
                let path = Some(path.clone());
                lock.delete_unknown(emitted, |remains| remains.left == path);
            }
            // The server will not do it for this user. It deletes the node with the session.
            (Target::Search(_) | Target::Node(_), Reply::Failed(_)) if reply.is_refusal() => {
                let session = cleanup.session;
                lock.store.cleanups.swap_remove(place);
                ctx.shared.sessions.retire(session);
                return;
            }
            (Target::Search(_) | Target::Node(_), Reply::Done(_) | Reply::Failed(_)) => {
                return cleanup.retry.failed(ctx.now + ctx.pause(cleanup.retry.tries()));
            }
            // The next connection goes on.
            (Target::Search(_), Reply::Unknown(_)) | (Target::Search(_) | Target::Node(_), Reply::NotSent(_)) => {}
        }
        lock.work(ctx, place);
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        for place in 0..lock.store.cleanups.len() {
            if lock.store.cleanups[place].retry.is_due(ctx.now) {
                lock.work(ctx, place);
            }
        }
    }

    /// The session continues on a new connection, where a write of it came first.
    fn up(lock: &mut Lock, ctx: &mut Context, session: SessionId) {
        for place in 0..lock.store.cleanups.len() {
            if lock.store.cleanups[place].session == session {
                lock.work(ctx, place);
            }
        }
    }

    /// The nodes of a lost session end with it. The result of a release is that of its end.
    fn lost(lock: &mut Lock, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        lock.store.cleanups.retain(|cleanup| cleanup.session != session);
        let outcome = match event {
            SessionEvent::Ended(true) => Release::Released,
            SessionEvent::Ended(false) | SessionEvent::Lost(Loss::Gone) => Release::Expired,
            SessionEvent::Lost(_)
            | SessionEvent::Refused(_)
            | SessionEvent::Alive
            | SessionEvent::Up
            | SessionEvent::Down(_)
            | SessionEvent::Renewed(_)
            | SessionEvent::Unrenewed(..)
            | SessionEvent::Gone(_) => return,
        };
        lock.resolve(ctx, outcome, |remains| remains.session == session);
    }
}

impl Lock {
    pub(super) fn schedule_delete(&mut self, ctx: &mut Context, session: SessionId, path: Box<str>) {
        self.schedule(ctx, session, Target::Node(path));
    }

    pub(super) fn schedule(&mut self, ctx: &mut Context, session: SessionId, target: Target) {
        let shared = ctx.session(session).is_some_and(|found| found.shared);
        let in_use = matches!(&self.contention, Contention::Entering(enter) if enter.session == session);
        if ctx.is_lost(session) || !(shared || in_use) {
            return;
        }
        let mut retry = Retry::new(None);
        if let Target::Creating { create, .. } = target {
            retry.sent((create, ctx.now));
        }
        self.store.cleanups.push(Cleanup { session, target, retry });
        self.work(ctx, self.store.cleanups.len() - 1);
    }

    /// Sends the next request, unless one is in flight or the session is not established.
    fn work(&mut self, ctx: &mut Context, place: usize) {
        let Some(cleanup) = self.store.cleanups.get_mut(place).filter(|cleanup| !cleanup.retry.is_in_flight()) else {
            return;
        };
        cleanup.retry.set_due(None);
        let op = match &cleanup.target {
            Target::Creating { .. } => return,
            Target::Search(_) => self.key.list(),
            Target::Node(path) => Op::Write(MultiOp::Delete { path: path.clone(), version: ANY_VERSION }),
        };
        if let Some(call) = ctx.send(cleanup.session, op) {
            cleanup.retry.sent((call, ctx.now));
        }
    }
}
