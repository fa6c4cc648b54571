//! The node of a hold: reads, writes and watches, and events of its session.
// ZK4, H2

use alloc::boxed::Box;

use bytes::Bytes;

use super::wait::Watch;
use super::{Env, Hold, Nodes, ZooKeeper, ZooKeeperCall};
use crate::lock::{Keep, Loss, Written};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, MultiOp, Op, ReplyBody};
use crate::zookeeper::path::Queue;
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

impl Keep<Nodes> for Watch {
    fn work(queued: &mut ZooKeeper, env: &mut Env) {
        if let Some(hold) = &mut queued.hold
            && hold.watch == Self::None
            && hold.watch_at <= env.now
        {
            let (calls, path) = (&mut queued.calls, &hold.node.path);
            hold.watch = Self::request(env, calls, hold.session, path, ZooKeeperCall::WatchHeld);
        }
    }

    fn deadline(hold: &Hold) -> Option<Instant> {
        Some(hold.watch_at).filter(|_| hold.watch == Self::None)
    }

    fn write(queued: &mut ZooKeeper, env: &mut Env, value: Option<Bytes>) -> bool {
        let Some(hold) = &queued.hold else { return false };
        let path = hold.node.path.clone();
        let op = match value {
            Some(data) => Op::Write(MultiOp::SetData { path, data, version: hold.node.version }),
            None => Op::GetData { path, watch: false },
        };
        let call = env.send(hold.session, op);
        if let Some(call) = call {
            queued.calls.put(call, ZooKeeperCall::Write);
        }
        call.is_some()
    }

    fn up(queued: &mut ZooKeeper, _: &mut Env) {
        if let Some(hold) = &mut queued.hold {
            hold.watch = Self::None;
        }
        queued.calls.forget(|call| *call == ZooKeeperCall::WatchHeld);
    }

    fn owner(_: &Queue, hold: &Hold, _: &Env) -> Option<OwnerNode> {
        Some(hold.node.clone())
    }
}

impl ZooKeeper {
    pub(super) fn held_watch_answered(&mut self, env: &mut Env, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        hold.watch = Watch::None;
        match reply {
            Reply::Refused(ErrorCode::NO_NODE) => self.lost(env, Loss::Gone),
            Reply::Done(ReplyBody::Data { stat, .. }) => {
                hold.watch = Watch::Open;
                if hold.write.is_none() {
                    // Another client may have written the node.
                    hold.node.version = stat.version;
                }
            }
            Reply::Unknown(_) | Reply::NotSent(_) if !env.is_up(hold.session) => {}
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                hold.watch_at = env.now + env.config.store.recheck;
            }
        }
    }

    /// Handles the reply to a write of the node, or to the read that precedes it.
    pub(super) fn hold_answered(&mut self, env: &mut Env, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        let written = match reply {
            Reply::Refused(ErrorCode::NO_NODE) => return self.lost(env, Loss::Gone),
            Reply::Done(ReplyBody::Data { stat, .. }) => {
                hold.node.version = stat.version;
                Written::Read
            }
            Reply::Done(ReplyBody::Stat(stat)) => {
                hold.node.version = stat.version;
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
