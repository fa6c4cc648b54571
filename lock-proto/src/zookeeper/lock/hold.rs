//! The node of a hold: reads, writes and watches, and events of its session.
// ZK4, H2

use alloc::boxed::Box;

use bytes::Bytes;

use super::wait::Watch;
use super::{Context, Hold, Lock};
use crate::lock::{ErrorClass, Loss, Written};
use crate::zookeeper::codec::{ErrorCode, MultiOp, Op, ReplyBody};
use crate::zookeeper::request::{Reply, class};

/// The node of a holder. Transactions of the application that `check` its path and version are
/// executed only while it still holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OwnerNode {
    /// The absolute path of the node, with the chroot.
    pub path: Box<str>,
    /// The transaction that created it. It grows each time another client takes the lock.
    pub czxid: i64,
    /// The version of its data.
    pub version: i32,
}

impl Context {
    /// Writes this value to the node of a hold, or reads the node.
    pub(super) fn write_node(&mut self, hold: &Hold, value: Option<Bytes>) -> Option<u64> {
        let path = hold.node.path.clone();
        let op = match value {
            Some(data) => Op::Write(MultiOp::SetData { path, data, version: hold.node.version }),
            None => Op::GetData { path, watch: false },
        };
        self.send(hold.session, op)
    }
}

impl Lock {
    /// Watches the node of a long hold.
    pub(super) fn watch_node(&mut self, ctx: &mut Context) {
        if let Some(hold) = &mut self.hold
            && hold.watch == Watch::None
            && hold.watch_at <= ctx.now
        {
            hold.watch = Watch::request(ctx, hold.session, &hold.node.path);
        }
    }

    pub(super) fn hold_answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        if let Reply::Failed(ErrorCode::NO_NODE) = reply {
            return self.lose(ctx, Loss::Gone);
        }
        if hold.watch.awaits(serial) {
            hold.watch = Watch::None;
            match reply {
                Reply::Done(ReplyBody::Data { stat, .. }) => {
                    hold.watch = Watch::Open;
                    if hold.write.is_none() {
                        // Another client may have written the node.
                        hold.node.version = stat.version;
                    }
                }
                Reply::Done(_) | Reply::Failed(_) => hold.watch_at = ctx.now + ctx.config.store.recheck,
                Reply::Unknown(_) | Reply::NotSent(_) => {}
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
            Reply::Failed(ErrorCode::BAD_VERSION) => Written::Outdated,
            Reply::Failed(code) if class(*code) == ErrorClass::Refused => Written::Refused,
            Reply::Done(_) | Reply::Failed(_) => Written::Failed,
            Reply::Unknown(_) => Written::Unknown,
            Reply::NotSent(_) => Written::NotSent,
        };
        if !matches!(reply, Reply::Done(_)) {
            self.store.answer = reply.answer();
        }
        self.write_answered(ctx, written);
    }

    /// The watch on the node was triggered.
    pub(super) fn own_node_changed(&mut self, ctx: &mut Context, changed: bool) {
        let Some(hold) = &mut self.hold else { return };
        if !changed {
            return self.lose(ctx, Loss::Gone);
        }
        hold.watch = Watch::request(ctx, hold.session, &hold.node.path);
    }
}
