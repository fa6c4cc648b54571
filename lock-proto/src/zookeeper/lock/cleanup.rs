//! Cleanup: deletes the nodes that attempts and holds leave in a session that lives on. The nodes
//! of other sessions end with them.
// ZK6, U1

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::{ZooKeeper, ZooKeeperCall, ZooKeeperEnv};
use crate::lock::{Loss, Release, Retry, SessionEnd, SessionEvent, SessionId};
use crate::time::Instant;
use crate::zookeeper::codec::{ANY_VERSION, ErrorCode, MultiOp, Names, Op, ReplyBody};
use crate::zookeeper::path::Guid;
use crate::zookeeper::request::Reply;

/// What is left to delete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CleanupTarget {
    /// The node of this attempt, whose create is in flight.
    Creating(Guid),
    /// The node of this name, if there is one. The session's requests are executed in their order,
    /// and the first write on another connection decides those of the former one.
    Search(Guid),
    Node(Box<str>),
}

/// Deletion of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZooKeeperCleanup {
    pub(super) session: SessionId,
    target: CleanupTarget,
    retry: Retry,
}

impl ZooKeeperCleanup {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.retry.deadline()
    }
}

impl ZooKeeperEnv {
    /// A server has shown that there is no node of this attempt.
    // ZK6
    pub(super) fn never_executed(&mut self, session: SessionId, guid: Guid) {
        self.session_step(session, |session, _| {
            session.forget_create(guid);
            None
        });
    }
}

impl ZooKeeper {
    /// The nodes of a lost session end with it. The result of a release is that of its end.
    pub(super) fn session_lost(&mut self, env: &mut ZooKeeperEnv, session: SessionId, event: &SessionEvent) {
        self.own.cleanups.retain(|cleanup| cleanup.session != session);
        let of_session =
            |call: &ZooKeeperCall| matches!(call, ZooKeeperCall::CleanUp { cleanup, .. } if cleanup.session == session);
        self.calls.forget(of_session);
        let outcome = if let SessionEvent::Ended(end) = event {
            if *end == SessionEnd::Confirmed { Release::Released } else { Release::Unknown }
        } else if *event == SessionEvent::Lost(Loss::Gone) {
            Release::Expired
        } else {
            return;
        };
        self.resolve(env, outcome, |remains| remains.session == session);
    }

    /// Deletes nodes of attempts that were taken for never executed.
    // ZK6
    pub(super) fn delete_late(&mut self, env: &mut ZooKeeperEnv, session: SessionId, names: &Names) {
        let Some(found) = env.session(session) else { return };
        let late = found.own.unexecuted.iter().filter_map(|guid| self.key.find(names, *guid));
        for path in late.collect::<Vec<_>>() {
            let target = CleanupTarget::Node(path);
            if !self.all_cleanups().any(|cleanup| cleanup.target == target) {
                self.schedule(env, session, target);
            }
        }
    }

    /// Returns the cleanups, also those that wait for a reply.
    pub(super) fn all_cleanups(&self) -> impl Iterator<Item = &ZooKeeperCleanup> {
        let in_flight = self.calls.iter().filter_map(|call| match call {
            ZooKeeperCall::CleanUp { cleanup, .. } => Some(cleanup),
            ZooKeeperCall::Create { .. }
            | ZooKeeperCall::Build { .. }
            | ZooKeeperCall::Search
            | ZooKeeperCall::Verify(_)
            | ZooKeeperCall::Vacate
            | ZooKeeperCall::List
            | ZooKeeperCall::WatchOwn
            | ZooKeeperCall::WatchAhead
            | ZooKeeperCall::WatchHeld
            | ZooKeeperCall::Write => None,
        });
        self.own.cleanups.iter().chain(in_flight)
    }

