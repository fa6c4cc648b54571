//! Cleanup: deletes the nodes that attempts and holds leave in a session that lives on. The nodes
//! of other sessions end with them.
// ZK6, U1

use alloc::boxed::Box;

use super::{Contention, Context, Lock};
use crate::lock::{self, Cleanup as _, Loss, Release, SessionEvent, SessionId};
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
    call: Option<(u64, Instant)>,
    due: Option<Instant>,
    tries: u32,
}

impl lock::Cleanup for Cleanup {
    fn session(&self) -> SessionId {
        self.session
    }

    fn awaits(&self, serial: u64) -> bool {
        self.call.is_some_and(|(call, _)| call == serial)
    }

    fn deadline(&self) -> Option<Instant> {
        self.due.filter(|_| self.call.is_none())
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
        let call = match target {
            Target::Creating { create, .. } => Some((create, ctx.now)),
            Target::Search(_) | Target::Node(_) => None,
        };
        self.store.cleanups.push(Cleanup { session, target, call, due: None, tries: 0 });
        self.work(ctx, self.store.cleanups.len() - 1);
    }

    /// Sends the next request, unless one is in flight or the session is not established.
    fn work(&mut self, ctx: &mut Context, place: usize) {
        let Some(cleanup) = self.store.cleanups.get_mut(place).filter(|cleanup| cleanup.call.is_none()) else { return };
        cleanup.due = None;
        let op = match &cleanup.target {
            Target::Creating { .. } => return,
            Target::Search(_) => Op::GetChildren { path: (*self.key.path).into(), watch: false },
            Target::Node(path) => Op::Write(MultiOp::Delete { path: path.clone(), version: ANY_VERSION }),
        };
        cleanup.call = ctx.send(cleanup.session, op).map(|call| (call, ctx.now));
    }

    pub(super) fn cleanups_due(&mut self, ctx: &mut Context) {
        for place in 0..self.store.cleanups.len() {
            if self.store.cleanups[place].deadline().is_some_and(|at| at <= ctx.now) {
                self.work(ctx, place);
            }
        }
    }

    /// The session continues on a new connection, where a write of it came first.
    pub(super) fn cleanups_up(&mut self, ctx: &mut Context, session: SessionId) {
        for place in 0..self.store.cleanups.len() {
            if self.store.cleanups[place].session == session {
                self.work(ctx, place);
            }
        }
    }

    pub(super) fn cleanup_answered(&mut self, ctx: &mut Context, place: usize, reply: &Reply) {
        let Some(cleanup) = self.store.cleanups.get_mut(place) else { return };
        let Some((_, emitted)) = cleanup.call.take() else { return };
        match (&cleanup.target, reply) {
            (Target::Creating { .. }, Reply::Done(ReplyBody::Created { path, .. })) => {
                cleanup.target = Target::Node(path.clone());
            }
            (Target::Creating { guid, .. }, Reply::Unknown(_)) => cleanup.target = Target::Search(*guid),
            (Target::Creating { .. }, Reply::Done(_) | Reply::Failed(_) | Reply::NotSent(_)) => {
                self.store.cleanups.swap_remove(place);
                return;
            }
            (Target::Search(guid), Reply::Done(ReplyBody::Children(names))) => {
                let own = self.key.own(*guid);
                let Some(name) = names.iter().find(|name| name.starts_with(&own)) else {
                    self.store.cleanups.swap_remove(place);
                    return;
                };
                cleanup.target = Target::Node(self.key.child(name));
            }
            (Target::Search(_), Reply::Failed(ErrorCode::NO_NODE)) => {
                self.store.cleanups.swap_remove(place);
                return;
            }
            (Target::Node(path), Reply::Done(_) | Reply::Failed(ErrorCode::NO_NODE)) => {
                let outcome = if let Reply::Done(_) = reply { Release::Released } else { Release::Expired };
                let path = Some(path.clone());
                self.store.cleanups.swap_remove(place);
                return self.resolve(ctx, outcome, |remains| remains.left == path);
            }
            (Target::Node(path), Reply::Unknown(_)) => {
                let path = Some(path.clone());
                self.delete_unknown(emitted, |remains| remains.left == path);
            }
            (Target::Search(_) | Target::Node(_), Reply::Done(_) | Reply::Failed(_)) => {
                cleanup.due = Some(ctx.now + ctx.pause(cleanup.tries));
                cleanup.tries = cleanup.tries.saturating_add(1);
                return;
            }
            // The next connection goes on.
            (Target::Search(_), Reply::Unknown(_)) | (Target::Search(_) | Target::Node(_), Reply::NotSent(_)) => {}
        }
        self.work(ctx, place);
    }

    /// The nodes of a lost session end with it. The result of a release is that of its end.
    pub(super) fn cleanups_lost(&mut self, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        self.store.cleanups.retain(|cleanup| cleanup.session != session);
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
        self.resolve(ctx, outcome, |remains| remains.session == session);
    }
}
