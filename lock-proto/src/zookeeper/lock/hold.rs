//! The node of a hold: reads, writes and watches, and events of its session.
// ZK4, H2

use alloc::boxed::Box;

use bytes::Bytes;

use super::wait::Watch;
use super::{Context, Hold, Lock, Nodes};
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
    fn work(lock: &mut Lock, ctx: &mut Context) {
        if let Some(hold) = &mut lock.hold
            && hold.watch == Self::None
            && hold.watch_at <= ctx.now
        {
            hold.watch = Self::request(ctx, hold.session, &hold.node.path);
        }
    }

    fn deadline(hold: &Hold) -> Option<Instant> {
        Some(hold.watch_at).filter(|_| hold.watch == Self::None)
    }

    fn awaits(&self, serial: u64) -> bool {
        *self == Self::Requested(serial)
    }

    fn write(_: &Queue, ctx: &mut Context, hold: &Hold, value: Option<Bytes>) -> Option<u64> {
        let path = hold.node.path.clone();
        let op = match value {
            Some(data) => Op::Write(MultiOp::SetData { path, data, version: hold.node.version }),
            None => Op::GetData { path, watch: false },
        };
        ctx.send(hold.session, op)
    }

    fn answered(lock: &mut Lock, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Some(hold) = &mut lock.hold else { return };
        if let Reply::Refused(ErrorCode::NO_NODE) = reply {
            return lock.lose(ctx, Loss::Gone);
        }
        if hold.watch.awaits(serial) {
            hold.watch = Self::None;
            match reply {
                Reply::Done(ReplyBody::Data { stat, .. }) => {
                    hold.watch = Self::Open;
                    if hold.write.is_none() {
                        // Another client may have written the node.
                        hold.node.version = stat.version;
                    }
                }
                Reply::Unknown(_) | Reply::NotSent(_) if !ctx.is_up(hold.session) => {}
                Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                    hold.watch_at = ctx.now + ctx.config.store.recheck;
                }
            }
            return;
        }
        let written = match reply {
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
            lock.store.answer = reply.answer();
        }
        lock.write_answered(ctx, written);
    }

    fn up(lock: &mut Lock, _: &mut Context) {
        if let Some(hold) = &mut lock.hold {
            hold.watch = Self::None;
        }
    }

    fn owner(_: &Queue, hold: &Hold, _: &Context) -> Option<OwnerNode> {
        Some(hold.node.clone())
    }
}
