//! What a lock of your own on etcd implements.

use alloc::vec::Vec;
use core::fmt::Debug;

use super::context::Context;
use crate::own::Call;
use lock_proto::Instant;
use lock_proto::etcd::message::WatchEvent;
use lock_proto::etcd::{RpcReply, Status};

/// One acquisition of a lock of your own on etcd, from the request to its end.
///
/// As for [locks on Redis](crate::own::OwnLock), the world clones the value that it was given
/// for each acquisition, and connections, failover, waits and events are done for you. See
/// [`own::etcd`](super) for an example.
pub trait OwnLock: Clone + Debug {
    /// The application wants the lock: make an attempt. Called again after [`Context::retry`].
    fn acquire(&mut self, cx: &mut Context<'_>);

    /// The application returns the lock, held or lost. Report the end by [`Context::released`].
    ///
    /// Also called if the lock is granted after the application gave up.
    fn release(&mut self, cx: &mut Context<'_>);

    /// A call was answered, or has failed.
    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RpcReply, Failed>);

    /// The reply to [`Context::keep_alive`], which was sent then: the TTL of the lease in seconds,
    /// 0 if the lease does not exist. If its connection ends, there is no reply.
    fn handle_keep_alive(&mut self, _cx: &mut Context<'_>, _lease: i64, _sent: Instant, _ttl: i64) {}

    /// A watch of [`Context::watch`] reports something.
    fn handle_watch(&mut self, _cx: &mut Context<'_>, _tag: u64, _watched: Watched) {}

    /// A timer of [`Context::after`] is due.
    fn handle_timeout(&mut self, _cx: &mut Context<'_>, _timer: u64) {}

    /// The application gave up: its wait ended, it dropped the acquisition or guard, or the client
    /// shuts down. By default releases a lock that was granted, and does nothing else. Replies and
    /// timers still arrive.
    fn abandon(&mut self, cx: &mut Context<'_>) {
        if cx.is_granted() {
            self.release(cx);
        }
    }

    /// The application wants a full TTL from now, less at most a tenth for drift. By default this
    /// fails.
    ///
    /// Each call must end within a TTL by [`Context::extended`] or [`Context::extend_failed`],
    /// unless the hold ends before or a reply is missing.
    fn extend(&mut self, cx: &mut Context<'_>) {
        cx.extend_failed();
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Failed {
    /// The connection ended before the reply. The call was executed, or will be, or will not.
    Lost,
    /// The cluster answered with this status.
    Refused(Status),
}

/// What a watch reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Watched {
    /// The watch is open. It reports every change after this revision of the store, or from the
    /// revision on that it was opened for.
    Open(i64),
    /// Changes of the key.
    Changed(Vec<WatchEvent>),
    /// The watch has ended: with its connection, or by the member.
    Ended,
}