    /// Handles the reply to a request that left at `emitted`.
    pub(super) fn cleanup_answered(
        &mut self,
        env: &mut ZooKeeperEnv,
        mut cleanup: ZooKeeperCleanup,
        emitted: Instant,
        reply: &Reply,
    ) {
        match (&cleanup.target, reply) {
            (CleanupTarget::Creating(_), Reply::Done(ReplyBody::Created { path, .. })) => {
                cleanup.target = CleanupTarget::Node(path.clone());
            }
            (CleanupTarget::Creating(guid), Reply::Unknown(_)) => cleanup.target = CleanupTarget::Search(*guid),
            (CleanupTarget::Creating(_), Reply::Done(_) | Reply::Refused(_) | Reply::NotSent(_)) => return,
            (CleanupTarget::Search(guid), Reply::Done(ReplyBody::Children(names))) => {
                let Some(path) = self.key.find(names, *guid) else {
                    return env.never_executed(cleanup.session, *guid);
                };
                cleanup.target = CleanupTarget::Node(path);
            }
            (CleanupTarget::Search(guid), Reply::Refused(ErrorCode::NO_NODE)) => {
                return env.never_executed(cleanup.session, *guid);
            }
            (CleanupTarget::Node(path), Reply::Done(_) | Reply::Refused(ErrorCode::NO_NODE)) => {
                let outcome = if let Reply::Done(_) = reply { Release::Released } else { Release::Expired };
                self.own.deleted(env.now, path);
                return self.resolve(env, outcome, |remains| {
                    remains.node.as_ref().is_some_and(|node| node.owner.path == *path)
                });
            }
            // The server will not do it for this user. It deletes the node with the session, in which
            // nobody must wait: behind that node, or behind one that another client cannot delete.
            (_, Reply::Refused(_)) if reply.is_refusal() => return env.shared.sessions.leave(cleanup.session),
            (_, Reply::Done(_) | Reply::Refused(_)) => env.back_off(&mut cleanup.retry),
            (CleanupTarget::Node(path), Reply::Unknown(_)) => {
                self.delete_unknown(emitted, |remains| {
                    remains.node.as_ref().is_some_and(|node| node.owner.path == *path)
                });
            }
            (CleanupTarget::Search(_), Reply::Unknown(_)) | (_, Reply::NotSent(_)) => {}
        }
        // The next connection goes on, or this one after a pause.
        if matches!(reply, Reply::Unknown(_) | Reply::NotSent(_)) && env.is_up(cleanup.session) {
            env.back_off(&mut cleanup.retry);
        }
        self.own.cleanups.push(cleanup);
        self.work(env);
    }

    /// Deletes a node, unless it ends with its session: one of its own ends with its last user.
    pub(super) fn schedule(&mut self, env: &mut ZooKeeperEnv, session: SessionId, target: CleanupTarget) {
        if self.outlives(env, session) {
            self.own.cleanups.push(ZooKeeperCleanup { session, target, retry: Retry::new(None) });
            self.work(env);
        }
    }

    /// Deletes the node of an attempt whose create is in flight.
    pub(super) fn schedule_create(&mut self, env: &ZooKeeperEnv, session: SessionId, guid: Guid) {
        let create = self.calls.take(|call| matches!(call, ZooKeeperCall::Create { .. }));
        if let Some((serial, _)) = create.filter(|_| self.outlives(env, session)) {
            let cleanup = ZooKeeperCleanup { session, target: CleanupTarget::Creating(guid), retry: Retry::new(None) };
            self.calls.put(serial, ZooKeeperCall::CleanUp { cleanup, emitted: env.now });
        }
    }

    /// Returns true if the session lives on when the contention or hold has ended.
    fn outlives(&self, env: &ZooKeeperEnv, session: SessionId) -> bool {
        let shared = env.session(session).is_some_and(|found| found.shared);
        !env.is_lost(session) && (shared || self.contending_in() == Some(session))
    }

    /// Sends the requests, except during a pause or without a connection.
    pub(super) fn work(&mut self, env: &mut ZooKeeperEnv) {
        for mut cleanup in mem::take(&mut self.own.cleanups) {
            let op = match &cleanup.target {
                CleanupTarget::Node(path) => Op::Write(MultiOp::Delete { path: path.clone(), version: ANY_VERSION }),
                CleanupTarget::Search(_) | CleanupTarget::Creating(_) => self.key.list(),
            };
            if !cleanup.retry.is_ready(env.now) {
                self.own.cleanups.push(cleanup);
                continue;
            }
            cleanup.retry.set_due(None);
            match env.send(cleanup.session, op) {
                Some(call) => self.calls.put(call, ZooKeeperCall::CleanUp { cleanup, emitted: env.now }),
                None => self.own.cleanups.push(cleanup),
            }
        }
    }
}
