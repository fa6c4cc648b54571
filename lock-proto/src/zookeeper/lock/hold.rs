//! The node of a hold: reads, writes and watches, and events of its session.
// ZK4, H2

use alloc::boxed::Box;

use super::wait::NodeWatch;
use super::{ZooKeeper, ZooKeeperCall, ZooKeeperEnv, ZooKeeperHold};
use crate::lock::{Loss, SessionId, Written};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, ReplyBody};
use crate::zookeeper::request::Reply;

/// The node of a holder. A transaction of the application that `check`s its path and version is
/// executed only while the lock is held.
// Also describes the node of a contender, before it holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OwnerNode {
    /// The absolute path of the node, with the chroot.
    pub path: Box<str>,
    /// The transaction that created it. It grows each time another client takes the lock.
    pub czxid: i64,
    /// The version of its data.
    pub version: i32,
    /// Its place in the queue.
    pub(super) sequence: i32,
}

/// The node of a hold, and the watch on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeldNode {
    pub(super) owner: OwnerNode,
    pub(super) watch: NodeWatch,
}

impl ZooKeeperHold {
    /// Returns when to watch the node.
    pub(super) fn watch_deadline(&self) -> Option<Instant> {
        (self.node.watch == NodeWatch::None).then_some(self.watch_at)
    }
}

impl ZooKeeper {
    /// Watches the node of a long hold.
    pub(super) fn watch_own_node(&mut self, env: &mut ZooKeeperEnv) {
        let Some(hold) = &mut self.hold else { return };
        if hold.node.watch == NodeWatch::None && hold.watch_at <= env.now {
            let path = &hold.node.owner.path;
            let call = ZooKeeperCall::WatchHeld;
            hold.node.watch = NodeWatch::request(env, &mut self.calls, hold.session, path, call);
        }
    }

    /// The session continues on a new connection: all watches are gone.
    pub(super) fn watches_gone(&mut self, env: &mut ZooKeeperEnv, session: SessionId) {
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.session == session) {
            hold.node.watch = NodeWatch::None;
            self.calls.forget(|call| *call == ZooKeeperCall::WatchHeld);
            self.keep(env);
        }
    }

    pub(super) fn held_watch_answered(&mut self, env: &mut ZooKeeperEnv, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        hold.node.watch = NodeWatch::None;
        match reply {
            Reply::Refused(ErrorCode::NO_NODE) => self.lost(env, Loss::Gone),
            Reply::Done(ReplyBody::Data { stat, .. }) => {
                hold.node.watch = NodeWatch::Open;
                if hold.write.is_none() {
                    // Another client may have written the node.
                    hold.node.owner.version = stat.version;
                }
            }
            Reply::Unknown(_) | Reply::NotSent(_) if !env.is_up(hold.session) => {}
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                hold.watch_at = env.now + env.config.store.recheck;
            }
        }
    }

    /// Handles the reply to a write of the node, or to the read that precedes it.
    pub(super) fn hold_answered(&mut self, env: &mut ZooKeeperEnv, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        let written = match reply {
            Reply::Refused(ErrorCode::NO_NODE) => return self.lost(env, Loss::Gone),
            Reply::Done(ReplyBody::Data { stat, .. }) => {
                hold.node.owner.version = stat.version;
                Written::Read
            }
            Reply::Done(ReplyBody::Stat(stat)) => {
                hold.node.owner.version = stat.version;
                Written::Done(stat.mzxid)
            }
            Reply::Refused(ErrorCode::BAD_VERSION) => Written::Outdated,
            Reply::Refused(_) if reply.is_refusal() => Written::Refused,
            Reply::Done(_) | Reply::Refused(_) => Written::Failed,
            Reply::Unknown(_) => Written::Unknown,
            Reply::NotSent(_) => Written::NotSent,
        };
        if !matches!(reply, Reply::Done(_)) {
            self.answer = reply.answer();
        }
        self.write_answered(env, written);
    }
}
