//! Cleanup: deletes the nodes that attempts and holds leave in a session that lives on. The nodes
//! of other sessions end with them.
// ZK6, U1

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Context, Lock, Nodes};
use crate::lock::{self, End, Loss, Release, Retry, SessionEvent, SessionId};
use crate::time::Instant;
use crate::zookeeper::codec::{ANY_VERSION, ErrorCode, MultiOp, Names, Op, ReplyBody};
use crate::zookeeper::path::Guid;
use crate::zookeeper::request::Reply;

/// What is left to delete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The node of this create, which is in flight.
    Creating {
        create: u64,
        guid: Guid,
    },
    /// The node of this name, if there is one. The session's requests are executed in their order,
    /// and the first write on another connection decides those of the former one.
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
        let mut cleanup = lock.store.cleanups.swap_remove(place);
        let Some((_, emitted)) = cleanup.retry.answered(|_| true) else { return };
        match (&cleanup.target, reply) {
            (Target::Creating { .. }, Reply::Done(ReplyBody::Created { path, .. })) => {
                cleanup.target = Target::Node(path.clone());
            }
            (Target::Creating { guid, .. }, Reply::Unknown(_)) => cleanup.target = Target::Search(*guid),
            (Target::Creating { .. }, Reply::Done(_) | Reply::Refused(_) | Reply::NotSent(_)) => return,
            (Target::Search(guid), Reply::Done(ReplyBody::Children(names))) => {
                let Some(path) = lock.key.find(names, *guid) else {
                    return ctx.never_executed(cleanup.session, *guid);
                };
                cleanup.target = Target::Node(path);
            }
            (Target::Search(guid), Reply::Refused(ErrorCode::NO_NODE)) => {
                return ctx.never_executed(cleanup.session, *guid);
            }
            (Target::Node(path), Reply::Done(_) | Reply::Refused(ErrorCode::NO_NODE)) => {
                let outcome = if let Reply::Done(_) = reply { Release::Released } else { Release::Expired };
                lock.store.own.deleted(ctx.now, path);
                return lock.resolve(ctx, outcome, |remains| remains.left.as_ref() == Some(path));
            }
            // The server will not do it for this user. It deletes the node with the session, in which
            // nobody must wait: behind that node, or behind one that another client cannot delete.
            (_, Reply::Refused(_)) if reply.is_refusal() => return ctx.shared.sessions.leave(cleanup.session),
            (_, Reply::Done(_) | Reply::Refused(_)) => ctx.back_off(&mut cleanup.retry),
            (Target::Node(path), Reply::Unknown(_)) => {
                lock.delete_unknown(emitted, |remains| remains.left.as_ref() == Some(path));
            }
            (Target::Search(_), Reply::Unknown(_)) | (_, Reply::NotSent(_)) => {}
        }
        // The next connection goes on, or this one after a pause.
        if matches!(reply, Reply::Unknown(_) | Reply::NotSent(_)) && ctx.is_up(cleanup.session) {
            ctx.back_off(&mut cleanup.retry);
        }
        lock.store.cleanups.push(cleanup);
        lock.work(ctx);
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.work(ctx);
    }

    /// The nodes of a lost session end with it. The result of a release is that of its end.
    fn lost(lock: &mut Lock, ctx: &mut Context, session: SessionId, event: &SessionEvent) {
        lock.store.cleanups.retain(|cleanup| cleanup.session != session);
        let outcome = if let SessionEvent::Ended(end) = event {
            if *end == End::Confirmed { Release::Released } else { Release::Unknown }
        } else if *event == SessionEvent::Lost(Loss::Gone) {
            Release::Expired
        } else {
            return;
        };
        lock.resolve(ctx, outcome, |remains| remains.session == session);
    }
}

impl Context {
    /// A server has shown that there is no node of this attempt.
    // ZK6
    pub(super) fn never_executed(&mut self, session: SessionId, guid: Guid) {
        self.session_step(session, |session, _| {
            session.forget_create(guid);
            None
        });
    }
}

impl Lock {
    /// Deletes nodes of attempts that were taken for never executed.
    // ZK6
    pub(super) fn delete_late(&mut self, ctx: &mut Context, session: SessionId, names: &Names) {
        let Some(found) = ctx.session(session) else { return };
        let late = found.own.unexecuted.iter().filter_map(|guid| self.key.find(names, *guid));
        for path in late.collect::<Vec<_>>() {
            let target = Target::Node(path);
            if !self.store.cleanups.iter().any(|cleanup| cleanup.target == target) {
                self.schedule(ctx, session, target);
            }
        }
    }

    pub(super) fn schedule(&mut self, ctx: &mut Context, session: SessionId, target: Target) {
        let shared = ctx.session(session).is_some_and(|found| found.shared);
        let in_use = self.contention.session() == Some(session);
        if ctx.is_lost(session) || !(shared || in_use) {
            return;
        }
        let mut retry = Retry::new(None);
        if let Target::Creating { create, .. } = target {
            retry.sent((create, ctx.now));
        }
        self.store.cleanups.push(Cleanup { session, target, retry });
        self.work(ctx);
    }

    /// Sends the requests that are not in flight, except during a pause or without a connection.
    fn work(&mut self, ctx: &mut Context) {
        for cleanup in &mut self.store.cleanups {
            if !cleanup.retry.is_ready(ctx.now) {
                continue;
            }
            let op = match &cleanup.target {
                Target::Creating { .. } => continue,
                Target::Search(_) => self.key.list(),
                Target::Node(path) => Op::Write(MultiOp::Delete { path: path.clone(), version: ANY_VERSION }),
            };
            cleanup.retry.set_due(None);
            if let Some(call) = ctx.send(cleanup.session, op) {
                cleanup.retry.sent((call, ctx.now));
            }
        }
    }
}
